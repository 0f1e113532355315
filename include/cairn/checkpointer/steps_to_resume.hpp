// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/earlier_runs.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/save_services.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// For rank 0: ends what saves of earlier runs have left, having waited for those that processes still carry
/// out, and lists the steps that are committed then, ascending. A store that refuses the cleaning is
/// reported, and listed.
[[nodiscard]] inline std::vector<std::int64_t> clean_and_list(save_services& shared, const run_id& run,
                                                              const checkpointer_options& options) {
  if (options.read_only) return shared.reader().list();
  shared.show_life();  // before what an earlier run left as its sign goes
  earlier_runs earlier;
  bool cleaned = false;
  try {
    earlier.wait_for(shared.writer(), run, std::min(options.earlier_run_timeout, options.peer_timeout / 2),
                     shared.report());
    if (const auto removed = shared.writer().clean(run); removed > 0)
      shared.report().warned("removed " + std::to_string(removed) +
                             " objects that interrupted saves had left");
    cleaned = true;
  } catch (const error& e) {
    shared.report().warned(std::string("what interrupted saves left could not be removed: ") + e.what());
  }
  auto steps = shared.reader().list();
  earlier.report(cleaned, steps, shared.report());
  shared.found_at_start(steps);
  return steps;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
