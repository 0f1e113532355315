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
#include <vector>

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

/// Whether a run shows itself now; it is known from then on.
[[nodiscard]] inline bool sees_run(following& f, any_writer& writer, const run_id& run) {
  std::vector<run_id> living;
  try {
    living = writer.live_runs(run);
  } catch (const storage_error& e) {
    // Who may only read a bucket does not see who lives, and goes by the commits.
    if (e.id() != error_id::storage_permission) throw;
  }
  if (!living.empty()) f.seen = living.back();
  return !living.empty();
}

/// Whether the trainer has gone, as far as one can know now; `silent`: since its last commit.
[[nodiscard]] inline follow_end end_of_trainer(following& f, any_writer& writer, const run_id& run,
                                               std::chrono::nanoseconds silent) {
  if (sees_run(f, writer, run)) return follow_end::none;
  if (!f.seen && silent < f.options.gone_after) return follow_end::none;
  if (!writer.live_saves(run).empty()) return follow_end::none;  // a worker may finish the last save
  if (!f.seen) return follow_end::trainer_gone;
  return writer.has_died(*f.seen) ? follow_end::trainer_lost : follow_end::trainer_ended;
}

CAIRN_BODY std::optional<std::int64_t> wait_for_step(following& f, any_reader& reader, any_writer& writer,
                                                     const run_id& run) {
  using clock = deadline::clock;
  constexpr std::chrono::nanoseconds shortest = std::chrono::milliseconds(100);
  constexpr auto max_outage = std::chrono::minutes(1);
  const auto until = deadline::in(f.options.timeout);
  const bool told =
      f.why != follow_end::none && f.why != follow_end::stopped && f.why != follow_end::timed_out;
  if (!f.last_commit || told) f.last_commit = clock::now();  // another run may come
  if (told) f.seen.reset();
  auto gone = follow_end::none;
  auto pause = shortest;
  bool looked = false;
  std::optional<clock::time_point> failing;
  const auto ended = [&](follow_end why) {
    f.why = why;
    return std::nullopt;
  };
  for (;;) {
    // Before the listing: what comes after it is noticed.
    if (f.watch == nullptr) f.watch = reader.watch();
    const auto silent = clock::now() - *f.last_commit;
    try {
      auto steps = reader.list_from(f.last);
      if (steps.empty() && f.last >= 0) steps = reader.list();  // it was removed
      if (!steps.empty() && steps.back() != f.last) {
        // Who is always behind never waits, and would not know the run when it has ended.
        try {
          if (!looked) static_cast<void>(sees_run(f, writer, run));
        } catch (const storage_error&) {  // the step is there all the same
        }
        const auto now = clock::now();
        if (f.last != f.options.after) f.interval = now - *f.last_commit;
        f.last_commit = now;
        f.why = follow_end::none;
        f.last = steps.back();
        return f.last;
      }
      if (gone != follow_end::none) return ended(gone);
      gone = end_of_trainer(f, writer, run, silent);
      looked = true;
      failing.reset();
      if (gone != follow_end::none) continue;  // what it committed last may have come since the listing
    } catch (const storage_error&) {
      if (!failing) failing = clock::now();
      if (clock::now() - *failing > max_outage || until.passed()) throw;
    }
    if (f.options.stop && f.options.stop()) return ended(follow_end::stopped);
    if (until.passed()) return ended(follow_end::timed_out);

    auto longest = f.options.max_pause;
    const bool watched = f.watch != nullptr && f.watch->sees_all();
    // A commit is told of, an end is not.
    if (f.seen && watched) longest = std::min<std::chrono::nanoseconds>(longest, std::chrono::seconds(1));
    if (!watched && f.interval.count() != 0) longest = std::min(std::max(f.interval / 10, shortest), longest);
    auto next = deadline::in(with_jitter(std::min(watched ? longest : pause, longest), run)).earlier(until);
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
