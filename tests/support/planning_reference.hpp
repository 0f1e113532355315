// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cairn/plan/assign/replica_cut.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// The plain assignment of boxes to ranks, one box after another.
struct written_box {
  std::string name;
  cairn::chunk box;
  std::int32_t rank = 0;
  friend bool operator==(const written_box&, const written_box&) = default;
  friend bool operator<(const written_box& a, const written_box& b) {
    return a.name != b.name ? a.name < b.name : a.rank != b.rank ? a.rank < b.rank : a.box < b.box;
  }
};

/// The result that cairn::default_planner must reach, computed in the obvious way: all plans of all ranks in
/// one place, a list of holders for each box, one number for each rank's load.
class reference_planner {
 public:
  reference_planner(const std::vector<cairn::save_plan>& plans, const cairn::default_planner_options& options)
      : options_(options), load_(plans.size()) {
    for (std::size_t r = 0; r < plans.size(); ++r)
      for (const auto& i : plans[r].items) {
        auto& item = items_[i.name];
        if (item.knowing.empty()) item.definition = i;
        const auto& d = item.definition;
        if (d.kind != i.kind || d.type != i.type || !(d.global == i.global) ||
            d.flags.per_rank != i.flags.per_rank)
          broken_ = i.name;
        const auto rank = static_cast<std::int32_t>(r);
        item.repeated |= !item.knowing.insert(rank).second;
        const bool bytes = i.kind == cairn::item_kind::bytes;
        if (!bytes && i.bytes == 0) continue;
        auto& holders = item.holders[bytes ? cairn::whole({}) : i.box];
        if (!holders.emplace(rank, bytes ? rounded(i.bytes) : i.bytes).second) broken_ = i.name;
      }
    for (const auto& [name, item] : items_)
      if (broken_.empty() && !whole_tensor(item)) broken_ = name;
  }

  /// The name of an item because of which the plans make no checkpoint, if there is one.
  [[nodiscard]] const std::string& broken() const { return broken_; }

  [[nodiscard]] std::vector<written_box> plan() {
    // The boxes that the same ranks hold: sets of the fewest ranks first.
    std::map<std::pair<std::size_t, std::vector<std::int32_t>>, std::vector<shared_box>> sets;
    for (const auto& [name, item] : items_) {
      if (item.holders.empty())
        for (const auto rank : item.knowing) {
          write(name, cairn::whole(item.definition.global), rank, 0);
          if (!item.definition.flags.per_rank) break;
        }
      for (const auto& [box, holders] : item.holders) {
        if (item.definition.flags.per_rank || holders.size() == 1) {
          for (const auto& [rank, bytes] : holders) write(name, box, rank, bytes);
          continue;
        }
        std::vector<std::int32_t> ranks;
        shared_box s{&name, box, 0, {}};
        for (const auto& [rank, bytes] : holders) s.bytes = std::max(s.bytes, bytes), ranks.push_back(rank);
        s.grain = grain_of(item.definition, s);
        sets[{ranks.size(), ranks}].push_back(std::move(s));
      }
    }
    for (const auto& [key, boxes] : sets) {
      const auto& ranks = key.second;
      std::vector<shared_box> large;
      std::vector<shared_box> line;
      std::vector<shared_box> small;
      for (const auto& s : boxes)
        (s.grain.dimension >= 0 ? line : s.bytes >= options_.split_above_bytes ? large : small).push_back(s);
      give_whole(large, ranks);
      cut_line(line, ranks);
      give_whole(small, ranks);
    }
    std::sort(out_.begin(), out_.end());
    return out_;
  }

 private:
  struct item_state {
    cairn::write_item definition;
    std::map<cairn::chunk, std::map<std::int32_t, std::uint64_t>> holders;
    std::set<std::int32_t> knowing;
    bool repeated = false;  ///< by one rank
  };
  struct shared_box {
    const std::string* name = nullptr;
    cairn::chunk box;
    std::uint64_t bytes = 0;
    cairn::detail::split_grain grain;
  };

