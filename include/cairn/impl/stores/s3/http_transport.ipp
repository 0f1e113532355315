// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/http_attempt.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/http_transport.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/process_limits.hpp>

#include <curl/curl.h>

#include <algorithm>
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

CAIRN_BODY http_transport::http_transport(http_settings settings, std::shared_ptr<s3_clock> clock)
    : settings_(std::move(settings)), clock_(std::move(clock)), window_(settings_.max_at_once) {
  static const CURLcode initialised = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  if (initialised != CURLE_OK) fail(error_id::storage_io, "libcurl could not be initialised");
  multi_ = ::curl_multi_init();
  if (multi_ == nullptr) throw std::bad_alloc();
  // libcurl keeps TLS sessions with each request: connections of other requests would exchange certificates again.
  settings_.sessions = ::curl_share_init();
  ::curl_share_setopt(settings_.sessions, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
  ::curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(settings_.max_at_once + 4));
  ::curl_multi_setopt(multi_, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
}

CAIRN_BODY http_transport::~http_transport() {
  if (process_.in_child()) {
    static_cast<void>(new (std::nothrow) attempts(std::move(running_)));  // their sockets are the parent's
    return;
  }
  ending_.store(true);
  ::curl_multi_wakeup(multi_);
  thread_.join();  // within moments: libcurl never waits for the network
  ::curl_multi_cleanup(multi_);
  ::curl_share_cleanup(settings_.sessions);
}

CAIRN_BODY void http_transport::submit(std::shared_ptr<http_call> call) {
  process_.check("an object store cannot be used in the child of a fork: make another one there");
  {
    const std::lock_guard lock(mutex_);
    // Without signals, SIGPIPE too: a connection that is gone is an error, not the end of the program.
    if (!thread_.joinable() && !thread_.start("cairn http", [this] { serve(); }))
      fail_for_threads("for the object store");
    submitted_.push_back(std::move(call));
  }
  ::curl_multi_wakeup(multi_);
}

CAIRN_BODY void http_transport::cancel(http_call& call) noexcept {
  call.cancel_.store(true);
  cancelled_.store(true);
  ::curl_multi_wakeup(multi_);
}

CAIRN_BODY void http_transport::serve() noexcept {
  while (!ending_.load()) {
    accept_new();
    const auto now = clock_->now();
    if (cancelled_.exchange(false)) drop([](http_call& c) { return c.cancel_.load(); }, http_end::cancelled);
    if (now >= next_check_) {
      drop([&](http_call& c) { return now >= (c.began_ ? c.until_ : c.latest); }, http_end::expired);
      next_check_ = now + std::chrono::milliseconds(50);
    }
    connect_again();
    release_due(now);
    while (!urgent_.empty()) start_first(urgent_, now);
    while (!waiting_.empty() && in_turn() < window_.limit()) start_first(waiting_, now);
    int still = 0;
    ::curl_multi_perform(multi_, &still);
    if (take_ended()) continue;
    ::curl_multi_poll(multi_, nullptr, 0, pause_before_next(), nullptr);
  }
  accept_new();
  drop([](http_call&) { return true; }, http_end::cancelled);
}

CAIRN_BODY std::size_t http_transport::in_turn() const noexcept {
  std::size_t found = 0;
  for (const auto& attempt : running_) found += attempt->call()->in_turn() ? 1U : 0U;
  return found;
}

CAIRN_BODY void http_transport::accept_new() noexcept {
  const std::lock_guard lock(mutex_);
  while (!submitted_.empty()) {
    auto& queue = submitted_.front()->urgent ? urgent_ : waiting_;
    queue.splice(queue.end(), submitted_, submitted_.begin());
  }
}

CAIRN_BODY void http_transport::release_due(s3_clock::time_point now) noexcept {
  for (auto at = delayed_.begin(); at != delayed_.end();) {
    const auto next = std::next(at);
    auto& queue = (*at)->urgent ? urgent_ : waiting_;
    if ((*at)->due_ <= now) queue.splice(queue.begin(), delayed_, at);  // before what was never tried
    at = next;
  }
}

CAIRN_BODY int http_transport::pause_before_next() noexcept {
  using namespace std::chrono;
  nanoseconds pause =
      running_.empty() && delayed_.empty() ? nanoseconds(seconds(1)) : nanoseconds(milliseconds(100));
  if (!delayed_.empty()) {
    auto first = s3_clock::time_point::max();
    for (const auto& c : delayed_) first = std::min(first, c->due_);
    const auto wanted = std::max(nanoseconds(0), nanoseconds(first - clock_->now()));
    pause = std::min(pause, clock_->pause(wanted));
  }
  return static_cast<int>(duration_cast<milliseconds>(pause + microseconds(999)).count());
}

CAIRN_BODY void http_transport::end_call(http_call& call, http_end how) noexcept {
  call.end = how;
  try {
    static_cast<void>(call.judge());
  } catch (...) {
    call.detail.clear();
  }
  call.finished();
}

CAIRN_BODY void http_transport::start_first(std::list<std::shared_ptr<http_call>>& queue,
                                            s3_clock::time_point now) noexcept {
  auto call = std::move(queue.front());
  queue.pop_front();
  start(std::move(call), now);
}

CAIRN_BODY void http_transport::start(std::shared_ptr<http_call> call, s3_clock::time_point now) noexcept {
  // It may have been submitted and cancelled since all that was submitted was last accepted.
  if (call->cancel_.load()) return end_call(*call, http_end::cancelled);
  try {
    if (!call->began_) {
      call->began_ = true;
      call->until_ = std::min(now + call->timeout, call->latest);
    }
    call->status = 0;
    call->sent_again = false;
    call->answer_headers.clear();
    call->detail.clear();
    call->end = http_end::unmade;
    call->prepare();
    running_.push_back(
        std::make_unique<http_attempt>(call, settings_, call->fresh_connection_ || call->beside));
    if (::curl_multi_add_handle(multi_, running_.back()->easy()) != CURLM_OK) {
      running_.pop_back();
      throw std::bad_alloc();
    }
  } catch (...) {
    try {
      throw;
    } catch (const std::exception& e) {
      try {
        call->detail = e.what();
      } catch (...) {
      }
    } catch (...) {
    }
    end_call(*call, http_end::unmade);
  }
}

CAIRN_BODY void http_transport::connect_again() noexcept {
  for (auto at = running_.begin(); at != running_.end();) {
    const auto each = at++;
    if (!(*each)->connects_long()) continue;
    ::curl_multi_remove_handle(multi_, (*each)->easy());
    (*each)->begin_again();
    if (::curl_multi_add_handle(multi_, (*each)->easy()) == CURLM_OK) continue;
    const auto call = (*each)->call();
    running_.erase(each);
    end_call(*call, http_end::unmade);
  }
}

CAIRN_BODY bool http_transport::take_ended() noexcept {
  bool some = false;
  int left = 0;
  while (CURLMsg* message = ::curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    some = true;
    const auto code = message->data.result;
    auto* const easy = message->easy_handle;
    ::curl_multi_remove_handle(multi_, easy);
    const auto at = detail::find_if(running_, [&](const auto& a) { return a->easy() == easy; });
    if (at == running_.end()) continue;
    const auto ended = std::move(*at);
    running_.erase(at);
    conclude(*ended, code);
  }
  return some;
}

CAIRN_BODY void http_transport::conclude(http_attempt& a, CURLcode code) noexcept {
  const auto& call = a.call();
  a.conclude(code);
  call->fresh_connection_ = call->end == http_end::broken || call->end == http_end::not_sent;
  std::optional<std::chrono::nanoseconds> pause;
  try {
    pause = call->judge();
  } catch (...) {
    pause.reset();
  }
  const auto now = clock_->now();
  if (pause && *pause >= call->until_ - now) pause.reset();  // the judge has noted why
  if (!pause || call->cancel_.load()) return call->finished();
  call->due_ = now + *pause;
  try {
    delayed_.push_back(call);
  } catch (...) {
    call->finished();
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
