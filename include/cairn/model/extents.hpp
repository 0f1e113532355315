// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Up to eight non-negative numbers: the shape of a tensor, or an offset in one. Made from any integers
/// in braces: `extents{vocab, width}`. Empty extents are the shape of a scalar (volume 1).
class extents {
 public:
  /// The most dimensions that a tensor may have.
  static constexpr int max_rank = 8;

  constexpr extents() noexcept = default;
  template <std::integral... Sizes>
    requires(sizeof...(Sizes) > 0 && sizeof...(Sizes) <= max_rank)
  extents(Sizes... sizes) : rank_(static_cast<int>(sizeof...(Sizes))) {
    int i = 0;
    ((values_[static_cast<std::size_t>(i++)] = checked(sizes)), ...);
  }
  /// From a run-time list. @throws usage_error if it is longer than eight or holds a negative number.
  explicit extents(std::span<const std::int64_t> sizes);
  /// `rank` numbers, all `value`.
  static extents filled(int rank, std::int64_t value);

  /// `rank` zeros. @pre rank is at most max_rank.
  [[nodiscard]] static constexpr extents zeros(int rank) noexcept {
    extents e;
    e.rank_ = rank;
    return e;
  }

  [[nodiscard]] constexpr int rank() const noexcept { return rank_; }
  [[nodiscard]] constexpr std::int64_t operator[](int i) const noexcept {
    return values_[static_cast<std::size_t>(i)];
  }
  /// Changes one of them. @pre 0 <= i < rank()
  constexpr void set(int i, std::int64_t value) noexcept { values_[static_cast<std::size_t>(i)] = value; }
  /// The first of rank() numbers.
  [[nodiscard]] constexpr const std::int64_t* begin() const noexcept { return values_.data(); }
  /// Behind the last one.
  [[nodiscard]] constexpr const std::int64_t* end() const noexcept { return values_.data() + rank_; }
  friend constexpr bool operator==(const extents& a, const extents& b) noexcept {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }
  /// Lexicographic; only for sorting.
  friend constexpr bool operator<(const extents& a, const extents& b) noexcept {
    for (int i = 0; i < a.rank_ && i < b.rank_; ++i)
      if (a[i] != b[i]) return a[i] < b[i];
    return a.rank_ < b.rank_;
  }

  /// The product of all numbers, or nothing if it is above 2^63 - 1.
  [[nodiscard]] std::optional<std::int64_t> checked_volume() const noexcept;
  /// The product of all numbers. @pre it is at most 2^63 - 1, which state_dict and parsers check.
  [[nodiscard]] std::int64_t volume() const noexcept { return checked_volume().value_or(0); }

 private:
  static void check_rank(std::size_t rank);
  [[noreturn]] static void fail_rank(std::size_t rank);
  [[noreturn]] static void fail_size(bool negative, std::uint64_t size);
  template <std::integral Size>
  static std::int64_t checked(Size size) {
    if (!std::in_range<std::int64_t>(size) || std::cmp_less(size, 0))
      fail_size(std::cmp_less(size, 0), static_cast<std::uint64_t>(size));
    return static_cast<std::int64_t>(size);
  }
  std::array<std::int64_t, max_rank> values_{};
  int rank_ = 0;
};

/// "[3, 4]"
[[nodiscard]] std::string to_string(const extents& e);

/// The bytes of a tensor of this shape, or nothing on overflow or where packed elements do not fill whole
/// bytes.
[[nodiscard]] std::optional<std::uint64_t> checked_bytes(dtype t, const extents& shape) noexcept;

/// An axis-aligned box of a global tensor: what one rank holds, writes or reads. Same rank as the tensor.
struct chunk {
  extents offsets;  ///< of the first element, in elements of each dimension
  extents sizes;    ///< elements in each dimension

  friend bool operator==(const chunk&, const chunk&) noexcept = default;
  friend bool operator<(const chunk& a, const chunk& b) noexcept {
    return a.offsets == b.offsets ? a.sizes < b.sizes : a.offsets < b.offsets;
  }
  /// The number of elements.
  [[nodiscard]] std::int64_t volume() const noexcept { return sizes.volume(); }
  /// True if it has no element.
  [[nodiscard]] bool empty() const noexcept { return volume() == 0; }
};

/// The box of the whole tensor.
[[nodiscard]] inline chunk whole(const extents& shape) {
  return {extents::zeros(shape.rank()), shape};
}

/// Text for messages: offsets [0, 4] sizes [2, 4].
[[nodiscard]] std::string to_string(const chunk& c);

/// True if the box lies in the tensor; overflow-safe.
[[nodiscard]] bool inside(const chunk& c, const extents& shape) noexcept;

/// The intersection, or nothing if it is empty (boxes without volume intersect nothing; scalars intersect).
[[nodiscard]] std::optional<chunk> intersect(const chunk& a, const chunk& b) noexcept;

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/extents.ipp>
#endif
