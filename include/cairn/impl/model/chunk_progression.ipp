// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/sort_few.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::int64_t chunk_progression::count() const noexcept {
  std::int64_t n = 1;
  for (const auto& a : *this) n *= a.count;
  return n;
}

CAIRN_BODY std::int64_t chunk_progression::last_rank() const noexcept {
  std::int64_t last = rank;
  for (const auto& a : *this) last += std::int64_t{a.count - 1} * a.rank_step;
  return last;
}

CAIRN_BODY chunk chunk_progression::last_box() const noexcept {
  chunk box = first;
  for (const auto& a : *this)
    if (a.dimension >= 0)
      box.offsets.set(a.dimension, box.offsets[a.dimension] + std::int64_t{a.count - 1} * a.offset_step);
  return box;
}

CAIRN_BODY stored_chunk chunk_progression::at(std::int64_t index) const noexcept {
  stored_chunk c{first, rank};
  for (int k = axis_count; k-- > 0;) {
    const auto& a = axes[static_cast<std::size_t>(k)];
    const auto i = index % a.count;
    index /= a.count;
    c.rank += static_cast<std::int32_t>(i) * a.rank_step;
    if (a.dimension >= 0) c.box.offsets.set(a.dimension, c.box.offsets[a.dimension] + i * a.offset_step);
  }
  return c;
}

CAIRN_BODY std::optional<std::int64_t> chunk_progression::index_of(std::int32_t of_rank) const noexcept {
  std::int64_t rest = std::int64_t{of_rank} - rank;
  if (rest < 0) return std::nullopt;
  std::int64_t index = 0;
  for (const auto& a : *this) {
    const auto i = rest / a.rank_step;
    if (i >= a.count) return std::nullopt;
    rest -= i * a.rank_step;
    index = index * a.count + i;
  }
  return rest == 0 ? std::optional{index} : std::nullopt;
}

CAIRN_BODY chunk_progression chunk_progression::slice(std::int32_t index) const noexcept {
  chunk_progression s;
  s.first = first;
  const auto& outer = axes[0];
  if (outer.dimension >= 0)
    s.first.offsets.set(outer.dimension, first.offsets[outer.dimension] + index * outer.offset_step);
  s.rank = rank + index * outer.rank_step;
  s.axis_count = axis_count - 1;
  std::copy(begin() + 1, end(), s.axes.begin());
  return s;
}

CAIRN_BODY bool chunk_progression::same_axes(const chunk_progression& other) const noexcept {
  return std::equal(begin(), end(), other.begin());
}

