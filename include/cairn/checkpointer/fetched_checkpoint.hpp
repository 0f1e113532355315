// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/checkpointer/load_outcome.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/step_list.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A checkpoint whose manifest all ranks have, and which stays until all of them have read it.
struct fetched_checkpoint {
  std::int64_t step = 0;
  std::vector<std::byte> manifest;
  checkpoint_lease lease;  ///< of rank 0, for all of them
};

/// A committed checkpoint of the store; nobody removes it before the lease ends. Collective.
inline fetched_checkpoint fetch_step(collectives& group, save_services& services,
                                     const checkpointer_options& options, std::int64_t step) {
  fetched_checkpoint c;
  c.step = step;
  c.manifest = read_once(
      group,
      [&] {
        services.require_root();
        if (!options.read_only) c.lease = services.lease(step, deadline::in(options.peer_timeout / 2), true);
        return services.reader().fetch(step);
      },
      deadline::in(options.peer_timeout));
  return c;
}

/// The same of the newest one. Those that are removed meanwhile are passed over before `until`. Collective.
inline fetched_checkpoint fetch_newest(collectives& group, save_services& services,
                                       const checkpointer_options& options, deadline until) {
  fetched_checkpoint c;
  c.manifest = read_once(
      group,
      [&] {
        services.require_root();
        for (;;) {
          const auto steps = services.reader().list();
          if (steps.empty())
            fail(error_id::storage_not_committed,
                 "there is no committed checkpoint yet; cairn::follow waits for the first one");
          try {
            if (!options.read_only)
              c.lease = services.lease(steps.back(), deadline::in(options.peer_timeout / 2), true);
            wire_writer out;
            out.put(steps.back()).raw(services.reader().fetch(steps.back()));
            return out.take();
          } catch (const storage_error& e) {  // removed since it was listed
            if (e.id() != error_id::storage_not_committed || until.passed()) throw;
          }
        }
      },
      deadline::in(options.peer_timeout));
  wire_reader in(c.manifest);
  c.step = in.get<std::int64_t>();
  c.manifest.erase(c.manifest.begin(), c.manifest.begin() + sizeof c.step);
  return c;
}

/// Where the checkpoint failed to load as it does when it is removed meanwhile, rank 0 looks whether it is still there: who
/// removes one takes the manifest first. `failure`: the same on all ranks. Collective. @throws storage_error
/// (storage_not_committed) where it is gone, or another one has its step
inline void refuse_removed(collectives& group, save_services& services, const checkpointer_options& options,
                           const fetched_checkpoint& opened, const std::exception_ptr& failure) {
  if (!may_be_gone(failure) && outcome_of(failure) != load_outcome::damaged) return;
  const auto there = read_once(
      group,
      [&] {
        bool same = true;
        try {
          // What no run saves has other bytes where files were replaced: who read them says so.
          same = services.reader().fetch(opened.step) == opened.manifest || !services.reader().reports_runs();
        } catch (const error& e) {
          // A store that cannot be read says nothing about the step: what was found stands.
          same = e.id() != error_id::storage_not_committed;
        }
        wire_writer out;
        out.put(static_cast<std::uint8_t>(same));
        return out.take();
      },
      deadline::in(options.peer_timeout));
  wire_reader in(there);
  if (in.get<std::uint8_t>() == 0)
    fail(error_id::storage_not_committed,
         "step " + std::to_string(opened.step) + " was removed while it was read");
}

/// What the store lists now; nothing where `until` has passed on rank 0, which decides for all: they began at
/// different times. Collective.
inline std::optional<std::vector<std::int64_t>> list_before(collectives& group, save_services& services,
                                                            const checkpointer_options& options,
                                                            deadline until) {
  const auto listed = read_once(
      group,
      [&] { return until.passed() ? std::vector<std::byte>() : encode_steps(services.reader().list()); },
      deadline::in(options.peer_timeout));
  if (listed.empty()) return std::nullopt;
  return decode_steps(listed);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
