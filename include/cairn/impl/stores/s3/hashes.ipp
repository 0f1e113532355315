// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::string hex_text(std::span<const unsigned char> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const auto b : bytes) text.append({digits[b >> 4], digits[b & 15]});
  return text;
}

CAIRN_BODY std::string base64_text(std::span<const unsigned char> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int n = ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(),
                                  static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(n));
  return text;
}

[[noreturn]] inline void fail_hashing() {
  fail(error_id::storage_out_of_memory,
       "OpenSSL could not compute a SHA-256: is it built without it, or out of memory?");
}

CAIRN_BODY std::string sha256_text(std::span<const std::span<const std::byte>> pieces) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)> context(::EVP_MD_CTX_new(),
                                                                          &::EVP_MD_CTX_free);
  sha256_bytes out{};
  bool fine = context && ::EVP_DigestInit_ex(context.get(), ::EVP_sha256(), nullptr) == 1;
  for (const auto& piece : pieces)
    fine = fine && (piece.empty() || ::EVP_DigestUpdate(context.get(), piece.data(), piece.size()) == 1);
  if (!fine || ::EVP_DigestFinal_ex(context.get(), out.data(), nullptr) != 1) fail_hashing();
  return hex_text(out);
}

CAIRN_BODY std::string sha256_text(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return sha256_text({&bytes, 1});
}

CAIRN_BODY std::string md5_text(std::string_view text) {
  std::array<unsigned char, 16> out{};
  unsigned int n = 0;
  if (::EVP_Digest(text.data(), text.size(), out.data(), &n, ::EVP_md5(), nullptr) != 1 || n != out.size())
    return {};
  return base64_text(out);
}

CAIRN_BODY sha256_bytes hmac_sha256(std::span<const unsigned char> key, std::string_view text) {
  sha256_bytes out{};
  unsigned int n = 0;
  if (::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data(), &n) == nullptr)
    fail_hashing();
  return out;
}

CAIRN_BODY std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1)
    fail(error_id::storage_io, "OpenSSL has no random numbers");
  return hex_text(bytes);
}

/// The tables of CRC-32C for eight bytes at a time.
inline constexpr auto crc32c_tables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1) != 0 ? 0x82F63B78u : 0u);
    t[0][i] = c;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xff];
  return t;
}();

CAIRN_BODY std::uint32_t crc32c_by_table(std::uint32_t c, std::span<const std::byte> bytes) noexcept {
  const auto& t = crc32c_tables;
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t w = 0;
    for (unsigned i = 0; i < 8; ++i) w |= static_cast<std::uint64_t>(p[i]) << (8 * i);
    w ^= c;
    c = 0;
    for (unsigned i = 0; i < 8; ++i) c ^= t[7 - i][(w >> (8 * i)) & 0xff];
  }
  for (; n != 0; --n, ++p) c = (c >> 8) ^ t[0][(c ^ *p) & 0xff];
  return c;
}

CAIRN_BODY std::uint32_t crc32c(std::span<const std::span<const std::byte>> pieces) noexcept {
  std::uint32_t c = ~0u;
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) {
    for (const auto& piece : pieces) c = crc32c_by_instruction(c, piece);
    return ~c;
  }
#endif
  for (const auto& piece : pieces) c = crc32c_by_table(c, piece);
  return ~c;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
