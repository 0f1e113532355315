// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/follow_options.hpp>
#include <cairn/checkpointer/following.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/change_watch.hpp>
#include <cairn/model/record.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Up to a quarter shorter or longer, so that processes that wait for one run do not ask all at once.
[[nodiscard]] inline std::chrono::nanoseconds with_jitter(std::chrono::nanoseconds pause, const run_id& run) {
  digest_stream chance;
  chance.put(run.high).put(run.low).put(deadline::clock::now().time_since_epoch().count());
  const auto part = static_cast<std::int64_t>(chance.value() % 1001);
  pause = std::min(pause, std::chrono::nanoseconds::max() / 2);
  return pause / 4 * 3 + pause / 2000 * part;
}

CAIRN_BODY std::optional<std::int64_t> wait_for_step(following& f, any_reader& reader, any_writer& writer,
                                                     const run_id& run) {
  using clock = deadline::clock;
  constexpr std::chrono::nanoseconds shortest = std::chrono::milliseconds(100);
  constexpr auto max_outage = std::chrono::minutes(1);
  const auto until = deadline::in(f.options.timeout);
  if (!f.last_commit) f.last_commit = clock::now();
  auto pause = shortest;
  std::optional<clock::time_point> failing;
  const auto ended = [&](follow_end why) {
    f.why = why;
    return std::nullopt;
  };
  for (;;) {
    // Before the listing: what comes after it is noticed.
    if (f.watch == nullptr) f.watch = reader.watch();
    bool alive = true;
    const auto silent = clock::now() - *f.last_commit;
    try {
      auto steps = reader.list_from(f.last);
      if (steps.empty() && f.last >= 0) steps = reader.list();  // it was removed
      if (!steps.empty() && steps.back() != f.last) {
        const auto now = clock::now();
        if (f.last != f.options.after) f.interval = now - *f.last_commit;
        f.last_commit = now;
        f.why = follow_end::none;
        f.last = steps.back();
        return f.last;
      }
      alive = silent < f.options.gone_after || !writer.live_saves(run).empty();
      failing.reset();
    } catch (const storage_error&) {
      if (!failing) failing = clock::now();
      if (clock::now() - *failing > max_outage || until.passed()) throw;
    }
    if (f.options.stop && f.options.stop()) return ended(follow_end::stopped);
    if (!alive) return ended(follow_end::trainer_gone);
    if (until.passed()) return ended(follow_end::timed_out);

    auto longest = f.options.max_pause;
    const bool told = f.watch != nullptr && f.watch->sees_all();
    if (!told && f.interval.count() != 0) longest = std::min(std::max(f.interval / 10, shortest), longest);
    auto next = deadline::in(with_jitter(std::min(told ? longest : pause, longest), run)).earlier(until);
    if (silent < f.options.gone_after) next = next.earlier(deadline::in(f.options.gone_after - silent));
    pause = std::min(2 * pause, longest);
    // Not more often, however much is written.
    static_cast<void>(sleep_for(shortest / 2, next));
    while (!next.passed()) {
      const auto slice = deadline::in(shortest).earlier(next);
      if (f.watch != nullptr && f.watch->wait(slice)) {
        pause = shortest;
        break;
      }
      static_cast<void>(sleep_for(slice.left(), next));
      if (f.options.stop && f.options.stop()) return ended(follow_end::stopped);
    }
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