namespace detail {

CAIRN_BODY const char* progression_problem(const chunk_progression& p) noexcept {
  const int dimensions = p.first.offsets.rank();
  if (p.first.sizes.rank() != dimensions) return "a box has offsets and sizes of different dimensions";
  if (p.rank < 0) return "a rank is negative";
  if (p.axis_count < 0 || p.axis_count > chunk_progression::max_axes)
    return "a progression has too many axes";
  std::int64_t span = 0;
  std::array<std::int64_t, extents::max_rank> end{};
  for (int d = 0; d < dimensions; ++d) {
    if (p.first.offsets[d] < 0 || p.first.sizes[d] < 0 ||
        __builtin_add_overflow(p.first.offsets[d], p.first.sizes[d], &end[static_cast<std::size_t>(d)]))
      return "a box is outside of all tensors";
  }
  // From the innermost outwards.
  for (int k = p.axis_count; k-- > 0;) {
    const auto& a = p.axes[static_cast<std::size_t>(k)];
    if (a.count < 2 || a.rank_step <= span) return "the axes of a progression are not nested";
    std::int64_t more = 0;
    if (__builtin_mul_overflow(std::int64_t{a.count - 1}, std::int64_t{a.rank_step}, &more) ||
        more > std::numeric_limits<std::int32_t>::max() - p.rank - span)
      return "the ranks of a progression are too high";
    span += more;
    if (a.dimension < -1 || a.dimension >= dimensions) return "a progression moves along no dimension";
    if (a.dimension < 0 ? a.offset_step != 0 : a.offset_step < 1)
      return "a progression has an impossible step";
    if (a.dimension < 0) continue;
    auto& e = end[static_cast<std::size_t>(a.dimension)];
    if (__builtin_mul_overflow(std::int64_t{a.count - 1}, a.offset_step, &more) ||
        __builtin_add_overflow(e, more, &e))
      return "a progression leaves all tensors";
  }
  return nullptr;
}

/// The step from one chunk to another as an axis, if there is one: a higher rank, and an offset that differs
/// in one dimension at most, and is higher there. Numbers may be anything.
[[nodiscard]] inline std::optional<chunk_axis> step_between(const chunk_progression& a,
                                                            const chunk_progression& b) noexcept {
  chunk_axis step;
  if (a.rank < 0 || b.rank <= a.rank) return std::nullopt;
  step.rank_step = b.rank - a.rank;
  const auto& from = a.first.offsets;
  const auto& to = b.first.offsets;
  if (from.rank() != to.rank()) return std::nullopt;
  for (int d = 0; d < from.rank(); ++d) {
    if (from[d] == to[d]) continue;
    if (step.dimension >= 0 || from[d] < 0 || to[d] < from[d]) return std::nullopt;
    step.dimension = d;
    step.offset_step = to[d] - from[d];
  }
  return step;
}

/// True if `step` is `times` steps of `axis`.
[[nodiscard]] inline bool is_steps(const chunk_axis& step, const chunk_axis& axis,
                                   std::int64_t times) noexcept {
  std::int64_t offset = 0;
  return step.dimension == axis.dimension && step.rank_step == axis.rank_step * times &&
         !__builtin_mul_overflow(axis.offset_step, times, &offset) && step.offset_step == offset;
}

CAIRN_BODY bool extend(chunk_progression& p, const chunk_progression& q) noexcept {
  if (!(p.first.sizes == q.first.sizes)) return false;
  const auto step = step_between(p, q);
  if (!step) return false;
  if (p.axis_count == q.axis_count) {
    if (p.axis_count == 0) return false;
    auto& outer = p.axes[0];
    const auto& theirs = q.axes[0];
    if (outer.rank_step != theirs.rank_step || outer.dimension != theirs.dimension ||
        outer.offset_step != theirs.offset_step || !is_steps(*step, outer, outer.count) ||
        !std::equal(p.begin() + 1, p.end(), q.begin() + 1))
      return false;
    outer.count += theirs.count;
    return true;
  }
  if (p.axis_count == q.axis_count + 1) {
    if (!is_steps(*step, p.axes[0], p.axes[0].count) || !std::equal(q.begin(), q.end(), p.begin() + 1))
      return false;
    ++p.axes[0].count;
    return true;
  }
  if (q.axis_count == p.axis_count + 1) {
    if (!is_steps(*step, q.axes[0], 1) || !std::equal(p.begin(), p.end(), q.begin() + 1)) return false;
    p.axes = q.axes;
    p.axis_count = q.axis_count;
    ++p.axes[0].count;
    return true;
  }
  return false;
}

CAIRN_BODY bool stack(chunk_progression& p, const chunk_progression& q) noexcept {
  if (p.axis_count != q.axis_count || p.axis_count == chunk_progression::max_axes ||
      !(p.first.sizes == q.first.sizes) || !std::equal(p.begin(), p.end(), q.begin()))
    return false;
  auto step = step_between(p, q);
  if (!step || step->rank_step <= p.last_rank() - p.rank || p.last_rank() + step->rank_step > INT32_MAX)
    return false;
  step->count = 2;
  std::copy_backward(p.begin(), p.end(), p.axes.begin() + p.axis_count + 1);
  p.axes[0] = *step;
  ++p.axis_count;
  return true;
}

CAIRN_BODY bool join(chunk_progression& p, const chunk_progression& q) noexcept {
  if (p.rank < q.rank) return extend(p, q) || stack(p, q);
  chunk_progression low = q;
  if (!extend(low, p) && !stack(low, p)) return false;
  p = low;
  return true;
}

CAIRN_BODY void drop_slice(chunk_progression& p, bool the_first) noexcept {
  if (p.axes[0].count == 2) {
    p = p.slice(the_first ? 1 : 0);
    return;
  }
  if (the_first) {
    const auto next = p.slice(1);
    p.first = next.first;
    p.rank = next.rank;
  }
  --p.axes[0].count;
}

class overlap_walk {
 public:
  using visitor = function_ref<void(std::int64_t, const stored_chunk&, const chunk&)>;
  overlap_walk(const chunk_progression& p, const chunk& wanted, visitor visit)
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
  visitor visit_;
  std::array<int, chunk_progression::max_axes> order_{};
  std::array<std::int64_t, chunk_progression::max_axes> strides_{};
};

CAIRN_BODY void visit_overlaps(const chunk_progression& p, const chunk& wanted,
                               function_ref<void(std::int64_t, const stored_chunk&, const chunk&)> visit) {
  overlap_walk(p, wanted, visit).run();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
