// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/assign/append_buffer.hpp>
#include <cairn/plan/assign/load_heap.hpp>
#include <cairn/plan/assign/replica_cut.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Divides boxes, one after another, among the holders that they all have. What comes out depends on how the
/// holders' loads differ and on the boxes' sizes alone, so where both come again (the stages of a pipeline)
/// nothing is computed again.
class replica_division {
 public:
  /// What there is to know of a box.
  struct task {
    std::uint64_t bytes = 0;
    split_grain grain;  ///< without a dimension: a single holder gets it
    friend bool operator==(const task&, const task&) noexcept = default;
  };
  struct outcome {
    std::vector<load_run> before;  ///< of the holders' loads, in order
    std::vector<task> tasks;
    std::vector<load_run> after;      ///< of those who got something, in no particular order
    std::vector<std::size_t> shares;  ///< where those of each task begin in shares(); one more at the end
  };

  /// @param piece least bytes that one of several holders gets
  explicit replica_division(std::uint64_t piece) : piece_(piece) {
    shares_.reserve(1 << 15);  // what is not used is not touched
  }

  /// The shares of all outcomes; they may be taken when nothing is divided any more.
  [[nodiscard]] std::vector<replica_share>& shares() noexcept { return shares_; }

  /// @param loads of all holders, in order, neighbours that are equal in one run; the least of them is 0
  /// @returns what is valid until forget(). O(log(runs)) for each share, O(runs + tasks) where it is known.
  const outcome& divide(const std::vector<load_run>& loads, const std::vector<task>& tasks) {
    const auto hash = hash_of(loads, tasks);
    for (auto [k, end] = known_.equal_range(hash); k != end; ++k)
      if (const auto& o = outcomes_[k->second]; o.before == loads && o.tasks == tasks) return o;
    known_.emplace(hash, outcomes_.size());
    auto& made = outcomes_.emplace_back();
    made.before = loads;
    made.tasks = tasks;
    level_.start(loads);
    for (const auto& t : tasks) {
      made.shares.push_back(shares_.size());
      place(t);
    }
    made.shares.push_back(shares_.size());
    level_.append_raised(made.after);
    return made;
  }
  /// Divides one box, which no other will be like.
  const std::vector<load_run>& divide(const std::vector<load_run>& loads, const task& t) {
    level_.start(loads);
    place(t);
    after_.clear();
    level_.append_raised(after_);
    return after_;
  }
  void forget() {
    known_.clear();
    outcomes_.clear();
  }

 private:
  [[nodiscard]] static std::uint64_t hash_of(const std::vector<load_run>& loads,
                                             const std::vector<task>& tasks) noexcept {
    std::uint64_t h = loads.size();
    const auto add = [&](std::uint64_t v) { h = (h ^ (h >> 29) ^ v) * 0x9e3779b97f4a7c15u; };
    for (const auto& run : loads) add(run.load), add(static_cast<std::uint64_t>(run.count));
    for (const auto& t : tasks)
      add(t.bytes), add(t.grain.unit_bytes + static_cast<std::uint64_t>(t.grain.units));
    return h ^ (h >> 32);
  }
  void place(const task& t) {
    if (t.grain.dimension < 0 || !split(t))
      shares_.push_back({static_cast<std::int32_t>(level_.give_to_least(t.bytes)), 1, 0, 0});
  }
  /// Raises the loads of the holders with the least to one level, as water would.
  bool split(const task& t) {
    const auto& grain = t.grain;
    const auto most = std::min<std::uint64_t>(t.bytes / piece_, static_cast<std::uint64_t>(grain.units));
    std::uint64_t level = 0;
    const auto taken = level_.take(t.bytes, piece_, static_cast<std::int64_t>(most), level);
    if (taken.empty()) return false;
    given_.clear();
    std::int64_t at = 0;
    std::uint64_t wanted = 0;
    for (std::size_t k = 0; k < taken.size(); ++k) {
      const auto& run = taken[k];
      wanted += (level - run.load) * static_cast<std::uint64_t>(run.count);
      auto end = grain.units;
      if (k + 1 < taken.size())
        end = std::clamp(static_cast<std::int64_t>((wanted + grain.unit_bytes / 2) / grain.unit_bytes), at,
                         grain.units);
      if (run.count != 1) {
        share(grain, run, at, end - at);
      } else {  // of many loads no two are equal: then nearly all runs are such
        level_.push({run.load + grain.unit_bytes * static_cast<std::uint64_t>(end - at), run.first, 1,
                     run.raised | (end > at ? 1u : 0u)});
        if (end > at) given_.append({static_cast<std::int32_t>(run.first), 1, at, end - at});
      }
      at = end;
    }
    shares_.insert(shares_.end(), given_.begin(), given_.end());
    return true;
  }
  /// Divides `units` from `at` on evenly among the holders of a run. Many holders get equal pieces, the last
  /// ones less or none, so that loads stay equal; few get pieces that differ by one unit.
  void share(const split_grain& grain, const load_run& run, std::int64_t at, std::int64_t units) {
    const auto whole = std::int64_t{run.count};
    const auto more = units / whole + (units % whole != 0);
    const auto less = whole > 64 ? std::int64_t{0} : units / whole;
    const auto with_more = more == less ? whole : whole > 64 ? units / more : units - less * whole;
    std::int64_t given = 0;  // holders that have got theirs
    const auto next = [&](std::int64_t count, std::int64_t each) {
      if (count == 0) return;
      give(grain, run, given, count, at, each);
      at += count * each;
      units -= count * each;
      given += count;
    };
    if (units > 0) next(with_more, more);
    if (whole > 64 && units > 0) next(1, units);
    next(whole - given, less);
  }
  /// To `count` holders of a run, from its number `from` on, `each` units from `at` on.
  void give(const split_grain& grain, const load_run& run, std::int64_t from, std::int64_t count,
            std::int64_t at, std::int64_t each) {
    level_.push({run.load + grain.unit_bytes * static_cast<std::uint64_t>(each), run.first + from,
                 static_cast<std::int32_t>(count), run.raised | (each > 0 ? 1u : 0u)});
    if (each > 0)
      given_.append(
          {static_cast<std::int32_t>(run.first + from), static_cast<std::int32_t>(count), at, each});
  }

  std::uint64_t piece_;
  load_heap level_;
  std::vector<load_run> after_;
  std::vector<replica_share> shares_;
  append_buffer<replica_share> given_;  ///< of the box that is being split
  std::deque<outcome> outcomes_;
  std::unordered_multimap<std::uint64_t, std::size_t> known_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
