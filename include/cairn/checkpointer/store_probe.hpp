// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/agreement.hpp>
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/record.hpp>
#include <cairn/observe/event_reporter.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/late_notice.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Refuses a store that proved what checkpoints cannot live with; tells what is lost where they can, if `tells`.
/// @throws storage_error (storage_unsafe)
inline void judge_store_test(const store_test_report& tested, const std::string& store,
                             event_reporter& reporter, bool tells) {
  for (const auto& p : tested.points) {
    if (p.outcome == store_check::verdict::right) continue;
    if (p.outcome == store_check::verdict::unusable ||
        (p.outcome == store_check::verdict::single_job && !tested.single_writer))
      fail(error_id::storage_unsafe,
           "the store lacks a property that checkpoints rely on: " + p.what + ": " + p.follows,
           {.file = store, .got = p.seen});
    if (tells) reporter.warned(store + ": " + p.what + ": " + p.seen + "; " + p.follows);
  }
}

/// Before the first save: the store proves what commits rely on, and all ranks that they see in it what the
/// coordinator writes: it leaves marks that the others look for. Collective; without messages where there is
/// one rank. Nothing where the storage proves nothing. `store`: its name, for messages. `tells`: of weaknesses that
/// checkpoints can live with; false where that was done.
/// @throws on all ranks storage_error: storage_not_shared and storage_unsafe, naming a rank where not all see
/// alike; what keeps a store from being written at all.
inline void probe_shared_store(collectives& group, any_writer& writer, const run_id& run,
                               const std::string& store, std::chrono::nanoseconds timeout,
                               event_reporter& reporter, bool tells) {
  if (!writer.tests_store()) return;
  const auto self_test = [&] {
    const late_notice waits(std::chrono::seconds(5), [&] {
      reporter.warned("waits for the store to answer, before the job begins: " + store);
    });
    const auto tested = writer.test_store();
    judge_store_test(tested, store, reporter, tells);
    return std::vector<std::byte>{std::byte{tested.single_writer}};
  };
  if (group.size() == 1) return static_cast<void>(self_test());
  std::exception_ptr failure;
  const auto by_all = [&](auto&& part) {
    try {
      part();
    } catch (...) {
      failure = std::current_exception();
    }
    group.barrier(deadline::in(timeout), failure);
  };
  const bool single_writer = read_once(group, self_test, deadline::in(timeout)).at(0) != std::byte{0};
  by_all([&] {
    if (group.rank() != 0) writer.look_up_mark(run);
  });
  const auto leave = [&] {
    writer.leave_mark(run);
    return std::vector<std::byte>();
  };
  std::exception_ptr verdict;
  try {
    static_cast<void>(read_once(group, leave, deadline::in(timeout)));
    by_all([&] {
      const auto sight = group.rank() == 0 ? mark_visibility::seen : writer.sees_mark(run);
      if (sight == mark_visibility::none)
        fail(error_id::storage_not_shared,
             "a rank does not see the store of rank 0: give all ranks one shared directory or bucket",
             {.rank = group.rank(), .file = store});
      if (sight != mark_visibility::late) return;
      const std::string late =
          "a name that this rank had looked for is not seen as soon as rank 0 has made it: its client "
          "remembers that a name is not there, and two jobs could commit one step. Mount without that "
          "(NFS: "
          "no nocto; FUSE: negative timeouts of 0)";
      if (!single_writer)
        fail(error_id::storage_unsafe, late + ", or say that only one job writes there (single_writer)",
             {.rank = group.rank(), .file = store});
      if (tells) reporter.warned(store + ": " + late + "; the ends of saves are told late here");
    });
  } catch (const peer_error&) {
    throw;  // the mark stays, and a later run removes it: who looks only now would blame the store for a peer's death
  } catch (...) {
    verdict = std::current_exception();
  }
  if (group.rank() == 0) writer.remove_mark(run);
  if (verdict != nullptr) std::rethrow_exception(verdict);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
