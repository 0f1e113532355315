// SPDX-License-Identifier: Apache-2.0
// links: cairn::links
//
// Ranks over sockets where memory runs out for a while, or for good: nothing that was sent is lost, no end of a rank is
// missed, and nobody is blamed for the memory of another one.
#include <doctest/doctest.h>

#include <cairn/comm/socket/socket_rendezvous.hpp>
#include <cairn/comm/socket_communicator.hpp>
#include <cairn/system/backoff.hpp>
#include <support/communicator_conformance.hpp>
#include <support/on_all_ranks.hpp>
#include <support/scratch_directory.hpp>

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

/// Allocations of at least so many bytes are refused to threads of this name (empty: to all), so often.
std::atomic<int> refusals_left{0};
std::atomic<int> refusals{0};
std::atomic<std::size_t> refused_bytes{0};
std::atomic<const char*> refused_to{""};

bool is_refused(std::size_t bytes) noexcept {
  if (refusals_left.load() <= 0 || bytes < refused_bytes) return false;
  char name[32] = {};
  const std::string_view only(refused_to.load());
  if (!only.empty() && (::pthread_getname_np(::pthread_self(), name, sizeof name) != 0 || name != only))
    return false;
  if (refusals_left.fetch_sub(1) <= 0) return false;
  ++refusals;
  return true;
}
/// While it lives, allocations are refused.
struct refusing {
  refusing(int times, const char* to_threads, std::size_t of_bytes) {
    refused_to = to_threads;
    refused_bytes = of_bytes;
    refusals = 0;
    refusals_left = times;
  }
  refusing(const refusing&) = delete;
  refusing& operator=(const refusing&) = delete;
  ~refusing() { refusals_left = 0; }
};
constexpr int always = 1 << 30;

/// While it lives, the calling thread is refused all.
thread_local bool refused_here = false;
struct refusing_here {
  refusing_here() { refused_here = true; }
  refusing_here(const refusing_here&) = delete;
  refusing_here& operator=(const refusing_here&) = delete;
  ~refusing_here() { refused_here = false; }
};

}  // namespace

