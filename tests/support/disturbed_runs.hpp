// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpointers over stores and disks whose calls a test makes fail, and what they told.
#include "counting_communicator.hpp"
#include "faulty_file_system.hpp"
#include "faulty_store.hpp"
#include "odd_file_system.hpp"
#include "on_all_ranks.hpp"
#include "training_state.hpp"

#include <cairn/cairn.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test::disturbed_runs {

using cairn::error_id;
using std::chrono::seconds;

using store = faulty_store<cairn::memory_store>;
using storage = cairn::safetensors_storage<store>;
using communicator = counting_communicator<cairn::thread_communicator>;
using disk_store = cairn::basic_file_store<faulty_file_system<>>;

inline disk_store disk_at(const std::string& root, faulty_file_system<> fs = faulty_file_system<>{}) {
  return disk_store{root, {}, std::move(fs)};
}

inline std::uint64_t seed() {
  static const std::uint64_t chosen = [] {
    const char* text = std::getenv("CAIRN_TEST_SEED");
    const auto value = text != nullptr ? std::strtoull(text, nullptr, 10) : 20'240'602u;
    MESSAGE("seed " << value << " (CAIRN_TEST_SEED repeats another one)");
    return value;
  }();
  return chosen;
}

inline cairn::checkpointer_options patient(std::chrono::nanoseconds timeout = seconds(60)) {
  cairn::checkpointer_options options;
  options.timeout = timeout;
  options.peer_timeout = timeout;
  options.max_consecutive_failures = 0;
  options.quiet = true;
  return options;
}

/// The events that a checkpointer reported; shared with its copies.
class listener {
 public:
  using cairn_role = cairn::role::observer;
  void observe(const cairn::observation& what) noexcept {
    const std::lock_guard lock(told_->mutex);
    if (what.kind == cairn::observation::event::fell_back)
      told_->passed_over.push_back({what.step, std::string(what.text)});
    if (what.kind == cairn::observation::event::warning) told_->warnings.emplace_back(what.text);
  }
  [[nodiscard]] std::vector<std::pair<std::int64_t, std::string>> passed_over() const {
    const std::lock_guard lock(told_->mutex);
    return told_->passed_over;
  }
  [[nodiscard]] std::vector<std::string> warnings() const {
    const std::lock_guard lock(told_->mutex);
    return told_->warnings;
  }

 private:
  struct told {
    std::mutex mutex;
    std::vector<std::pair<std::int64_t, std::string>> passed_over;
    std::vector<std::string> warnings;
  };
  std::shared_ptr<told> told_ = std::make_shared<told>();
};

/// The error of an exception, taken apart.
struct told_error {
  std::optional<error_id> id;
  std::string text = "nothing";
  cairn::error_fields fields;
  [[nodiscard]] bool is(cairn::error_kind kind) const { return id && cairn::kind_of(*id) == kind; }
};
inline told_error error_of(const std::exception_ptr& failure) {
  if (failure == nullptr) return {};
  try {
    std::rethrow_exception(failure);
  } catch (const cairn::error& e) {
    return {e.id(), e.what(), e.fields()};
  } catch (const std::exception& e) {
    return {{}, std::string("no cairn::error: ") + e.what(), {}};
  }
}
template <class Call>
told_error thrown_by(Call&& call) {
  try {
    call();
  } catch (...) {
    return error_of(std::current_exception());
  }
  return {};
}

inline communicator alone() {
  return communicator(cairn::thread_group{1}.communicator(0));
}

/// A store in memory whose calls can be made to fail, and checkpointers on it.
struct place {
  cairn::memory_store objects;
  std::shared_ptr<store_faults> faults = std::make_shared<store_faults>();
  std::shared_ptr<message_counts> counts = std::make_shared<message_counts>();
  std::chrono::nanoseconds rival_timeout = cairn::commit_options{}.rival_timeout;

  [[nodiscard]] storage disturbed() const {
    return storage{store{objects, faults}, {.rival_timeout = rival_timeout}};
  }
  [[nodiscard]] auto open(communicator comm = alone(), const cairn::checkpointer_options& options = patient(),
                          std::size_t keep = 0, listener ear = {}) const {
    return cairn::checkpointer{disturbed(), std::move(comm), std::move(ear), options,
                               cairn::keep_last(keep == 0 ? SIZE_MAX : keep)};
  }
  [[nodiscard]] auto open_overlapped(communicator comm = alone()) const {
    return cairn::checkpointer{disturbed(), std::move(comm), listener{}, patient(), cairn::overlapped{}};
  }
  [[nodiscard]] std::vector<std::byte> get(const std::string& key) {
    return objects.read_all(key, std::uint64_t{1} << 30).value();
  }
  void put(const std::string& key, std::span<const std::byte> bytes) {
    objects.remove(key);
    objects.put_new(key, bytes);
  }
  [[nodiscard]] std::vector<std::string> keys(const std::string& contains, const std::string& ending = "") {
    std::vector<std::string> found;
    for (const auto& o : objects.list(""))
      if (o.key.find(contains) != std::string::npos && o.key.ends_with(ending)) found.push_back(o.key);
    return found;
  }
  /// body(rank, communicator) as ranks; what each threw, or null.
  template <class Body>
  std::vector<std::exception_ptr> ranks(int n, Body body) const {
    const cairn::thread_group group{n};
    return cairn_test::thrown_on_ranks(
        n, [&](int rank) { body(rank, communicator(group.communicator(rank), counts)); });
  }
};
inline void none_failed(const std::vector<std::exception_ptr>& thrown) {
  for (const auto& each : thrown) CHECK(error_of(each).text == "nothing");
}

inline constexpr training_sizes small{.weights = 700, .rows = 9};

/// Checkpoints of steps 1 and 2, by one rank.
struct saved_twice : place {
  training_state t{0, 1, small};
  saved_twice() {
    auto ckpt = open();
    for (const std::int64_t step : {1, 2}) {
      t.fill(step);
      ckpt.save(t.state, step).wait();
    }
  }
  /// A new run falls back to step 1, says why, and moves the manifest of step 2 aside; everything is put
  /// back.
  void falls_back(const std::string& word) {
    const auto manifest = get(cairn::manifest_key(2));
    t.spoil();
    const listener ear;
    auto ckpt = open(alone(), patient(), 0, ear);
    CHECK(ckpt.resume(t.state) == 1);
    CHECK(t.is(1));
    const auto passed = ear.passed_over();
    REQUIRE(passed.size() == 1);
    CHECK(passed[0].first == 2);
    CHECK_MESSAGE(passed[0].second.find(word) != std::string::npos, passed[0].second);
    CHECK(ckpt.list() == std::vector<std::int64_t>{1});
    const auto aside = keys("manifest.damaged.0");
    REQUIRE(aside.size() == 1);
    CHECK(get(aside[0]) == manifest);
    objects.remove(aside[0]);
    put(cairn::manifest_key(2), manifest);
  }
};

/// body(communicator) as each of n ranks, which must not throw.
template <class Body>
void on_ranks(int n, Body body) {
  const cairn::thread_group group{n};
  none_failed(cairn_test::thrown_on_ranks(n, [&](int rank) { body(group.communicator(rank)); }));
}

inline constexpr training_sizes large{.weights = 100'000};
inline auto open_disk(disk_store s, listener ear = {}, int max_failures = 0) {
  auto options = patient();
  options.max_consecutive_failures = max_failures;
  return cairn::checkpointer{std::move(s), alone(), std::move(ear), options};
}

using odd_store = cairn::basic_file_store<odd_file_system>;

}  // namespace cairn_test::disturbed_runs