  std::uint64_t& load(std::int32_t rank) { return load_[static_cast<std::size_t>(rank)]; }
  void write(const std::string& name, const cairn::chunk& box, std::int32_t rank, std::uint64_t bytes) {
    out_.push_back({name, box, rank});
    load(rank) += bytes;
  }
  static std::uint64_t rounded(std::uint64_t bytes) {
    std::uint64_t unit = 1;
    while (bytes / unit >= (bytes <= 65536 ? 2u : 32u)) unit *= 2;
    return (bytes + unit - 1) / unit * unit;
  }
  /// Counts element by element.
  static bool whole_tensor(const item_state& item) {
    if (item.holders.empty() && item.repeated) return false;
    const auto& global = item.definition.global;
    if (item.definition.kind == cairn::item_kind::bytes) return true;
    if (item.definition.flags.per_rank)
      return std::all_of(item.holders.begin(), item.holders.end(),
                         [&](const auto& b) { return b.first == cairn::whole(global); });
    std::vector<int> times(static_cast<std::size_t>(global.volume()));
    for (const auto& [box, holders] : item.holders) {
      if (!cairn::inside(box, global)) return false;
      for (std::int64_t k = 0; k < box.volume(); ++k) {
        std::int64_t rest = k;
        std::int64_t flat = 0;
        std::int64_t stride = 1;
        for (int d = box.sizes.rank() - 1; d >= 0; --d) {
          flat += (box.offsets[d] + rest % box.sizes[d]) * stride;
          rest /= box.sizes[d];
          stride *= global[d];
        }
        ++times[static_cast<std::size_t>(flat)];
      }
    }
    return std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
  }
  [[nodiscard]] cairn::detail::split_grain grain_of(const cairn::write_item& i, const shared_box& s) const {
    if (i.kind != cairn::item_kind::tensor || s.bytes < options_.split_above_bytes) return {};
    return cairn::detail::grain_of(i.type, s.box.sizes, s.bytes,
                                   std::min(options_.min_chunk_bytes, s.bytes / 2));
  }
  /// The largest box goes first, each to the first of the ranks with the least load.
  void give_whole(std::vector<shared_box> boxes, const std::vector<std::int32_t>& ranks) {
    std::stable_sort(boxes.begin(), boxes.end(),
                     [](const shared_box& a, const shared_box& b) { return a.bytes > b.bytes; });
    for (const auto& s : boxes)
      write(*s.name, s.box,
            *std::min_element(ranks.begin(), ranks.end(), [&](auto a, auto b) { return load(a) < load(b); }),
            s.bytes);
  }
  /// Lays all boxes end to end. The ranks with the least load, as many as get a part, each take the next
  /// part, which raises their load to the same level.
  void cut_line(const std::vector<shared_box>& boxes, const std::vector<std::int32_t>& ranks) {
    if (boxes.empty()) return;
    std::uint64_t bytes = 0;
    for (const auto& s : boxes) bytes += s.bytes;
    const auto piece = options_.min_chunk_bytes;
    auto takers = ranks;
    std::stable_sort(takers.begin(), takers.end(), [&](auto a, auto b) { return load(a) < load(b); });
    std::uint64_t below = 0;
    std::size_t count = 0;
    while (count < takers.size() &&
           (count == 0 || below + load(takers[count]) + bytes >= (count + 1) * (load(takers[count]) + piece)))
      below += load(takers[count++]);
    takers.resize(count);
    std::sort(takers.begin(), takers.end());
    const auto level = (below + bytes) / count;
    std::vector<std::int64_t> quotas;
    for (const auto r : takers) quotas.push_back(static_cast<std::int64_t>(level - load(r)));
    auto left = static_cast<std::int64_t>(bytes);
    std::size_t box = 0;
    std::int64_t at = 0;
    for (std::size_t k = 0; k < count; ++k) {
      // Where earlier ranks got too much or too little, the difference is spread over all that are left.
      const auto wanted =
          std::accumulate(quotas.begin() + static_cast<std::ptrdiff_t>(k), quotas.end(), std::int64_t{0});
      auto open = quotas[k] + (left - wanted) / static_cast<std::int64_t>(count - k);
      for (bool more = true; more && box < boxes.size();) {
        const auto& s = boxes[box];
        const auto unit = static_cast<std::int64_t>(s.grain.unit_bytes);
        const auto rest = s.grain.units - at;
        const auto units = k + 1 == count ? rest : nearest_cut(rest, unit, open);
        more = units == rest;
        if (units > 0) {
          auto part = s.box;
          part.offsets.set(s.grain.dimension, s.box.offsets[s.grain.dimension] + at * s.grain.unit);
          part.sizes.set(s.grain.dimension, units * s.grain.unit);
          write(*s.name, part, takers[k], static_cast<std::uint64_t>(units * unit));
        }
        left -= units * unit, open -= units * unit, at += units;
        if (more) ++box, at = 0;
      }
    }
  }
  /// Of all places where a box can be cut, 0 and its end included, the one nearest to so many bytes; the
  /// higher one of two.
  [[nodiscard]] std::int64_t nearest_cut(std::int64_t rest, std::int64_t unit, std::int64_t bytes) const {
    if (bytes <= 0) return 0;
    const auto wanted = std::min(rest, (bytes + unit - 1) / unit);
    const auto piece = static_cast<std::int64_t>(options_.min_chunk_bytes);
    std::int64_t best = 0;
    for (std::int64_t n = 0; n <= rest; ++n) {
      const bool possible = n == 0 || n == rest || (n * unit >= piece && (rest - n) * unit >= piece);
      if (possible && std::abs(n - wanted) <= std::abs(best - wanted)) best = n;
    }
    return best;
  }