void* operator new(std::size_t bytes) {
  if (refused_here || is_refused(bytes)) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) {
  return ::operator new(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

using namespace cairn_test;
using namespace std::chrono_literals;
using cairn::deadline;
using cairn::error_id;
using cairn::socket_communicator;
using cairn::socket_job;

namespace {

constexpr const char* threads_of_sockets = "cairn sockets";

void wait_until(const std::function<bool()>& is) {
  for (const auto until = ample(); !is();)
    if (!cairn::detail::sleep_for(1ms, until)) throw std::runtime_error("it never comes");
}

/// To rank 0, which says what is wrong where it fails.
void send_if_it_can(socket_communicator& from, const std::vector<std::byte>& bytes) {
  try {
    from.send(0, bytes, ample());
  } catch (const cairn::error&) {
  }
}

/// Ranks of one job, all of this process.
struct job_in_file {
  explicit job_in_file(int size, const cairn::socket_options& options = {})
      : ranks(static_cast<std::size_t>(size)) {
    for (const auto& each : thrown_on_ranks(size, [&](int rank) {
           at(rank).emplace(socket_job::in_file(place.path() + "/job", rank, size), options);
         }))
      if (each) std::rethrow_exception(each);
  }
  std::optional<socket_communicator>& at(int rank) { return ranks[static_cast<std::size_t>(rank)]; }
  /// What a call of a rank to receive from another one throws.
  std::optional<cairn::error> thrown_by_receive(int rank, int from) {
    try {
      static_cast<void>(at(rank)->receive(from, ample()));
    } catch (const cairn::error& e) {
      return e;
    }
    return std::nullopt;
  }
  const scratch_directory place;
  std::vector<std::optional<socket_communicator>> ranks;
};

}  // namespace

TEST_CASE("a message for which there is no memory for a while comes, whoever reads it") {
  constexpr std::size_t length = std::size_t{3} << 20;
  for (const bool by_caller : {false, true}) {
    CAPTURE(by_caller);
    job_in_file job(2);
    const std::vector<std::byte> much(length, std::byte{7});
    if (by_caller) {
      // From now on the caller of receive() reads the connection itself.
      job.at(1)->send(0, bytes_of("before"), ample());
      CHECK(text_of(job.at(0)->receive(1, ample())) == "before");
    }
    const refusing none(3, "", length);
    std::jthread sends([&] { send_if_it_can(*job.at(1), much); });
    if (!by_caller) wait_until([] { return refusals == 3; });
    CHECK(job.at(0)->receive(1, ample()) == much);
    CHECK(refusals == 3);
    sends.join();
    job.at(1)->send(0, bytes_of("after"), ample());
    CHECK(text_of(job.at(0)->receive(1, ample())) == "after");
    CHECK(!job.at(0)->watch_peers()->is_gone(1));
  }
}

TEST_CASE("short messages come in order, whichever of their allocations fail") {
  job_in_file job(2);
  const refusing none(5, threads_of_sockets, 0);
  int sent = 0;
  for (const auto until = ample(); refusals < 5 && !until.passed(); ++sent)
    job.at(1)->send(0, bytes_of(std::to_string(sent)), until);
  int came = 0;
  while (came < sent && text_of(job.at(0)->receive(1, ample())) == std::to_string(came)) ++came;
  CHECK(came == sent);
}

TEST_CASE("where there is no memory for what comes for too long, the rank that has none is named") {
  constexpr std::size_t length = std::size_t{3} << 20;
  job_in_file job(3, {.lost_after = 1s});
  const std::vector<std::byte> much(length);
  const refusing none(always, "", length);
  std::jthread sends([&] { send_if_it_can(*job.at(1), much); });
  const auto here = job.thrown_by_receive(0, 1);
  REQUIRE(here);
  CHECK(here->id() == error_id::storage_out_of_memory);
  CHECK(here->fields().rank == 0);
  CHECK(std::string(here->what()).find("ran out of memory for what rank 1 on ") != std::string::npos);
  const auto there = job.thrown_by_receive(2, 1);
  REQUIRE(there);
  CHECK(there->id() == error_id::peer_lost);
  CHECK(std::string(there->what()).find("rank 0 on ") != std::string::npos);
  CHECK(std::string(there->what()).find("ran out of memory for what rank 1 on ") != std::string::npos);
}

TEST_CASE(
    "a rank that ends while there is no memory is known to be gone, on all others, once there is some") {
  job_in_file job(3);
  {
    const refusing none(always, threads_of_sockets, 0);
    std::atomic<bool> ended{false};
    std::jthread ends([&] {
      job.at(1).reset();
      ended = true;
    });
    wait_until([&] { return refusals >= 20 || ended; });
    refusals_left = 0;
  }
  for (const int rank : {0, 2}) {
    const auto e = job.thrown_by_receive(rank, 1);
    REQUIRE(e);
    CHECK(e->id() == error_id::peer_lost);
    CHECK(e->fields().rank == 1);
    CHECK(std::string(e->what()).find("has left the job") != std::string::npos);
    CHECK(job.at(rank)->watch_peers()->is_gone(1));
  }
}

TEST_CASE("a rank leaves, and looks for the host of rank 0, where there is no memory for it") {
  {
    job_in_file job(2);
    {
      const refusing_here none;
      job.at(1).reset();
    }
    const auto e = job.thrown_by_receive(0, 1);
    REQUIRE(e);
    CHECK(e->id() == error_id::peer_lost);
    CHECK(e->fields().rank == 1);
  }
  const refusing none(1, "cairn resolver", 0);
  for (const auto until = ample(); refusals < 1;) {
    REQUIRE(!until.passed());
    CHECK(cairn::detail::addresses_of("localhost", until).empty());
  }
  CHECK(!cairn::detail::addresses_of("localhost", ample()).empty());
}
