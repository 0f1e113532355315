// SPDX-License-Identifier: Apache-2.0
// test: --tensors 100 --samples 1
// test: --ranks 2
// What planning costs: cold for many tensors, from the cache, and the validation of many chunks.
//   bench_planning [--tensors N] [--samples N] [--json FILE]
// And what it costs a group: a Llama-3-70B-like model with Adam's moments, about 2,200 items a rank, whose
// ranks are simulated one after another with real summaries, real merges in the order of the tree and the
// bytes of a real manifest; beside it a coordinator that sees all plans.
//   bench_planning --ranks N | --sweep 1  [--layout fsdp|hsdp|tp8_pp16_dp128|irregular] [--load-ranks N]
//     [--twin-ranks N] [--twin-seconds S] [--irregular-ranks N] [--budget SECONDS]
//     [--json FILE] [--chart FILE] [--table FILE]
#include <algorithm>
#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/plan/summary/validation.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <support/bench.hpp>
#include <support/log_chart.hpp>
#include <support/own_process.hpp>
#include <support/planning_simulation.hpp>
#include <utility>
#include <vector>

namespace {

/// Names as a transformer's optimizer has them, in the order of its layers.
cairn::state_dict make_state(std::int64_t tensors, float* memory) {
  static constexpr const char* parts[] = {
      "attention.query.weight", "attention.key.weight", "attention.value.weight", "attention.output.weight",
      "mlp.up.weight",          "mlp.gate.weight",      "mlp.down.weight",        "norm.weight"};
  cairn::state_dict state;
  for (std::int64_t i = 0; i < tensors; ++i)
    state.tensor("model.layers." + std::to_string(i / 8) + "." + parts[i % 8], memory, {64, 64});
  return state;
}

/// A random partition of [0, size)^2 into boxes, by cuts in either direction.
void divide(const cairn::chunk& box, std::size_t pieces, std::mt19937_64& random,
            std::vector<cairn::chunk>& out) {
  const int d = box.sizes[0] > box.sizes[1] ? 0 : 1;
  if (pieces <= 1 || box.sizes[d] < 2) {
    out.push_back(box);
    return;
  }
  const auto at = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(box.sizes[d] - 1));
  const auto low = pieces / 2;
  auto a = box;
  auto b = box;
  a.sizes.set(d, at);
  b.offsets.set(d, box.offsets[d] + at);
  b.sizes.set(d, box.sizes[d] - at);
  divide(a, low, random, out);
  divide(b, pieces - low, random, out);
}

cairn::plan_summary summary_of(const cairn::extents& shape, const std::vector<cairn::chunk>& boxes) {
  cairn::save_plan plan;
  for (const auto& b : boxes)
    plan.items.push_back({"w",
                          cairn::item_kind::tensor,
                          cairn::dtype::f32,
                          shape,
                          b,
                          {},
                          0,
                          cairn::bytes_of(cairn::dtype::f32, b.volume())});
  return cairn::summarise_plan(plan, 0);
}

/// What a planner must do by hand at least: names, boxes and sizes into a vector of items.
cairn::save_plan write_list(const cairn::state_dict& state) {
  cairn::save_plan plan;
  plan.items.reserve(state.entries().size());
  std::uint32_t n = 0;
  for (const auto& e : state.entries())
    plan.items.push_back({e.name, e.kind, e.type, e.global, e.boxes[0], e.flags, n++,
                          cairn::bytes_of(e.type, e.boxes[0].volume())});
  return plan;
}

/// A world of simulated ranks. Prints what planning costs in each layout, beside the twin. Each layout of
/// each size, and each twin, runs in a process of its own, so that it does not matter what ran before.
class simulated_worlds {
 public:
  simulated_worlds(int argc, char** argv)
      : load_ranks_(cairn_bench::argument(argc, argv, "--load-ranks", std::int64_t{4096})),
        twin_ranks_(cairn_bench::argument(argc, argv, "--twin-ranks", std::int64_t{65536})),
        twin_seconds_(
            static_cast<double>(cairn_bench::argument(argc, argv, "--twin-seconds", std::int64_t{20}))),
        irregular_ranks_(cairn_bench::argument(argc, argv, "--irregular-ranks", std::int64_t{2048})),
        budget_(static_cast<double>(cairn_bench::argument(argc, argv, "--budget", std::int64_t{300}))),
        only_(cairn_bench::argument(argc, argv, "--layout", "")),
        report_("planning of simulated ranks") {}