  cairn::default_planner_options options_;
  std::map<std::string, item_state> items_;
  std::vector<std::uint64_t> load_;
  std::vector<written_box> out_;
  std::string broken_;
};

/// The plans of a random group: tensors on random meshes of its ranks, evenly cut or not, replicated or not,
/// in pipeline stages; tensors cut at random places among random ranks; values, bytes, per-rank items, empty
/// shards and tensors without elements.
class random_group {
 public:
  random_group(std::mt19937_64& random, int world)
      : random_(random), world_(world), plans(static_cast<std::size_t>(world)) {
    const auto items = 1 + roll(8);
    for (std::int64_t n = 0; n < items; ++n) {
      const auto name = std::string(1, static_cast<char>('a' + roll(26))) + std::to_string(n);
      switch (roll(8)) {
        case 0:
          add_scattered(name);
          break;
        case 1:
          add_bytes(name);
          break;
        case 2:
          add_everywhere(name);
          break;
        default:
          add_mesh(name);
          break;
      }
    }
    // States need not be in the order of names.
    if (roll(2) == 0)
      for (auto& p : plans) std::shuffle(p.items.begin(), p.items.end(), random_);
  }

 private:
  std::mt19937_64& random_;
  int world_;

 public:
  std::vector<cairn::save_plan> plans;

