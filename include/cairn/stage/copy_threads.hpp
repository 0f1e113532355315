// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/stage/copy_job.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/thread_settings.hpp>
#include <cairn/system/vector.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The threads of a host_copy and the images that they fill, in the order of arrival.
class copy_threads {
 public:
  /// `limit`: of what is copied while training goes on; null: none.
  explicit copy_threads(int threads, std::shared_ptr<rate_limiter> limit = nullptr,
                        thread_settings settings = {});
  /// Waits for what is in progress. In a child after fork(), where there are no threads, nothing is touched.
  ~copy_threads();
  copy_threads(const copy_threads&) = delete;
  copy_threads& operator=(const copy_threads&) = delete;

  void copy(std::shared_ptr<image_fill> fill, deadline until);
  /// Starts the threads, as far as the system gives any. @throws std::bad_alloc
  void prepare();

 private:
  struct shared {
    std::mutex mutex;
    std::condition_variable changed;
    vector<std::shared_ptr<copy_job>> jobs;
    vector<copy_job*> running;  // by a worker; once for each
    vector<background_thread> workers;
    hash_state hash;  // of the thread that calls copy
    bool stopping = false;

    void remove(const std::shared_ptr<copy_job>& job);
    // Whether the threads have nothing to copy.
    [[nodiscard]] bool idle();
    // The first job that another thread may join; jobs without anything to claim are dropped on the way.
    std::shared_ptr<copy_job> take();
    void run(hash_state& own) noexcept;
  };

  /// Cut once for all saves of a layout that follow each other.
  [[nodiscard]] std::shared_ptr<const image_ranges> ranges_of(
      const std::shared_ptr<const image_layout>& layout, bool early_first);
  void start(const std::shared_ptr<copy_job>& job, int helpers, bool needed);
  /// @pre locked
  void start_workers(int count);

  detail::owned<shared> state_;
  int threads_;
  std::shared_ptr<rate_limiter> limit_;
  std::shared_ptr<part_copying> parts_;  // made by the first overlapped image
  thread_settings settings_;
  std::shared_ptr<const image_layout> cut_layout_;
  std::shared_ptr<const image_ranges> cut_;
  bool cut_early_first_ = false;
  fork_guard process_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/copy_threads.ipp>
#endif