  void run(std::int64_t ranks) {
    for (const char* layout : layouts) {
      if (!only_.empty() && only_ != layout) continue;
      const bool irregular = std::string_view(layout) == "irregular";
      if (irregular && ranks > irregular_ranks_) continue;
      if (!affordable(layout, ranks)) {
        std::printf("# %s with %lld ranks is left out: it would not end within --budget\n", layout,
                    static_cast<long long>(ranks));
        continue;
      }
      const auto begin = seconds();
      const auto costs = cairn_bench::planning_costs::from(cairn_bench::in_own_process(
          [&] { return cairn_bench::planning_simulation(layout, ranks).run(load_ranks_, true).numbers(); }));
      const auto name = std::string(layout) + "/ranks=" + std::to_string(ranks) + "/";
      // What is wanted of 16,384 ranks; 0: nothing.
      const bool judged = ranks == 16384;
      const bool fsdp = judged && std::string_view(layout) == "fsdp";
      const double most = fsdp ? 0.1 : judged && std::string_view(layout) == "tp8_pp16_dp128" ? 0.3 : 0;
      add(name + "critical_path", costs.critical, "s", most);
      report_.add(name + "critical_path/summarise", costs.summarise, "s");
      report_.add(name + "critical_path/merges", costs.merge, "s");
      report_.add(name + "critical_path/finish", costs.finish, "s");
      report_.add(name + "slowest_chain", costs.slowest, "s");
      const double network = costs.messages * latency + costs.message_bytes / bandwidth;
      report_.add(name + "network(10us,10GB/s)", network, "s");
      report_.add(name + "processor_of_all_ranks", costs.processor, "s");
      add(name + "largest_message", one(costs.largest_message), "B", fsdp ? 1e6 : 0);
      add(name + "peak_memory", one(costs.peak), "B", fsdp ? 1073741824.0 : 0);
      report_.add(name + "metadata", costs.metadata, "s");
      add(name + "manifest", one(costs.manifest_bytes), "B", fsdp ? 5e6 : 0);
      report_.add(name + "publish", costs.publish, "s");
      report_.add(name + "open", costs.open, "s");
      const auto on = "plan_load_on_" + std::to_string(load_ranks_);
      report_.add(name + on, costs.load_plan, "s");
      add(name + "open_and_" + on, one(costs.open.median() + costs.load_plan.median()), "s",
          fsdp && load_ranks_ == 4096 ? 0.02 : 0);
      seconds_[layout] = {ranks, seconds() - begin};
      critical_[layout].emplace_back(static_cast<double>(ranks), costs.critical.median());
      const auto against = twin(layout, ranks, costs.critical.median(), fsdp ? 20 : irregular ? 1 : 0);
      if (ranks == 1024 || ranks >= 16384 || (irregular && ranks * 4 > irregular_ranks_))
        tell(layout, ranks, costs, against);
    }
  }
  /// How much the critical path grows from the first to the last of these, beside log2(ranks); at most 1.3
  /// is wanted.
  void grow(std::int64_t first, std::int64_t last) {
    for (const auto& [layout, points] : critical_) {
      std::map<std::int64_t, double> at;
      for (const auto& [ranks, cost] : points) at[static_cast<std::int64_t>(ranks)] = cost;
      if (!at.contains(first) || !at.contains(last)) continue;
      const auto name = layout + "/growth/" + std::to_string(first) + "_to_" + std::to_string(last);
      report_.add_against(name, cairn_bench::samples({at[last] / at[first]}), "1",
                          std::log2(static_cast<double>(last)) / std::log2(static_cast<double>(first)),
                          cairn_bench::at_most(1.3));
      char text[64];
      std::snprintf(text, sizeof text, "%s%s %.2f", growth_.empty() ? "" : ", ", layout.c_str(),
                    at[last] / at[first] * std::log2(static_cast<double>(first)) /
                        std::log2(static_cast<double>(last)));
      growth_ += text;
    }
    if (!growth_.empty())
      growth_ = "From " + std::to_string(first) + " to " + std::to_string(last) +
                " ranks, the growth of the critical path divided by the growth of log2(ranks) is " + growth_ +
                " (the goal is at most 1.3).\n";
  }
  void write(const std::string& json, const std::string& chart, const std::string& table) {
    report_.write(json);
    if (std::FILE* f = table.empty() ? nullptr : std::fopen(table.c_str(), "w")) {
      std::fputs(
          "| layout | ranks | critical path | a coordinator | ratio | largest message | manifest | published "
          "in | "
          "opened and a load planned in | memory |\n|---|---|---|---|---|---|---|---|---|---|\n",
          f);
      std::fputs((table_ + growth_).c_str(), f);
      if (std::fclose(f) != 0) throw std::runtime_error("the table could not be written");
    } else if (!table.empty()) {
      throw std::runtime_error("the table could not be written");
    }
    if (chart.empty()) return;
    std::vector<cairn_bench::chart_line> lines;
    const char* colours[] = {"#1f77b4", "#2ca02c", "#9467bd", "#8c564b"};
    std::size_t k = 0;
    for (const char* layout : layouts) lines.push_back({layout, colours[k++], critical_[layout], false});
    lines.push_back({"coordinator (fsdp)", "#d62728", twins_["fsdp"], false});
    lines.push_back({"extrapolated", "#d62728", beyond_["fsdp"], true});
    cairn_bench::write_log_chart(chart, "Planning a save: 2,200 tensors and values a rank", "ranks",
                                 "seconds on the critical path", lines);
  }

