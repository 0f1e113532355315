// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/plan/summary/replica_groups.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/system/list_view.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// "rank 3", "ranks 0-3, 7"; at most a few runs, then "...". @pre sorted
[[nodiscard]] std::string ranks_text(const std::vector<std::int32_t>& ranks);

/// What is wrong with an item of a summary, as an error.
class summary_error {
 public:
  summary_error(const plan_summary& summary, std::size_t item) : summary_(summary), n_(item) {}

  /// The ranks that know the item, or hold a box if one is given.
  [[nodiscard]] std::vector<std::int32_t> ranks(const chunk* box = nullptr) const;
  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::string box_text(const chunk& box) const;
  [[nodiscard]] int some_rank() const;
  [[nodiscard]] int rank_of(const chunk& box) const;

  [[noreturn]] void definitions(std::size_t other) const;

  [[noreturn]] void tiling() const;

 private:
  const plan_summary& summary_;
  std::size_t n_;
};

/// Checks one definition of one name after another. Its groups are those of the item that was checked last.
class summary_check {
 public:
  summary_check(const plan_summary& summary, int world_size) : summary_(summary), world_(world_size) {}

  [[nodiscard]] const replica_groups& groups() const noexcept { return groups_; }
  /// True if every box of the item has one holder; groups() are then empty.
  [[nodiscard]] bool unshared() const noexcept { return unshared_; }

  void check(std::size_t n);

 private:
  using numbers = list_view<const std::int64_t>;

  /// Without keeping boxes, which may be many: checks them, and that there are no replicas and no gaps.
  bool check_unshared(const summary_error& error, const summary_item& i, std::size_t n) const;
  /// True if the boxes, as they come, lie one behind the other along one dimension from end to end of the
  /// tensor, on ranks of this world: what ranks hold that cut flat tensors at any places.
  bool is_chain(std::size_t n, const chunk& outer) const;
  void check_ranks(const summary_error& error, const chunk_progression& p) const;
  static void check_box(const summary_error& error, const summary_item& i, const chunk& outer,
                        const chunk_progression& p);
  /// No rank holds the same box twice.
  void check_holders(const summary_error& error, const summary_item& i, list_view<const held_boxes> group);

  const plan_summary& summary_;
  int world_;
  replica_groups groups_;
  bool unshared_ = false;
  std::vector<std::int32_t> holders_;
};

}  // namespace detail

/// Checks that the plans of all ranks together are a whole checkpoint: one kind, dtype, shape and per_rank
/// flag for each name; boxes inside of their tensors; boxes either equal (replicas) or without a common
/// element; every element in some box. O(progressions) where nothing is wrong.
/// @throws plan_error naming item, boxes and ranks; the same one for the same summary.
void validate(const plan_summary& summary, int world_size);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/summary/validation.ipp>
#endif
