// SPDX-License-Identifier: Apache-2.0
#pragma once
// Jobs of processes that meet in shared memory: worlds, what they leave on the host, what a rank says. One file of
// a program includes this.
#include "on_all_ranks.hpp"
#include "process_ranks.hpp"
#include "sanitized.hpp"
#include "training_state.hpp"

#include <cairn/checkpointer.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>

#include <doctest/doctest.h>

#include <dirent.h>
#include <malloc.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn_test::shared_memory_jobs {

using namespace std::chrono_literals;
using cairn::deadline;
using cairn::shared_memory_communicator;
using bytes = std::vector<std::byte>;

/// A world for communicator_conformance: each rank a process.
template <int Size, std::size_t RingBytes = 256 << 10>
struct process_env {
  static int size() { return Size; }
  template <class Body>
  void run(Body body) {
    const auto job = job_name();
    expect_good(process_ranks(Size).run([&](rank_process& me) {
      shared_memory_communicator comm(job, me.rank(), Size, {.ring_bytes = RingBytes});
      body(comm);
    }));
  }
};

/// All ranks as threads of the test itself.
template <int Size>
struct shared_thread_env {
  static int size() { return Size; }
  template <class Body>
  void run(Body body) {
    const auto job = job_name();
    cairn_test::on_all_ranks(Size, [&](int rank) {
      shared_memory_communicator comm(job, rank, Size);
      body(comm);
    });
  }
};

/// Bytes that the program has allocated and not freed.
#if CAIRN_TEST_ADDRESS_SANITIZED
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();  // NOLINT
inline std::size_t heap_bytes() {
  return __sanitizer_get_current_allocated_bytes();
}
inline constexpr bool sanitized = true;
#else
inline std::size_t heap_bytes() {
  return ::mallinfo2().uordblks;
}
inline constexpr bool sanitized = false;
#endif

// --- What is on the host

inline std::set<std::string> names_in(const char* path) {
  std::set<std::string> names;
  if (DIR* folder = ::opendir(path)) {
    while (const auto* entry = ::readdir(folder)) names.insert(entry->d_name);
    ::closedir(folder);
  }
  return names;
}
/// Names of jobs of this test that sockets hold.
inline std::size_t sockets_of_jobs() {
  std::ifstream table("/proc/net/unix");
  std::size_t count = 0;
  for (std::string line; std::getline(table, line);)
    count += line.find("-test-" + std::to_string(::getpid()) + "-") != std::string::npos;
  return count;
}
/// Checks at its end that no name is left in /dev/shm and among the sockets, and no descriptor here.
struct nothing_left {
  std::set<std::string> shm = names_in("/dev/shm");
  std::size_t open = names_in("/proc/self/fd").size();
  ~nothing_left() {
    for (const auto& name : names_in("/dev/shm"))
      CHECK_MESSAGE(name.find("cairn-ranks") == std::string::npos, name);
    CHECK(sockets_of_jobs() == 0);
    CHECK(names_in("/proc/self/fd").size() == open);
  }
};

/// Memory for shared files runs out after so many more calls of fallocate().
inline int allocations_left = -1;

// --- Bodies of ranks

inline bytes of_size(std::size_t size, int seed) {
  bytes all(size);
  for (std::size_t i = 0; i < size; ++i)
    all[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(seed));
  return all;
}
inline bytes concatenate(bytes left, const bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}
/// "ok", or the id of the error with the rank that it names: "peer.lost 2".
template <class Body>
std::string outcome_of(Body&& body) {
  try {
    body();
    return "ok";
  } catch (const cairn::error& e) {
    return std::string(cairn::error_name(e.id())) + " " + std::to_string(e.fields().rank);
  }
}
template <class Body>
std::string message_of(Body&& body) {
  try {
    body();
    return "nothing was thrown";
  } catch (const cairn::error& e) {
    return e.what();
  }
}
inline shared_memory_communicator join(const std::string& job, const rank_process& me,
                                       std::chrono::nanoseconds timeout = 60s) {
  return {job, me.rank(), me.size(), {.timeout = timeout}};
}
/// The outcome that every rank told but for `victim`.
inline void check_all_told(const std::vector<rank_end>& ends, int victim, const std::string& expected) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (static_cast<int>(rank) == victim) continue;
    CAPTURE(rank);
    CHECK(ends[rank].said == expected);
    CHECK(ends[rank].good());
  }
}

/// body(checkpointer&, state&) on each of `size` processes over one directory.
template <class Body>
std::vector<rank_end> train(process_ranks& ranks, const std::string& directory, Body body,
                            std::int32_t ranks_per_file = 1) {
  const auto job = job_name();
  return ranks.run([&](rank_process& me) {
    // In blocks of 8 ranks, as larger worlds have blocks of 128.
    cairn::checkpointer ckpt{cairn::safetensors_storage{cairn::file_store{directory},
                                                        {.block_ranks = 8, .ranks_per_file = ranks_per_file}},
                             join(job, me), cairn::keep_last(3),
                             cairn::checkpointer_options{.timeout = 60s, .peer_timeout = 60s, .quiet = true}};
    training_state model(me.rank(), me.size());
    body(me, ckpt, model);
    ckpt.close();
  });
}

/// Passes the point "data" before it sends what was read from a store.
struct dying_communicator {
  using cairn_role = cairn::role::communicator;
  shared_memory_communicator inner;
  rank_process* me;
  [[nodiscard]] int rank() const { return inner.rank(); }
  [[nodiscard]] int size() const { return inner.size(); }
  void send(int to, std::span<const std::byte> message, deadline until) {
    if (message.size() > 200'000) me->point("data");
    inner.send(to, message, until);
  }
  [[nodiscard]] bytes receive(int from, deadline until) { return inner.receive(from, until); }
};

struct resources {
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::size_t shared_kib = 0;  ///< allocated for what ranks share
  std::size_t all_kib = 0;     ///< PSS
  std::size_t heap = heap_bytes();

  static resources now() {
    resources r{names_in("/proc/self/fd").size(), names_in("/proc/self/task").size()};
    for (const auto& name : names_in("/proc/self/fd")) {
      const auto path = "/proc/self/fd/" + name;
      std::array<char, 256> target{};
      struct stat s {};
      if (::readlink(path.c_str(), target.data(), target.size() - 1) > 0 &&
          std::string_view(target.data()).find("memfd:cairn-ranks") != std::string_view::npos &&
          ::stat(path.c_str(), &s) == 0)
        r.shared_kib = static_cast<std::size_t>(s.st_blocks) / 2;
    }
    std::ifstream table("/proc/self/smaps_rollup");
    for (std::string line; std::getline(table, line);)
      if (line.starts_with("Pss:")) r.all_kib = std::stoul(line.substr(4));
    return r;
  }
};

}  // namespace cairn_test::shared_memory_jobs

// Stands before the C library's: memory that runs out is an error of ours, and no host has to be filled.
extern "C" int fallocate(int file, int mode, off_t from, off_t length) {
  if (cairn_test::shared_memory_jobs::allocations_left == 0) {
    errno = ENOSPC;
    return -1;
  }
  if (cairn_test::shared_memory_jobs::allocations_left > 0)
    --cairn_test::shared_memory_jobs::allocations_left;
  return static_cast<int>(::syscall(SYS_fallocate, file, mode, from, length));
}