 private:
  static constexpr const char* layouts[] = {"fsdp", "tp8_pp16_dp128", "hsdp", "irregular"};
  static constexpr double latency = 10e-6;
  static constexpr double bandwidth = 10e9;

  static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  [[nodiscard]] bool affordable(const char* layout, std::int64_t ranks) const {
    const auto known = seconds_.find(layout);
    if (known == seconds_.end()) return true;
    const auto [before, cost] = known->second;
    return seconds() - begin_ + cost * static_cast<double>(ranks) / static_cast<double>(before) < budget_;
  }
  struct twin_cost {
    double seconds = 0;
    bool extrapolated = false;
  };
  /// A row of the table.
  void tell(const std::string& layout, std::int64_t ranks, const cairn_bench::planning_costs& c,
            twin_cost against) {
    char row[256];
    std::snprintf(
        row, sizeof row,
        "| %s | %lld | %.1f ms | %.3g s%s | %.0f | %.0f KB | %.2f MB | %.1f ms | %.1f ms | %.0f MB |\n",
        layout.c_str(), static_cast<long long>(ranks), c.critical.median() * 1e3, against.seconds,
        against.extrapolated ? " (extrapolated)" : "", against.seconds / c.critical.median(),
        c.largest_message / 1e3, c.manifest_bytes / 1e6, c.publish.median() * 1e3,
        (c.open.median() + c.load_plan.median()) * 1e3, c.peak / 1e6);
    table_ += row;
  }
  /// `least`: so many times ours are wanted; 0: nothing is.
  twin_cost twin(const std::string& layout, std::int64_t ranks, double ours, double least) {
    const auto name = layout + "/ranks=" + std::to_string(ranks) + "/coordinator_twin";
    auto& known = twins_[layout];
    const auto wanted = least > 0 ? cairn_bench::at_least(least) : cairn_bench::goal{};
    const auto expected = known.empty() ? 0 : extrapolate(layout, ranks, known.back());
    double cost = -1;
    if (ranks <= twin_ranks_ && expected <= twin_seconds_) cost = run_twin(layout, ranks);
    if (cost >= 0) {
      known.emplace_back(static_cast<double>(ranks), cost);
      report_.add_against(name, one(cost), "s", ours, wanted);
      beyond_[layout] = {known.back()};
      return {cost, false};
    }
    if (known.empty()) {  // the largest world that fits, for this one
      auto fits = std::min(ranks, twin_ranks_);
      while (fits > 1 && (cost = run_twin(layout, fits)) < 0) fits /= 2;
      known.emplace_back(static_cast<double>(fits), cost);
      beyond_[layout] = {known.back()};
    }
    const auto extrapolated = extrapolate(layout, ranks, known.back());
    report_.add_against(name + "(extrapolated)", one(extrapolated), "s", ours, wanted);
    beyond_[layout].emplace_back(static_cast<double>(ranks), extrapolated);
    return {extrapolated, true};
  }
  /// The seconds of `ranks` from those of the ranks in `known`, by the items that they hold.
  [[nodiscard]] static double extrapolate(const std::string& layout, std::int64_t ranks,
                                          std::pair<double, double> known) {
    const auto held = cairn_bench::in_own_process([&] {
      return std::vector<double>{cairn_bench::held_items(layout, ranks),
                                 cairn_bench::held_items(layout, static_cast<std::int64_t>(known.first))};
    });
    return known.second * held.at(0) / held.at(1);
  }
  /// Negative where it does not fit in 8 GiB.
  [[nodiscard]] static double run_twin(const std::string& layout, std::int64_t ranks) {
    return cairn_bench::in_own_process([&] {
             return std::vector<double>{cairn_bench::twin_seconds(layout, ranks, 8.0 * 1073741824.0)};
           })
        .at(0);
  }
  static cairn_bench::samples one(double value) { return cairn_bench::samples({value}); }
  /// Against a limit, if there is one.
  void add(const std::string& name, const cairn_bench::samples& s, const char* unit, double limit) {
    if (limit > 0)
      report_.add_against(name, s, unit, limit, cairn_bench::at_most(1));
    else
      report_.add(name, s, unit);
  }

