// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/model/error.hpp>
#include <cairn/model/signals_blocked.hpp>
#include <cairn/stores/s3/http_call.hpp>

#include <curl/curl.h>
#include <openssl/x509_vfy.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How an http_transport connects.
struct http_settings {
  bool verify_tls = true;
  std::string ca_file;
  std::chrono::milliseconds connect_timeout;
  std::chrono::seconds stalled_after;
  std::size_t most_at_once = 16;
};

/// HTTP over libcurl's multi interface: one thread, which begins with the first call, connections that are
/// used again. No redirect is followed, no proxy answer is taken for the server's. submit() and cancel() by
/// any thread.
class http_transport {
 public:
  http_transport(http_settings settings, std::shared_ptr<s3_clock> clock)
      : settings_(std::move(settings)), clock_(std::move(clock)), window_(settings_.most_at_once) {
    static const CURLcode initialised = ::curl_global_init(CURL_GLOBAL_DEFAULT);
    if (initialised != CURLE_OK) fail(error_id::storage_io, "libcurl could not be initialised");
    multi_ = ::curl_multi_init();
    if (multi_ == nullptr) throw std::bad_alloc();
    ::curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(settings_.most_at_once + 4));
    ::curl_multi_setopt(multi_, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
  }
  http_transport(const http_transport&) = delete;
  http_transport& operator=(const http_transport&) = delete;
  /// Cancels what runs.
  ~http_transport() {
    if (::getpid() != owner_) {  // the child of a fork has neither the thread nor the connections
      if (thread_.joinable()) thread_.detach();
      static_cast<void>(new (std::nothrow) attempts(std::move(running_)));  // their sockets are the parent's
      return;
    }
    ending_.store(true);
    ::curl_multi_wakeup(multi_);
    if (thread_.joinable()) thread_.join();  // within moments: libcurl never waits for the network
    ::curl_multi_cleanup(multi_);
  }

  /// @throws usage_wrong_process in the child of a fork; storage_limit where no thread can be begun.
  void submit(std::shared_ptr<http_call> call) {
    if (::getpid() != owner_)
      fail(error_id::usage_wrong_process,
           "an object store cannot be used in the child of a fork: make another one there");
    {
      const std::lock_guard lock(mutex_);
      if (!thread_.joinable()) begin_thread();
      submitted_.push_back(std::move(call));
    }
    ::curl_multi_wakeup(multi_);
  }
  /// The call ends soon, unless it has ended.
  void cancel(http_call& call) noexcept {
    call.cancel_.store(true);
    cancelled_.store(true);
    ::curl_multi_wakeup(multi_);
  }

  /// For judges, on the transport's thread.
  [[nodiscard]] request_window& window() noexcept { return window_; }
  [[nodiscard]] s3_clock& clock() noexcept { return *clock_; }

 private:
  struct attempt {
    std::shared_ptr<http_call> call;
    CURL* easy = nullptr;
    curl_slist* headers = nullptr;
    std::size_t piece = 0;  // of the body, and the place in it
    std::size_t place = 0;
    std::size_t header_bytes = 0;
    bool refused = false;
    std::array<char, CURL_ERROR_SIZE> words{};
    ~attempt() {
      if (easy != nullptr) ::curl_easy_cleanup(easy);
      ::curl_slist_free_all(headers);
    }
  };
  using attempts = std::list<std::unique_ptr<attempt>>;

