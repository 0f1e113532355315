// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/execute/worker_link.hpp>
#include <cairn/execute/worker_settings.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <memory>
#include <optional>
#include <string>

extern "C" char** environ;

namespace cairn {
inline namespace v1 {
namespace detail {

/// A worker that this process started, and the socket to it.
class worker_process {
 public:
  worker_process() = default;
  worker_process(const worker_process&) = delete;
  worker_process& operator=(const worker_process&) = delete;
  /// Closes the socket, also for children of this process that have a copy of it, upon which the worker ends
  /// when what it began has ended, and waits for that for a moment, so that it does not stay as a zombie.
  ~worker_process();

  [[nodiscard]] bool running() const noexcept { return link_.open(); }
  [[nodiscard]] worker_link& link() noexcept { return link_; }
  [[nodiscard]] ::pid_t id() const noexcept { return id_; }

  /// Starts a worker: this program again, or another one. Cost: about a millisecond, and what the dynamic
  /// linker takes. @throws usage_error (usage_no_worker), storage_error (limits), timeout_error.
  void start(const std::string& program, const worker_hello& hello, deadline until);

  /// Makes sure that the worker is no more; how it ended, for messages.
  [[nodiscard]] std::string kill_and_describe() noexcept;
  void end(deadline until) noexcept;

 private:
  /// Makes a socket pair: one end is for the link, the other one is returned. No child of fork() has either,
  /// whenever it is made: while one has a copy of its end, neither side sees that the other is gone.
  static detail::owned<unforked_file> connect(worker_link& link);
  void spawn(const std::string& program, int socket);
  /// The worker's status, -1 where somebody else took it; nothing if it runs at the deadline.
  std::optional<int> reap(deadline until) noexcept;

  ::pid_t id_ = 0;
  worker_link link_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/execute/worker_process.ipp>
#endif
