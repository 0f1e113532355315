// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>

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
/// Sorts a handful of elements; equal ones keep their order.
template <class Iterator, class Less>
constexpr void sort_few(Iterator begin, Iterator end, Less less) {
  for (auto next = begin; next != end; ++next) {
    const auto moved = *next;
    auto at = next;
    for (; at != begin && less(moved, *(at - 1)); --at) *at = *(at - 1);
    *at = moved;
  }
}
}  // namespace detail

/// A box of a stored tensor and the rank that wrote it.
struct stored_chunk {
  cairn::chunk box;  ///< in elements of the global tensor
  std::int32_t rank = 0;
  friend bool operator==(const stored_chunk&, const stored_chunk&) = default;
};

/// One axis of a progression: `count` equal steps of the rank, each of which moves the box along one
/// dimension of the tensor (shards) or leaves it where it is (replicas).
struct chunk_axis {
  std::int32_t count = 2;        ///< at least 2
  std::int32_t rank_step = 1;    ///< at least 1
  std::int32_t dimension = -1;   ///< along which the box moves; -1: replicas
  std::int64_t offset_step = 0;  ///< elements of the dimension; at least 1, for replicas 0
  friend bool operator==(const chunk_axis&, const chunk_axis&) noexcept = default;
};

/// Chunks of one size whose boxes and ranks follow from the first one: element (i0, i1, ...) has the rank
/// `rank + i0 * axes[0].rank_step + ...` and its box lies i0 * axes[0].offset_step further along
/// axes[0].dimension, and so on. A mesh of ranks gives one axis for each of its dimensions. The axes are
/// nested, outermost first: a step of an axis is longer than all that the axes behind it span, so that no
/// rank is there twice and elements are in ascending order of rank. Without axes it is a single chunk.
struct chunk_progression {
  /// The most axes of one progression; a mesh with more gives several progressions.
  static constexpr int max_axes = 5;

  chunk first;            ///< the box with the lowest rank; the others have its size
  std::int32_t rank = 0;  ///< of the first
  /// 0: a single chunk.
  std::int32_t axis_count = 0;
  std::array<chunk_axis, max_axes> axes{};  ///< only the first axis_count are meant

  /// With end(): the axes that are meant, outermost first.
  [[nodiscard]] const chunk_axis* begin() const noexcept { return axes.data(); }
  /// One past the last axis; see begin().
  [[nodiscard]] const chunk_axis* end() const noexcept { return axes.data() + axis_count; }

  /// Chunks, replicas counted. Below 2^31: every one has its own rank.
  [[nodiscard]] std::int64_t count() const noexcept;
  /// Of the element in the far corner, which has the highest rank.
  [[nodiscard]] std::int64_t last_rank() const noexcept;
  /// The box in the far corner: all of the others lie between this one and the first.
  [[nodiscard]] chunk last_box() const noexcept;
  /// The element of a number below count().
  [[nodiscard]] stored_chunk at(std::int64_t index) const noexcept;
  /// The number of the element of a rank, if there is one. O(axes).
  [[nodiscard]] std::optional<std::int64_t> index_of(std::int32_t of_rank) const noexcept;
  /// One step along the outermost axis: what remains when `index` of it is taken. @pre there is an axis.
  [[nodiscard]] chunk_progression slice(std::int32_t index) const noexcept;
  friend bool operator==(const chunk_progression& a, const chunk_progression& b) noexcept {
    return a.rank == b.rank && a.first == b.first && a.axis_count == b.axis_count &&
           std::equal(a.begin(), a.end(), b.begin());
  }
};

namespace detail {

/// Why numbers from outside are no progression; nullptr if they are one. Its boxes may still lie outside of
/// their tensor: ask for the first and the last one.
[[nodiscard]] const char* progression_problem(const chunk_progression& p) noexcept;

/// Makes `p` longer by `q`, which begins at a higher rank, where q goes on with an axis that one of them has.
[[nodiscard]] bool extend(chunk_progression& p, const chunk_progression& q) noexcept;

/// Makes `p` and `q`, which are alike and apart by one step, the two elements of a new outermost axis.
[[nodiscard]] bool stack(chunk_progression& p, const chunk_progression& q) noexcept;

/// One progression for both, left in `p`, if there is one.
[[nodiscard]] bool join(chunk_progression& p, const chunk_progression& q) noexcept;

/// Takes the first (or last) slice off a progression that has axes.
void drop_slice(chunk_progression& p, bool the_first) noexcept;

/// Joins chunks and progressions that come in ascending order of rank (as do the summaries of a lower and a
/// higher range of ranks) into few progressions. Only the last few are tried, so that each costs O(1)
/// whatever there is; what cannot be joined any more goes to `sink(const chunk_progression&)`.
template <class Sink>
class progression_joiner {
 public:
  static constexpr std::size_t window = 8;

  explicit progression_joiner(Sink sink) : sink_(std::move(sink)) {}

