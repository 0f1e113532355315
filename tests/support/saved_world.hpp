// SPDX-License-Identifier: Apache-2.0
#pragma once
// Saves and loads by hand, rank after rank in one thread, with the real planner and stagers: what a
// checkpointer does, step by step, so that a test can stop between any two steps.
#include <cairn/concepts/storage.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stage/heap_memory.hpp>
#include <cairn/stage/host_copy.hpp>
#include <cairn/stage/no_staging.hpp>
#include <cairn/system/digest.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

inline cairn::deadline soon() {
  return cairn::deadline::in(std::chrono::seconds(60));
}

/// The plans of all ranks, agreed upon.
struct planned_world {
  std::vector<cairn::save_plan> plans;
  cairn::metadata stored;
  std::uint64_t digest = 0;
};
inline planned_world plan_world(const std::vector<const cairn::state_dict*>& states) {
  cairn::default_planner planner;
  planned_world world;
  std::optional<cairn::default_planner::summary_type> global;
  for (std::size_t r = 0; r < states.size(); ++r) {
    world.plans.push_back(planner.local_plan(*states[r], static_cast<int>(r)));
    auto summary = planner.summarise(world.plans.back(), static_cast<int>(r));
    global = global ? planner.merge(std::move(*global), std::move(summary)) : std::move(summary);
  }
  const int size = static_cast<int>(states.size());
  for (int r = 0; r < size; ++r) {
    auto& plan = world.plans[static_cast<std::size_t>(r)];
    plan = planner.finish(std::move(plan), *global, r, size);
  }
  world.stored = planner.metadata(*global, size);
  world.digest = cairn::digest(planner.encode(*global));
  return world;
}

/// How images reach the writer.
enum class staging { copied, copied_without_digests, none };

/// One save of all ranks, step by step.
template <class Writer>
class world_save {
 public:
  world_save(Writer& writer, std::vector<const cairn::state_dict*> states, std::int64_t step,
             cairn::run_id run = {1, 2}, std::uint64_t save_count = 0, staging how = staging::copied)
      : writer_(writer), states_(std::move(states)), world_(plan_world(states_)), how_(how) {
    base_.run = run;
    base_.step = step;
    base_.attempt = cairn::attempt_of(run, step, save_count);
    base_.plan_digest = world_.digest;
    base_.world_size = static_cast<std::int32_t>(states_.size());
  }
  [[nodiscard]] int size() const { return static_cast<int>(states_.size()); }
  [[nodiscard]] cairn::save_context context(int rank) const {
    auto c = base_;
    c.rank = rank;
    return c;
  }
  [[nodiscard]] const planned_world& world() const { return world_; }
  [[nodiscard]] planned_world& world() { return world_; }
  [[nodiscard]] cairn::staged_image image(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto& plan = world_.plans[r];
    cairn::default_planner planner;
    std::vector<std::uint64_t> bytes;
    std::vector<cairn::item_source> sources;
    for (const auto& item : plan.items) {
      sources.push_back(planner.resolve(*states_[r], item));
      bytes.push_back(item.kind == cairn::item_kind::bytes ? sources.back().view.bytes() : item.bytes);
    }
    auto layout = std::make_shared<const cairn::image_layout>(writer_.layout(plan, bytes, rank));
    const cairn::stage_options options{.overlapped = false, .digest = how_ == staging::copied};
    if (how_ == staging::none)
      return cairn::no_staging{}.stage(std::move(layout), std::move(sources), options, soon());
    cairn::buffered_stager<cairn::heap_memory, cairn::host_copy> stager;
    return stager.stage(std::move(layout), std::move(sources), options, soon());
  }
  cairn::record write(int rank, cairn::deadline until = soon()) {
    return writer_.write(context(rank), image(rank), until);
  }
  void commit(cairn::deadline until = soon()) { writer_.commit(context(0), world_.stored, until); }
  /// Does the whole save.
  void run() {
    for (int r = 0; r < size(); ++r) write(r);
    commit();
    for (int r = 1; r < size(); ++r) writer_.await_commit(context(r), soon());
  }

 private:
  Writer& writer_;
  std::vector<const cairn::state_dict*> states_;
  planned_world world_;
  staging how_;
  cairn::save_context base_;
};

/// Loads a checkpoint into one rank's state; returns the number of bytes that were read.
template <class Reader>
std::uint64_t load_rank(Reader& reader, typename Reader::checkpoint_type& checkpoint,
                        const cairn::state_dict& state, int rank, int world,
                        cairn::read_options options = {}) {
  cairn::default_planner planner;
  const auto plan = planner.plan(state, checkpoint.metadata(),
                                 {.rank = rank, .world_size = world, .strict = true, .only = {}});
  const cairn::target_resolver resolver = [&](const cairn::read_item& item) {
    return planner.resolve(state, checkpoint.metadata(), item);
  };
  return reader.read(checkpoint, state, plan, resolver, options, soon());
}
template <class Reader>
void load_world(Reader& reader, std::int64_t step, const std::vector<const cairn::state_dict*>& states,
                cairn::read_options options = {}) {
  const auto manifest = reader.fetch(step);
  for (std::size_t r = 0; r < states.size(); ++r) {
    auto checkpoint = reader.open(step, manifest);
    load_rank(reader, checkpoint, *states[r], static_cast<int>(r), static_cast<int>(states.size()), options);
  }
}

/// The id of the cairn::error that a call throws, with its text; "nothing" if none.
struct told_failure {
  std::optional<cairn::error_id> id;
  std::string text = "nothing";
  cairn::error_fields fields;
};
template <class Call>
told_failure failure_of(Call&& call) {
  try {
    call();
  } catch (const cairn::error& e) {
    return {e.id(), e.what(), e.fields()};
  }
  return {};
}

}  // namespace cairn_test