 private:
  [[nodiscard]] std::int64_t roll(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  [[nodiscard]] cairn::extents shape() {
    auto s = cairn::extents::zeros(static_cast<int>(roll(4)));
    for (int d = 0; d < s.rank(); ++d) s.set(d, roll(30) == 0 ? 0 : 1 + roll(14));
    return s;
  }
  void add(std::int64_t rank, const std::string& name, const cairn::extents& global, cairn::chunk box,
           bool per_rank = false) {
    cairn::write_item i{name, cairn::item_kind::tensor, cairn::dtype::f32, global, box, {}, 0, 0};
    i.flags.per_rank = per_rank;
    i.bytes = cairn::bytes_of(i.type, box.volume());
    if (i.bytes == 0) i.box = cairn::whole(cairn::extents::zeros(global.rank()));
    plans[static_cast<std::size_t>(rank)].items.push_back(std::move(i));
  }
  /// Each axis of the mesh cuts a dimension, or copies; the mesh begins at a random rank.
  void add_mesh(const std::string& name) {
    const auto global = shape();
    std::vector<std::pair<int, std::int64_t>> axes;  // dimension, count
    std::int64_t ranks = 1;
    for (auto k = roll(4); k > 0; --k) {
      const auto most = world_ / ranks;
      if (most < 2) break;
      axes.emplace_back(static_cast<int>(roll(global.rank() + 1)) - 1, 2 + roll(most - 1));
      ranks *= axes.back().second;
    }
    const auto first = roll(world_ - ranks + 1);
    for (std::int64_t r = 0; r < ranks; ++r) {
      auto box = cairn::whole(global);
      auto stride = ranks;
      for (const auto& [d, count] : axes) {
        stride /= count;
        if (d < 0) continue;
        const auto i = r / stride % count;
        const auto each = (box.sizes[d] + count - 1) / count;
        const auto from = std::min(i * each, box.sizes[d]);
        box.offsets.set(d, box.offsets[d] + from);
        box.sizes.set(d, std::min(each, box.sizes[d] - from));
      }
      add(first + r, name, global, box);
    }
  }
  /// Cuts the first dimension; each part is on some ranks.
  void add_scattered(const std::string& name) {
    auto global = shape();
    if (global.rank() == 0) global = {5};
    for (int d = 1; d < global.rank(); ++d) global.set(d, std::max<std::int64_t>(global[d], 1));
    global.set(0, 1 + roll(12));
    for (std::int64_t at = 0; at < global[0];) {
      auto box = cairn::whole(global);
      box.offsets.set(0, at);
      box.sizes.set(0, 1 + roll(global[0] - at));
      at += box.sizes[0];
      std::set<std::int64_t> holders;
      for (auto k = 1 + roll(3); k > 0; --k) holders.insert(roll(world_));
      for (const auto r : holders) add(r, name, global, box);
    }
  }
  void add_bytes(const std::string& name) {
    const bool own = roll(2) == 0;
    for (std::int64_t r = 0; r < world_; ++r) {
      if (r > 0 && roll(8) == 0) continue;
      cairn::write_item i{name, cairn::item_kind::bytes, cairn::dtype::u8, {}, cairn::whole({}), {}, 0, 0};
      i.flags.per_rank = own;
      i.bytes = static_cast<std::uint64_t>(roll(3) == 0 ? roll(100000) : 60 + roll(9));
      plans[static_cast<std::size_t>(r)].items.push_back(std::move(i));
    }
  }
  void add_everywhere(const std::string& name) {
    const auto global = shape();
    const bool own = roll(3) == 0;
    for (std::int64_t r = 0; r < world_; ++r) add(r, name, global, cairn::whole(global), own);
  }
};

/// The plans of a random group of tensor, pipeline and data parallel ranks, in any order of the three:
/// weights cut by tensor parallelism and copied by data parallelism, norms copied by both, the same in each
/// stage or not quite, and values on all ranks. In some groups some ranks have a load of their own to begin
/// with, or tensors on sets of ranks that overlap with all of that.
class pipeline_group {
 public:
  pipeline_group(std::mt19937_64& random, std::int64_t max_ranks) : random_(random) {
    std::vector<std::int64_t> counts{1 + roll(4), 1 + roll(4), 1};
    counts[2] = 2 + roll(max_ranks / (counts[0] * counts[1]) - 1);
    std::vector<std::size_t> order{0, 1, 2};
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<std::int64_t> steps(3);
    std::int64_t world = 1;
    for (const auto k : order) steps[k] = world, world *= counts[k];
    plans.resize(static_cast<std::size_t>(world));
    std::vector<std::int64_t> rows;
    for (auto n = 1 + roll(4); n > 0; --n) rows.push_back(counts[0] * (1 + roll(roll(2) == 0 ? 40 : 400)));
    const auto odd_stage = roll(2 * counts[1]);
    const auto uneven = roll(4);
    const auto place = [&](std::int64_t r, std::size_t k) { return r / steps[k] % counts[k]; };
    for (std::int64_t r = 0; r < world; ++r) {
      const auto stage = place(r, 1);
      const auto name = [&](const char* what, std::size_t n) {
        return "s" + std::to_string(stage) + what + std::to_string(n);
      };
      for (std::size_t n = 0; n < rows.size(); ++n) {
        const auto columns = static_cast<std::int64_t>(1 + n * 3);
        const auto each = rows[n] / counts[0];
        if (stage == odd_stage && n == 0)
          add(r, name("extra", n), {17, columns}, cairn::whole({17, columns}));
        add(r, name("weight", n), {rows[n], columns}, {{place(r, 0) * each, 0}, {each, columns}});
        add(r, name("norm", n), {each}, cairn::whole({each}));
      }
      add(r, "scale", {2}, cairn::whole({2}));
      // A load that differs from shard to shard, from copy to copy, or from rank to rank.
      const auto own = uneven == 1 ? place(r, 0) : uneven == 2 ? place(r, 2) / 7 : uneven == 3 ? roll(9) : 0;
      if (own > 0) add(r, "own" + std::to_string(r), {own}, cairn::whole({own}));
    }
    for (auto n = roll(4); n > 0; --n) {
      std::set<std::int64_t> holders;
      while (std::cmp_less(holders.size(), std::min(world, counts[0] * counts[2])))
        holders.insert(roll(world));
      const auto shape = cairn::extents{rows[0] / counts[0]};
      for (const auto r : holders) add(r, "z" + std::to_string(n), shape, cairn::whole(shape));
    }
  }

 private:
  [[nodiscard]] std::int64_t roll(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  void add(std::int64_t rank, std::string name, const cairn::extents& global, const cairn::chunk& box) {
    plans[static_cast<std::size_t>(rank)].items.push_back({std::move(name),
                                                           cairn::item_kind::tensor,
                                                           cairn::dtype::f32,
                                                           global,
                                                           box,
                                                           {},
                                                           0,
                                                           cairn::bytes_of(cairn::dtype::f32, box.volume())});
  }
  std::mt19937_64& random_;

 public:
  std::vector<cairn::save_plan> plans;
};

}  // namespace cairn_test
