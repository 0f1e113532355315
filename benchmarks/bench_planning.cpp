// SPDX-License-Identifier: Apache-2.0
// What planning costs: cold for many tensors, from the cache, and the validation of many chunks.
//   bench_planning [--tensors N] [--samples N] [--json FILE]
#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
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

int run(int argc, char** argv) {
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
  report.add(
      "structure" + count,
      cairn_bench::measure(samples,
                           [&] {
                             const auto fresh = make_state(tensors, memory.data());
                             return cairn_bench::seconds_of([&] { cairn_bench::keep(fresh.structure()); });
                           }),
      "s");

  cairn::plan_cache cache;
  const auto key = [&] { return cairn::plan_key{state.structure(), planner.fingerprint(), 0, 1, 0}; };
  auto first = plan_once();
  cache.put(key(), {std::move(first.first), 0, nullptr, nullptr, {}});
  bool hit = true;
  report.add_against("cached" + count,
                     cairn_bench::measure(samples, [&] { hit &= cache.find(key()) != nullptr; }), "s", 0.001);
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
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_planning: %s\n", e.what());
    return 1;
  }
}
