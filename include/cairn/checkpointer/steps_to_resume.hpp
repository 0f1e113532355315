// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/earlier_runs.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/step_list.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/record.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The steps that a run may resume from, ascending.
struct steps_to_resume {
  std::vector<std::int64_t> committed;
  std::vector<std::int64_t> crash_looping;  ///< see restart_journal
  bool waited = false;                      ///< for saves of earlier runs: what they hold may be more by now
};
[[nodiscard]] inline std::vector<std::byte> encode(const steps_to_resume& found) {
  wire_writer out;
  put_steps(out, found.committed), put_steps(out, found.crash_looping);
  return out.put(std::uint8_t{found.waited}).take();
}
[[nodiscard]] inline steps_to_resume decode_steps_to_resume(std::span<const std::byte> bytes) {
  return decode_list(bytes, [](wire_reader& in) {
    steps_to_resume found;
    found.committed = get_steps(in), found.crash_looping = get_steps(in);
    found.waited = in.get<std::uint8_t>() != 0;
    return found;
  });
}

/// For rank 0: ends what saves of earlier runs have left, having waited for those that processes still carry
/// out, and lists the steps that are committed then. A store that refuses the cleaning is reported, and listed.
/// `notes`: whether crash-looping ones are asked for. `is_needless`: of a save that is not waited for, as the job goes on
/// from a newer one.
[[nodiscard]] inline steps_to_resume clean_and_list(save_services& shared, const run_id& run,
                                                    const checkpointer_options& options, bool notes,
                                                    function_ref<bool(const save_attempt&)> is_needless) {
  steps_to_resume found;
  if (options.read_only) {
    found.committed = shared.reader().list();
    return found;
  }
  shared.show_life();  // before what an earlier run left as its sign goes
  earlier_runs earlier(std::min(options.earlier_run_timeout, options.peer_timeout / 2), shared.report());
  bool cleaned = false;
  takeover taken;
  try {
    taken =
        shared.writer().take_over(run, [&](const auto& alive) { return earlier.waits(alive, is_needless); });
    if (taken.removed > 0)
      shared.report().warned("removed " + std::to_string(taken.removed) +
                             " objects that interrupted saves had left");
    cleaned = true;
  } catch (const error& e) {
    shared.report().warned(std::string("what interrupted saves left could not be removed: ") + e.what());
  }
  found.committed = taken.steps ? std::move(*taken.steps) : shared.reader().list();
  earlier.report(cleaned, found.committed);
  found.waited = earlier.have_waited();
  shared.found_at_start(found.committed);
  if (notes) found.crash_looping = shared.crash_looping(std::move(taken.restarts));
  return found;
}

/// The newest step to try, of those `among`, where given, and neither passed over nor avoided.
[[nodiscard]] inline std::optional<std::int64_t> newest_to_try(const std::vector<std::int64_t>& steps,
                                                               const std::vector<std::int64_t>* among,
                                                               const std::vector<std::int64_t>& passed,
                                                               const std::vector<std::int64_t>& avoided) {
  for (auto s = steps.rbegin(); s != steps.rend(); ++s)
    if (!has_step(passed, *s) && !has_step(avoided, *s) && (among == nullptr || has_step(*among, *s)))
      return *s;
  return std::nullopt;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
