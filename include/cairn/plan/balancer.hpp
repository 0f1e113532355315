// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/replica_cut.hpp>
#include <cairn/plan/summary.hpp>
#include <cairn/plan/validation.hpp>
#include <cairn/plan/water_level.hpp>
#include <cairn/plan/write_assignment.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Divides replicas among their holders. The rule is that of one box after another: the largest first, of
/// those of one size the ones with fewer holders, then in the order of their holders, items and offsets; each
/// goes to its holders with the least to write. What comes out does not depend on how boxes are put together
/// in progressions; but the boxes of a progression whose holders have loads that differ alike are decided
/// together, as what is decided for one of them holds for all.
class balancer {
 public:
  balancer(const plan_summary& summary, int world_size, const default_planner_options& options)
      : summary_(summary),
        options_(options),
        piece_(std::max<std::uint64_t>(options.least_piece_bytes, 1)),
        load_(static_cast<std::size_t>(world_size)) {}

  /// @throws plan_error as validate() does.
  [[nodiscard]] write_assignment assign() {
    summary_check check(summary_, static_cast<int>(load_.size()));
    for (std::size_t n = 0; n < summary_.size(); ++n) {
      check.check(n);
      if (check.unshared())
        add_unshared(n);
      else
        collect(n, check.groups());
    }
    for (const auto& [ranks, bytes] : fixed_) add_load(ranks, bytes);
    std::sort(shared_.begin(), shared_.end(), [&](const shared_boxes& a, const shared_boxes& b) {
      if (a.bytes != b.bytes) return a.bytes > b.bytes;
      if (a.holders != b.holders) return a.holders < b.holders;
      if (a.pattern != b.pattern) return a.pattern < b.pattern;
      return a.item != b.item ? a.item < b.item : members_[a.member].p.first < members_[b.member].p.first;
    });
    for (std::size_t from = 0; from < shared_.size();) {
      auto to = wave_end(from);
      if (!independent(from, to)) {
        divide_singly(from, to);
      } else {
        // What comes next on the same ranks alone goes on with the same levels.
        while (to < shared_.size() && shared_[from].pattern == shared_[to - 1].pattern) {
          const auto next = wave_end(to);
          if (shared_[to].pattern != shared_[from].pattern ||
              shared_[next - 1].pattern != shared_[from].pattern || !independent(to, next))
            break;
          to = next;
        }
        divide_patterns(from, to);
      }
      from = to;
    }
    out_.sort_by_item(summary_.size());
    return std::move(out_);
  }

