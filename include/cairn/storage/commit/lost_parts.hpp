// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

// A rank's part of a save is lost when no process is left that may write it: its trainer is gone, and no worker of it
// shows in the store, by a lock or a heartbeat, that it goes on.

/// Which ranks' parts of a save are lost, for who waits for them. One thread.
class lost_parts {
 public:
  /// The context outlives it.
  lost_parts(any_store store, const save_context& c, const file_placement& place)
      : store_(std::move(store)), c_(c), place_(place) {}
  /// Those of these ranks that will write nothing more; what they wrote is visible to requests that begin now. Nothing
  /// where nobody tells which ranks are gone (save_context::peers), and of ranks that share files where workers may
  /// outlive them. Asked often it looks at the store each second at most.
  [[nodiscard]] std::vector<std::int32_t> among(list_view<const std::int32_t> ranks);
  [[nodiscard]] bool has(std::int32_t rank) { return !among({&rank, 1}).empty(); }

 private:
  /// Whether a process shows that it carries out the part of a rank.
  [[nodiscard]] bool goes_on(std::int32_t rank) const;

  any_store store_;
  const save_context& c_;
  file_placement place_;
  deadline look_again_ = deadline::in(std::chrono::nanoseconds(0));
};

/// Saves of earlier runs that workers still carry out, and that can never be committed as the part of another rank is
/// lost: a run that begins ends them, and waits for no deadline of theirs. One thread.
class lost_saves {
 public:
  explicit lost_saves(any_store store) : store_(std::move(store)) {}
  /// Ends for good, by a mark, those of `alive` of which looks have shown for `grace_period` that a rank has neither a record nor
  /// a process that goes on. Their workers see the mark, and end. Does nothing to saves whose ranks share files.
  void end(const std::vector<save_attempt>& alive, const store_look& look, const run_id& by);

 private:
  /// Listings of network file systems may lag behind.
  static constexpr std::chrono::seconds grace_period{2};
  [[nodiscard]] bool is_lost(const save_attempt& a, const store_look& look) const;

  any_store store_;
  vector<std::pair<save_attempt, deadline>> seen_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/lost_parts.ipp>
#endif
