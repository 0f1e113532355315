// SPDX-License-Identifier: Apache-2.0
#pragma once
// Clients that save, remove, clean up and read on one zombie_store, in orders that seeds choose.
#include "figures.hpp"
#include "rounds.hpp"
#include "zombie_store.hpp"

#include <cairn/checkpointer/retention.hpp>
#include <cairn/model/retention_policy.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/linked_files.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors_reader.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test::zombies {

using protocol = cairn::commit_protocol;
using keeping = cairn::checkpoint_catalog;

inline constexpr cairn::commit_options quick{
    .rival_timeout = std::chrono::seconds(1), .directory_timeout = {}, .durability_timeout = {}};

/// What a rank writes; no other rank writes the same.
inline std::vector<std::byte> data_of(std::uint64_t attempt, std::int32_t rank) {
  std::vector<std::byte> bytes(sizeof attempt + sizeof rank);
  std::memcpy(bytes.data(), &attempt, sizeof attempt);
  std::memcpy(bytes.data() + sizeof attempt, &rank, sizeof rank);
  return bytes;
}

/// What a rank's file of frozen items holds: the same in all its saves until the items change.
inline std::vector<std::byte> frozen_data(std::uint64_t run, std::int32_t rank, std::uint64_t version) {
  return data_of(run << 16 | version, -1 - rank);
}

/// The newest committed save of a rank, whose file of frozen items the next one links, as frozen_saves has it.
class frozen_file {
 public:
  explicit frozen_file(bool any) : any_(any) {}

  [[nodiscard]] bool any() const noexcept { return any_; }
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }
  void change() { ++version_, committed_.clear(); }
  [[nodiscard]] const std::vector<cairn::save_attempt>& sources() const noexcept { return committed_; }
  void ended(const cairn::save_context& c, bool committed) {
    if (committed)
      committed_ = {{c.step, c.attempt}};
    else if (!c.link_from.empty())
      committed_.clear();
  }

 private:
  bool any_;
  std::uint64_t version_ = 0;
  std::vector<cairn::save_attempt> committed_;
};

/// One schedule: which client does what on one store, and what was reported to it.
class schedule {
 public:
  /// `crowded`: all clients work on one step.
  schedule(std::uint64_t seed, const zombie_rules& rules, bool crowded)
      : world_(seed, rules), last_step_(crowded ? 1 : 3), max_runs_(crowded ? 3 : 2) {
    world_.astray = world_.below(4) == 0 ? 0 : 8 + world_.below(40);
    world_.killed = world_.below(3) == 0 ? 60 + world_.below(200) : 0;
    sets_aside_ = world_.below(4) == 0;
  }

  /// Runs the schedule. Returns what is wrong; empty: nothing.
  std::string go() {
    std::vector<std::function<void()>> clients;
    const auto runs = 1 + world_.below(max_runs_);
    for (std::uint64_t run = 1; run <= runs; ++run) {
      const auto ranks = static_cast<std::int32_t>(1 + world_.below(2));
      std::vector<std::int64_t> steps;
      for (auto n = 1 + world_.below(3); n != 0; --n) steps.push_back(any_step());
      const bool cleans = run > 1 && world_.below(2) == 0;
      const auto keep = world_.below(3);  // 0: all
      for (std::int32_t rank = 0; rank < ranks; ++rank)
        clients.push_back([=, this] { be_rank(run, rank, ranks, steps, cleans, keep); });
    }
    if (world_.below(2) == 0) clients.push_back([this] { be_tool(); });
    if (world_.below(2) == 0) clients.push_back([this] { be_reader(); });
    world_.run(std::move(clients));
    check("in the end");
    if (wrong_.empty()) resume();
    return wrong_;
  }
  [[nodiscard]] std::uint64_t committed() const noexcept { return committed_; }
  [[nodiscard]] std::uint64_t linked() const noexcept { return linked_; }
  [[nodiscard]] std::uint64_t requests() const noexcept { return world_.requests(); }

