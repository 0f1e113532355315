// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/system/error.hpp>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

using sha256_bytes = std::array<unsigned char, 32>;

[[nodiscard]] std::string hex_text(std::span<const unsigned char> bytes);

[[nodiscard]] std::string base64_text(std::span<const unsigned char> bytes);

/// SHA-256 of pieces, one after the other, as 64 hexadecimal digits.
[[nodiscard]] std::string sha256_text(std::span<const std::span<const std::byte>> pieces);
[[nodiscard]] std::string sha256_text(std::string_view text);

/// MD5 in base 64, as a header wants it; "" where OpenSSL has none.
[[nodiscard]] std::string md5_text(std::string_view text);

[[nodiscard]] sha256_bytes hmac_sha256(std::span<const unsigned char> key, std::string_view text);

/// Sixteen random bytes as 32 hexadecimal digits: tells apart what one writer put from what another did.
[[nodiscard]] std::string random_token();

[[nodiscard]] std::uint32_t crc32c_by_table(std::uint32_t c, std::span<const std::byte> bytes) noexcept;
#if defined(__x86_64__)
[[nodiscard, gnu::target("sse4.2")]] inline std::uint32_t crc32c_by_instruction(
    std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  std::uint64_t c = crc;
  const auto* p = bytes.data();
  std::size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t w = 0;
    std::memcpy(&w, p, 8);
    c = __builtin_ia32_crc32di(c, w);
  }
  auto c32 = static_cast<std::uint32_t>(c);
  for (; n != 0; --n, ++p) c32 = __builtin_ia32_crc32qi(c32, static_cast<unsigned char>(*p));
  return c32;
}
#endif

/// CRC-32C (Castagnoli) of pieces one after the other.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::span<const std::byte>> pieces) noexcept;
/// As S3 wants a checksum in a header: its bytes, most significant first, in base 64.
template <class Word>
[[nodiscard]] std::string checksum_text(Word crc) {
  std::array<unsigned char, sizeof(Word)> bytes{};
  for (std::size_t i = 0; i < sizeof(Word); ++i)
    bytes[i] = static_cast<unsigned char>(crc >> (8 * (sizeof(Word) - 1 - i)));
  return base64_text(bytes);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/hashes.ipp>
#endif
