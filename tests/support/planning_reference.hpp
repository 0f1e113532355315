// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cairn/plan/assign/replica_cut.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn_test {

/// Who writes what, one box after another.
struct written_box {
  std::string name;
  cairn::chunk box;
  std::int32_t rank = 0;
  friend bool operator==(const written_box&, const written_box&) = default;
  friend bool operator<(const written_box& a, const written_box& b) {
    return a.name != b.name ? a.name < b.name : a.rank != b.rank ? a.rank < b.rank : a.box < b.box;
  }
};

/// What cairn::default_planner must come to, made in the obvious way: all plans of all ranks in one place, a
/// list of holders for each box, one number for each rank's load.
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

  /// An item that makes the plans no checkpoint, if there is one.
  [[nodiscard]] const std::string& broken() const { return broken_; }

  [[nodiscard]] std::vector<written_box> plan() {
    struct shared {
      std::uint64_t bytes;
      std::vector<std::int32_t> holders;
      const std::string* name;
      cairn::chunk box;
    };
    std::vector<shared> replicated;
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
        shared s{0, {}, &name, box};
        for (const auto& [rank, bytes] : holders)
          s.bytes = std::max(s.bytes, bytes), s.holders.push_back(rank);
        replicated.push_back(std::move(s));
      }
    }
    std::sort(replicated.begin(), replicated.end(), [](const shared& a, const shared& b) {
      return std::tuple(~a.bytes, a.holders.size(), a.holders, *a.name) !=
                     std::tuple(~b.bytes, b.holders.size(), b.holders, *b.name)
                 ? std::tuple(~a.bytes, a.holders.size(), a.holders, *a.name) <
                       std::tuple(~b.bytes, b.holders.size(), b.holders, *b.name)
                 : a.box < b.box;
    });
    for (const auto& s : replicated) {
      if (split(items_.at(*s.name).definition, s.box, s.holders, s.bytes)) continue;
      const auto least = std::min_element(s.holders.begin(), s.holders.end(),
                                          [&](auto a, auto b) { return load(a) < load(b); });
      write(*s.name, s.box, *least, s.bytes);
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
  /// As many of the holders with the least as get a piece each, raised to one level.
  bool split(const cairn::write_item& i, const cairn::chunk& box, const std::vector<std::int32_t>& holders,
             std::uint64_t bytes) {
    if (i.kind != cairn::item_kind::tensor || bytes < options_.split_above_bytes) return false;
    const auto piece = options_.least_piece_bytes;
    const auto grain = cairn::detail::grain_of(i.type, box.sizes, bytes, std::min(piece, bytes / 2));
    if (grain.dimension < 0) return false;
    auto order = holders;
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return load(a) < load(b); });
    const auto most = std::min<std::uint64_t>(bytes / piece, static_cast<std::uint64_t>(grain.units));
    std::uint64_t below = 0;
    std::size_t count = 0;
    while (count < std::min<std::uint64_t>(order.size(), most) &&
           below + load(order[count]) + bytes >= (count + 1) * (load(order[count]) + piece))
      below += load(order[count++]);
    if (count < 2) return false;
    const auto level = (below + bytes) / count;
    order.resize(count);
    std::sort(order.begin(), order.end());
    std::int64_t at = 0;
    std::uint64_t wanted = 0;
    for (std::size_t k = 0; k < count;) {
      // Holders that stand side by side and have equal loads share evenly.
      const auto place = [&](std::size_t n) {
        return std::find(holders.begin(), holders.end(), order[n]) - holders.begin();
      };
      const auto begin = load(order[k]);
      auto end = k + 1;
      while (end < count && load(order[end]) == begin && place(end) == place(end - 1) + 1) ++end;
      const auto many = static_cast<std::int64_t>(end - k);
      wanted += (level - begin) * static_cast<std::uint64_t>(many);
      const auto until =
          end == count
              ? grain.units
              : std::clamp(static_cast<std::int64_t>((wanted + grain.unit_bytes / 2) / grain.unit_bytes), at,
                           grain.units);
      const auto units = until - at;
      const auto more = units / many + (units % many != 0);
      const auto extra = units % many;
      for (std::int64_t n = 0; n < many; ++n, ++k) {
        const auto left = until - at;
        const auto own = many > 64 ? std::min(more, left) : n < extra ? more : units / many;
        if (own == 0) continue;
        auto part = box;
        part.offsets.set(grain.dimension, box.offsets[grain.dimension] + at * grain.unit);
        part.sizes.set(grain.dimension, own * grain.unit);
        write(i.name, part, order[k], grain.unit_bytes * static_cast<std::uint64_t>(own));
        at += own;
      }
    }
    return true;
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
  /// Each axis of the mesh cuts a dimension, or copies; all of it from a random rank on.
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
  /// Pieces of the first dimension, each on some ranks.
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
