// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/model/error.hpp>
#include <cairn/model/record.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// All ranks must write where the coordinator commits: it leaves a mark that the others look for. Collective;
/// nothing where there is one rank, or where the storage has no such marks.
/// @throws storage_error (storage_not_shared) on all ranks, naming one that does not see the mark.
template <Communicator C, class Writer>
void probe_shared_store(collectives<C>& group, Writer& writer, const run_id& run, const std::string& store,
                        std::chrono::nanoseconds patience) {
  if (group.size() == 1) return;
  if constexpr (requires {
                  writer.leave_mark(run);
                  writer.sees_mark(run);
                  writer.remove_mark(run);
                }) {
    static_cast<void>(read_once(
        group,
        [&] {
          writer.leave_mark(run);
          return std::vector<std::byte>();
        },
        deadline::in(patience)));
    std::exception_ptr failure;
    try {
      if (!writer.sees_mark(run))
        fail(error_id::storage_not_shared,
             "a rank does not see the store of rank 0: give all ranks one shared directory or bucket",
             {.rank = group.rank(), .file = store});
    } catch (...) {
      failure = std::current_exception();
    }
    std::exception_ptr verdict;
    try {
      group.barrier(deadline::in(patience), failure);
    } catch (...) {
      verdict = std::current_exception();
    }
    if (group.rank() == 0) writer.remove_mark(run);
    if (verdict != nullptr) std::rethrow_exception(verdict);
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