 private:
  struct shared_boxes {
    std::uint64_t bytes = 0;   ///< of each box
    std::int64_t holders = 0;  ///< of each box
    std::uint32_t pattern = 0;
    std::uint32_t item = 0;
    std::uint32_t member = 0;  ///< the first of its members
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
          if (replicated) emit(n, m.p);
        }
      } else {
        share_out(n, bytes, members);
      }
    }
  }
  void share_out(std::size_t n, std::uint64_t bytes, std::span<const held_boxes> members) {
    const auto begin = members_.size();
    members_.insert(members_.end(), members.begin(), members.end());
    if (members.size() > 1) in_order_of_ranks(begin);
    const std::span<const held_boxes> own(members_.data() + begin, members_.size() - begin);
    std::int64_t holders = 0;
    for (const auto& m : own) holders += m.replicas();
    shared_.push_back(
        {bytes, holders, pattern_of(own), static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(begin)});
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
          load_[static_cast<std::size_t>(rank)] += bytes_of(i.type, volume);
          return true;
        },
        [&](const chunk_progression& p) {
          add_fixed(p, box_bytes(i, p));
          return true;
        });
  }
  void add_fixed(const chunk_progression& p, std::uint64_t bytes) {
    // A few ranks are no pattern that comes again.
    if (const auto count = p.count(); count <= 4) {
      for (std::int64_t k = 0; k < count; ++k) load_[static_cast<std::size_t>(p.at(k).rank)] += bytes;
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
    const auto inner = p.axis_count - 1;
    const auto& last = p.axes[static_cast<std::size_t>(inner)];
    for (std::int64_t i = 0; i < p.count(); i += last.count) {
      auto rank = static_cast<std::size_t>(p.at(i).rank);
      for (std::int32_t k = 0; k < last.count; ++k, rank += static_cast<std::size_t>(last.rank_step))
        load_[rank] += bytes;
    }
  }
  /// Groups of the same pattern have the same holders, box by box.
  std::uint32_t pattern_of(std::span<const held_boxes> members) {
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
  /// True if groups of a wave may be divided pattern by pattern: no rank is in two patterns. And no item has
  /// several boxes on the same ranks, of which the first one would differ from shard to shard.
  [[nodiscard]] bool independent(std::size_t from, std::size_t to) {
    for (auto g = from + 1; g < to; ++g)
      if (shared_[g].item == shared_[g - 1].item && shared_[g].pattern == shared_[g - 1].pattern &&
          members_[shared_[g].member].shards > 0)
        return false;
    if (shared_[from].pattern == shared_[to - 1].pattern) return true;
    seen_.resize(load_.size());
    ++wave_;
    for (auto g = from; g < to; ++g) {
      if (g > from && shared_[g].pattern == shared_[g - 1].pattern) continue;
      const auto begin = shared_[g].member;
      for (auto m = begin; m < begin + pattern_size_[shared_[g].pattern]; ++m) {
        const auto& p = members_[m].p;
        for (std::int64_t i = 0; i < p.count(); ++i)
          if (std::exchange(seen_[static_cast<std::size_t>(p.at(i).rank)], wave_) == wave_) return false;
      }
    }
    return true;
  }
  void divide_patterns(std::size_t from, std::size_t to) {
    while (from < to) {
      auto end = from + 1;
      while (end < to && shared_[end].pattern == shared_[from].pattern) ++end;
      divide({shared_.data() + from, end - from});
      from = end;
    }
  }
  /// Box by box.
  void divide_singly(std::size_t from, std::size_t to) {
    struct single {
      std::vector<std::int32_t> holders;
      chunk box;
      shared_boxes group;
    };
    const auto members = members_.size();
    const auto patterns = pattern_size_.size();
    std::vector<single> singles;
    for (auto g = from; g < to; ++g) {
      const auto group = shared_[g];
      const auto size = pattern_size_[group.pattern];
      pattern_size_.push_back(size);
      auto shards = members_[group.member].p;
      shards.axis_count = members_[group.member].shards;
      for (std::int64_t s = 0; s < shards.count(); ++s) {
        const auto c = shards.at(s);
        single one{{}, c.box, group};
        one.group.member = static_cast<std::uint32_t>(members_.size());
        one.group.pattern = static_cast<std::uint32_t>(pattern_size_.size() - 1);
        for (auto m = group.member; m < group.member + size; ++m) {
          auto alone = members_[m];
          alone.p.first = c.box;
          alone.p.rank += c.rank - shards.rank;
          std::copy(alone.p.begin() + alone.shards, alone.p.end(), alone.p.axes.begin());
          alone.p.axis_count -= alone.shards;
          alone.shards = 0;
          for (std::int64_t k = 0; k < alone.replicas(); ++k) one.holders.push_back(alone.holder(k));
          members_.push_back(alone);
        }
        singles.push_back(std::move(one));
      }
    }
    std::sort(singles.begin(), singles.end(), [](const single& a, const single& b) {
      if (a.holders != b.holders) return a.holders < b.holders;
      return a.group.item != b.group.item ? a.group.item < b.group.item : a.box < b.box;
    });
    for (const auto& one : singles) divide({&one.group, 1});
    members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(members), members_.end());
    pattern_size_.resize(patterns);
  }

  /// Groups that have one pattern, in order.
  void divide(std::span<const shared_boxes> groups) {
    const auto& g = groups[0];
    const std::span members(members_.data() + g.member, pattern_size_[g.pattern]);
    positions_.clear();
    begins_.clear();
    for (const auto& m : members) {
      begins_.push_back(static_cast<std::int64_t>(positions_.size()));
      for (std::int64_t k = 0; k < m.replicas(); ++k) positions_.push_back(m.holder(k));
    }
    begins_.push_back(static_cast<std::int64_t>(positions_.size()));
    chunk_progression shards = members[0].p;
    shards.axis_count = members[0].shards;
    shards.rank = 0;
    const auto boxes = shards.count();
    shifts_.resize(static_cast<std::size_t>(boxes));
    for (std::int64_t s = 0; s < boxes; ++s) shifts_[static_cast<std::size_t>(s)] = shards.at(s).rank;
    find_classes();
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      const std::span<const std::int64_t> own = classes_[c];
      start_levels(own);
      for (const auto& each : groups) place(each, own);
      finish_levels(own);
    }
  }

  /// Shards whose holders have loads that differ alike. Most often there is one class of them.
  void find_classes() {
    classes_.clear();
    if (shifts_.size() == 1) {
      classes_.push_back({0});
      return;
    }
    std::map<std::vector<std::uint64_t>, std::size_t> known;
    std::vector<std::uint64_t> shape(positions_.size());
    for (std::size_t s = 0; s < shifts_.size(); ++s) {
      std::uint64_t least = ~std::uint64_t{0};
      for (std::size_t r = 0; r < shape.size(); ++r) least = std::min(least, shape[r] = load_of(r, s));
      for (auto& l : shape) l -= least;
      const auto [found, added] = known.emplace(shape, classes_.size());
      if (added) classes_.emplace_back();
      classes_[found->second].push_back(static_cast<std::int64_t>(s));
    }
  }
  [[nodiscard]] std::uint64_t& load_of(std::size_t position, std::size_t shard) {
    return load_[static_cast<std::size_t>(positions_[position] + shifts_[shard])];
  }
  void start_levels(std::span<const std::int64_t> own) {
    base_.resize(positions_.size());
    for (std::size_t r = 0; r < base_.size(); ++r) {
      base_[r] = 0;
      for (const auto s : own) base_[r] = std::max(base_[r], load_of(r, static_cast<std::size_t>(s)));
    }
    level_.start(base_);
  }
  void finish_levels(std::span<const std::int64_t> own) {
    for (const auto& run : level_.runs())
      for (auto r = run.first; r < run.first + run.count; ++r)
        for (const auto s : own)
          load_of(static_cast<std::size_t>(r), static_cast<std::size_t>(s)) +=
              run.load - base_[static_cast<std::size_t>(r)];
  }

  void place(const shared_boxes& g, std::span<const std::int64_t> own) {
    const auto& item = summary_[g.item];
    const auto& sizes = members_[g.member].p.first.sizes;
    if (item.kind == item_kind::tensor && g.bytes >= options_.split_above_bytes && g.bytes > 0) {
      const auto grain = grain_of(item.type, sizes, g.bytes, std::min(piece_, g.bytes / 2));
      if (grain.dimension >= 0 && split(g, grain, own)) return;
    }
    const auto holder = level_.give_to_least(g.bytes);
    pieces(g, own, holder, 1, {}, 0, 0);
  }

  /// Raises the loads of the holders with the least to one level, as water would.
  bool split(const shared_boxes& g, const split_grain& grain, std::span<const std::int64_t> own) {
    const auto most = std::min<std::uint64_t>(g.bytes / piece_, static_cast<std::uint64_t>(grain.units));
    std::uint64_t level = 0;
    auto& taken = level_.take(g.bytes, piece_, static_cast<std::int64_t>(most), level);
    if (taken.empty()) return false;
    std::int64_t at = 0;
    std::uint64_t wanted = 0;
    for (std::size_t k = 0; k < taken.size(); ++k) {
      const auto& run = taken[k];
      wanted += (level - run.load) * static_cast<std::uint64_t>(run.count);
      auto end = grain.units;
      if (k + 1 < taken.size())
        end = std::clamp(static_cast<std::int64_t>((wanted + grain.unit_bytes / 2) / grain.unit_bytes), at,
                         grain.units);
      share(g, grain, own, run, at, end - at);
      at = end;
    }
    return true;
  }
  /// Divides `units` from `at` on evenly among the holders of a run. Many holders get equal pieces, the last
  /// ones less or none, so that loads stay equal; few get pieces that differ by one unit.
  void share(const shared_boxes& g, const split_grain& grain, std::span<const std::int64_t> own,
             const level_run& run, std::int64_t at, std::int64_t units) {
    const auto more = units / run.count + (units % run.count != 0);
    const auto less = run.count > 64 ? std::int64_t{0} : units / run.count;
    const auto with_more = more == less     ? run.count
                           : run.count > 64 ? units / more
                                            : units - less * run.count;
    auto holder = run.first;
    const auto give = [&](std::int64_t count, std::int64_t each) {
      if (count == 0) return;
      level_.push({run.load + grain.unit_bytes * static_cast<std::uint64_t>(each), holder, count});
      if (each > 0) pieces(g, own, holder, count, grain, at, each);
      at += count * each;
      units -= count * each;
      holder += count;
    };
    if (units > 0) give(with_more, more);
    if (run.count > 64 && units > 0) give(1, units);
    give(run.first + run.count - holder, less);
  }

  /// Writes down that `count` holders from `holder` on write `each` units of each box of some shards; without
  /// a grain, that one holder writes the boxes.
  void pieces(const shared_boxes& g, std::span<const std::int64_t> own, std::int64_t holder,
              std::int64_t count, const split_grain& grain, std::int64_t at, std::int64_t each) {
    while (count > 0) {
      const auto m = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), holder) -
                                              begins_.begin() - 1);
      const auto within = std::min(count, begins_[m + 1] - holder);
      const auto& member = members_[g.member + m];
      const auto from = holder - begins_[m];
      cut_replicas(member, member.shards, from, from + within, 0, member.p.rank,
                   [&](std::int64_t index, const chunk_progression& holders) {
                     piece(g, own, member, holders, grain, at + (index - from) * each, each);
                   });
      holder += within;
      at += within * each;
      count -= within;
    }
  }
  void piece(const shared_boxes& g, std::span<const std::int64_t> own, const held_boxes& m,
             const chunk_progression& holders, const split_grain& grain, std::int64_t at, std::int64_t each) {
    chunk_progression p = holders;
    p.first = m.p.first;
    if (grain.dimension >= 0) {
      p.first.offsets.set(grain.dimension, p.first.offsets[grain.dimension] + at * grain.unit);
      p.first.sizes.set(grain.dimension, each * grain.unit);
    }
    for (int k = 0; k < p.axis_count; ++k) {
      auto& a = p.axes[static_cast<std::size_t>(k)];
      a.dimension = grain.dimension;
      a.offset_step *= each * grain.unit;
    }
    if (own.size() == shifts_.size()) {
      for (int k = 0; k < m.shards; ++k)
        p.axes[static_cast<std::size_t>(p.axis_count++)] = m.p.axes[static_cast<std::size_t>(k)];
      emit(g.item, p);
      return;
    }
    auto shards = m.p;
    shards.axis_count = m.shards;
    const auto origin = shards.at(0);
    for (const auto s : own) {
      const auto c = shards.at(s);
      auto shifted = p;
      shifted.rank += c.rank - origin.rank;
      for (int d = 0; d < c.box.offsets.rank(); ++d)
        shifted.first.offsets.set(d, p.first.offsets[d] + c.box.offsets[d] - origin.box.offsets[d]);
      emit(g.item, shifted);
    }
  }
  /// Brings the axes into order again.
  void emit(std::size_t item, chunk_progression p) {
    sort_few(p.axes.begin(), p.axes.begin() + p.axis_count,
             [](const chunk_axis& a, const chunk_axis& b) { return a.rank_step > b.rank_step; });
    out_.add(item, p);
  }

  const plan_summary& summary_;
  const default_planner_options& options_;
  std::uint64_t piece_;
  std::vector<std::uint64_t> load_;  ///< of each rank, in bytes
  write_assignment out_;
  rank_pattern key_;
  std::map<rank_pattern, std::uint64_t> fixed_;
  std::map<rank_pattern, std::uint32_t> patterns_;
  std::vector<std::uint32_t> pattern_size_;  ///< members
  std::vector<shared_boxes> shared_;
  std::vector<std::uint32_t> seen_;  ///< of each rank, the last wave of divide_all() that it was in
  std::uint32_t wave_ = 0;
  std::vector<held_boxes> members_;
  // Of the pattern that is divided now:
  std::vector<std::int32_t> positions_;  ///< ranks that hold the first box
  std::vector<std::int64_t> begins_;     ///< of each member in positions_
  std::vector<std::int32_t> shifts_;     ///< of the rank, from the first box to each other one
  std::vector<std::vector<std::int64_t>> classes_;
  std::vector<std::uint64_t> base_;
  water_level level_;
};

}  // namespace detail

}  // namespace v1
}  // namespace cairn
