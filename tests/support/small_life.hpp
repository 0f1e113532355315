// SPDX-License-Identifier: Apache-2.0
#pragma once
// The short life of a trainer on one store, during which one thing fails; and a disk that blocks for ever.
#include "faulty_file_system.hpp"
#include "figures.hpp"
#include "recording_file_system.hpp"
#include "training_state.hpp"

#include <cairn/cairn.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// Blocks for ever in the calls that a test names.
struct blocking {
  std::optional<file_call> call = {};
  std::string name = {};  ///< only files whose name contains it
};
class blocking_file_system : public recording_file_system {
 public:
  blocking_file_system() = default;
  blocking_file_system(recording_file_system disk, blocking where)
      : recording_file_system(std::move(disk)), what_(std::move(where)) {}
  int open_at(int directory, const char* name, int flags, unsigned mode) {
    const int handle = recording_file_system::open_at(directory, name, flags, mode);
    if (handle >= 0 && !what_.name.empty() && std::strstr(name, what_.name.c_str()) != nullptr) {
      const std::lock_guard lock(chosen_->mutex);
      chosen_->handles.insert(handle);
    }
    return handle;
  }
  std::int64_t pwrite(int file, const void* from, std::size_t bytes, std::uint64_t offset) {
    block(file_call::pwrite, file);
    return recording_file_system::pwrite(file, from, bytes, offset);
  }
  std::int64_t pread(int file, void* to, std::size_t bytes, std::uint64_t offset) {
    block(file_call::pread, file);
    return recording_file_system::pread(file, to, bytes, offset);
  }
  int sync(int file) {
    block(file_call::sync, file);
    return recording_file_system::sync(file);
  }
  int close(int file) {
    block(file_call::close, file);
    {
      const std::lock_guard lock(chosen_->mutex);
      chosen_->handles.erase(file);
    }
    return recording_file_system::close(file);
  }

 private:
  struct chosen {
    std::mutex mutex;
    std::set<int> handles;
  };
  void block(file_call call, int file) {
    if (what_.call != call) return;
    {
      const std::lock_guard lock(chosen_->mutex);
      if (!chosen_->handles.contains(file)) return;
    }
    for (;;) ::pause();
  }
  blocking what_;
  std::shared_ptr<chosen> chosen_ = std::make_shared<chosen>();
};

/// The disk of a small life.
using disk = faulty_file_system<blocking_file_system>;

inline cairn::any_checkpointer open(
    const disk& fs, std::size_t keep = 0, std::chrono::nanoseconds timeout = std::chrono::seconds(60),
    cairn::thread_communicator comm = cairn::thread_group{1}.communicator(0)) {
  cairn::checkpointer_options options;
  options.timeout = timeout;
  options.peer_timeout = timeout;
  options.max_consecutive_failures = 0;
  options.quiet = true;
  cairn::basic_file_store<disk> store{
      "root",
      {.write_bytes = 64u << 10, .writes_in_flight = 1, .read_bytes = 64u << 10, .reads_in_flight = 2},
      fs};
  // A disk that fails for ever fails each look behind a manifest: soon, not after 10 s.
  return cairn::checkpointer{
      cairn::safetensors_storage{std::move(store), {.rival_timeout = std::chrono::milliseconds(50)}},
      std::move(comm), options, cairn::keep_last(keep == 0 ? SIZE_MAX : keep)};
}

inline constexpr training_sizes small_sizes{.weights = 60, .rows = 1, .moments = 17 * 59};

/// The outcome of one call.
struct verdict {
  enum class kind : std::uint8_t { done, typed, out_of_memory, foreign };
  kind is = kind::done;
  std::string text;
};
/// Allocations fail only in the calls that are tried, and in the threads that they start.
struct faults_reach_this_thread {
  faults_reach_this_thread() noexcept { --inside_file_system; }
  ~faults_reach_this_thread() { ++inside_file_system; }
};
struct faults_do_not_reach_this_thread {
  faults_do_not_reach_this_thread() noexcept { ++inside_file_system; }
  ~faults_do_not_reach_this_thread() { --inside_file_system; }
};
/// @pre within faults_do_not_reach_this_thread
template <class Call>
verdict verdict_of(Call&& call) {
  try {
    const faults_reach_this_thread guard;
    call();
    return {};
  } catch (const cairn::error& e) {
    return {verdict::kind::typed, e.what()};
  } catch (const std::bad_alloc&) {
    return {verdict::kind::out_of_memory, "std::bad_alloc"};
  } catch (const std::exception& e) {
    return {verdict::kind::foreign, e.what()};
  } catch (...) {
    return {verdict::kind::foreign, "no std::exception"};
  }
}

/// What is wrong after one run, in words; empty: nothing.
using complaints = std::vector<std::string>;

