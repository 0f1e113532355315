// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <time.h>

#include <algorithm>
#include <bit>
#include <cairn/plan/default_planner.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <support/bench.hpp>
#include <support/planning_layouts.hpp>
#include <support/planning_twin.hpp>
#include <utility>
#include <vector>

namespace cairn_bench {

/// Seconds of the processor that a call takes: what else runs on the machine does not count.
template <class Work>
[[nodiscard]] double processor_seconds(Work&& work) {
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const auto begin = now();
  work();
  return now() - begin;
}

/// The processor seconds of the same work again and again: `prepare()` makes, unmeasured, what `work` takes.
/// Up to 25 times; what takes long, less often.
template <class Prepare, class Work>
[[nodiscard]] samples repeated(Prepare&& prepare, Work&& work) {
  std::vector<double> seconds;
  for (double spent = 0; seconds.size() < 25 && spent < 0.5; spent += seconds.back()) {
    auto input = prepare();
    seconds.push_back(processor_seconds([&] { work(std::move(input)); }));
  }
  return samples(std::move(seconds));
}

/// The most memory of this process since the last call of forget_peak(), in bytes; 0 where the system does
/// not tell.
inline void forget_peak() {
  if (std::FILE* f = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", f);
    std::fclose(f);
  }
}
[[nodiscard]] inline double peak_bytes() {
  double kibibytes = 0;
  if (std::FILE* f = std::fopen("/proc/self/status", "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, f) != nullptr)
      if (std::strncmp(line, "VmHWM:", 6) == 0) kibibytes = std::strtod(line + 6, nullptr);
    std::fclose(f);
  }
  return kibibytes * 1024;
}

/// Planning of one layout by one number of ranks: what it costs where, in seconds and bytes. Samples are of
/// the same work repeated.
struct planning_costs {
  samples critical;    ///< of the deepest chain: a plan's summary, merges up the tree, the final plan
  double slowest = 0;  ///< the same with the slowest of all measured in place of the 90th percentile
  double processor = 0;
  double largest_message = 0;
  double message_bytes = 0;  ///< along the deepest chain, up and down
  double summarise = 0;
  double merge = 0;  ///< of the chain
  samples finish;
  samples metadata;
  samples publish;
  double manifest_bytes = 0;
  samples open;
  samples load_plan;
  double peak = 0;
  double messages = 0;  ///< along the deepest chain

  /// All of it as numbers, for another process.
  [[nodiscard]] std::vector<double> numbers() const {
    std::vector<double> out;
    for (const auto* s : {&critical, &finish, &metadata, &publish, &open, &load_plan}) {
      out.push_back(static_cast<double>(s->sorted.size()));
      out.insert(out.end(), s->sorted.begin(), s->sorted.end());
    }
    for (const auto* v : {&slowest, &processor, &largest_message, &message_bytes, &summarise, &merge,
                          &manifest_bytes, &peak, &messages})
      out.push_back(*v);
    return out;
  }
  /// What numbers() gave. @throws std::out_of_range for anything else.
  [[nodiscard]] static planning_costs from(const std::vector<double>& numbers) {
    planning_costs c;
    std::size_t at = 0;
    for (auto* s : {&c.critical, &c.finish, &c.metadata, &c.publish, &c.open, &c.load_plan})
      for (auto n = numbers.at(at++); n > 0; --n) s->sorted.push_back(numbers.at(at++));
    for (auto* v : {&c.slowest, &c.processor, &c.largest_message, &c.message_bytes, &c.summarise, &c.merge,
                    &c.manifest_bytes, &c.peak, &c.messages})
      *v = numbers.at(at++);
    return c;
  }
};

/// Runs the reduction of all ranks in one thread, in the order in which a tree does it, one branch after
/// another: at any time there is one summary for each level at most.
class planning_simulation {
 public:
  planning_simulation(const std::string& layout, std::int64_t ranks) : plans_(layout, ranks) {}

  planning_costs run(std::int64_t load_ranks, bool with_manifest) {
    forget_peak();
    const auto root = reduce(0, plans_.ranks());
    costs_.summarise = typical(levels_[0]);
    for (std::size_t n = 1; n < levels_.size(); ++n) costs_.merge += typical(levels_[n]);
    const auto world = static_cast<int>(plans_.ranks());
    cairn::metadata stored;
    const auto mine = plans_.of(0);
    cairn::plan_summary summary;
    costs_.finish = repeated([&] { return mine; },
                             [&](cairn::save_plan&& plan) {
                               summary = planner_.decode(root.bytes);
                               keep(planner_.finish(std::move(plan), summary, 0, world));
                             });
    costs_.processor += costs_.finish.median() * static_cast<double>(plans_.ranks());
    auto chain = costs_.finish.sorted;
    for (auto& seconds : chain) seconds += costs_.summarise + costs_.merge;
    costs_.critical = samples(std::move(chain));
    costs_.slowest = root.slowest + costs_.finish.most();
    const auto levels = std::ceil(std::log2(static_cast<double>(plans_.ranks())));
    costs_.messages = 2 * levels;
    costs_.message_bytes += levels * static_cast<double>(root.bytes.size());
    costs_.metadata = repeated([] { return 0; }, [&](int) { stored = planner_.metadata(summary, world); });
    if (with_manifest) publish_and_load(std::move(stored), load_ranks);
    costs_.peak = peak_bytes();
    return costs_;
  }

 private:
  struct part {
    cairn::plan_summary summary;
    std::vector<std::byte> bytes;
    double slowest = 0;
  };
  static constexpr std::size_t many = 64;

  /// Of the seconds of one level of the tree, in order of ranks: the 90th percentile of the medians of
  /// neighbouring eights, which do alike; what the machine disturbed here and there is not the algorithm's.
  /// Levels of few are medians already.
  [[nodiscard]] static double typical(const std::vector<double>& level) {
    if (level.size() < many) return samples(level).quantile(0.9);
    std::vector<double> medians;
    for (std::size_t k = 0; k < level.size(); k += 8) {
      const auto begin = level.begin() + static_cast<std::ptrdiff_t>(k);
      medians.push_back(
          samples({begin, begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(8, level.size() - k))})
              .median());
    }
    return samples(std::move(medians)).quantile(0.9);
  }
  /// The seconds of one node of the tree that stands for so many ranks: of levels that have few nodes the
  /// median of eight times, or of fewer that take long. `again()` does the same to a copy.
  template <class Again, class Work>
  [[nodiscard]] double measured(std::int64_t count, Again&& again, Work&& work) {
    std::vector<double> seconds;
    if (plans_.ranks() / count < static_cast<std::int64_t>(many))
      for (double spent = 0; seconds.size() < 7 && (seconds.size() < 2 || spent < 0.05);
           spent += seconds.back())
        seconds.push_back(again());
    seconds.push_back(work());
    return samples(std::move(seconds)).median();
  }
  /// Ranks [first, first + count); the lowest one merges.
  part reduce(std::int64_t first, std::int64_t count) {
    part own;
    const auto level = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
    if (levels_.size() <= level) levels_.resize(level + 1);
    if (count == 1) {
      const auto& plan = plans_.of(first);
      const auto summarise = [&] {
        return processor_seconds([&] {
          own.summary = planner_.summarise(plan, static_cast<int>(first));
          own.bytes = planner_.encode(own.summary);
        });
      };
      own.slowest = measured(count, summarise, summarise);
      levels_[level].push_back(own.slowest);
      costs_.processor += own.slowest;
      return own;
    }
    std::int64_t half = 1;
    while (half * 2 < count) half *= 2;
    own = reduce(first, half);
    auto other = reduce(first + half, count - half);
    other.summary = {};
    costs_.largest_message = std::max(costs_.largest_message, static_cast<double>(other.bytes.size()));
    if (first == 0) costs_.message_bytes += static_cast<double>(other.bytes.size());
    const auto merge = [&](part& lower) {
      return processor_seconds([&] {
        // The lower rank still has what it encoded last; the other summary came as a message.
        lower.summary = planner_.merge(std::move(lower.summary), planner_.decode(other.bytes));
        lower.bytes = planner_.encode(lower.summary);
      });
    };
    const auto seconds = measured(
        count,
        [&] {
          auto copy = own;
          return merge(copy);
        },
        [&] { return merge(own); });
    levels_[level].push_back(seconds);
    own.slowest = std::max(own.slowest, other.slowest) + seconds;
    costs_.processor += seconds;
    if (first == 0)
      costs_.largest_message = std::max(costs_.largest_message, static_cast<double>(own.bytes.size()));
    return own;
  }

  void publish_and_load(cairn::metadata stored, std::int64_t load_ranks) {
    cairn::manifest m;
    m.content = std::move(stored);
    for (std::int32_t r = 0; r < m.content.world_size; ++r)
      m.records.push_back({100, 0x1234567890abcdefu, r, 1,
                           0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(r + 1),
                           std::uint64_t{4096} * 17});
    m.step = 100;
    m.attempt = 0x1234567890abcdefu;
    std::vector<std::byte> bytes;
    costs_.publish = repeated([] { return 0; }, [&](int) { bytes = cairn::encode_manifest(m); });
    costs_.manifest_bytes = static_cast<double>(bytes.size());
    layout_plans wanted(plans_.layout(), load_ranks);
    const auto rank = load_ranks / 2;
    cairn::state_dict state;
    alignas(8) static std::byte memory[64];
    std::vector<std::string> loader(2, "x");
    for (const auto& i : wanted.of(rank).items) {
      auto* at = reinterpret_cast<float*>(memory);
      if (i.kind == cairn::item_kind::value)
        state.value(i.name, *at);
      else if (i.kind == cairn::item_kind::bytes)
        state.bytes(i.name, loader[0], cairn::per_rank);
      else
        state.tensor(i.name, at, cairn::shard{i.global, i.box.offsets, i.box.sizes});
    }
    const cairn::load_request request{static_cast<int>(rank), static_cast<int>(load_ranks), false, {}};
    // Opened anew each time: what a load looks at is decoded when it is first looked at.
    std::vector<double> opened;
    std::vector<double> planned;
    for (int n = 0; n < 5; ++n) {
      opened.push_back(processor_seconds([&] {
        m = cairn::open_manifest({bytes.begin(), bytes.end()}, "manifest");
      }));
      planned.push_back(processor_seconds([&] { keep(planner_.plan(state, m.content, request)); }));
    }
    costs_.open = samples(std::move(opened));
    costs_.load_plan = samples(std::move(planned));
  }

  layout_plans plans_;
  cairn::default_planner planner_;
  planning_costs costs_;
  std::vector<std::vector<double>> levels_;  ///< seconds of each merge, by height in the tree
};

/// About how many items with data all ranks hold together, by 256 of the ranks: what the twin's work grows
/// with. Shards of more ranks than a tensor has rows are empty.
[[nodiscard]] inline double held_items(const std::string& layout, std::int64_t ranks) {
  layout_plans plans(layout, ranks);
  const auto looked = std::min<std::int64_t>(ranks, 256);
  std::int64_t held = 0;
  for (std::int64_t k = 0; k < looked; ++k)
    for (const auto& i : plans.of(k * ranks / looked).items) held += i.bytes != 0 ? 1 : 0;
  return static_cast<double>(held) * static_cast<double>(ranks) / static_cast<double>(looked);
}

/// The twin's seconds on the coordinator's processor: all plans decoded, deduplicated, validated, scattered.
/// Negative: would not fit into `memory` bytes.
[[nodiscard]] inline double twin_seconds(const std::string& layout, std::int64_t ranks, double memory) {
  layout_plans plans(layout, ranks);
  std::size_t items = 0;
  for (std::int64_t r : {std::int64_t{0}, ranks - 1}) items = std::max(items, plans.of(r).items.size());
  items *= static_cast<std::size_t>(ranks);
  if (static_cast<double>(coordinator_twin::bytes_for(items)) > memory) return -1;
  double seconds = 0;
  coordinator_twin twin(items);
  for (std::int64_t r = 0; r < ranks; ++r) {
    std::vector<char> bytes;
    const auto own = processor_seconds([&] { bytes = coordinator_twin::serialise(plans.of(r)); });
    if (r == 0) seconds += own;
    seconds += processor_seconds([&] { twin.receive(static_cast<std::int32_t>(r), bytes); });
  }
  seconds += processor_seconds([&] {
    twin.validate();
    keep(twin.scatter());
  });
  return seconds;
}

}  // namespace cairn_bench
