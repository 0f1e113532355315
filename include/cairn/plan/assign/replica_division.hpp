// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/assign/replica_cut.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Divides what a set of ranks holds among these ranks, so that they come to write about as much as each
/// other. Boxes that can be cut are laid end to end, and this line is cut where one rank's part ends and the
/// next one's begins: there are fewer cuts than ranks, however many boxes there are.
class replica_division {
 public:
  /// In this order: what is large and cannot be cut, so that the line can make up for it; the line; what is
  /// small, which makes up for where the line could not be cut.
  enum class manner : std::uint8_t { whole_first, cut, whole_last };
  struct task {
    std::uint64_t bytes = 0;
    split_grain grain;
    manner how = manner::whole_last;
  };
  struct outcome {
    std::vector<std::uint64_t> given;  ///< bytes, to each holder
    std::vector<std::size_t> shares;   ///< where those of each task begin in shares(); one more at the end
  };

  /// @param min_bytes the least bytes that a cut leaves on either side
  explicit replica_division(std::uint64_t min_bytes) : min_bytes_(min_bytes) {
    shares_.reserve(1 << 15);  // what is not used is not touched
  }

  /// The shares of all outcomes; they may be taken when nothing is divided any more.
  [[nodiscard]] std::vector<replica_share>& shares() noexcept { return shares_; }

  /// @param tasks sorted by `how`
  /// @param loads what each holder writes anyway
  /// @returns the same for the same arguments. O(tasks + holders, times the logarithm of either).
  [[nodiscard]] outcome divide(list_view<const task> tasks, const std::vector<std::uint64_t>& loads) {
    outcome made;
    made.shares.reserve(tasks.size() + 1);
    auto after = loads;
    for (std::size_t from = 0, to = 0; from < tasks.size(); from = to) {
      while (to < tasks.size() && tasks[to].how == tasks[from].how) ++to;
      const auto alike = tasks.subspan(from, to - from);
      if (tasks[from].how == manner::cut)
        cut_line(alike, after, made.shares);
      else
        give_whole(alike, after, made.shares);
    }
    made.shares.push_back(shares_.size());
    for (std::size_t h = 0; h < after.size(); ++h) after[h] -= loads[h];
    made.given = std::move(after);
    return made;
  }

