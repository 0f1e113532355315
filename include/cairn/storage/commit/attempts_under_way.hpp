// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/attempt_ending.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/vector.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The attempts in which this process takes part, and what it has sent of each. A thread retries, with
/// growing pauses, to report and remove failed attempts for which that has failed, until it succeeds or
/// nobody waits for them any more. The destructor waits for a last try, at most `longest_end`: where the store does not
/// answer, the thread is left behind with what it uses. Any thread.
class attempts_under_way {
 public:
  attempts_under_way(any_store store, const commit_options& options)
      : store_(std::move(store)), options_(options) {}
  attempts_under_way(const attempts_under_way&) = delete;
  attempts_under_way& operator=(const attempts_under_way&) = delete;
  ~attempts_under_way();

  /// Says that this process writes the files of a rank.
  void begin(const save_context& c);
  /// Sets the flag of the attempt and calls send(); clears the flag again if the store has refused.
  template <class Send>
  auto sending(const save_context& c, bool attempt_knowledge::*what, Send send) {
    set(c, what, true);
    try {
      return send();
    } catch (...) {
      if (refused(std::current_exception())) set(c, what, false);
      throw;
    }
  }
  [[nodiscard]] attempt_knowledge known(const save_context& c) const noexcept;
  /// Says that the attempt was committed.
  void end(const save_context& c) noexcept;
  /// Says that the attempt failed; the thread does later what cannot be done now.
  void fail(const save_context& c, const std::exception_ptr& failure) noexcept;

 private:
  struct task {
    attempt_ending ending;
    deadline until;
  };
  struct inside {
    std::mutex mutex;
    std::condition_variable changed;
    vector<task> tasks;
    bool closing = false;
  };
  static constexpr std::size_t max_tasks = 64;
  static constexpr std::chrono::seconds longest_end{5};

  void set(const save_context& c, bool attempt_knowledge::*what, bool value);
  void retry(attempt_ending ending, deadline until);
  /// What there is no memory for is taken later.
  static void take(vector<task>& from, vector<task>& to) noexcept;
  static void serve(inside& in) noexcept;

  const any_store store_;
  const commit_options options_;
  mutable std::mutex mutex_;
  detail::sorted_map<std::pair<std::uint64_t, std::int32_t>, attempt_knowledge> known_;
  std::shared_ptr<inside> in_;
  background_thread thread_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/attempts_under_way.ipp>
#endif
