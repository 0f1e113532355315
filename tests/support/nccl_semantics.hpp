// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/nccl/nccl_calls.hpp>
#include <cairn/stage/heap_memory.hpp>
#include <cairn/system/deadline.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace cairn_test {

/// Throws on the thread where something is not so.
inline void nccl_expect(bool good, const std::string& what) {
  if (!good) throw std::logic_error(what);
}
inline cairn::deadline nccl_timeout() {
  return cairn::deadline::in(std::chrono::minutes(2));
}

/// One rank of a world of NCCL on the device of its number, with a stream, memory that NCCL knows, and pinned
/// memory; for nccl_semantics.
template <cairn::cuda::NcclRuntime R>
class nccl_rank {
 public:
  static constexpr std::uint64_t bytes = 1 << 20;

  nccl_rank(int size, int rank, const typename R::nccl_id& id) : rank_(rank) {
    good(R::use_device(rank), "use_device");
    good(R::make_stream(stream_), "make_stream");
    good(R::make_event(event_), "make_event");
    good(R::pin(host_.bytes().data(), bytes), "pin");
    good(R::allocate(buffer_, bytes), "allocate");
    const int status = R::open(comm_, size, id, rank);
    nccl_expect(status == R::success || status == R::in_progress, "open");
    complete("open");
    void* handle = nullptr;
    (void)R::register_buffer(comm_, buffer_, bytes, handle);  // transfers work also where it fails
    nccl_expect(R::last_error(comm_) != nullptr, "last_error");
  }
  nccl_rank(const nccl_rank&) = delete;
  nccl_rank& operator=(const nccl_rank&) = delete;
  ~nccl_rank() {
    (void)R::use_device(rank_);
    if (!aborted_) (void)R::abort(comm_);
    CHECK(reached());
    CHECK(R::deallocate(buffer_) == R::success);
    CHECK(R::unpin(host_.bytes().data()) == R::success);
    CHECK(R::destroy_event(event_) == R::success);
    CHECK(R::destroy_stream(stream_) == R::success);
  }
  /// Puts a message into the stream, which has left this rank once reached().
  void send(int to, unsigned char content) {
    std::memset(host_.bytes().data(), content, bytes);
    good(R::copy_to_device(buffer_, host_.bytes().data(), bytes, stream_), "copy_to_device");
    begun(R::send(comm_, buffer_, bytes, to, stream_), "send");
  }
  /// Puts the wait for a message into the stream.
  void receive(int from) { begun(R::receive(comm_, buffer_, bytes, from, stream_), "receive"); }
  /// Whether all work of the stream ends soon.
  [[nodiscard]] bool reached() {
    if (R::record(event_, stream_) != R::success) return false;
    const auto until = nccl_timeout();
    while (R::query(event_) == R::not_ready && !until.passed()) std::this_thread::yield();
    return R::query(event_) == R::success;
  }
  [[nodiscard]] bool not_yet_reached() {
    return R::record(event_, stream_) == R::success && R::query(event_) == R::not_ready;
  }
  /// What the buffer holds. @pre reached().
  [[nodiscard]] bool holds(unsigned char content) {
    good(R::copy_to_host(host_.bytes().data(), buffer_, bytes, stream_), "copy_to_host");
    nccl_expect(reached(), "a copy is over");
    for (const auto b : host_.bytes().first(bytes))
      if (b != static_cast<std::byte>(content)) return false;
    return true;
  }
  void abort() {
    aborted_ = true;
    good(R::abort(comm_), "abort");
  }

 private:
  static void good(int status, const char* call) {
    nccl_expect(status == R::success,
                std::string(call) + ": " + R::name_of(status) + ": " + R::text_of(status));
  }
  /// Waits until NCCL has done what it was told, before anything else is called.
  void complete(const char* call) {
    const auto until = nccl_timeout();
    int now = R::in_progress;
    while (now == R::in_progress && !until.passed()) {
      good(R::state(comm_, now), "state");
      std::this_thread::yield();
    }
    good(now, call);
  }
  void begun(int status, const char* call) {
    if (status != R::in_progress) good(status, call);
    complete(call);
  }

  int rank_;
  bool aborted_ = false;
  typename R::stream_type stream_{};
  typename R::event_type event_{};
  typename R::nccl_type comm_{};
  std::byte* buffer_ = nullptr;
  cairn::heap_memory::block_type host_ = cairn::heap_memory{}.allocate(bytes);
};

/// What cairn relies on of NCCL: the double passes it in every run of the tests, and NCCL's own where there
/// are GPUs. With one rank it checks opening and aborting, several times; with several ranks, on a device
/// each, also messages from one to another, and that an abort frees a stream from a message that never comes.
template <cairn::cuda::NcclRuntime R>
void nccl_semantics(int size) {
  for (int round = 0; round < 2; ++round) {
    CAPTURE(round);
    typename R::nccl_id id{};
    typename R::nccl_id other{};
    REQUIRE(R::make_id(id) == R::success);
    REQUIRE(R::make_id(other) == R::success);
    CHECK(std::memcmp(&id, &other, sizeof id) != 0);
    CHECK(R::name_of(R::in_progress) != nullptr);
    CHECK(R::text_of(R::in_progress) != nullptr);
    std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
    std::atomic<bool> seen_waiting{size == 1};
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
          try {
            nccl_rank<R> me(size, rank, id);
            if (rank < 2 && size > 1) {
              const auto content = static_cast<unsigned char>(40 + round);
              // There and back; each side waits in its stream for the other one.
              for (int sender = 0; sender < 2; ++sender) {
                if (rank == sender)
                  me.send(1 - rank, static_cast<unsigned char>(content + sender));
                else
                  me.receive(1 - rank);
                nccl_expect(me.reached(), "a message is over");
                if (rank != sender)
                  nccl_expect(me.holds(static_cast<unsigned char>(content + sender)),
                              "a message came as it was sent");
              }
              if (rank == 1) {
                me.receive(0);
                nccl_expect(me.not_yet_reached(), "a receive waits for its other half");
                seen_waiting = true;
              }
            }
            // Who ends its communicator may end the wait of the other one, too.
            for (const auto until = nccl_timeout(); !seen_waiting && !until.passed();)
              std::this_thread::yield();
            me.abort();
            nccl_expect(me.reached(), "an abort frees the stream");
          } catch (...) {
            thrown[static_cast<std::size_t>(rank)] = std::current_exception();
            seen_waiting = true;
          }
        });
    }
    for (const auto& each : thrown) CHECK_NOTHROW(each ? std::rethrow_exception(each) : void());
  }
}

}  // namespace cairn_test
