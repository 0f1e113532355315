// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace cairn {
inline namespace v1 {

/// Bytes of a block: the unit in which data is digested, counted from the beginning of each item. Part of the
/// format.
inline constexpr std::uint64_t digest_block_bytes = std::uint64_t{1} << 20;

/// XXH3-64 (https://github.com/Cyan4973/xxHash, seed 0) of the bytes. About 10 GB/s from memory.
[[nodiscard]] inline std::uint64_t digest(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}
[[nodiscard]] inline std::uint64_t digest(std::string_view text) noexcept {
  return XXH3_64bits(text.data(), text.size());
}
/// Digest of an item: that of the digests of its blocks, as little-endian numbers.
[[nodiscard]] inline std::uint64_t digest_of_blocks(std::span<const std::uint64_t> blocks) noexcept {
  return digest(std::as_bytes(blocks));
}
/// Blocks of an item of this size; none for an empty one.
[[nodiscard]] constexpr std::uint64_t block_count(std::uint64_t bytes) noexcept {
  return bytes / digest_block_bytes + (bytes % digest_block_bytes != 0);
}

/// A digest of things that are put one after another; for structure hashes. Collects the bytes, so for small
/// things only.
class digest_stream {
 public:
  digest_stream& put(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  digest_stream& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return digest(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace v1
}  // namespace cairn
