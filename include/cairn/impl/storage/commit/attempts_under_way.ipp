// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/attempt_ending.hpp>
#include <cairn/storage/commit/attempts_under_way.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY attempts_under_way::~attempts_under_way() {
  if (!thread_.joinable() || thread_.in_child()) return;
  {
    const std::lock_guard lock(in_->mutex);
    in_->closing = true;
  }
  in_->changed.notify_all();
  thread_.join(deadline::in(longest_end));
}

CAIRN_BODY void attempts_under_way::begin(const save_context& c) {
  const std::lock_guard lock(mutex_);
  known_[{c.attempt, c.rank}].here = true;
}

CAIRN_BODY attempt_knowledge attempts_under_way::known(const save_context& c) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto at = known_.find({c.attempt, c.rank});
  return at == known_.end() ? attempt_knowledge{} : at->second;
}

CAIRN_BODY void attempts_under_way::end(const save_context& c) noexcept {
  const std::lock_guard lock(mutex_);
  known_.erase({c.attempt, c.rank});
}

CAIRN_BODY void attempts_under_way::fail(const save_context& c, const std::exception_ptr& failure) noexcept {
  try {
    const auto known_of = known(c);
    end(c);
    attempt_ending ending(store_, options_, c, failure, known_of);
    if (!ending.go()) retry(std::move(ending), deadline::in(c.longest()));
  } catch (...) {  // out of memory: deadlines tell the others, clean() removes what is left
  }
}

CAIRN_BODY void attempts_under_way::set(const save_context& c, bool attempt_knowledge::*what, bool value) {
  const std::lock_guard lock(mutex_);
  known_[{c.attempt, c.rank}].*what = value;
}

CAIRN_BODY void attempts_under_way::retry(attempt_ending ending, deadline until) {
  if (current_simulated_waits != nullptr)
    return current_simulated_waits->try_again(
        [kept = detail::make_shared<attempt_ending>(std::move(ending))] { return kept->go(); });
  const std::lock_guard lock(mutex_);
  if (in_ == nullptr) {
    auto made = detail::make_shared<inside>();
    if (!thread_.start("cairn retry", [in = made] { serve(*in); })) return;
    in_ = std::move(made);
  }
  if (thread_.in_child()) return;
  {
    const std::lock_guard tasks_lock(in_->mutex);
    if (in_->tasks.size() == max_tasks) in_->tasks.erase(in_->tasks.begin());
    in_->tasks.push_back({std::move(ending), until});
  }
  in_->changed.notify_all();
}

CAIRN_BODY void attempts_under_way::take(vector<task>& from, vector<task>& to) noexcept {
  try {
    to.reserve(to.size() + from.size());
  } catch (...) {
    return;
  }
  for (auto& each : from) to.push_back(std::move(each));
  from.clear();
}

CAIRN_BODY void attempts_under_way::serve(inside& in) noexcept {
  constexpr auto first = std::chrono::milliseconds(10);
  std::chrono::milliseconds pause = first;
  vector<task> mine;
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(in.mutex);
      if (mine.empty()) {
        in.changed.wait(lock, [&] { return in.closing || !in.tasks.empty(); });
        pause = first;
      } else {
        in.changed.wait_for(lock, pause, [&] { return in.closing; });
        pause = std::min<std::chrono::milliseconds>(pause * 2, std::chrono::seconds(5));
      }
      last = in.closing;
      if (mine.empty()) {
        mine.swap(in.tasks);
      } else {
        take(in.tasks, mine);
      }
    }
    detail::erase_if(mine, [](task& t) { return t.ending.go() || t.until.passed(); });
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
