// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/sort_few.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

__extension__ typedef unsigned __int128 wide_unsigned;

/// Arithmetic modulo the prime 2^61 - 1.
struct prime_field {
  static constexpr std::uint64_t p = (std::uint64_t{1} << 61) - 1;
  static constexpr std::uint64_t reduce(std::uint64_t x) noexcept {
    x = (x & p) + (x >> 61);
    return x >= p ? x - p : x;
  }
  static constexpr std::uint64_t subtract(std::uint64_t a, std::uint64_t b) noexcept {
    return a >= b ? a - b : a + p - b;
  }
  static constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b) noexcept {
    const wide_unsigned x = static_cast<wide_unsigned>(a) * b;
    return reduce(reduce(static_cast<std::uint64_t>(x) & p) + static_cast<std::uint64_t>(x >> 61));
  }
  /// A fixed pseudo-random element for a number (the finaliser of splitmix64).
  static constexpr std::uint64_t element(std::uint64_t x) noexcept {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return reduce(x ^ (x >> 31));
  }
};

/// The seeds of the two densities by which a partition is proved.
inline constexpr std::array<std::uint64_t, 2> measure_seeds{0x243f6a8885a308d3u, 0x13198a2e03707344u};

/// The integral over a box of a product of one pseudo-random density a dimension: additive over disjoint
/// boxes.
[[nodiscard]] inline std::uint64_t random_measure(const chunk& box, std::uint64_t seed) noexcept {
  std::uint64_t product = 1;
  for (int d = 0; d < box.sizes.rank(); ++d) {
    const auto salt = seed + static_cast<std::uint64_t>(d + 1) * 0x9e3779b97f4a7c15u;
    const auto begin = static_cast<std::uint64_t>(box.offsets[d]);
    const auto end = begin + static_cast<std::uint64_t>(box.sizes[d]);
    product = prime_field::multiply(
        product, prime_field::subtract(prime_field::element(salt ^ end), prime_field::element(salt ^ begin)));
  }
  return product;
}

/// The measure of a progression's boxes along one dimension, where its axes that move along it, shorter steps
/// first, begin at `axis`: those that fill their step without a gap make one interval, others are counted
/// out.
[[nodiscard]] inline std::uint64_t measure_along(list_view<const chunk_axis> axes, std::size_t axis,
                                                 std::int64_t begin, std::int64_t size,
                                                 std::uint64_t salt) noexcept {
  while (axis < axes.size() && axes[axis].offset_step == size) size *= axes[axis++].count;
  if (axis == axes.size())
    return prime_field::subtract(prime_field::element(salt ^ static_cast<std::uint64_t>(begin + size)),
                                 prime_field::element(salt ^ static_cast<std::uint64_t>(begin)));
  std::uint64_t sum = 0;
  // The longest steps are counted out last, so that shorter ones behind them may still fill a gap.
  const auto& longest = axes.back();
  for (std::int32_t i = 0; i < longest.count; ++i)
    sum = prime_field::reduce(
        sum + measure_along(axes.first(axes.size() - 1), axis, begin + i * longest.offset_step, size, salt));
  return sum;
}

/// The axes of a progression that move along a dimension, shorter steps first.
[[nodiscard]] inline std::size_t axes_along(
    const chunk_progression& p, int dimension,
    std::array<chunk_axis, chunk_progression::max_axes>& out) noexcept {
  std::size_t n = 0;
  for (const auto& a : p)
    if (a.dimension == dimension) out[n++] = a;
  sort_few(out.begin(), out.begin() + n,
           [](const auto& a, const auto& b) { return a.offset_step < b.offset_step; });
  return n;
}

/// The measure of all boxes of a progression, those of replicas counted once. O(axes) where the boxes of each
/// dimension are neighbours, whatever their number.
[[nodiscard]] inline std::uint64_t random_measure(const chunk_progression& p, std::uint64_t seed) noexcept {
  if (p.axis_count == 0) return random_measure(p.first, seed);
  std::uint64_t product = 1;
  std::array<chunk_axis, chunk_progression::max_axes> axes;
  for (int d = 0; d < p.first.sizes.rank(); ++d) {
    const auto n = axes_along(p, d, axes);
    const auto salt = seed + static_cast<std::uint64_t>(d + 1) * 0x9e3779b97f4a7c15u;
    product = prime_field::multiply(
        product, measure_along({axes.data(), n}, 0, p.first.offsets[d], p.first.sizes[d], salt));
  }
  return product;
}

/// True if the boxes of a progression, replicas counted once, are a partition of the outer one because they lie
/// side by side. O(axes).
[[nodiscard]] inline bool fills(const chunk_progression& p, const chunk& outer) noexcept {
  std::array<chunk_axis, chunk_progression::max_axes> axes;
  if (!(p.first.offsets == outer.offsets)) return false;
  for (int d = 0; d < p.first.sizes.rank(); ++d) {
    auto size = p.first.sizes[d];
    const auto n = axes_along(p, d, axes);
    for (std::size_t k = 0; k < n; ++k) {
      if (axes[k].offset_step != size) return false;
      size *= axes[k].count;
    }
    if (size != outer.sizes[d]) return false;
  }
  return true;
}