  std::int64_t load_ranks_;
  std::int64_t twin_ranks_;
  double twin_seconds_;
  std::int64_t irregular_ranks_;
  double budget_;
  std::string only_;
  double begin_ = seconds();
  cairn_bench::report report_;
  std::string table_;
  std::string growth_;  ///< a sentence
  std::map<std::string, std::pair<std::int64_t, double>> seconds_;
  std::map<std::string, std::vector<std::pair<double, double>>> critical_, twins_, beyond_;
};

int simulate(int argc, char** argv, std::int64_t ranks) {
  cairn_bench::keep_freed_memory();
  simulated_worlds worlds(argc, argv);
  if (ranks > 0)
    worlds.run(ranks);
  else
    for (const std::int64_t each : {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536}) worlds.run(each);
  worlds.grow(1024, 65536);
  worlds.write(cairn_bench::argument(argc, argv, "--json", ""),
               cairn_bench::argument(argc, argv, "--chart", ""),
               cairn_bench::argument(argc, argv, "--table", ""));
  return 0;
}

int run(int argc, char** argv) {
  // --ranks N: the whole of planning by N simulated ranks; --sweep 1: by 1 to 65,536 of them.
  if (const auto ranks = cairn_bench::argument(argc, argv, "--ranks", std::int64_t{0}); ranks > 0)
    return simulate(argc, argv, ranks);
  if (cairn_bench::argument(argc, argv, "--sweep", std::int64_t{0}) != 0) return simulate(argc, argv, 0);
  const auto tensors = cairn_bench::argument(argc, argv, "--tensors", std::int64_t{10000});
  const auto samples = static_cast<int>(cairn_bench::argument(argc, argv, "--samples", std::int64_t{15}));
  const auto json = cairn_bench::argument(argc, argv, "--json", "");
  cairn_bench::report report("planning");
  std::vector<float> memory(64 * 64);
  const auto state = make_state(tensors, memory.data());
  const auto count = "/tensors=" + std::to_string(tensors);

  cairn::default_planner planner;
  const auto plan_once = [&] {
    auto local = planner.local_plan(state, 0);
    auto summary = planner.summarise(local, 0);
    auto plan = planner.finish(std::move(local), summary, 0, 1);
    auto stored = planner.metadata(summary, 1);
    auto digest = cairn::digest_of(plan);
    cairn_bench::keep(digest);
    return std::pair(std::move(plan), std::move(stored));
  };
  report.add_against("cold" + count,
                     cairn_bench::measure(samples, [&] { return cairn_bench::seconds_of(plan_once); }), "s",
                     0.020);
  const auto pairs = cairn_bench::interleaved_pairs(
      [&] { return cairn_bench::seconds_of(plan_once); },
      [&] { return cairn_bench::seconds_of([&] { cairn_bench::keep(write_list(state)); }); }, samples);
  report.add("cold" + count + "/twin=list_of_items", pairs, "s");

  const auto local = planner.local_plan(state, 0);
  const auto summary = planner.summarise(local, 0);
  report.add("local_plan" + count,
             cairn_bench::measure(samples, [&] { cairn_bench::keep(planner.local_plan(state, 0)); }), "s");
  report.add("summarise" + count,
             cairn_bench::measure(samples, [&] { cairn_bench::keep(planner.summarise(local, 0)); }), "s");
  report.add("metadata" + count,
             cairn_bench::measure(samples, [&] { cairn_bench::keep(planner.metadata(summary, 1)); }), "s");
  // The digest that a save with a changed state_dict is looked up by: 100 us are wanted for 2,200 items.
  report.add_against(
      "structure" + count,
      cairn_bench::measure(samples,
                           [&] {
                             const auto fresh = make_state(tensors, memory.data());
                             return cairn_bench::seconds_of([&] { cairn_bench::keep(fresh.structure()); });
                           }),
      "s", 1e-4 * static_cast<double>(tensors) / 2200, cairn_bench::at_most(1));

  cairn::plan_cache cache;
  const auto key = [&] { return cairn::plan_key{state.structure(), planner.fingerprint(), 0, 1, 0}; };
  auto first = plan_once();
  cairn::cached_plan kept;
  kept.plan = std::make_shared<const cairn::save_plan>(std::move(first.first));
  cache.put(key(), std::move(kept));
  bool hit = true;
  report.add_against("cached" + count,
                     cairn_bench::measure(samples, [&] { hit &= cache.find(key()) != nullptr; }), "s", 5e-6,
                     cairn_bench::at_most(1));
  if (!hit) throw std::logic_error("the plan was not in the cache");

  const auto stored = planner.metadata(summary, 1);
  report.add("load_plan" + count,
             cairn_bench::measure(samples, [&] { cairn_bench::keep(planner.plan(state, stored, {})); }), "s");

  const cairn::extents shape{1 << 20, 1 << 20};
  std::vector<cairn::chunk> irregular;
  std::mt19937_64 random(7);
  divide(cairn::whole(shape), 16384, random, irregular);
  const auto irregular_summary = summary_of(shape, irregular);
  report.add_against("validate/irregular_chunks=" + std::to_string(irregular.size()),
                     cairn_bench::measure(samples, [&] { cairn::validate(irregular_summary, 1); }), "s",
                     0.050);
  std::vector<cairn::chunk> grid;
  for (std::int64_t i = 0; i < 128; ++i)
    for (std::int64_t k = 0; k < 128; ++k) grid.push_back({{i * 8192, k * 8192}, {8192, 8192}});
  const auto grid_summary = summary_of(shape, grid);
  report.add_against("validate/grid=128x128",
                     cairn_bench::measure(samples, [&] { cairn::validate(grid_summary, 1); }), "s", 0.050);
  const auto refused = [&](std::vector<cairn::chunk> boxes, const char* name, auto change) {
    change(boxes);
    const auto broken = summary_of(shape, boxes);
    bool thrown = true;
    report.add_against(std::string("refuse/") + name,
                       cairn_bench::measure(samples,
                                            [&] {
                                              try {
                                                cairn::validate(broken, 1);
                                                thrown = false;
                                              } catch (const cairn::plan_error&) {
                                              }
                                            }),
                       "s", 0.050);
    if (!thrown) throw std::logic_error("a broken partition was accepted");
  };
  const auto grow = [](std::vector<cairn::chunk>& b) { b[5000].sizes.set(1, b[5000].sizes[1] + 1); };
  const auto drop = [](std::vector<cairn::chunk>& b) { b.erase(b.begin() + 9000); };
  refused(irregular, "irregular_overlap", grow);
  refused(irregular, "irregular_hole", drop);
  refused(grid, "grid_overlap", grow);
  refused(grid, "grid_hole", drop);
  report.write(json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--help") {
    std::puts(
        "What planning costs: cold for many tensors, from the cache, and the validation of many chunks;\n"
        "or the whole of planning by a world of simulated ranks, beside a coordinator that sees all plans.\n"
        "usage: bench_planning [--tensors N] [--samples N] [--json FILE]\n"
        "       bench_planning --ranks N | --sweep 1  [--layout fsdp|hsdp|tp8_pp16_dp128|irregular]\n"
        "         [--load-ranks N] [--twin-ranks N] [--twin-seconds S] [--irregular-ranks N]\n"
        "         [--budget SECONDS]\n"
        "         [--json FILE] [--chart FILE] [--table FILE]\n"
        "The coordinator is run by as many ranks as fit in 8 GiB, but not where it is expected to take "
        "longer\n"
        "than --twin-seconds: there its figure is extrapolated, and labelled so.");
    return 0;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_planning: %s\n", e.what());
    return 1;
  }
}
