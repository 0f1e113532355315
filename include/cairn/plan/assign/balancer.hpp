// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/assign/default_planner_options.hpp>
#include <cairn/plan/assign/disjoint_patterns.hpp>
#include <cairn/plan/assign/rank_loads.hpp>
#include <cairn/plan/assign/replica_cut.hpp>
#include <cairn/plan/assign/replica_division.hpp>
#include <cairn/plan/assign/write_assignment.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/plan/summary/validation.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Divides replicas among their holders. The rule is that of one box after another: the largest first, of
/// those of one size the ones with fewer holders, then in the order of their holders, items and offsets; each
/// goes to its holders with the least to write. What comes out does not depend on how boxes are put together
/// in progressions; but the boxes of a progression whose holders have loads that differ alike are decided
/// together, as what is decided for one of them holds for all; and so are the boxes of patterns that have no
/// rank in common, each pattern by itself.
class balancer {
 public:
  balancer(const plan_summary& summary, int world_size, const default_planner_options& options)
      : summary_(summary),
        options_(options),
        piece_(std::max<std::uint64_t>(options.least_piece_bytes, 1)),
        loads_(static_cast<std::size_t>(world_size)),
        apart_(static_cast<std::size_t>(world_size)),
        division_(piece_) {}

  /// @throws plan_error as validate() does.
  [[nodiscard]] write_assignment assign() {
    // Most often one group of each item at most; what is not used is not touched.
    members_.reserve(std::min<std::size_t>(summary_.size(), 1 << 16));
    shared_.reserve(std::min<std::size_t>(summary_.size(), 1 << 16));
    summary_check check(summary_, static_cast<int>(loads_.size()));
    for (std::size_t n = 0; n < summary_.size(); ++n) {
      check.check(n);
      if (check.unshared())
        add_unshared(n);
      else
        collect(n, check.groups());
    }
    for (const auto& [ranks, bytes] : fixed_) add_load(ranks, bytes);
    out_.expect(shared_.size());
    std::sort(shared_.begin(), shared_.end(), [&](const shared_boxes& a, const shared_boxes& b) {
      if (a.bytes != b.bytes) return a.bytes > b.bytes;
      if (a.holders != b.holders) return a.holders < b.holders;
      if (a.pattern != b.pattern) return a.pattern < b.pattern;
      return a.item != b.item ? a.item < b.item : members_[a.member].p.first < members_[b.member].p.first;
    });
    for (std::size_t from = 0; from < shared_.size();) {
      const auto to = apart_from(from);
      if (to == from)
        divide_singly(from, wave_end(from));
      else
        divide_patterns(from, to);
      from = to == from ? wave_end(from) : to;
    }
    out_.finish(summary_.size(), std::move(members_), std::move(division_.shares()));
    return std::move(out_);
  }

 private:
  struct shared_boxes {
    std::uint64_t bytes = 0;   ///< of each box
    std::int64_t holders = 0;  ///< of each box
    std::uint32_t pattern = 0;
    std::uint32_t item = 0;
    std::size_t member = 0;  ///< the first of its members
  };
  /// Ranks as a progression without boxes: the first one, and count and step of each axis.
  using rank_pattern = std::vector<std::int32_t>;

