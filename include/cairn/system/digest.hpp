// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>

#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
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

namespace detail {
/// An XXH3-64 that is fed in pieces. One thread at a time.
class hash_state {
 public:
  /// @throws storage_error (storage_out_of_memory)
  hash_state() : state_(XXH3_createState()) {
    if (state_ == nullptr)
      fail(error_id::storage_out_of_memory, "there is no memory for the state of a digest");
    reset();
  }
  void reset() noexcept { XXH3_64bits_reset(state_.get()); }
  void put(const void* bytes, std::size_t count) noexcept { XXH3_64bits_update(state_.get(), bytes, count); }
  /// Of what was put since the last reset.
  [[nodiscard]] std::uint64_t value() const noexcept { return XXH3_64bits_digest(state_.get()); }

 private:
  struct free_state {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, free_state> state_;
};
}  // namespace detail

/// The digest of things that are put one after another: that of their bytes in one piece.
class digest_stream {
 public:
  digest_stream& put(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    add(text.data(), text.size());
    return *this;
  }
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  digest_stream& put(T value) {
    add(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  [[nodiscard]] std::uint64_t value() noexcept {
    if (!state_) return digest(std::string_view(waiting_.data(), used_));
    state_->put(waiting_.data(), used_);
    used_ = 0;
    return state_->value();
  }

 private:
  void add(const char* from, std::size_t bytes) {
    if (bytes > waiting_.size() - used_) {
      make_room();
      if (bytes > waiting_.size()) {
        state_->put(from, bytes);
        return;
      }
    }
    std::memcpy(waiting_.data() + used_, from, bytes);
    used_ += bytes;
  }
  void make_room() {
    if (!state_) state_.emplace();
    state_->put(waiting_.data(), used_);
    used_ = 0;
  }

  std::array<char, 2048> waiting_{};
  std::size_t used_ = 0;
  std::optional<detail::hash_state> state_;  ///< when more was put than waits
};

}  // namespace v1
}  // namespace cairn
