// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/http_attempt.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/fork_guard.hpp>

#include <curl/curl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// HTTP over libcurl's multi interface: one thread, which begins with the first call, connections that are
/// used again. No redirect is followed, no proxy answer is taken for the server's. submit() and cancel() by
/// any thread.
class http_transport {
 public:
  http_transport(http_settings settings, std::shared_ptr<s3_clock> clock);
  http_transport(const http_transport&) = delete;
  http_transport& operator=(const http_transport&) = delete;
  /// Cancels what runs.
  ~http_transport();

  /// @throws usage_wrong_process in the child of a fork; storage_limit where no thread can be begun.
  void submit(std::shared_ptr<http_call> call);
  /// The call ends soon, unless it has ended.
  void cancel(http_call& call) noexcept;

  /// For judges, on the transport's thread.
  [[nodiscard]] request_window& window() noexcept { return window_; }
  [[nodiscard]] s3_clock& clock() noexcept { return *clock_; }

 private:
  using attempts = std::list<std::unique_ptr<http_attempt>>;

  void serve() noexcept;

  /// How many run of those that wait for a turn.
  [[nodiscard]] std::size_t in_turn() const noexcept;
  void accept_new() noexcept;
  void release_due(s3_clock::time_point now) noexcept;
  [[nodiscard]] int pause_before_next() noexcept;

  /// Ends those of all calls that `wanted` names.
  template <class Wanted>
  void drop(Wanted wanted, http_end how) noexcept {
    for (auto at = running_.begin(); at != running_.end();) {
      const auto next = std::next(at);
      if (wanted(*(*at)->call())) {
        ::curl_multi_remove_handle(multi_, (*at)->easy());
        auto call = (*at)->call();
        running_.erase(at);
        end_call(*call, how);
      }
      at = next;
    }
    for (auto* queue : {&delayed_, &urgent_, &waiting_})
      for (auto at = queue->begin(); at != queue->end();) {
        const auto next = std::next(at);
        if (wanted(**at)) {
          const auto call = std::move(*at);
          queue->erase(at);
          end_call(*call, how);
        }
        at = next;
      }
  }
  /// Ends a call for good; its judge notes why.
  static void end_call(http_call& call, http_end how) noexcept;

  void start_first(std::list<std::shared_ptr<http_call>>& queue, s3_clock::time_point now) noexcept;
  void start(std::shared_ptr<http_call> call, s3_clock::time_point now) noexcept;

  /// Tries another connection where one is not made.
  void connect_again() noexcept;
  /// True if an attempt ended.
  [[nodiscard]] bool take_ended() noexcept;
  void conclude(http_attempt& a, CURLcode code) noexcept;
  http_settings settings_;
  std::shared_ptr<s3_clock> clock_;
  request_window window_;
  CURLM* multi_ = nullptr;
  fork_guard process_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::list<std::shared_ptr<http_call>> submitted_;  // guarded by mutex_

  // Of the thread alone.
  std::list<std::shared_ptr<http_call>> urgent_;
  std::list<std::shared_ptr<http_call>> waiting_;
  std::list<std::shared_ptr<http_call>> delayed_;
  attempts running_;
  s3_clock::time_point next_check_{};

  background_thread thread_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/http_transport.ipp>
#endif
