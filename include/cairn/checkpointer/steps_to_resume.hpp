// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/earlier_runs.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// For rank 0: ends what saves of earlier runs have left, having waited for those that processes still carry
/// out, and lists the steps that are committed then, ascending. A store that refuses the cleaning is told of,
/// and listed.
template <class Background>
[[nodiscard]] std::vector<std::int64_t> clean_and_list(Background& background, const run_id& run,
                                                       const checkpointer_options& options) {
  if (options.read_only) return background.reader().list();
  earlier_runs earlier;
  bool cleaned = false;
  try {
    earlier.wait_for(*background.writer(), run,
                     std::min(options.earlier_run_timeout, options.peer_timeout / 2), background.report());
    if (const auto removed = background.writer()->clean(run); removed > 0)
      background.report().warned("removed " + std::to_string(removed) +
                                 " objects that interrupted saves had left");
    cleaned = true;
  } catch (const error& e) {
    background.report().warned(std::string("what interrupted saves left could not be removed: ") + e.what());
  }
  auto steps = background.reader().list();
  earlier.tell(cleaned, steps, background.report());
  background.found_at_start(steps);
  return steps;
}

/// Lists of steps as bytes, for handing on.
inline void put_steps(wire_writer& out, const std::vector<std::int64_t>& steps) {
  out.put(static_cast<std::uint64_t>(steps.size()));
  for (auto s : steps) out.put(s);
}
[[nodiscard]] inline std::vector<std::byte> encode_steps(const std::vector<std::int64_t>& steps,
                                                         const std::vector<std::int64_t>& more = {}) {
  wire_writer out;
  put_steps(out, steps), put_steps(out, more);
  return out.take();
}
/// `more`: the second list, where it is wanted.
[[nodiscard]] inline std::vector<std::int64_t> decode_steps(std::span<const std::byte> bytes,
                                                            std::vector<std::int64_t>* more = nullptr) {
  try {
    wire_reader in(bytes);
    const auto get = [&] {
      std::vector<std::int64_t> steps(in.get_count(sizeof(std::int64_t)));
      for (auto& s : steps) s = in.get<std::int64_t>();
      return steps;
    };
    auto steps = get();
    auto second = get();
    in.finish();
    if (more != nullptr) *more = std::move(second);
    return steps;
  } catch (const wire_error& e) {
    fail(error_id::peer_bad_message,
         std::string("the coordinator's list of checkpoints is damaged: ") + e.what());
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