  void begin_thread() {
    const signals_blocked
        guard;  // SIGPIPE too: a connection that is gone is an error, not the end of the program
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error&) {
      fail(error_id::storage_limit, "no thread could be begun for the object store");
    }
  }

  void serve() noexcept {
    while (!ending_.load()) {
      accept_new();
      const auto now = clock_->now();
      if (cancelled_.exchange(false))
        drop([](http_call& c) { return c.cancel_.load(); }, http_end::cancelled);
      if (now >= next_check_) {
        drop([&](http_call& c) { return c.began_ && now >= c.until_; }, http_end::expired);
        next_check_ = now + std::chrono::milliseconds(50);
      }
      release_due(now);
      while (!waiting_.empty() && running_.size() < window_.limit()) {
        auto call = std::move(waiting_.front());
        waiting_.pop_front();
        start(std::move(call), now);
      }
      int still = 0;
      ::curl_multi_perform(multi_, &still);
      if (take_ended()) continue;
      ::curl_multi_poll(multi_, nullptr, 0, pause_before_next(), nullptr);
    }
    accept_new();
    drop([](http_call&) { return true; }, http_end::cancelled);
  }

  void accept_new() noexcept {
    const std::lock_guard lock(mutex_);
    while (!submitted_.empty()) {
      waiting_.splice(waiting_.end(), submitted_, submitted_.begin());
    }
  }
  void release_due(s3_clock::time_point now) noexcept {
    for (auto at = delayed_.begin(); at != delayed_.end();) {
      const auto next = std::next(at);
      if ((*at)->due_ <= now) waiting_.splice(waiting_.begin(), delayed_, at);  // before what was never tried
      at = next;
    }
  }
  [[nodiscard]] int pause_before_next() noexcept {
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

  /// Ends those of all calls that `wanted` names.
  template <class Wanted>
  void drop(Wanted wanted, http_end how) noexcept {
    for (auto at = running_.begin(); at != running_.end();) {
      const auto next = std::next(at);
      if (wanted(*(*at)->call)) {
        ::curl_multi_remove_handle(multi_, (*at)->easy);
        auto call = (*at)->call;
        running_.erase(at);
        end_call(*call, how);
      }
      at = next;
    }
    for (auto* queue : {&delayed_, &waiting_})
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
  static void end_call(http_call& call, http_end how) noexcept {
    call.end = how;
    try {
      static_cast<void>(call.judge());
    } catch (...) {
      call.detail.clear();
    }
    call.finished();
  }

  void start(std::shared_ptr<http_call> call, s3_clock::time_point now) noexcept {
    try {
      if (!call->began_) {
        call->began_ = true;
        call->until_ = now + call->patience;
      }
      call->status = 0;
      call->answer_headers.clear();
      call->detail.clear();
      call->end = http_end::unmade;
      call->prepare();
      auto a = std::make_unique<attempt>();
      a->call = call;
      set_up(*a);
      running_.push_back(std::move(a));
      if (::curl_multi_add_handle(multi_, running_.back()->easy) != CURLM_OK) {
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

  void set_up(attempt& a) const {
    const auto& call = *a.call;
    a.easy = ::curl_easy_init();
    if (a.easy == nullptr) throw std::bad_alloc();
    auto* const e = a.easy;
    for (const auto& h : call.headers) add_header(a, h.c_str());
    add_header(a, "Expect:");  // waiting for permission would cost a round trip for each part
    add_header(a, "Accept:");
    add_header(a, "Content-Type:");
    if (call.method == "POST" && !call.has_body) add_header(a, "Content-Length: 0");  // some insist on it
    const auto must = [](CURLcode code) {
      if (code != CURLE_OK) throw std::bad_alloc();
    };
    must(::curl_easy_setopt(e, CURLOPT_URL, call.url.c_str()));
    must(::curl_easy_setopt(e, CURLOPT_HTTPHEADER, a.headers));
    ::curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L);
    ::curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    ::curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    ::curl_easy_setopt(e, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    ::curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    ::curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L);
    ::curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    ::curl_easy_setopt(e, CURLOPT_DNS_CACHE_TIMEOUT, 30L);
    ::curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings_.connect_timeout.count()));
    ::curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, settings_.verify_tls ? 1L : 0L);
    ::curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, settings_.verify_tls ? 2L : 0L);
    if (!settings_.ca_file.empty()) must(::curl_easy_setopt(e, CURLOPT_CAINFO, settings_.ca_file.c_str()));
    if (!call.may_be_silent) {
      ::curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1024L);
      ::curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings_.stalled_after.count()));
    }
    if (call.fresh_connection_) ::curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L);
    ::curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 512L << 10);
    ::curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, &http_transport::on_header);
    ::curl_easy_setopt(e, CURLOPT_HEADERDATA, &a);
    ::curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, &http_transport::on_answer);
    ::curl_easy_setopt(e, CURLOPT_WRITEDATA, &a);
    ::curl_easy_setopt(e, CURLOPT_PRIVATE, &a);
    ::curl_easy_setopt(e, CURLOPT_ERRORBUFFER, a.words.data());
    if (call.has_body) {
      ::curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
      ::curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
      ::curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(call.body_bytes));
      ::curl_easy_setopt(e, CURLOPT_READFUNCTION, &http_transport::on_body);
      ::curl_easy_setopt(e, CURLOPT_READDATA, &a);
      ::curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, &http_transport::on_rewind);
      ::curl_easy_setopt(e, CURLOPT_SEEKDATA, &a);
    }
    if (call.method == "HEAD")
      ::curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
    else
      must(::curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, call.method.c_str()));
  }
  static void add_header(attempt& a, const char* line) {
    auto* const longer = ::curl_slist_append(a.headers, line);
    if (longer == nullptr) throw std::bad_alloc();
    a.headers = longer;
  }

  /// True if an attempt ended.
  [[nodiscard]] bool take_ended() noexcept {
    bool some = false;
    int left = 0;
    while (CURLMsg* message = ::curl_multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      some = true;
      const auto code = message->data.result;
      auto* const easy = message->easy_handle;
      ::curl_multi_remove_handle(multi_, easy);
      const auto at =
          std::find_if(running_.begin(), running_.end(), [&](const auto& a) { return a->easy == easy; });
      if (at == running_.end()) continue;
      const auto ended = std::move(*at);
      running_.erase(at);
      conclude(*ended, code);
    }
    return some;
  }
  void conclude(attempt& a, CURLcode code) noexcept {
    const auto call = std::move(a.call);
    long status = 0;
    ::curl_easy_getinfo(a.easy, CURLINFO_RESPONSE_CODE, &status);
    call->status = status;
    call->end = a.refused ? http_end::refused : meaning(code);
    call->certificate = trouble_of(code, a.easy);
    call->fresh_connection_ = call->end == http_end::broken || call->end == http_end::not_sent;
    std::optional<std::chrono::nanoseconds> pause;
    try {
      if (code != CURLE_OK) call->detail = ::curl_easy_strerror(code);
      if (call->certificate != certificate_trouble::none && a.words[0] != '\0') call->detail = a.words.data();
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
  [[nodiscard]] static http_end meaning(CURLcode code) noexcept {
    switch (code) {
      case CURLE_OK:
        return http_end::answered;
      case CURLE_COULDNT_RESOLVE_HOST:
      case CURLE_COULDNT_RESOLVE_PROXY:
      case CURLE_COULDNT_CONNECT:
      case CURLE_SSL_CONNECT_ERROR:
        return http_end::not_sent;
      case CURLE_PEER_FAILED_VERIFICATION:
      case CURLE_SSL_CACERT_BADFILE:
      case CURLE_SSL_ISSUER_ERROR:
      case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
        return http_end::tls;
      default:
        return http_end::broken;
    }
  }

  [[nodiscard]] static certificate_trouble trouble_of(CURLcode code, CURL* easy) noexcept {
    if (code == CURLE_SSL_CONNECT_ERROR) return certificate_trouble::handshake;
    if (code == CURLE_SSL_CACERT_BADFILE) return certificate_trouble::ca_file;
    if (meaning(code) != http_end::tls) return certificate_trouble::none;
    long verdict = -1;
    ::curl_easy_getinfo(easy, CURLINFO_SSL_VERIFYRESULT, &verdict);
    // libcurl looks at the names first where the certificate itself is right.
    if (verdict == X509_V_OK || verdict == X509_V_ERR_UNSPECIFIED) return certificate_trouble::name;
    if (verdict == X509_V_ERR_CERT_HAS_EXPIRED || verdict == X509_V_ERR_CERT_NOT_YET_VALID)
      return certificate_trouble::time;
    return certificate_trouble::authority;
  }

  // No exception may cross libcurl's frames.
  static std::size_t on_header(char* data, std::size_t, std::size_t bytes, void* self) noexcept {
    auto& a = *static_cast<attempt*>(self);
    constexpr std::size_t most = 64u << 10;
    a.header_bytes += bytes;
    if (a.header_bytes > most) return 0;
    try {
      std::string_view line(data, bytes);
      while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
      if (line.starts_with("HTTP/")) {
        a.call->answer_headers.clear();
        return bytes;
      }
      const auto colon = line.find(':');
      if (colon == std::string_view::npos) return bytes;
      a.call->answer_headers.emplace_back(lower_case(line.substr(0, colon)),
                                          canonical_value(line.substr(colon + 1)));
      return bytes;
    } catch (...) {
      return 0;
    }
  }
  static std::size_t on_answer(char* data, std::size_t, std::size_t bytes, void* self) noexcept {
    auto& a = *static_cast<attempt*>(self);
    try {
      long status = 0;
      ::curl_easy_getinfo(a.easy, CURLINFO_RESPONSE_CODE, &status);
      a.call->status = status;
      if (a.call->receive(std::as_bytes(std::span(data, bytes)))) return bytes;
      a.refused = true;
    } catch (...) {
    }
    return bytes == 0 ? 1 : 0;
  }
  static std::size_t on_body(char* to, std::size_t, std::size_t room, void* self) noexcept {
    auto& a = *static_cast<attempt*>(self);
    const auto& body = a.call->body;
    std::size_t done = 0;
    while (done < room && a.piece < body.size()) {
      const auto piece = body[a.piece];
      const auto n = std::min(room - done, piece.size() - a.place);
      if (n != 0) std::memcpy(to + done, piece.data() + a.place, n);
      done += n;
      a.place += n;
      if (a.place == piece.size()) ++a.piece, a.place = 0;
    }
    return done;
  }
  static int on_rewind(void* self, curl_off_t offset, int origin) noexcept {
    auto& a = *static_cast<attempt*>(self);
    if (origin != SEEK_SET || offset != 0) return CURL_SEEKFUNC_CANTSEEK;
    a.piece = a.place = 0;
    return CURL_SEEKFUNC_OK;
  }

  http_settings settings_;
  std::shared_ptr<s3_clock> clock_;
  request_window window_;
  CURLM* multi_ = nullptr;
  ::pid_t owner_ = ::getpid();
  std::atomic<bool> ending_{false};
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::list<std::shared_ptr<http_call>> submitted_;  // guarded by mutex_

  // Of the thread alone.
  std::list<std::shared_ptr<http_call>> waiting_;
  std::list<std::shared_ptr<http_call>> delayed_;
  attempts running_;
  s3_clock::time_point next_check_{};

  std::thread thread_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
