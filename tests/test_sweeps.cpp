// SPDX-License-Identifier: Apache-2.0
// cost: 100
// Whatever one thing fails while a trainer saves, loads, lists, removes and resumes - the k-th system call,
// the k-th allocation - the outcome is a typed error or success, and nothing is lost; and a store that blocks
// for ever holds nobody beyond the deadline. A red case names its k: `CAIRN_TEST_K=k` repeats that one alone.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include "support/failing_allocations.hpp"
#include "support/faulty_file_system.hpp"
#include "support/figures.hpp"
#include "support/recording_file_system.hpp"
#include "support/rounds.hpp"
#include "support/small_life.hpp"
#include "support/still_threads.hpp"
#include "support/training_state.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <semaphore>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace cairn_test;
using cairn::error_id;
using std::chrono::milliseconds;
using std::chrono::seconds;

}  // namespace

TEST_CASE(
    "every k-th system call fails, once and for ever: typed errors that name file and errno, nothing lost") {
  struct row {
    const char* name;
    file_call call;
    int error;
    std::uint64_t stride = 1;
    file_fault::manner how = file_fault::manner::fails;
  };
  const row rows[] = {{"EIO", file_call::any, EIO, 4},
                      {"ENOSPC", file_call::any, ENOSPC, 13},
                      {"EINTR", file_call::any, EINTR, 13},
                      {"a short write", file_call::pwrite, EIO, 2, file_fault::manner::half},
                      {"a short read", file_call::pread, EIO, 2, file_fault::manner::half}};
  for (const auto& row : rows)
    for (const bool for_ever : {false, true}) {
      const auto what = std::string(row.name) + (for_ever ? ", for ever" : ", once");
      std::uint64_t failed = 0;
      const auto calls = sweep(row.stride, [&](std::uint64_t k) {
        bool hit = false;
        std::size_t leaves = 0;
        const auto wrong = live(
            [&](disk& fs) {
              fs.fail({.call = row.call,
                       .k = static_cast<std::size_t>(k),
                       .error = row.error,
                       .for_ever = for_ever,
                       .how = row.how});
            },
            [&](disk& fs) {
              hit = fs.hits() > 0;
              fs.heal();
            },
            [&](const char* call, const verdict& v, complaints& bad) {
              if (v.is == verdict::kind::done) return;
              ++leaves;
              ++failed;
              if (v.is != verdict::kind::typed || v.text.find("file ") == std::string::npos)
                bad.push_back(std::string(call) + ": no typed error that names a file: " + v.text);
              else if (v.text.find("errno " + std::to_string(row.error)) == std::string::npos)
                bad.push_back(std::string(call) + ": the errno is not told: " + v.text);
              if (row.how != file_fault::manner::fails)
                bad.push_back(std::string(call) + ": a short count is no error: " + v.text);
            });
        report(wrong, what, k);
        if (!hit && leaves != 0) report({"failures without a fault"}, what, k);
        return hit;
      });
      MESSAGE(what << ": " << calls << " calls, " << failed << " errors");
      if (!chosen_k()) CHECK(calls * row.stride > (row.how == file_fault::manner::fails ? 100u : 5u));
    }
}

TEST_CASE("every k-th allocation fails: bad_alloc or a typed error, nothing leaks, nothing is half there") {
  static std::atomic<std::terminate_handler> before;
  before = std::set_terminate([] {
    allocations_until_failure = all_well;
    std::fprintf(stderr, "std::terminate when allocation k = %llu failed (CAIRN_TEST_K repeats it)\n",
                 static_cast<unsigned long long>(the_k.load()));
    before.load()();
  });
  std::uint64_t failures = 0;
  const auto run = [&](std::uint64_t k) {
    the_k = k;
    const auto what = all_later_ones_fail ? "allocations, for ever" : "an allocation, once";
    const auto reached = failed_allocations.load();
    const auto live_before = live_allocations.load();
    {
      const auto wrong = live([&](disk&) { allocations_until_failure = static_cast<std::int64_t>(k) - 1; },
                              [](disk&) { allocations_until_failure = all_well; },
                              [&](const char* call, const verdict& v, complaints& bad) {
                                if (v.is != verdict::kind::done) ++failures;
                                if (v.is == verdict::kind::foreign)
                                  bad.push_back(std::string(call) + ": " + v.text);
                              });
      report(wrong, what, k);
    }
    if (live_allocations != live_before)
      report({std::to_string(live_allocations - live_before) + " allocations leak"}, what, k);
    return failed_allocations != reached;
  };
  static_cast<void>(run(std::uint64_t{1} << 40));  // what is made once and kept
  for (const bool for_ever : {false, true}) {
    all_later_ones_fail = for_ever;
    failures = 0;
    const auto count = sweep(41, run);
    MESSAGE(std::string(for_ever ? "for ever: " : "once: ")
            << count << " allocations, " << failures << " errors");
  }
  std::set_terminate(before.load());
}