/// True if the boxes are a partition of the outer one. Costs O(boxes x dimensions), whatever their
/// arrangement: the sum of the boxes' indicator functions is that of the outer one if and only if their
/// integrals agree for every density. With two pseudo-random densities modulo 2^61 - 1 a wrong answer has
/// a probability below 2^-100, by the lemma of Schwartz and Zippel (J. T. Schwartz, Fast probabilistic
/// algorithms for verification of polynomial identities, JACM 27(4), 1980).
template <class BoxAt>
[[nodiscard]] bool tiles(const chunk& outer, std::size_t count, BoxAt&& box_at) noexcept {
  for (const std::uint64_t seed : measure_seeds) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum = prime_field::reduce(sum + random_measure(box_at(i), seed));
    if (sum != random_measure(outer, seed)) return false;
  }
  return true;
}

/// Divides the outer box along the boundaries of boxes until it finds a place where boxes meet, or that none
/// covers. Only for messages about what is wrong; O(n log n) where boxes are nearly disjoint.
class box_search {
 public:
  explicit box_search(list_view<const chunk> boxes) : boxes_(boxes) {}

  /// Two boxes with a common element.
  [[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> overlap(const chunk& outer) const {
    return overlap(outer, meeting(outer, all()));
  }
  /// A part of the outer box that no box covers.
  [[nodiscard]] std::optional<chunk> uncovered(const chunk& outer) const {
    if (outer.empty()) return std::nullopt;
    return uncovered(outer, meeting(outer, all()));
  }

 private:
  using indices = std::vector<std::uint32_t>;

  [[nodiscard]] indices all() const {
    indices out(boxes_.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint32_t>(i);
    return out;
  }
  [[nodiscard]] indices meeting(const chunk& outer, const indices& among) const {
    indices out;
    for (const auto i : among)
      if (intersect(boxes_[i], outer)) out.push_back(i);
    return out;
  }
  /// The middle one of the boundaries inside of the outer box, in the dimension that has most of them.
  [[nodiscard]] std::optional<std::pair<int, std::int64_t>> cut(const chunk& outer,
                                                                const indices& among) const {
    std::vector<std::int64_t> best;
    int dimension = -1;
    std::size_t max_inside = 0;
    for (int d = 0; d < outer.sizes.rank(); ++d) {
      const auto begin = outer.offsets[d];
      const auto end = begin + outer.sizes[d];
      std::vector<std::int64_t> inside;
      for (const auto i : among)
        for (const auto at : {boxes_[i].offsets[d], boxes_[i].offsets[d] + boxes_[i].sizes[d]})
          if (at > begin && at < end) inside.push_back(at);
      if (inside.size() > max_inside) max_inside = inside.size(), dimension = d, best = std::move(inside);
    }
    if (dimension < 0) return std::nullopt;
    const auto middle = best.begin() + static_cast<std::ptrdiff_t>(best.size() / 2);
    std::nth_element(best.begin(), middle, best.end());
    return std::pair(dimension, *middle);
  }
  static std::pair<chunk, chunk> halves(const chunk& outer, std::pair<int, std::int64_t> at) {
    chunk low = outer;
    chunk high = outer;
    const auto [d, where] = at;
    low.sizes.set(d, where - outer.offsets[d]);
    high.offsets.set(d, where);
    high.sizes.set(d, outer.offsets[d] + outer.sizes[d] - where);
    return {low, high};
  }
  [[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> overlap(const chunk& outer,
                                                                           const indices& among) const {
    if (among.size() < 2) return std::nullopt;
    const auto at = among.size() <= 16 ? std::nullopt : cut(outer, among);
    if (!at) {
      for (std::size_t i = 0; i < among.size(); ++i)
        for (std::size_t k = i + 1; k < among.size(); ++k)
          if (intersect(boxes_[among[i]], boxes_[among[k]])) return std::pair(among[i], among[k]);
      return std::nullopt;
    }
    const auto [low, high] = halves(outer, *at);
    if (const auto found = overlap(low, meeting(low, among))) return found;
    return overlap(high, meeting(high, among));
  }
  [[nodiscard]] std::optional<chunk> uncovered(const chunk& outer, const indices& among) const {
    if (among.empty()) return outer;
    for (const auto i : among)
      if (intersect(boxes_[i], outer) == outer) return std::nullopt;
    if (tiles(outer, among.size(), [&](std::size_t i) { return *intersect(boxes_[among[i]], outer); }))
      return std::nullopt;
    const auto at = cut(outer, among);
    if (!at) return std::nullopt;
    const auto [low, high] = halves(outer, *at);
    if (const auto found = uncovered(low, meeting(low, among))) return found;
    return uncovered(high, meeting(high, among));
  }

  list_view<const chunk> boxes_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
