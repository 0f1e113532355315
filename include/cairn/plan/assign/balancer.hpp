// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/assign/default_planner_options.hpp>
#include <cairn/plan/assign/rank_loads.hpp>
#include <cairn/plan/assign/replica_cut.hpp>
#include <cairn/plan/assign/replica_division.hpp>
#include <cairn/plan/assign/write_assignment.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/plan/summary/validation.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/sort_few.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Divides replicas among their holders. The rule is that of one set of ranks after another, those of the
/// fewest ranks first, as they have the least choice: what exactly these ranks hold is divided among them by
/// replica_division, over what they write already. What comes out does not depend on how boxes are put
/// together in progressions; but sets that hold boxes of the same progressions, and whose ranks' loads differ
/// alike, are decided once.
class balancer {
 public:
  balancer(const plan_summary& summary, int world_size, const default_planner_options& options)
      : summary_(summary),
        options_(options),
        min_chunk_bytes_(std::clamp(options.min_chunk_bytes, std::uint64_t{1}, std::uint64_t{1} << 60)),
        loads_(static_cast<std::size_t>(world_size)),
        division_(min_chunk_bytes_) {}

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
    divide_sets();
    out_.expect(shared_.size());
    for (const auto& [key, own] : holdings_)
      for (const auto& [loads, done] : own.known) write_out(key, own, done);
    out_.finish(summary_.size(), std::move(members_), std::move(division_.shares()));
    return std::move(out_);
  }

 private:
  using manner = replica_division::manner;
  /// Boxes of one item, each of which some ranks hold.
  struct shared_boxes {
    std::uint32_t item = 0;
    std::uint32_t pattern = 0;
    std::size_t member = 0;       ///< the first of its members
    replica_division::task task;  ///< of each box
  };
  using rank_list = std::vector<std::int32_t>;
  /// The holders of some groups of boxes: those of the first box, and by how much the others' are higher.
  struct pattern {
    std::size_t members = 0;
    std::int32_t first = 0;
    std::map<rank_list, std::uint32_t>::iterator holders;  ///< less the first
    rank_list shifts;
    std::vector<std::uint32_t> groups;  ///< in shared_
  };
  /// A set of ranks and the box of a pattern that it holds.
  struct held_box {
    std::size_t holders = 0;
    std::int32_t first = 0;
    std::uint32_t shape = 0;  ///< of the others: pattern::holders
    std::uint32_t pattern = 0;
    std::int64_t box = 0;
    [[nodiscard]] auto set() const noexcept { return std::tuple(holders, first, shape); }
    friend bool operator<(const held_box& a, const held_box& b) noexcept {
      return a.set() != b.set() ? a.set() < b.set() : a.pattern < b.pattern;
    }
  };
  struct known_division {
    replica_division::outcome outcome;
    std::vector<std::vector<std::int64_t>> boxes;  ///< of each pattern, those of the sets that it holds for
  };
  /// What a set of ranks holds.
  struct holding {
    std::vector<std::uint32_t> groups;  ///< in the order of tasks
    std::vector<replica_division::task> tasks;
    bool repeats = false;                                        ///< it has several boxes of one item
    std::map<std::vector<std::uint64_t>, known_division> known;  ///< by loads above the least
  };

  void collect(std::size_t n, const replica_groups& groups) {
    const auto& i = summary_[n];
    bool replicated = false;
    if (!i.per_rank)
      for (std::size_t g = 0; g < groups.size(); ++g)
        replicated |= groups[g].size() > 1 || groups[g][0].replicas() > 1;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto members = groups[g];
      if (members.empty()) continue;
      if (i.per_rank || (members.size() == 1 && members[0].replicas() == 1)) {
        for (const auto& m : members) {
          add_fixed(m.p, box_bytes(i, m.p));
          if (replicated) add_chunk(n, m.p);
        }
      } else {
        share_out(n, members);
      }
    }
  }
  void share_out(std::size_t n, list_view<const held_boxes> members) {
    const auto& i = summary_[n];
    shared_boxes s{static_cast<std::uint32_t>(n), 0, members_.size(), {}};
    members_.insert(members_.end(), members.begin(), members.end());
    if (members.size() > 1) in_order_of_ranks(s.member);
    auto& t = s.task;
    for (const auto& m : members) t.bytes = std::max(t.bytes, box_bytes(i, m.p));
    if (t.bytes > 0 && t.bytes >= options_.split_above_bytes) {
      t.how = manner::whole_first;
      if (i.kind == item_kind::tensor)
        t.grain = grain_of(i.type, members_[s.member].p.first.sizes, t.bytes,
                           std::min(min_chunk_bytes_, t.bytes / 2));
      if (t.grain.dimension >= 0) t.how = manner::cut;
    }
    s.pattern = pattern_of(list_view<const held_boxes>(members_).subspan(s.member));
    patterns_[s.pattern].groups.push_back(static_cast<std::uint32_t>(shared_.size()));
    shared_.push_back(s);
  }
  /// Sorts members so that their holders ascend; those that interleave become one for each holder.
  void in_order_of_ranks(std::size_t begin) {
    const auto by_rank = [](const held_boxes& a, const held_boxes& b) { return a.p.rank < b.p.rank; };
    const auto first = members_.begin() + static_cast<std::ptrdiff_t>(begin);
    detail::sort(members_.data() + begin, members_.size() - begin, by_rank);
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
    detail::sort(each, by_rank);
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
  /// @param key of fixed_
  void add_load(const rank_list& key, std::uint64_t bytes) {
    chunk_progression p;
    p.rank = key[0];
    for (std::size_t k = 1; k < key.size(); k += 2)
      p.axes[static_cast<std::size_t>(p.axis_count++)] = {key[k], key[k + 1], -1, 0};
    loads_.add(p, bytes);
  }
  /// Brings the axes into order again.
  void add_chunk(std::size_t item, chunk_progression p) {
    sort_few(p.axes.begin(), p.axes.begin() + p.axis_count,
             [](const chunk_axis& a, const chunk_axis& b) { return a.rank_step > b.rank_step; });
    out_.add(item, 0, p);
  }
  /// Groups of the same pattern have the same holders, box by box.
  std::uint32_t pattern_of(list_view<const held_boxes> members) {
    key_ = {members[0].shards};
    for (const auto& m : members) {
      key_.push_back(m.p.rank);
      key_.push_back(m.p.axis_count);
      for (const auto& a : m.p) key_.push_back(a.count), key_.push_back(a.rank_step);
    }
    const auto [found, added] = pattern_keys_.emplace(key_, static_cast<std::uint32_t>(patterns_.size()));
    if (added) {
      auto& made = patterns_.emplace_back();
      made.members = members.size();
      members[0].append_shifts(made.shifts);
      rank_list holders;
      for (const auto& m : members) m.append_holders(holders);
      made.first = holders[0];
      for (auto& h : holders) h -= made.first;
      made.holders = shapes_.emplace(std::move(holders), 0).first;
    }
    return found->second;
  }

  /// All sets of ranks that hold something, in the order of the rule; those that are equal side by side.
  [[nodiscard]] std::vector<held_box> held_sets() {
    std::uint32_t shapes = 0;
    for (auto& [holders, number] : shapes_) number = shapes++;
    std::vector<held_box> sets;
    for (std::uint32_t p = 0; p < patterns_.size(); ++p) {
      const auto& own = patterns_[p];
      for (std::size_t b = 0; b < own.shifts.size(); ++b)
        sets.push_back({own.holders->first.size(), own.first + own.shifts[b], own.holders->second, p,
                        static_cast<std::int64_t>(b)});
    }
    detail::sort(sets);
    return sets;
  }
  void divide_sets() {
    const auto sets = held_sets();
    std::vector<std::uint32_t> own_patterns;
    std::vector<std::uint32_t> last_patterns;
    std::vector<std::uint64_t> own_loads;
    const std::vector<std::uint64_t>* last_loads = nullptr;
    holding* own = nullptr;
    known_division* done = nullptr;
    for (std::size_t from = 0, to = 0; from < sets.size(); from = to) {
      own_patterns.clear();
      for (; to < sets.size() && sets[to].set() == sets[from].set(); ++to)
        own_patterns.push_back(sets[to].pattern);
      // Most sets are like the one before.
      const bool alike = own != nullptr && !own->repeats && own_patterns == last_patterns;
      if (!alike) own = &holding_of(own_patterns, list_view<const held_box>(sets).subspan(from, to - from));
      const auto& holders = patterns_[own_patterns[0]].holders->first;
      const auto first = sets[from].first;
      own_loads.resize(holders.size());
      for (std::size_t h = 0; h < holders.size(); ++h) own_loads[h] = loads_[first + holders[h]];
      const auto least = *std::min_element(own_loads.begin(), own_loads.end());
      for (auto& load : own_loads) load -= least;
      if (!alike || own_loads != *last_loads) {
        const auto [found, added] = own->known.try_emplace(std::move(own_loads));
        last_loads = &found->first;
        done = &found->second;
        if (added) done->outcome = division_.divide(own->tasks, *last_loads), done->boxes.resize(to - from);
      }
      for (std::size_t h = 0; h < holders.size(); ++h) loads_.add(first + holders[h], done->outcome.given[h]);
      for (auto n = from; n < to; ++n) done->boxes[n - from].push_back(sets[n].box);
      last_patterns.swap(own_patterns);
    }
  }
  /// What a set holds: the boxes of some patterns.
  holding& holding_of(const std::vector<std::uint32_t>& patterns, list_view<const held_box> boxes) {
    const auto [found, added] = holdings_.try_emplace(patterns);
    auto& own = found->second;
    if (added) {
      for (const auto p : patterns)
        own.groups.insert(own.groups.end(), patterns_[p].groups.begin(), patterns_[p].groups.end());
      detail::sort(own.groups);  // by items
      for (std::size_t k = 1; k < own.groups.size(); ++k)
        own.repeats |= shared_[own.groups[k]].item == shared_[own.groups[k - 1]].item;
      if (!own.repeats) make_tasks(own);
    }
    if (!own.repeats) return own;
    // Which box of an item comes first may differ from set to set.
    auto groups = own.groups;
    const auto box_in = [&](const shared_boxes& s) {
      const auto* at = detail::find_if(boxes, [&](const held_box& b) { return b.pattern == s.pattern; });
      return members_[s.member].box(at->box).box;
    };
    detail::sort(groups, [&](auto a, auto b) {
      const auto& x = shared_[a];
      const auto& y = shared_[b];
      return x.item != y.item ? x.item < y.item : box_in(x) < box_in(y);
    });
    auto key = patterns;
    key.push_back(UINT32_MAX);
    key.insert(key.end(), groups.begin(), groups.end());
    const auto [ordered, unknown] = holdings_.try_emplace(std::move(key));
    if (unknown) {
      ordered->second.groups = std::move(groups);
      ordered->second.repeats = true;
      make_tasks(ordered->second);
    }
    return ordered->second;
  }
  /// Sorts its groups, of which the ones of one item are in order.
  void make_tasks(holding& own) const {
    detail::sort(own.groups, [&](auto a, auto b) {
      const auto& x = shared_[a].task;
      const auto& y = shared_[b].task;
      return x.how != y.how ? x.how < y.how : x.how != manner::cut && x.bytes > y.bytes;
    });
    own.tasks.reserve(own.groups.size());
    for (const auto g : own.groups) own.tasks.push_back(shared_[g].task);
  }
  /// @param key begins with the patterns of the holding
  void write_out(const std::vector<std::uint32_t>& key, const holding& own, const known_division& done) {
    for (std::size_t p = 0; p < done.boxes.size(); ++p) {
      const auto& held = patterns_[key[p]];
      auto boxes = done.boxes[p];
      detail::sort(boxes);
      write_assignment::division d;
      d.members = held.members;
      if (boxes.size() != held.shifts.size()) d.first_shard = out_.add_shards(boxes), d.shards = boxes.size();
      for (std::size_t k = 0; k < own.groups.size(); ++k) {
        const auto& g = shared_[own.groups[k]];
        if (g.pattern != key[p]) continue;
        d.first_member = g.member;
        d.first_share = done.outcome.shares[k];
        d.shares = done.outcome.shares[k + 1] - d.first_share;
        d.grain = g.task.grain;
        out_.add(g.item, own.groups[k] + 1, d);
      }
    }
  }

  const plan_summary& summary_;
  const default_planner_options& options_;
  std::uint64_t min_chunk_bytes_;
  rank_loads loads_;
  write_assignment out_;
  rank_list key_;
  std::map<rank_list, std::uint64_t> fixed_;
  std::map<rank_list, std::uint32_t> pattern_keys_;
  std::map<rank_list, std::uint32_t> shapes_;
  std::vector<pattern> patterns_;
  std::vector<shared_boxes> shared_;
  std::vector<held_boxes> members_;
  std::map<std::vector<std::uint32_t>, holding> holdings_;
  replica_division division_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
