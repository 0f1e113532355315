// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/sigv4.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How an attempt of a request ended, apart from its status.
enum class http_end : std::uint8_t {
  answered,   ///< with a status and a whole answer
  not_sent,   ///< no connection: nothing reached the server
  broken,     ///< the connection failed, stalled or was cut, in the request or in the answer
  tls,        ///< the server is not who it should be
  refused,    ///< the call did not want the answer
  expired,    ///< the call's deadline passed
  cancelled,  ///< its owner did not want it any more
  unmade,     ///< the request could not be made: no credentials, no memory
};

/// Why no trusted connection came about.
enum class certificate_problem : std::uint8_t {
  none,
  authority,  ///< signed by no authority that is trusted here
  name,       ///< it is for other hosts
  time,       ///< it has expired, or is not valid yet
  ca_file,    ///< the authorities' certificates cannot be read
  handshake,  ///< it did not come to certificates
};

/// Some calls that one thread waits for.
class call_group {
 public:
  void begin();
  void end() noexcept;
  /// Returns when at most `max_running` of them still run. It has no deadline, since libcurl reads and writes memory
  /// of the owner's until they have ended: each ends by its own deadline, or within moments once it is
  /// cancelled.
  void wait(std::size_t max_running = 0);
  /// The same for `time` at most; false if more of them still run.
  [[nodiscard]] bool wait_for(std::size_t max_running, std::chrono::nanoseconds time);
  /// False if more than `max_running` still run at the deadline; their owner cancels them, and waits.
  [[nodiscard]] bool wait_until(const s3_deadline& until, std::size_t max_running = 0);
  [[nodiscard]] std::size_t running();

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t running_ = 0;
};

/// A request that is attempted until its judge is content. All virtual functions are called by the
/// transport's thread, one at a time; the other members are the owner's before submit() and after finished().
class http_call {
 public:
  http_call() = default;
  http_call(const http_call&) = delete;
  http_call& operator=(const http_call&) = delete;
  virtual ~http_call() = default;

  // Of the attempt to come; prepare() fills them in.
  std::string method;
  std::string url;
  std::vector<std::string> headers;
  std::span<const std::span<const std::byte>> body;
  std::uint64_t body_bytes = 0;
  bool has_body = false;

  // Of the whole call.
  std::chrono::nanoseconds timeout{0};  ///< from the first attempt on
  bool may_be_silent = false;           ///< the server may think for minutes before it answers
  bool beside = false;                  ///< on a connection of its own, not one of those that may run at once
  bool urgent = false;  ///< begins before all that waits, and is none of those that may run at once
  s3_clock::time_point latest = s3_clock::time_point::max();  ///< it ends then, begun or not

  // Of the last attempt.
  http_end end = http_end::unmade;
  long status = 0;
  bool sent_again = false;     ///< it went out before the last time, which alone was answered, if at all
  name_values answer_headers;  ///< names in lower case
  std::string detail;          ///< what the transport says of a failure
  std::chrono::nanoseconds to_first_byte{0};  ///< of the answer, after the request went out
  std::chrono::nanoseconds after_it{0};       ///< of the answer, after that
  certificate_problem certificate = certificate_problem::none;

  /// Makes the next attempt's request. What it throws ends the call as unmade.
  virtual void prepare() = 0;
  /// A piece of the answer's body; false: refused.
  virtual bool receive(std::span<const std::byte> bytes) = 0;
  /// After an attempt: nothing if the call has ended, else the pause before the next one.
  virtual std::optional<std::chrono::nanoseconds> judge() = 0;
  /// The call has ended; the transport forgets it.
  virtual void finished() noexcept = 0;

  /// The value of a header of the last answer, or nothing. One that came twice with different values is as
  /// good as none.
  [[nodiscard]] std::optional<std::string_view> header(std::string_view name) const noexcept;
  /// Whether it is one of those of which only some run at once.
  [[nodiscard]] bool in_turn() const noexcept { return !beside && !urgent; }

 private:
  friend class http_transport;
  std::atomic<bool> cancel_{false};
  bool began_ = false;
  bool fresh_connection_ = false;
  s3_clock::time_point until_{};
  s3_clock::time_point due_{};
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/http_call.ipp>
#endif
