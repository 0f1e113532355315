// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/owned.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A few threads that help their callers with blocking I/O, at most 64. They begin when first needed, take no
/// signals, and end in the destructor. Where no thread can be started the caller does the work alone.
class thread_pool {
 public:
  thread_pool();
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool();

  /// Calls work(i) for each i below `count`, on this thread and up to `in_flight` - 1 others, beginning them
  /// in order. Returns when all calls have ended. After an exception no further call begins; the first one is
  /// thrown. Any number of threads may call it at once. Gives the CPU time of the others, in nanoseconds.
  std::int64_t run(std::size_t count, std::size_t in_flight, function_ref<void(std::size_t)> work);

 private:
  struct job;
  struct inside;

  detail::owned<inside> in_;
  fork_guard process_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/thread_pool.ipp>
#endif
