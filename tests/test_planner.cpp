// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/glob.hpp>
#include <deque>
#include <string>
#include <vector>

namespace {

/// The plans of all ranks, reduced in rank order and finished.
template <class Planner>
struct planned {
  std::vector<cairn::save_plan> plans;
  cairn::plan_summary summary;
  cairn::metadata stored;
};

template <class Planner>
planned<Planner> plan_all(Planner& planner, const std::deque<cairn::state_dict>& states) {
  planned<Planner> out;
  const auto world = static_cast<int>(states.size());
  std::vector<cairn::save_plan> local;
  for (int r = 0; r < world; ++r) {
    local.push_back(planner.local_plan(states[static_cast<std::size_t>(r)], r));
    out.summary = planner.merge(std::move(out.summary), planner.summarise(local.back(), r));
  }
  out.summary = planner.decode(planner.encode(out.summary));
  for (int r = 0; r < world; ++r)
    out.plans.push_back(planner.finish(std::move(local[static_cast<std::size_t>(r)]), out.summary, r, world));
  out.stored = planner.metadata(out.summary, world);
  return out;
}

std::vector<std::string> names_of(const cairn::save_plan& plan) {
  std::vector<std::string> names;
  for (const auto& i : plan.items) names.push_back(i.name);
  return names;
}

}  // namespace

TEST_CASE("one rank writes everything, in the order of its state") {
  std::vector<float> w(12), m(6);
  double lr = 0.5;
  std::string blob = "abc";
  std::deque<cairn::state_dict> states(1);
  states[0].tensor("w", w, {3, 4});
  states[0].bytes("blob", blob);
  states[0].value("lr", lr);
  states[0].tensor("m", m, cairn::flat_shard{{6}, 0});
  cairn::default_planner planner;
  const auto all = plan_all(planner, states);
  CHECK(names_of(all.plans[0]) == std::vector<std::string>{"w", "blob", "lr", "m"});
  CHECK(all.plans[0].items[0].bytes == 48);
  CHECK(all.plans[0].items[1].bytes == 3);
  CHECK(all.plans[0].items[2].bytes == 8);
  REQUIRE(all.stored.items.size() == 4);
  CHECK(all.stored.items[0].name == "blob");
  CHECK(all.stored.find("w")->chunks == std::vector<cairn::stored_chunk>{{cairn::whole({3, 4}), 0}});
  const auto source = planner.resolve(states[0], all.plans[0].items[0]);
  CHECK(source.view.data == reinterpret_cast<std::byte*>(w.data()));
  CHECK(source.view.shape == cairn::extents{3, 4});
  CHECK(!source.cast);
  const auto bytes = planner.resolve(states[0], all.plans[0].items[1]);
  CHECK(bytes.view.bytes() == 3);
}
