// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/execute/peer_process.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What trainer and worker say to each other. The numbers are the protocol.
enum class frame_kind : std::uint16_t {
  hello = 1,      ///< trainer: version, build, options
  ready = 2,      ///< worker: the same hello was understood
  refused = 3,    ///< worker: hello or job was not taken, with the reason; nothing was begun
  job = 4,        ///< trainer: one save
  failure = 5,    ///< trainer: why the image of a job will not be complete
  written = 6,    ///< worker: the job's bytes are durable, its image is not needed any more; what it did
  committed = 7,  ///< worker: what it did
  failed = 8,     ///< worker: with the reason, and what it did; the other ranks were told
  question = 9,   ///< worker: for what no description holds, such as credentials; see ask_trainer
  answer = 10,    ///< trainer: to a question
  gone = 11,      ///< trainer: ranks whose processes are gone, of which their workers may be left
};
inline constexpr std::uint16_t worker_protocol = 8;

/// One message: bytes, and descriptors that go with it.
struct worker_frame {
  frame_kind kind = frame_kind::hello;
  std::vector<std::byte> bytes;
  std::vector<file_descriptor> descriptors;
};

struct frame_header {
  std::uint32_t magic = magic_number;
  std::uint16_t version = worker_protocol;
  frame_kind kind = frame_kind::hello;
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;
  std::uint32_t descriptors = 0;
  std::uint32_t reserved = 0;

  static constexpr std::uint32_t magic_number = 0x57524E43;  // "CNRW"
  static constexpr std::uint64_t max_bytes = std::uint64_t{1} << 30;
  static constexpr std::uint32_t max_descriptors = 8;

  /// @throws peer_error (peer_bad_message)
  void check() const;
};
static_assert(sizeof(frame_header) == 32);

/// One end of the socket between trainer and worker. Messages come whole or not at all; each carries a
/// digest. One thread sends and one receives, at the same time.
class worker_link {
 public:
  worker_link() = default;
  explicit worker_link(file_descriptor socket, peer_process other = {})
      : worker_link(std::move(socket), fork_pause(), std::move(other)) {}
  /// The same under a pause that began before the socket was made.
  worker_link(file_descriptor socket, const fork_pause& pause, peer_process other = {});

  [[nodiscard]] bool open() const noexcept { return socket() >= 0; }
  /// The other side sees the end, also where a child of this process has a copy of the socket.
  void close() noexcept;
  /// Whether the other side is gone, as far as the system has told.
  [[nodiscard]] bool lost() const noexcept;

  /// @throws peer_error (peer_lost) if the other side is gone, timeout_error (timeout_peer).
  void send(frame_kind kind, std::span<const std::byte> bytes, deadline until,
            std::span<const int> descriptors = {});

  /// The next message; nothing if none began before the deadline, or before `interrupt`, a descriptor, can be
  /// read. @throws peer_error: peer_lost if the other side is gone, peer_bad_message; timeout_error if a
  /// message does not end in `frame_timeout`.
  [[nodiscard]] std::optional<worker_frame> receive(deadline until, int interrupt = -1);

 private:
  static constexpr std::chrono::seconds frame_timeout{60};

  [[nodiscard]] int socket() const noexcept { return socket_ != nullptr ? socket_->get() : -1; }
  /// Waits until the socket is ready: whether it is, and not the interrupt or the deadline came first.
  /// @throws peer_error (peer_lost) when the process at the other end has ended and all is heard that it
  /// said.
  [[nodiscard]] bool wait(short events, int interrupt, deadline until) const;
  void send_some(std::span<const std::byte> bytes, std::span<const int> descriptors, deadline until);
  void receive_some(std::span<std::byte> bytes, std::vector<file_descriptor>& descriptors, deadline until);
  [[noreturn]] static void fail_lost();

  detail::owned<unforked_file> socket_;
  peer_process other_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/execute/worker_link.ipp>
#endif
