// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/checkpointer_base.hpp>
#include <cairn/manage/resume_together.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {

/// Whether a run saved this checkpoint before any other. One that had saved others keeps no more than this where it has
/// keep_last(1). A manifest that cannot be read does not tell.
[[nodiscard]] inline bool is_first_of_run(const std::vector<std::byte>& manifest_bytes, std::int64_t step) {
  try {
    const auto m = open_manifest(manifest_bytes, manifest_key(step));
    return save_count_of(m.run, m.step, m.attempt) == 1;
  } catch (const corrupt_error&) {
    return false;
  }
}

}  // namespace detail

CAIRN_BODY std::optional<std::int64_t> resume_together(std::initializer_list<resumable> states) {
  std::vector<std::vector<std::int64_t>> lists;
  std::vector<std::int64_t> all, common;
  const auto list = [&] {
    lists.clear(), all.clear(), common.clear();
    for (const auto& each : states) {
      lists.push_back(each.checkpointer.list());
      const auto& steps = lists.back();
      std::vector<std::int64_t> both;
      std::set_intersection(common.begin(), common.end(), steps.begin(), steps.end(),
                            std::back_inserter(both));
      common = lists.size() == 1 ? steps : std::move(both);
      std::vector<std::int64_t> either;
      std::set_union(all.begin(), all.end(), steps.begin(), steps.end(), std::back_inserter(either));
      all = std::move(either);
    }
  };
  std::optional<std::int64_t> step;
  // Each takes the newest that loads; the oldest of these is the newest for all.
  const auto resume_all = [&] {
    for (bool agreed = false; !agreed;) {
      agreed = true;
      step.reset();
      for (const auto& each : states) {
        const auto got = each.checkpointer.resume(each.state, common);
        if (!got) continue;  // `common` is empty
        agreed = agreed && (!step || *step == *got);
        step = std::min(step.value_or(*got), *got);
      }
      if (!agreed) detail::erase_if(common, [&](std::int64_t s) { return s > *step; });
    }
  };
  list();
  // A resume waits for what a process of an earlier run still saves. What is committed meanwhile may complete a
  // step that the others have: passing it over would leave it in one directory when the others save it anew.
  // After the first round no earlier run saves any more; another one that runs beside this one may.
  for (int rounds = 3; rounds > 0; --rounds) {
    const auto known = common;
    resume_all();
    list();
    const bool grew = detail::any_of(
        common, [&](std::int64_t s) { return (!step || s > *step) && !detail::contains(known, s); });
    if (!grew) break;
  }
  // That of a run which ended in its first save is the only one, and is saved again.
  const auto ended_in_first_save = [&] {
    auto steps = lists.begin();
    for (const auto& each : states)
      for (const auto s : *steps++)
        if (!detail::is_first_of_run(each.checkpointer.engine_.open().manifest(s), s)) return false;
    return true;
  };
  if (!step && common.empty() && !all.empty() && (all.size() > 1 || !ended_in_first_save())) {
    std::string text;
    for (const auto& steps : lists)
      text += (text.empty() ? "" : "; ") +
              (steps.empty() ? std::string("none")
                             : std::to_string(steps.size()) + " from step " + std::to_string(steps.front()) +
                                   " to " + std::to_string(steps.back()));
    fail(
        error_id::storage_nothing_loads,
        "checkpoints exist and no step is in all of the directories; no checkpoint was changed; look whether "
        "each is the right one, and mounted, load(state, step) what each of them has, or choose other "
        "directories to begin anew: " +
            text);
  }
  // As things are now: a step that resume() has moved aside in one directory must not stay in another, or the
  // next save of it would commit in the one alone. What all still have only could not be read, and may be intact.
  auto steps = lists.begin();
  for (const auto& each : states) {
    for (const auto s : *steps)
      if ((!step || s > *step) && !detail::contains(common, s))
        static_cast<void>(each.checkpointer.quarantine(s));
    ++steps;
  }
  return step;
}

}  // namespace v1
}  // namespace cairn
