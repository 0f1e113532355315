// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/system/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A box of a stored, row-major tensor, in bytes: where its bytes lie in the tensor, and which of them lie in
/// a part of the tensor. "Packed" positions count the box's own bytes in row-major order: they ascend with
/// stored positions.
class byte_box {
 public:
  /// All of an item of this size.
  explicit byte_box(std::uint64_t bytes) noexcept {
    full_[0] = size_[0] = bytes;
    finish();
  }
  /// `wanted` and `stored` are boxes of the same global tensor. Nothing if `wanted` is not inside, or is cut
  /// within the bytes of a packed type. @pre the stored box has a size that was checked.
  static std::optional<byte_box> make(dtype type, const chunk& stored, const chunk& wanted) noexcept {
    const int rank = stored.sizes.rank();
    if (wanted.sizes.rank() != rank || wanted.offsets.rank() != rank || stored.offsets.rank() != rank)
      return std::nullopt;
    if (rank == 0 || wanted == stored) return byte_box(bytes_of(type, stored.volume()));
    byte_box b;
    b.rank_ = static_cast<std::size_t>(rank);
    for (int d = 0; d < rank; ++d) {
      const auto i = static_cast<std::size_t>(d);
      const auto offset = wanted.offsets[d] - stored.offsets[d];
      if (offset < 0 || wanted.sizes[d] < 0 || wanted.sizes[d] > stored.sizes[d] ||
          offset > stored.sizes[d] - wanted.sizes[d])
        return std::nullopt;
      b.full_[i] = static_cast<std::uint64_t>(stored.sizes[d]);
      b.offset_[i] = static_cast<std::uint64_t>(offset);
      b.size_[i] = static_cast<std::uint64_t>(wanted.sizes[d]);
    }
    b.join();
    const auto last = b.rank_ - 1;
    const auto granule = static_cast<std::uint64_t>(granule_of(type));
    for (auto* n : {&b.full_[last], &b.offset_[last], &b.size_[last]}) {
      if (*n % granule != 0) return std::nullopt;
      *n = bytes_of(type, static_cast<std::int64_t>(*n));
    }
    b.finish();
    return b;
  }

  friend bool operator==(const byte_box&, const byte_box&) noexcept = default;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return inner_[0] * size_[0]; }
  /// Bytes that lie one after another in the tensor, from packed multiples of this on.
  [[nodiscard]] std::uint64_t run() const noexcept { return size_[rank_ - 1]; }
  /// How many bytes of the box lie before a position of the tensor.
  [[nodiscard]] std::uint64_t before(std::uint64_t position) const noexcept {
    std::uint64_t count = 0;
    for (std::size_t d = 0; d < rank_; ++d) {
      const auto index = stride_[d] == 1 ? position : position / stride_[d];
      if (index < offset_[d]) return count;
      if (index - offset_[d] >= size_[d]) return count + size_[d] * inner_[d];
      count += (index - offset_[d]) * inner_[d];
      position -= index * stride_[d];
    }
    return count;
  }
  /// Where a byte of the box lies in the tensor. @pre packed < bytes()
  [[nodiscard]] std::uint64_t position(std::uint64_t packed) const noexcept {
    std::uint64_t at = 0;
    for (std::size_t d = 0; d < rank_; ++d) {
      const auto index = inner_[d] == 1 ? packed : packed / inner_[d];
      packed -= index * inner_[d];
      at += (offset_[d] + index) * stride_[d];
    }
    return at;
  }

 private:
  using numbers = std::array<std::uint64_t, extents::max_rank>;
  byte_box() noexcept = default;
  /// Joins dimensions that are wanted completely to the ones before: rows that fill no whole bytes may do so together.
  /// @pre not empty
  void join() noexcept {
    while (rank_ > 1 && size_[rank_ - 1] == full_[rank_ - 1]) {
      const auto inner = full_[--rank_];
      full_[rank_ - 1] *= inner;
      offset_[rank_ - 1] *= inner;
      size_[rank_ - 1] *= inner;
    }
  }
  /// Computes the products.
  void finish() noexcept {
    std::uint64_t stride = 1;
    std::uint64_t inner = 1;
    for (auto d = rank_; d-- > 0;) {
      stride_[d] = stride;
      inner_[d] = inner;
      stride *= full_[d];
      inner *= size_[d];
    }
  }

  std::size_t rank_ = 1;
  numbers full_{};    ///< sizes of the tensor; the last in bytes
  numbers offset_{};  ///< of the box
  numbers size_{};    ///< of the box
  numbers stride_{};  ///< bytes of the tensor for one step
  numbers inner_{};   ///< bytes of the box for one step
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