 private:
  [[nodiscard]] std::shared_ptr<zombie_store> store() { return std::make_shared<zombie_store>(world_); }
  [[nodiscard]] std::int64_t any_step() { return static_cast<std::int64_t>(1 + world_.below(last_step_)); }
  void complain(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  struct removals_of_step {
    int begun = 0;
    int under_way = 0;
  };

  // --- The clients. Each has a view of its own.

  void be_rank(std::uint64_t run, std::int32_t rank, std::int32_t ranks,
               const std::vector<std::int64_t>& steps, bool cleans, std::uint64_t keep) {
    const auto s = store();
    const protocol p(s, quick);
    const keeping k(s);
    const cairn::run_id id{run, run};
    cairn::detail::retention line{cairn::keep_last(std::max<std::uint64_t>(keep, 1))};
    if (cleans && rank == 0)
      quietly([&] {
        (void)k.clean(id);
        go_on_from_newest(k, line);
      });
    std::uint64_t count = 0;
    frozen_file frozen(world_.rules().frozen_items && world_.below(2) == 0);
    for (const auto step : steps) {
      cairn::save_context c;
      c.run = id;
      c.step = step;
      c.attempt = cairn::attempt_of(id, step, ++count);
      c.rank = rank;
      c.world_size = ranks;
      if (frozen.any() && world_.below(8) == 0) frozen.change();
      c.link_from = frozen.sources();
      line.begun({step, c.attempt});
      const bool committed = save(*s, p, c, frozen);
      frozen.ended(c, committed);
      line.ended({step, c.attempt}, committed);
      if (committed && keep != 0 && rank == 0) quietly([&] { retain(k, line); });
    }
  }
  /// Whether this rank was told that it was committed.
  bool save(zombie_store& s, const protocol& p, const cairn::save_context& c, const frozen_file& frozen) {
    using std::chrono::seconds;
    try {
      p.begin(c);
      p.check_open(c);
      cairn::record r;
      const auto write = [&](std::uint32_t index, const std::vector<std::byte>& bytes) {
        auto file = s.create(cairn::data_key(c.step, c.rank, c.attempt, index), bytes.size());
        const cairn::write_range part{0, bytes};
        file.write({&part, 1});
        file.finish();
        r.files.push_back({bytes.size()});
      };
      write(0, data_of(c.attempt, c.rank));
      if (frozen.any()) {
        const auto bytes = frozen_data(c.run.high, c.rank, frozen.version());
        frozen_[{c.attempt, c.rank}] = bytes;
        if (c.link_from.empty()) {
          write(1, bytes);
        } else {
          const cairn::any_store linking{zombie_store(s)};
          const std::vector<cairn::linked_file> files = {
              {bytes.size(), 0, cairn::digest_stream().put(std::uint32_t{1}).value(), 0}};
          cairn::detail::linked_files linked(linking, {}, c, files, 1);
          linked.link(cairn::deadline::in(seconds(4)));
          linked.add_to(r);
          ++linked_;
        }
      }
      p.publish(c, r);
      if (c.coordinator()) {
        cairn::metadata content;
        content.world_size = c.world_size;
        const auto removals = removals_[c.step];
        p.commit(c, content, cairn::deadline::in(seconds(4)));
        was_committed(c, removals);
      } else {
        p.await_commit(c, cairn::deadline::in(seconds(9)));
      }
      return true;
    } catch (const client_killed&) {
      throw;
    } catch (...) {
      p.abort(c, std::current_exception());
    }
    return false;
  }
  /// As resume() does, which passes over some that it cannot read.
  void go_on_from_newest(const keeping& k, cairn::detail::retention& line) {
    auto there = k.list();
    while (sets_aside_ && !there.empty() && world_.below(2) == 0) {
      set_aside(k, there.back());
      there.pop_back();
    }
    if (!there.empty()) line.set_base_step(there.back(), there);
  }
  /// After a commit: what the run's own retention chooses goes, as it removes it.
  void retain(const keeping& k, cairn::detail::retention& line) {
    const auto commits = line.commits();
    const auto chosen = line.choose(k.list(), 0, commits);
    for (const auto old : chosen.remove) {
      if (const auto attempt = line.attempt_of(old))
        remove_attempt(k, {old, *attempt});
      else
        remove(k, old);
      line.removed(old);
    }
  }
  void remove(const keeping& k, std::int64_t step) {
    take_away("remove", step, {}, [&] { k.remove(step); });
  }
  void set_aside(const keeping& k, std::int64_t step) {
    take_away("set aside", step, {}, [&] { (void)k.quarantine(step); });
  }
  /// Another save of the step stays.
  void remove_attempt(const keeping& k, cairn::save_attempt which) {
    take_away("remove one save", which.step, which.attempt, [&] { (void)k.remove_attempt(which); });
  }
  template <class Call>
  void take_away(const std::string& how, std::int64_t step, std::optional<std::uint64_t> attempt, Call call) {
    world_.trace(how + " of step " + std::to_string(step));
    const auto goes = [&] {
      const auto at = told_.find(step);
      if (at != told_.end() && at->second == attempt.value_or(at->second)) told_.erase(at);
    };
    goes();
    ++removals_[step].begun, ++removals_[step].under_way;
    const auto ends = [&] {
      goes();
      --removals_[step].under_way;
    };
    try {
      call();
    } catch (const client_killed&) {
      ends();
      throw;
    } catch (const cairn::error&) {
    }
    ends();
  }
  void be_tool() {
    const keeping k(store());
    for (int i = 0; i < 2; ++i)
      quietly([&] {
        if (sets_aside_ && world_.below(2) == 0)
          set_aside(k, any_step());
        else
          remove(k, any_step());
      });
  }
  /// Whatever it sees is complete, or is removed while it looks.
  void be_reader() {
    const auto s = store();
    cairn::safetensors_reader reader(s);
    for (int i = 0; i < 3; ++i)
      quietly([&] {
        for (const auto step : reader.list()) (void)reader.fetch(step);
      });
  }
  template <class Call>
  void quietly(Call call) {
    try {
      call();
    } catch (const cairn::storage_error&) {
    }
  }

  // --- What must hold.

  /// `removals`: the removals of the step when the commit began; a later one may have removed the checkpoint.
  void was_committed(const cairn::save_context& c, const removals_of_step& removals) {
    ++committed_;
    world_.trace("committed " + cairn::aborted_key(c.step, c.attempt));
    if (removals.under_way != 0 || removals_[c.step].begun != removals.begun) return;
    if (const auto [at, first] = told_.try_emplace(c.step, c.attempt); !first)
      complain("two saves of step " + std::to_string(c.step) + " were reported as committed");
  }
  /// What is wrong with a checkpoint that readers see; empty: nothing.
  std::string fault_of(std::int64_t step, std::optional<std::uint64_t> attempt) {
    try {
      cairn::safetensors_reader reader(store());
      const auto key = cairn::manifest_key(step);
      const auto m = cairn::decode_manifest(reader.fetch(step), key);
      if (attempt && m.attempt != *attempt) return "is of another save";
      for (const auto& r : m.records) {
        if (!world_.stored().contains(cairn::record_key(step, r.rank, m.attempt))) return "lacks a record";
        const auto at = world_.stored().find(cairn::data_key(step, r.rank, m.attempt, 0));
        if (at == world_.stored().end()) return "lacks data";
        if (at->second != data_of(m.attempt, r.rank)) return "has other data";
        const auto frozen = frozen_.find({m.attempt, r.rank});
        if ((r.files == 2) != (frozen != frozen_.end())) return "has another number of files";
        if (frozen == frozen_.end()) continue;
        const auto shared = world_.stored().find(cairn::data_key(step, r.rank, m.attempt, 1));
        if (shared == world_.stored().end()) return "lacks frozen items";
        if (shared->second != frozen->second) return "has other frozen items";
      }
    } catch (const cairn::error& e) {
      return e.what();
    }
    return {};
  }
  /// Checks what must hold when no client is at work.
  void check(const std::string& when) {
    const auto steps = keeping(store()).list();
    for (const auto& [step, attempt] : told_) {
      if (!std::binary_search(steps.begin(), steps.end(), step))
        complain(when + ", step " + std::to_string(step) + " was reported as committed and is not listed");
      else if (const auto why = fault_of(step, attempt); !why.empty())
        complain(when + ", step " + std::to_string(step) + " was reported as committed and " + why);
    }
    for (const auto step : steps)
      if (const auto why = fault_of(step, {}); !why.empty())
        complain(when + ", step " + std::to_string(step) + " is listed and " + why);
  }
  /// A new run on a store without faults: it removes what is left over, keeps the checkpoints, and saves.
  void resume() {
    world_.astray = world_.killed = 0;
    world_.run({[this] { be_rank(77, 0, 1, {9, 2}, true, 0); }});
    check("after a new run");
    const auto steps = keeping(store()).list();
    if (!std::binary_search(steps.begin(), steps.end(), 9)) complain("a new run cannot save");
    if (!std::binary_search(steps.begin(), steps.end(), 2)) complain("a step cannot be saved again");
  }

  zombie_world world_;
  std::uint64_t last_step_;
  std::uint64_t max_runs_;
  bool sets_aside_ = false;  ///< checkpoints, as one that passes over what it cannot read
  std::string wrong_;
  std::uint64_t committed_ = 0;
  std::uint64_t linked_ = 0;
  /// What the file of frozen items of a rank's save is to hold.
  std::map<std::pair<std::uint64_t, std::int32_t>, std::vector<std::byte>> frozen_;
  std::map<std::int64_t, std::uint64_t> told_;  ///< reported as committed, and not removed since
  std::map<std::int64_t, removals_of_step> removals_;
};

/// The outcome of schedules.
struct found {
  std::uint64_t schedules = 0, requests = 0, committed = 0, linked = 0;
  std::string wrong;  ///< the first one
};
/// Tries schedules until one is wrong.
inline found try_schedules(std::uint64_t count, const zombie_rules& rules, bool crowded,
                           std::uint64_t skipped = 0) {
  found f;
  const char* chosen = std::getenv("CAIRN_TEST_SEED");
  const auto first = test_seed() + (chosen != nullptr ? 0 : skipped);
  if (chosen != nullptr && !long_run()) count = 1;
  for (; f.schedules < count && f.wrong.empty(); ++f.schedules) {
    schedule s(first + f.schedules, rules, crowded);
    if (const auto wrong = s.go(); !wrong.empty())
      f.wrong = wrong + " (CAIRN_TEST_SEED=" + std::to_string(first + f.schedules) + " repeats it)";
    f.requests += s.requests();
    f.committed += s.committed();
    f.linked += s.linked();
  }
  return f;
}

}  // namespace cairn_test::zombies