  void collect(std::size_t n, const replica_groups& groups) {
    const auto& i = summary_[n];
    bool replicated = false;
    if (!i.per_rank)
      for (std::size_t g = 0; g < groups.size(); ++g)
        replicated |= groups[g].size() > 1 || groups[g][0].replicas() > 1;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto members = groups[g];
      if (members.empty()) continue;
      std::uint64_t bytes = 0;
      for (const auto& m : members) bytes = std::max(bytes, box_bytes(i, m.p));
      if (i.per_rank || (members.size() == 1 && members[0].replicas() == 1)) {
        for (const auto& m : members) {
          add_fixed(m.p, box_bytes(i, m.p));
          if (replicated) add_piece(n, m.p);
        }
      } else {
        share_out(n, bytes, members);
      }
    }
  }
  void share_out(std::size_t n, std::uint64_t bytes, list_view<const held_boxes> members) {
    const auto begin = members_.size();
    members_.insert(members_.end(), members.begin(), members.end());
    if (members.size() > 1) in_order_of_ranks(begin);
    const list_view<const held_boxes> own(members_.data() + begin, members_.size() - begin);
    std::int64_t holders = 0;
    for (const auto& m : own) holders += m.replicas();
    shared_.push_back({bytes, holders, pattern_of(own), static_cast<std::uint32_t>(n), begin});
  }
  /// Sorts members so that their holders ascend; those that interleave become one for each holder.
  void in_order_of_ranks(std::size_t begin) {
    const auto by_rank = [](const held_boxes& a, const held_boxes& b) { return a.p.rank < b.p.rank; };
    const auto first = members_.begin() + static_cast<std::ptrdiff_t>(begin);
    std::sort(first, members_.end(), by_rank);
    bool apart = true;
    for (auto m = first + 1; m < members_.end(); ++m) apart = apart && (m - 1)->last_holder() < m->p.rank;
    if (apart) return;
    std::vector<held_boxes> each;
    for (auto m = first; m < members_.end(); ++m)
      for (std::int64_t k = 0; k < m->replicas(); ++k) {
        each.push_back(*m);
        each.back().p.rank = m->holder(k);
        each.back().p.axis_count = m->shards;
      }
    std::sort(each.begin(), each.end(), by_rank);
    members_.erase(first, members_.end());
    members_.insert(members_.end(), each.begin(), each.end());
  }
  [[nodiscard]] static std::uint64_t box_bytes(const summary_item& i, const chunk_progression& p) {
    if (i.kind == item_kind::bytes) return static_cast<std::uint64_t>(p.first.sizes[0]);
    return bytes_of(i.type, p.first.volume());
  }
  /// All boxes of an item, none of which is bytes.
  void add_unshared(std::size_t n) {
    const auto& i = summary_[n];
    summary_.for_each_box(
        n,
        [&](std::int32_t rank, auto, auto sizes) {
          std::int64_t volume = 1;
          for (const auto size : sizes) volume *= size;
          loads_.add(rank, bytes_of(i.type, volume));
          return true;
        },
        [&](const chunk_progression& p) {
          add_fixed(p, box_bytes(i, p));
          return true;
        });
  }
  void add_fixed(const chunk_progression& p, std::uint64_t bytes) {
    // A few ranks are no pattern that comes again.
    if (p.count() <= 4) {
      loads_.add(p, bytes);
      return;
    }
    key_ = {p.rank};
    for (const auto& a : p) key_.push_back(a.count), key_.push_back(a.rank_step);
    fixed_[key_] += bytes;
  }
  void add_load(const rank_pattern& ranks, std::uint64_t bytes) {
    chunk_progression p;
    p.rank = ranks[0];
    for (std::size_t k = 1; k < ranks.size(); k += 2)
      p.axes[static_cast<std::size_t>(p.axis_count++)] = {ranks[k], ranks[k + 1], -1, 0};
    loads_.add(p, bytes);
  }
  /// Groups of the same pattern have the same holders, box by box.
  std::uint32_t pattern_of(list_view<const held_boxes> members) {
    key_ = {members[0].shards};
    for (const auto& m : members) {
      key_.push_back(m.p.rank);
      key_.push_back(m.p.axis_count);
      for (const auto& a : m.p) key_.push_back(a.count), key_.push_back(a.rank_step);
    }
    const auto [found, added] = patterns_.emplace(key_, static_cast<std::uint32_t>(pattern_size_.size()));
    if (added) pattern_size_.push_back(static_cast<std::uint32_t>(members.size()));
    return found->second;
  }

  /// The end of the groups that have one size and number of holders.
  [[nodiscard]] std::size_t wave_end(std::size_t from) const noexcept {
    auto to = from + 1;
    while (to < shared_.size() && shared_[to].bytes == shared_[from].bytes &&
           shared_[to].holders == shared_[from].holders)
      ++to;
    return to;
  }
  /// The end of the waves from one on that may be divided pattern by pattern: no rank is in two patterns. And
  /// no item has several boxes on the same ranks, of which the first one would differ from shard to shard.
  [[nodiscard]] std::size_t apart_from(std::size_t from) {
    apart_.clear();
    while (from < shared_.size()) {
      const auto to = wave_end(from);
      for (auto g = from; g < to; ++g) {
        if (g > from && shared_[g].pattern == shared_[g - 1].pattern) {
          if (shared_[g].item == shared_[g - 1].item && members_[shared_[g].member].shards > 0) return from;
        } else if (!apart_.add(shared_[g].pattern, members_of(shared_[g]))) {
          return from;
        }
      }
      from = to;
    }
    return from;
  }
  [[nodiscard]] list_view<const held_boxes> members_of(const shared_boxes& g) const noexcept {
    return list_view(members_).subspan(g.member, pattern_size_[g.pattern]);
  }
  void divide_patterns(std::size_t from, std::size_t to) {
    order_.resize(to - from);
    std::iota(order_.begin(), order_.end(), from);
    const auto by_pattern = [&](auto a, auto b) {
      return shared_[a].pattern != shared_[b].pattern ? shared_[a].pattern < shared_[b].pattern : a < b;
    };
    if (!std::is_sorted(order_.begin(), order_.end(), by_pattern))
      std::sort(order_.begin(), order_.end(), by_pattern);
    division_.forget();
    for (std::size_t begin = 0, end = 0; begin < order_.size(); begin = end) {
      while (end < order_.size() && shared_[order_[end]].pattern == shared_[order_[begin]].pattern) ++end;
      divide({order_.data() + begin, end - begin});
    }
  }
  /// All boxes of groups that have one pattern, group by group.
  void divide(list_view<const std::size_t> groups) {
    tasks_.clear();
    for (const auto g : groups) tasks_.push_back(task_of(shared_[g]));
    const auto whole =
        std::all_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return t.grain.dimension < 0; });
    const auto members = members_of(shared_[groups[0]]);
    loads_.look_at(members);
    for (const auto& own : loads_.classes()) {
      if (whole)
        loads_.least_of(own, tasks_.size(), runs_);
      else
        loads_.runs_of(own, runs_);
      const auto& done = division_.divide(runs_, tasks_);
      loads_.raise(own, runs_, done.after);
      write_assignment::division d;
      d.members = members.size();
      if (!loads_.is_all(own)) d.first_shard = out_.add_shards(own), d.shards = own.size();
      for (std::size_t k = 0; k < groups.size(); ++k) {
        const auto& g = shared_[groups[k]];
        d.first_member = g.member;
        d.first_share = done.shares[k];
        d.shares = done.shares[k + 1] - done.shares[k];
        d.grain = tasks_[k].grain;
        out_.add(g.item, groups[k] + 1, d);
      }
    }
  }
  /// Box by box.
  void divide_singly(std::size_t from, std::size_t to) {
    struct single {
      std::vector<std::int32_t> holders;
      chunk box;
      std::uint32_t item = 0;
      replica_division::task task;
      std::size_t first_member = 0;
      std::size_t members = 0;
    };
    std::vector<held_boxes> members;
    std::vector<single> singles;
    for (auto g = from; g < to; ++g) {
      const auto own = members_of(shared_[g]);
      const auto task = task_of(shared_[g]);
      for (std::int64_t s = 0; s < own[0].boxes(); ++s) {
        const auto c = own[0].box(s);
        single one{{}, c.box, shared_[g].item, task, members.size(), own.size()};
        for (auto alone : own) {
          alone.p.first = c.box;
          alone.p.rank += c.rank - own[0].p.rank;
          std::copy(alone.p.begin() + alone.shards, alone.p.end(), alone.p.axes.begin());
          alone.p.axis_count -= alone.shards;
          alone.shards = 0;
          alone.append_holders(one.holders);
          members.push_back(alone);
        }
        singles.push_back(std::move(one));
      }
    }
    std::sort(singles.begin(), singles.end(), [](const single& a, const single& b) {
      if (a.holders != b.holders) return a.holders < b.holders;
      return a.item != b.item ? a.item < b.item : a.box < b.box;
    });
    auto& shares = division_.shares();
    const auto known = shares.size();
    for (const auto& one : singles) {
      const auto own = list_view<const held_boxes>(members).subspan(one.first_member, one.members);
      loads_.look_at(own);
      loads_.runs_of(loads_.classes()[0], runs_);
      loads_.raise(loads_.classes()[0], runs_, division_.divide(runs_, one.task));
      divided_boxes{own, {}, list_view(shares).subspan(known), one.task.grain}.for_each_piece(
          [&](const chunk_progression& p) { out_.add(one.item, from + 1, p); });
      shares.resize(known);
    }
  }
  [[nodiscard]] replica_division::task task_of(const shared_boxes& g) const {
    replica_division::task t{g.bytes, {}};
    const auto& item = summary_[g.item];
    if (item.kind == item_kind::tensor && g.bytes >= options_.split_above_bytes && g.bytes > 0)
      t.grain = grain_of(item.type, members_[g.member].p.first.sizes, g.bytes, std::min(piece_, g.bytes / 2));
    return t;
  }
  /// Brings the axes into order again.
  void add_piece(std::size_t item, chunk_progression p) {
    sort_few(p.axes.begin(), p.axes.begin() + p.axis_count,
             [](const chunk_axis& a, const chunk_axis& b) { return a.rank_step > b.rank_step; });
    out_.add(item, 0, p);
  }

  const plan_summary& summary_;
  const default_planner_options& options_;
  std::uint64_t piece_;
  rank_loads loads_;
  write_assignment out_;
  rank_pattern key_;
  std::map<rank_pattern, std::uint64_t> fixed_;
  std::map<rank_pattern, std::uint32_t> patterns_;
  std::vector<std::uint32_t> pattern_size_;  ///< members
  std::vector<shared_boxes> shared_;
  std::vector<held_boxes> members_;
  disjoint_patterns apart_;
  replica_division division_;
  // What is divided now:
  std::vector<std::size_t> order_;
  std::vector<replica_division::task> tasks_;
  std::vector<load_run> runs_;
};

}  // namespace detail

}  // namespace v1
}  // namespace cairn
