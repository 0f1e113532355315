// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

/// Hashes and encodings of the scripted S3 server: its own code path, so that a mistake of the library's
/// signer is not made twice.
namespace cairn_test::s3 {

/// A running digest of OpenSSL's.
class running_hash {
 public:
  explicit running_hash(const EVP_MD* kind) : context_(EVP_MD_CTX_new()) {
    if (context_ == nullptr || EVP_DigestInit_ex(context_, kind, nullptr) != 1)
      throw std::runtime_error("no digest");
  }
  running_hash(const running_hash&) = delete;
  running_hash& operator=(const running_hash&) = delete;
  ~running_hash() { EVP_MD_CTX_free(context_); }
  void add(std::string_view data) { EVP_DigestUpdate(context_, data.data(), data.size()); }
  /// The raw bytes; may be called once.
  std::string finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_, out.data(), &size);
    return {reinterpret_cast<const char*>(out.data()), size};
  }

 private:
  EVP_MD_CTX* context_;
};

inline std::string hash_of(const EVP_MD* kind, std::string_view data) {
  running_hash hash(kind);
  hash.add(data);
  return hash.finish();
}

inline std::string hmac_sha256(std::string_view key, std::string_view data) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(data.data()), data.size(), out.data(), &size);
  return {reinterpret_cast<const char*>(out.data()), size};
}

inline std::string hex_of(std::string_view raw) {
  static constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    out += digits[byte >> 4U];
    out += digits[byte & 15U];
  }
  return out;
}

inline std::string base64_of(std::string_view raw) {
  std::string out(4 * ((raw.size() + 2) / 3) + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(raw.data()), static_cast<int>(raw.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

inline std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty()) return std::string();
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out(text.size() / 4 * 3 + 1, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  std::size_t length = static_cast<std::size_t>(size);
  for (std::size_t i = text.size(); i > 0 && text[i - 1] == '=' && length > 0; --i) --length;
  out.resize(length);
  return out;
}

/// For reflected_crc: row n has what a byte gives that n bytes follow.
template <class Word, Word Polynomial>
struct crc_tables {
  crc_tables() {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      Word value = static_cast<Word>(byte);
      for (int bit = 0; bit < 8; ++bit) value = (value & 1U) != 0 ? (value >> 1U) ^ Polynomial : value >> 1U;
      rows[byte] = value;
    }
    for (std::size_t at = 256; at < 8 * 256; ++at)
      rows[at] = (rows[at - 256] >> 8U) ^ rows[rows[at - 256] & 255U];
  }
  Word rows[8 * 256];
};

/// A reflected CRC with all bits set before and inverted after; eight bytes at a time. A tenth of the time of some tests, as they
/// are not optimised: so it has no calls, and no checks of a sanitizer.
template <class Word, Word Polynomial>
__attribute__((no_sanitize("address", "undefined"))) Word reflected_crc(std::string_view data, Word crc = 0) {
  static const crc_tables<Word, Polynomial> tables;
  const Word* const row = tables.rows;
  crc = static_cast<Word>(~crc);
  const char* at = data.data();
  std::size_t left = data.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t w = 0;
    std::memcpy(&w, at, 8);
    w ^= crc;
    crc = row[7 * 256 + (w & 255U)] ^ row[6 * 256 + (w >> 8U & 255U)] ^ row[5 * 256 + (w >> 16U & 255U)] ^
          row[4 * 256 + (w >> 24U & 255U)] ^ row[3 * 256 + (w >> 32U & 255U)] ^
          row[2 * 256 + (w >> 40U & 255U)] ^ row[256 + (w >> 48U & 255U)] ^ row[w >> 56U];
  }
  for (; left > 0; --left, ++at) crc = (crc >> 8U) ^ row[(crc ^ static_cast<unsigned char>(*at)) & 255U];
  return static_cast<Word>(~crc);
}

template <class Word>
std::string big_endian(Word value) {
  std::string out;
  for (std::size_t i = sizeof(Word); i > 0; --i) out += static_cast<char>((value >> (8 * (i - 1))) & 255U);
  return out;
}

/// The raw checksum that S3 calls by this name (crc32, crc32c, crc64nvme, sha1, sha256), or nothing.
inline std::optional<std::string> checksum_of(std::string_view algorithm, std::string_view data) {
  if (algorithm == "crc32") return big_endian(reflected_crc<std::uint32_t, 0xEDB88320U>(data));
  if (algorithm == "crc32c") return big_endian(reflected_crc<std::uint32_t, 0x82F63B78U>(data));
  if (algorithm == "crc64nvme") return big_endian(reflected_crc<std::uint64_t, 0x9A6C9329AC4BC9B5U>(data));
  if (algorithm == "sha1") return hash_of(EVP_sha1(), data);
  if (algorithm == "sha256") return hash_of(EVP_sha256(), data);
  return std::nullopt;
}

/// Everything but A-Z a-z 0-9 - . _ ~ as %XX, and `/` too unless it is kept.
inline std::string percent_encoded(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (keep_slashes && c == '/');
    if (plain) {
      out += c;
    } else {
      std::array<char, 4> buffer{};
      std::snprintf(buffer.data(), buffer.size(), "%%%02X",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += buffer.data();
    }
  }
  return out;
}

/// Nothing where a % is not followed by two hexadecimal digits. `+` stays: S3 reads it so in a path.
inline std::optional<std::string> percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = digit(text[i + 1]);
    const int low = digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

}  // namespace cairn_test::s3
