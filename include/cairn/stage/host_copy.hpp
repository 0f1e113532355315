// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/stage/copy_job.hpp>
#include <cairn/stage/copy_threads.hpp>
#include <cairn/stage/image_pieces.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/thread_settings.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Options of host_copy.
struct host_copy_options {
  /// Threads that copy, the caller of stage() among them while it waits; 0: one for each core, at most 4.
  int threads = 0;
  /// Limit of what is copied while training goes on (overlapped), by all threads together, in bytes; 0: none.
  /// Where training waits for the copy, nothing is held up: in save(), and from before_update() on.
  std::uint64_t bytes_per_second = 0;
  /// Of the threads of the engine; the caller of stage() is as it is.
  thread_settings thread = {};
  /// For tests: where the limit takes its time from; null: the steady clock.
  std::shared_ptr<rate_clock> clock = nullptr;
};

/// The engine that copies with the CPU, from and to memory that it can address. Threads are started by the
/// first copy that needs them, sleep in between, and are joined by the destructor, which waits for images in
/// progress.
class host_copy {
 public:
  template <class M>
  static constexpr bool accepts = M::space != memory_space::device;
  static constexpr bool digests = true;

  host_copy() : host_copy(host_copy_options{}) {}
  /// @throws usage_error (usage_bad_option) if the number of threads is negative or above 1024, and for
  /// settings that are none or that the system does not grant.
  explicit host_copy(host_copy_options options) {
    if (options.threads < 0 || options.threads > 1024)
      fail(error_id::usage_bad_option, "the number of copy threads is between 0 (choose) and 1024",
           {.got = std::to_string(options.threads)});
    detail::check_granted(options.thread);
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    threads_ = std::make_unique<detail::copy_threads>(
        options.threads > 0 ? options.threads : std::min(4, cores),
        make_rate_limiter(options.bytes_per_second, std::move(options.clock)), std::move(options.thread));
  }

  void check(const item_source& source) const { check_host_readable(source); }
  /// See CopyEngine.
  void copy(std::shared_ptr<image_fill> fill, deadline until) { threads_->copy(std::move(fill), until); }

 private:
  std::unique_ptr<detail::copy_threads> threads_;
};

}  // namespace v1
}  // namespace cairn