TEST_CASE("an overlapped save that finds no memory is over when save() returns: close() waits for nothing") {
  std::vector<float> weights(std::size_t{1} << 18), bias(50'000);
  cairn::state_dict state;
  state.tensor("weights", weights, {1 << 18});
  state.tensor("bias", bias, {50'000});
  std::uint64_t failures = 0;
  const auto run = [&](std::uint64_t k) {
    const auto reached = failed_allocations.load();
    cairn::checkpointer ckpt{cairn::memory_store{}, cairn::overlapped{},
                             cairn::checkpointer_options{.timeout = seconds(10), .quiet = true}};
    allocations_until_failure = static_cast<std::int64_t>(k) - 1;
    try {
      ckpt.save(state, 1);
    } catch (const std::bad_alloc&) {
      ++failures;
    } catch (const cairn::error&) {
      ++failures;
    }
    allocations_until_failure = all_well;
    CHECK_NOTHROW(ckpt.before_update());
    try {
      ckpt.close();
    } catch (const cairn::error& e) {
      CHECK_MESSAGE(e.id() != error_id::timeout_close, "CAIRN_TEST_K=", k, " repeats it: ", e.what());
    } catch (const std::bad_alloc&) {
    }
    return failed_allocations != reached;
  };
  const auto count = sweep(1, run);
  MESSAGE(count << " allocations, " << failures << " errors");
}

namespace {
std::atomic<bool> leaves_threads_behind{false};
}  // namespace
/// LeakSanitizer's question: threads that hang hold their memory until the process ends.
extern "C" int __lsan_is_turned_off() {
  return leaves_threads_behind ? 1 : 0;
}

namespace {
/// Runs body in a child, which then ends as a program ends; its exit status, or -1 where it had not ended in
/// time.
class child_process {
 public:
  template <class Body>
  explicit child_process(Body&& body) {
    std::fflush(nullptr);
    cairn_test::await_still_threads();
    child_ = ::fork();
    if (child_ == 0) {
      leaves_threads_behind = true;
      std::exit(body());
    }
  }
  [[nodiscard]] int wait(cairn::deadline until) const {
    int status = 0;
    for (;;) {
      const auto ended = ::waitpid(child_, &status, WNOHANG);
      if (ended == child_) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (until.passed()) {
        ::kill(child_, SIGKILL);
        ::waitpid(child_, &status, 0);
        return -1;
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

 private:
  ::pid_t child_;
};
}  // namespace

// --- What training pays

TEST_CASE("an overlapped save whose plan is there allocates little in the thread of training") {
  constexpr std::int64_t elements = 20'000;  // above what is copied before save() returns
  cairn::memory_store store;
  std::vector<std::vector<float>> memory(50, std::vector<float>(elements, 1.0F));
  cairn::state_dict state;
  for (std::size_t i = 0; i < memory.size(); ++i)
    state.tensor("layer" + std::to_string(i), memory[i], {elements});
  cairn::checkpointer_options options;
  options.quiet = true;
  cairn::checkpointer ckpt{store, cairn::overlapped{}, options};
  for (std::int64_t step = 1; step <= 8; ++step) {
    cairn::save_handle handle;
    largest_of_thread = 0;
    auto before = allocations_of_thread;
    handle = ckpt.save(state, step);
    const auto saving = allocations_of_thread - before;
    const auto largest = largest_of_thread;
    before = allocations_of_thread;
    ckpt.before_update();
    const auto updating = allocations_of_thread - before;
    handle.wait();
    if (step < 4) continue;  // plans, buffers and threads are there then
    // No table of the items, and nothing for each of them: only a few small objects, of which the save's own
    // save_progress is the largest.
    CHECK(saving <= 15);
    CHECK(largest <= 640);
    CHECK(updating == 0);
  }
}

TEST_CASE("a store that blocks for ever: the deadline is told with rank and file, and the process can end") {
  struct row {
    const char* what;
    blocking where;
    const char* file;  // that the error names
  };
  const row rows[] = {
      {"a write of data", {file_call::pwrite, ".safetensors"}, "rank-00000."},
      {"the fsync of data", {file_call::sync, ".safetensors"}, "rank-00000."},
      {"the close of data", {file_call::close, ".safetensors"}, "rank-00000."},
      {"the fsync of the manifest", {file_call::sync, "manifest"}, "manifest.cairn"},
      {"the read of a record", {file_call::pread, ".record"}, "manifest.cairn"},
  };
  constexpr auto timeout = seconds(8);  // in which all comes to where it blocks, on a busy machine, too
  std::vector<child_process> children;
  for (const auto& row : rows)
    children.emplace_back([&] {
      disk fs{blocking_file_system(recording_file_system{}, row.where)};
      training_state t(0, 1, small_sizes);
      int wrong = 0;
      const auto expect = [&](const std::string& text, const char* id, int bit) {
        const bool told = text.find(id) != std::string::npos && text.find("rank 0") != std::string::npos &&
                          text.find("step 1") != std::string::npos &&
                          text.find(row.file) != std::string::npos;
        if (told) return;
        wrong |= bit;
        std::fprintf(stderr, "%s: expected %s, rank 0, step 1 and %s: %s\n", row.what, id, row.file,
                     text.c_str());
      };
      const auto said = [](auto&& call) {
        const faults_do_not_reach_this_thread guard;
        return verdict_of(call).text;
      };
      {
        auto ckpt = open(fs, 0, timeout);
        t.fill(1);
        const auto handle = ckpt.save(t.state, 1);
        expect(said([&] { handle.wait(timeout); }), "[cairn.timeout.commit]", 1);
        expect(said([&] { ckpt.close(); }), "[cairn.timeout.close]", 2);
        if (handle.committed()) wrong |= 4;
      }
      return wrong;
    });
  // Two ranks, of which one hangs: the other learns who it is.
  children.emplace_back([&] {
    const recording_file_system platter;
    const cairn::thread_group group{2};
    int wrong = 0;
    std::thread stuck([&] {
      disk fs{blocking_file_system(platter, {file_call::sync, "rank-00001"})};
      training_state t(1, 2, small_sizes);
      auto ckpt = open(fs, 0, timeout, group.communicator(1));
      t.fill(1);
      ckpt.save(t.state, 1);
    });
    {
      disk fs{blocking_file_system(platter, {})};
      training_state t(0, 2, small_sizes);
      auto ckpt = open(fs, 0, timeout, group.communicator(0));
      t.fill(1);
      const faults_do_not_reach_this_thread guard;
      const auto handle = ckpt.save(t.state, 1);
      const auto text = verdict_of([&] { handle.wait(); }).text;
      if (text.find("[cairn.peer.lost]") == std::string::npos || text.find("rank 1") == std::string::npos) {
        wrong = 1;
        std::fprintf(stderr, "a rank that hangs is not named: %s\n", text.c_str());
      }
      if (handle.committed()) wrong |= 4;
    }
    stuck.join();
    return wrong;
  });
  const auto until = cairn::deadline::in(seconds(120));
  for (std::size_t i = 0; i < children.size(); ++i) {
    CAPTURE(i);
    CHECK(children[i].wait(until) == 0);
  }
}
