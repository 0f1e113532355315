// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_journal.hpp>
#include <cairn/system/fork_guard.hpp>

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A few threads that help their callers with blocking I/O. They begin when first needed, take no signals,
/// and end in the destructor. Where no thread can be started the caller does the work alone.
class io_pool {
 public:
  io_pool() = default;
  io_pool(const io_pool&) = delete;
  io_pool& operator=(const io_pool&) = delete;
  ~io_pool();

  /// Calls work(i) for each i below `count`, on this thread and up to `in_flight` - 1 others, beginning them
  /// in order. Returns when all calls have ended. After an exception no further call begins; the first one is
  /// thrown. Any number of threads may call it at once. Gives the CPU time of the others, in nanoseconds.
  template <class Work>
  std::int64_t run(std::size_t count, std::size_t in_flight, Work&& work) {
    if (count == 0) return 0;
    const auto helpers = std::min(in_flight, count) - 1;
    if (helpers == 0) {
      for (std::size_t i = 0; i < count; ++i) work(i);
      return 0;
    }
    const auto shared = std::make_shared<job>();
    shared->count = count;
    shared->context = &work;
    shared->call = [](void* context, std::size_t i) {
      (*static_cast<std::remove_reference_t<Work>*>(context))(i);
    };
    try {
      post(shared, helpers);
    } catch (const std::bad_alloc&) {  // then with the helpers that there are
    }
    shared->take_part();
    std::unique_lock lock(shared->mutex);
    shared->closed = true;
    // Without a deadline: a call that hangs in the kernel reads or writes memory of the caller's until it
    // ends.
    shared->ended.wait(lock, [&] { return shared->active == 0; });
    if (shared->failure) std::rethrow_exception(shared->failure);
    return shared->helpers_cpu;
  }

 private:
  struct job {
    std::size_t count = 0;
    void* context = nullptr;
    void (*call)(void*, std::size_t) = nullptr;
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::condition_variable ended;
    std::size_t active = 0;
    bool closed = false;
    std::int64_t helpers_cpu = 0;
    std::exception_ptr failure;

    void take_part() noexcept;
  };

  struct inside {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<std::shared_ptr<job>> queue;
    std::vector<std::thread> threads;
    bool ending = false;
  };

  void post(const std::shared_ptr<job>& shared, std::size_t helpers);

  void grow(std::size_t wanted);

  static void serve(inside& in) noexcept;

  std::unique_ptr<inside> in_ = std::make_unique<inside>();
  fork_guard process_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file/io_pool.ipp>
#endif
