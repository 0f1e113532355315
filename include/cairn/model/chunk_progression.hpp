// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/system/function_ref.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace cairn {
inline namespace v1 {

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
  /// The rank of the element in the far corner, which is the highest.
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
    return a.rank == b.rank && a.first == b.first && a.axis_count == b.axis_count && a.same_axes(b);
  }

 private:
  [[nodiscard]] bool same_axes(const chunk_progression& other) const noexcept;
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

/// Calls visit(index, element, common box) for the elements of a progression that have elements in common with a box.
/// O(axes + visits) where the boxes do not interleave.
void visit_overlaps(const chunk_progression& p, const chunk& wanted,
                    function_ref<void(std::int64_t, const stored_chunk&, const chunk&)> visit);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/chunk_progression.ipp>
#endif