  /// Adds what is known not to join with what is there.
  void add(const chunk_progression& p) {
    if (open_.size() - begin_ >= window) {
      sink_(open_[begin_++]);
      if (begin_ == 4 * window) {
        open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(begin_));
        begin_ = 0;
      }
    }
    open_.push_back(p);
  }
  void push(chunk_progression p) {
    while (!join_any(p)) {
      bool shorter = false;
      // At the border of two ranges, rows of a mesh were cut: what lies behind the border may have been
      // stacked before its first row was whole.
      for (std::size_t k = open_.size(); p.axis_count > 0 && !shorter && k-- > begin_;)
        if (open_[k].first.sizes == p.first.sizes && open_[k].rank < p.rank && extend(open_[k], p.slice(0))) {
          drop_slice(p, true);
          rejoin(k);
          shorter = true;
        }
      if (shorter) continue;
      // And what lies before it, though its last row was not.
      for (std::size_t k = open_.size(); k-- > begin_;) {
        auto& before = open_[k];
        if (before.axis_count == 0 || !(before.first.sizes == p.first.sizes) || before.rank >= p.rank)
          continue;
        auto last = before.slice(before.axes[0].count - 1);
        if (!extend(last, p)) continue;
        drop_slice(before, false);
        rejoin(k);
        p = last;
        break;
      }
      if (!join_any(p)) add(p);
      return;
    }
  }
  void flush() {
    for (; begin_ < open_.size(); ++begin_) sink_(open_[begin_]);
    open_.clear();
    begin_ = 0;
  }

 private:
  bool join_any(const chunk_progression& p) {
    for (std::size_t k = open_.size(); k-- > begin_;)
      if (open_[k].first.sizes == p.first.sizes && join(open_[k], p)) {
        rejoin(k);
        return true;
      }
    return false;
  }
  /// What has grown may join with another one now.
  void rejoin(std::size_t k) {
    for (std::size_t i = open_.size(); i-- > begin_;) {
      if (i == k || !(open_[i].first.sizes == open_[k].first.sizes)) continue;
      const auto low = std::min(i, k);
      const auto high = std::max(i, k);
      if (!join(open_[low], open_[high])) continue;
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(high));
      k = low;
      i = open_.size();
    }
  }

  Sink sink_;
  std::vector<chunk_progression> open_;
  std::size_t begin_ = 0;
};

/// Visits the elements of a progression that have elements in common with a box:
/// visit(index, stored_chunk, common box). O(axes + visits) where the boxes do not interleave.
template <class Visit>
class overlap_walk {
 public:
  overlap_walk(const chunk_progression& p, const chunk& wanted, Visit& visit)
      : p_(p), wanted_(wanted), visit_(visit) {}

  void run() {
    const auto& sizes = p_.first.sizes;
    if (wanted_.sizes.rank() != sizes.rank() || p_.first.offsets.rank() != sizes.rank()) return;
    std::int64_t stride = 1;
    for (int k = p_.axis_count; k-- > 0;) {
      order_[static_cast<std::size_t>(k)] = k;
      strides_[static_cast<std::size_t>(k)] = stride;
      stride *= p_.axes[static_cast<std::size_t>(k)].count;
    }
    // Long steps first: of what is left behind an axis, the span along its dimension is then shortest.
    sort_few(order_.begin(), order_.begin() + p_.axis_count, [&](int a, int b) {
      const auto x = p_.axes[static_cast<std::size_t>(a)].offset_step;
      const auto y = p_.axes[static_cast<std::size_t>(b)].offset_step;
      return x != y ? x > y : a < b;
    });
    for (int d = 0; d < sizes.rank(); ++d) {
      if (sizes[d] == 0 || wanted_.sizes[d] == 0) return;
      std::int64_t reach = sizes[d];
      for (const auto& a : p_)
        if (a.dimension == d) reach += std::int64_t{a.count - 1} * a.offset_step;
      if (p_.first.offsets[d] >= wanted_.offsets[d] + wanted_.sizes[d] ||
          p_.first.offsets[d] + reach <= wanted_.offsets[d])
        return;
    }
    walk(0, {p_.first, p_.rank}, 0);
  }

 private:
  void walk(int level, stored_chunk at, std::int64_t index) {
    if (level == p_.axis_count) {
      if (const auto common = intersect(at.box, wanted_)) visit_(index, at, *common);
      return;
    }
    const auto axis = static_cast<std::size_t>(order_[static_cast<std::size_t>(level)]);
    const auto& a = p_.axes[axis];
    std::int64_t from = 0;
    std::int64_t to = a.count - 1;
    const int d = a.dimension;
    if (d >= 0) {
      std::int64_t reach = at.box.sizes[d];
      for (int k = level + 1; k < p_.axis_count; ++k) {
        const auto& behind = p_.axes[static_cast<std::size_t>(order_[static_cast<std::size_t>(k)])];
        if (behind.dimension == d) reach += std::int64_t{behind.count - 1} * behind.offset_step;
      }
      const auto begin = at.box.offsets[d];
      const auto low = wanted_.offsets[d] - begin - reach + 1;  // the least offset that reaches the box
      const auto high = wanted_.offsets[d] + wanted_.sizes[d] - 1 - begin;
      if (high < 0) return;
      from = low <= 0 ? 0 : (low + a.offset_step - 1) / a.offset_step;
      to = std::min(to, high / a.offset_step);
    }
    for (auto i = from; i <= to; ++i) {
      auto next = at;
      next.rank += static_cast<std::int32_t>(i) * a.rank_step;
      if (d >= 0) next.box.offsets.set(d, at.box.offsets[d] + i * a.offset_step);
      walk(level + 1, next, index + i * strides_[axis]);
    }
  }

  const chunk_progression& p_;
  const chunk& wanted_;
  Visit& visit_;
  std::array<int, chunk_progression::max_axes> order_{};
  std::array<std::int64_t, chunk_progression::max_axes> strides_{};
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/chunk_progression.ipp>
#endif
