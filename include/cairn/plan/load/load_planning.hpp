// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_entry.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/vector.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The names that both lists hold; both sorted. A name of a checkpoint is unexpected in a group if it is
/// unexpected on every rank: each pipeline stage knows its own items only.
[[nodiscard]] std::vector<std::string> unexpected_on_both(const std::vector<std::string>& a,
                                                          const std::vector<std::string>& b);

/// Throws an error about names of a report: "3 <what>: a, b, c". @pre `names` is not empty.
[[noreturn]] void fail_names(error_id id, const std::string& whose, const std::string& what,
                             const std::vector<std::string>& names, int rank);

namespace detail {

/// The part of a box that each stored chunk holds.
struct chunk_overlap {
  std::uint32_t chunk;
  cairn::chunk box;
};

/// Finds the chunks of a stored item that make up a wanted box: false if they do not cover it exactly once.
/// O(progressions + overlaps).
[[nodiscard]] bool find_overlaps(const stored_item& item, const chunk& wanted,
                                 vector<chunk_overlap>& overlaps);

/// Makes the load plan of one rank, entry by entry.
class load_planning {
 public:
  load_planning(const metadata& stored, const load_request& request);

  /// Whether the request is for an entry of this name. Asked for each entry of the state.
  [[nodiscard]] bool wants(std::string_view name);
  /// `stored_type`: the dtype that the checkpoint must have. `castable`: it can be converted to the entry's.
  void add(const state_entry& e, std::uint32_t index, const std::string& stored_name, dtype stored_type,
           bool castable);

  /// The plan, or what strictness says against it.
  [[nodiscard]] load_plan finish();

 private:
  void match(std::string_view name);
  void miss(const state_entry& e);
  void mismatch(const state_entry& e, error_id id, const std::string& what, const std::string& expected,
                const std::string& got);
  // Whether the item is loaded; if not, it is told as missing or mismatched.
  [[nodiscard]] bool add_own(const state_entry& e, std::uint32_t index, const stored_item& item,
                             std::uint32_t stored);
  [[nodiscard]] bool add_bytes(const state_entry& e, std::uint32_t index, const stored_item& item,
                               std::uint32_t stored);
  [[nodiscard]] bool add_boxes(const state_entry& e, std::uint32_t index, const stored_item& item,
                               std::uint32_t stored);
  /// The parts of a wanted box that lie outside of the stored tensor.
  void add_fills(std::uint32_t index, std::uint32_t part, const stored_item& item, std::uint32_t stored,
                 chunk wanted);

  const metadata& stored_;
  const load_request& request_;
  std::vector<bool> known_;
  std::vector<bool> matched_;  // of each pattern: by a name of the state or of the checkpoint
  std::vector<std::string> required_;
  vector<chunk_overlap> overlaps_;
  load_plan plan_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/load/load_planning.ipp>
#endif
