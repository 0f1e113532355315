// SPDX-License-Identifier: Apache-2.0
#pragma once
// How soon a checkpointer is ready, and what save() itself takes.
#include <cairn/cairn.hpp>
#include <cairn/execute/main_program.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/execute/worker_process.hpp>
#include <cairn/stage/shared_stager.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <support/program.hpp>
#include <support/twins.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace cairn_bench {

/// Seconds that the first touch of so much memory takes, by as many threads as there are cores (at most 8):
/// anonymous in huge pages where there are any, or shared.
inline double first_touch(std::uint64_t bytes, bool shared) {
  const int file = shared ? ::memfd_create("first touch", MFD_CLOEXEC) : -1;
  check_io(!shared || (file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0), "memfd");
  const double seconds = seconds_of([&] {
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file, 0);
    check_io(base != MAP_FAILED, "mmap");
    ::madvise(base, bytes, MADV_HUGEPAGE);
    const int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
    in_parallel(threads, bytes, 4 * mebibyte, [&](std::uint64_t begin, std::uint64_t end) {
      for (auto at = begin; at < end; at += 4096) static_cast<std::byte*>(base)[at] = std::byte{1};
    });
    keep(base);
    ::munmap(base, bytes);
  });
  if (shared) ::close(file);
  return seconds;
}

/// From prepare() until buffers are there, against the first touch of as much; and the first save after that
/// against the median of three later ones.
struct readiness {
  std::vector<double> ready, touch, first, later, first_blocked, later_blocked;

  template <class Make>
  void measure(const bench_state& state, bool shared, const std::string& directory, Make&& make) {
    touch.push_back(first_touch(state.bytes(), shared));
    auto checkpointer = make(directory);
    const auto all = state.whole();
    // The second call waits for what the first began.
    ready.push_back(seconds_of([&] { checkpointer.prepare(all), checkpointer.prepare(all); }));
    std::vector<double> seconds;
    std::vector<double> blocked;
    for (int step = 1; step <= 4; ++step) {
      auto save = checkpointer.save(all, step);
      checkpointer.before_update();
      save.wait();
      seconds.push_back(save.report().committed_seconds);
      blocked.push_back(save.report().blocked_seconds);
    }
    first.push_back(seconds.front()), first_blocked.push_back(blocked.front());
    later.push_back(samples({seconds.begin() + 1, seconds.end()}).median());
    later_blocked.push_back(samples({blocked.begin() + 1, blocked.end()}).median());
    checkpointer.close();
    const auto clean = "rm -rf '" + directory + "'";
    if (std::system(clean.c_str()) != 0) throw std::runtime_error("cannot remove " + directory);
  }
  void tell(report& out, const std::string& name) const {
    out.add(name + "/ready/of-first-touch", make_pairs(ready, touch), "s", at_most(1.2));
    out.add(name + "/first-save/of-later", make_pairs(first, later), "s", at_most(1.5));
    out.add(name + "/first-blocked/of-later", make_pairs(first_blocked, later_blocked), "s");
  }
};

/// Seconds until a worker of this program said that it is ready.
inline double worker_start() {
  cairn::detail::worker_process worker;
  return seconds_of([&] {
    worker.start("/proc/self/exe", {cairn::detail::this_program().build, {}},
                 cairn::deadline::in(std::chrono::seconds(30)));
  });
}

/// Seconds of save() alone, overlapped, with a cached plan: of each of `times` saves of the state.
template <class Make>
std::vector<double> enqueue(const bench_state& state, int times, const std::string& directory, Make&& make) {
  auto checkpointer = make(directory);
  const auto all = state.whole();
  checkpointer.prepare(all);
  std::vector<double> seconds;
  for (int step = 0; step <= times; ++step) {
    cairn::save_handle save;
    const double took = seconds_of([&] { save = checkpointer.save(all, step); });
    checkpointer.before_update();
    save.wait();
    if (step > 0) seconds.push_back(took);
  }
  checkpointer.close();
  const auto clean = "rm -rf '" + directory + "'";
  if (std::system(clean.c_str()) != 0) throw std::runtime_error("cannot remove " + directory);
  return seconds;
}

}  // namespace cairn_bench