 private:
  /// Neighbouring holders with the same load.
  struct run {
    std::uint64_t load = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
    friend bool operator>(const run& a, const run& b) noexcept {
      return a.load != b.load ? a.load > b.load : a.first > b.first;
    }
  };
  void find_runs(const std::vector<std::uint64_t>& loads) {
    runs_.clear();
    for (std::size_t h = 0; h < loads.size(); ++h) {
      if (!runs_.empty() && runs_.back().load == loads[h])
        ++runs_.back().count;
      else
        runs_.push_back({loads[h], static_cast<std::int64_t>(h), 1});
    }
  }
  /// Each to the first of the holders with the least.
  void give_whole(list_view<const task> tasks, std::vector<std::uint64_t>& loads,
                  std::vector<std::size_t>& begins) {
    find_runs(loads);
    std::make_heap(runs_.begin(), runs_.end(), std::greater<>());
    const auto push = [&](const run& r) {
      runs_.push_back(r);
      std::push_heap(runs_.begin(), runs_.end(), std::greater<>());
    };
    for (const auto& t : tasks) {
      std::pop_heap(runs_.begin(), runs_.end(), std::greater<>());
      const auto least = runs_.back();
      runs_.pop_back();
      if (least.count > 1) push({least.load, least.first + 1, least.count - 1});
      push({least.load + t.bytes, least.first, 1});
      loads[static_cast<std::size_t>(least.first)] += t.bytes;
      begins.push_back(shares_.size());
      shares_.push_back({static_cast<std::int32_t>(least.first), 1, 0, 0});
    }
  }
  /// Raises the holders with the least to one level, as water would; in the order of the holders, each gets
  /// the next part of the line.
  void cut_line(list_view<const task> tasks, std::vector<std::uint64_t>& loads,
                std::vector<std::size_t>& begins) {
    std::uint64_t bytes = 0;
    for (const auto& t : tasks) bytes += t.bytes;
    const auto level = choose_takers(bytes, loads);
    std::int64_t takers = 0;
    std::int64_t wanted = 0;  // by all takers that are left
    for (const auto& r : runs_)
      takers += r.count, wanted += static_cast<std::int64_t>(level - r.load) * r.count;
    auto remaining = static_cast<std::int64_t>(bytes);
    auto box = tasks.begin();
    std::int64_t at = 0;  // units of it
    begins.push_back(shares_.size());
    for (const auto& r : runs_) {
      const auto quota = static_cast<std::int64_t>(level - r.load);
      for (auto h = r.first; h < r.first + r.count; ++h, --takers) {
        // What others got too much or too little of is spread over all that are left.
        auto open = quota + (remaining - wanted) / takers;
        std::int64_t given = 0;
        while (box != tasks.end()) {
          const auto rest = box->grain.units - at;
          const auto units = takers == 1 ? rest : units_of(box->grain, rest, open - given);
          if (units > 0) add_share(h, at, units, units == box->grain.units, begins.back());
          given += units * static_cast<std::int64_t>(box->grain.unit_bytes);
          at += units;
          if (units < rest) break;
          at = 0;
          if (++box != tasks.end()) begins.push_back(shares_.size());
        }
        loads[static_cast<std::size_t>(h)] += static_cast<std::uint64_t>(given);
        remaining -= given, wanted -= quota;
      }
    }
  }
  /// Keeps in runs_, in order, those that get some of so many bytes: the ones with the least, so many that
  /// each gets a chunk at least. Returns what they come to.
  std::uint64_t choose_takers(std::uint64_t bytes, const std::vector<std::uint64_t>& loads) {
    find_runs(loads);
    const auto by_load = [](const run& a, const run& b) { return b > a; };
    detail::sort(runs_, by_load);
    std::uint64_t below = 0;
    std::uint64_t takers = 0;
    std::size_t kept = 0;
    for (bool more = true; more && kept < runs_.size(); ++kept) {
      auto& r = runs_[kept];
      // So many of them get a chunk: below + n * load + bytes >= (takers + n) * (load + min_bytes).
      const auto needed = takers * (r.load + min_bytes_);
      auto n = below + bytes < needed ? 0 : (below + bytes - needed) / min_bytes_;
      if (takers == 0) n = std::max<std::uint64_t>(n, 1);
      if (n == 0) break;
      more = n >= static_cast<std::uint64_t>(r.count);
      if (!more) r.count = static_cast<std::int64_t>(n);
      takers += static_cast<std::uint64_t>(r.count);
      below += r.load * static_cast<std::uint64_t>(r.count);
    }
    runs_.resize(kept);
    detail::sort(runs_, [](const run& a, const run& b) { return a.first < b.first; });
    return (below + bytes) / takers;
  }
  /// How many of the units that are left of a box make about `bytes`; if the box cannot be cut there, the
  /// nearest number.
  [[nodiscard]] std::int64_t units_of(const split_grain& grain, std::int64_t rest, std::int64_t bytes) const {
    const auto unit = static_cast<std::int64_t>(grain.unit_bytes);
    if (bytes <= 0) return 0;
    const auto units = bytes / unit + (bytes % unit != 0);
    if (units >= rest) return rest;
    const auto least = static_cast<std::int64_t>((min_bytes_ + grain.unit_bytes - 1) / grain.unit_bytes);
    if (rest / 2 < least) return units < rest - units ? 0 : rest;
    if (units < least) return units < least - units ? 0 : least;
    if (units > rest - least) return rest - units <= least - (rest - units) ? rest : rest - least;
    return units;
  }
  /// @param begin of the shares of the box
  void add_share(std::int64_t holder, std::int64_t at, std::int64_t units, bool whole, std::size_t begin) {
    if (shares_.size() > begin) {
      auto& last = shares_.back();
      if (last.each == units && last.holder + last.count == holder) {
        ++last.count;
        return;
      }
    }
    shares_.push_back({static_cast<std::int32_t>(holder), 1, at, whole ? 0 : units});
  }

  std::uint64_t min_bytes_;
  std::vector<run> runs_;
  std::vector<replica_share> shares_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