/// Runs a trainer that saves steps 1 and 2 and keeps the last two. Then, while `arm` makes things fail, it saves,
/// loads, lists, removes, opens anew and resumes. After `disarm`, everything is checked. `each` gets the verdicts of
/// the calls in between.
template <class Arm, class Disarm, class Each>
complaints live(Arm&& arm, Disarm&& disarm, Each&& each) {
  const faults_do_not_reach_this_thread guard;
  complaints wrong;
  const recording_file_system platter;
  disk fs{blocking_file_system(platter, {})};
  training_state t(0, 1, small_sizes);
  std::set<std::int64_t> acknowledged;
  {
    auto ckpt = open(fs, 2);
    for (const std::int64_t step : {1, 2}) {
      t.fill(step);
      ckpt.save(t.state, step).wait();
    }
    t.fill(3);
    arm(fs);
    const auto attempt = [&](const char* what, auto&& call) {
      auto v = verdict_of(call);
      each(what, v, wrong);
      return v.is == verdict::kind::done;
    };
    if (attempt("save", [&] { ckpt.save(t.state, 3).wait(); })) acknowledged.insert(3);
    const bool unharmed = t.is(3);
    attempt("load", [&] {
      ckpt.load(t.state, 2);
      if (!t.is(2)) throw std::logic_error("load gave other bits");
    });
    attempt("list", [&] {
      const auto steps = ckpt.list();
      if (std::find(steps.begin(), steps.end(), 2) == steps.end())
        throw std::logic_error("step 2 is not listed");
    });
    {
      cairn::any_checkpointer next;
      std::optional<std::int64_t> resumed;
      if (attempt("resume", [&] {
            next = open(fs, 2);
            resumed = next.resume(t.state);
          })) {
        if (!resumed || !t.is(*resumed) || *resumed < 2) wrong.push_back("resume gave an older or no state");
        t.fill(4);
        if (attempt("save after resume", [&] { next.save(t.state, 4).wait(); })) acknowledged.insert(4);
      }
    }
    attempt("remove", [&] { ckpt.remove(1); });
    attempt("close", [&] { ckpt.close(); });
    disarm(fs);
    if (!unharmed) wrong.push_back("save changed the state");
  }
  // Everything is well again: the next run finds what was acknowledged, and goes on.
  auto ckpt = open(fs, 2);
  t.fill(0);
  const auto resumed = ckpt.resume(t.state);
  if (!resumed || *resumed < 2 || !t.is(*resumed))
    wrong.push_back("a new run does not find step 2 or a later one");
  if (resumed && !acknowledged.empty() && *resumed < *acknowledged.rbegin())
    wrong.push_back("an acknowledged checkpoint is lost");
  for (const auto step : ckpt.list()) {
    const auto v = verdict_of([&] { ckpt.load(t.state, step); });
    if (v.is != verdict::kind::done || !t.is(step))
      wrong.push_back("step " + std::to_string(step) + " is listed and is not whole: " + v.text);
  }
  t.fill(5);
  ckpt.save(t.state, 5).wait();
  t.fill(0);
  ckpt.load(t.state, 5);
  if (!t.is(5)) wrong.push_back("the next save does not come back");
  if (ckpt.list().size() != 2 || ckpt.list().back() != 5)
    wrong.push_back("keep_last does not keep the last two");
  ckpt.close();
  ckpt = {};
  if (platter.open_handles() != 0) wrong.push_back("handles leak");
  for (const auto& path : platter.files())
    if (path.find(".part") != std::string::npos) wrong.push_back("an unfinished file is left: " + path);
  return wrong;
}

/// The k in CAIRN_TEST_K, if any.
inline std::optional<std::uint64_t> chosen_k() {
  const char* text = std::getenv("CAIRN_TEST_K");
  if (text == nullptr) return {};
  return std::strtoull(text, nullptr, 10);
}

/// Calls run(k) for k = 1, 2, ... until it says that the fault was not reached; in the short run only every
/// `stride`-th, from one that CAIRN_TEST_SEED chooses; or for the k of CAIRN_TEST_K alone. Returns how many it ran.
template <class Run>
std::uint64_t sweep(std::uint64_t stride, Run&& run) {
  if (const auto k = chosen_k()) {
    run(*k);
    return 1;
  }
  stride = std::getenv("CAIRN_TEST_LONG") != nullptr ? 1 : stride;
  std::uint64_t runs = 0;
  for (std::uint64_t k = 1 + cairn_test::test_seed() % stride; run(k) && k < 1'000'000; k += stride) ++runs;
  return runs;
}
/// Fails for each complaint, with the k that repeats it.
inline void report(const complaints& wrong, const std::string& what, std::uint64_t k) {
  for (const auto& each : wrong)
    FAIL_CHECK(what << ", k = " << k << ": " << each << " (CAIRN_TEST_K=" << k << " repeats it)");
}

}  // namespace cairn_test
