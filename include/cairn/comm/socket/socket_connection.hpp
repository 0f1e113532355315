// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/spare_buffers.hpp>
#include <cairn/system/unforked_file.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A frame that has arrived.
struct received_frame {
  socket_frame head;
  std::vector<std::byte> body;
  std::span<std::byte> rest = {};  ///< what follows the body, where it landed; see land()
};

/// One connection between two ranks, over TLS or in the clear, which carries frames both ways. Its functions are
/// called with its mutex locked, but for those that say otherwise, and wait for nothing.
class socket_connection {
 public:
  socket_connection(const tls_context& context, owned<unforked_file> connected, secure_socket::side side,
                    bool plain);

  /// Any thread, without the mutex.
  [[nodiscard]] int number() const noexcept { return socket_.number(); }
  /// The address of the other end. Any thread, without the mutex.
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

  [[nodiscard]] socket_progress handshake() noexcept;
  /// Reads what is there, at most about 8 MiB, and gives each whole frame to `take`, in order, until that returns false.
  /// `ended` also for what is no frame. Long bodies come in `spares`. @throws std::bad_alloc, and what `take` throws, which
  /// leaves the frame as it is: nothing is lost, and the next call goes on there
  [[nodiscard]] socket_progress::state read(function_ref<bool(received_frame&&)> take, std::size_t longest,
                                            spare_buffers& spares);
  /// The next frame that comes, if it is a message of `first` + `rest.size()` bytes, comes as its first bytes, and the others
  /// in `rest`. Until the next frame has come, or to the end of landing.
  void land(std::size_t first, std::span<std::byte> rest);
  /// `rest` is not touched any more; what has come of a message there becomes a part of it again.
  void end_landing() noexcept;
  /// Writes what waits. `moved`: nothing waits any more. `ended`: the other end takes nothing more, and nothing waits for
  /// it any more; what it had sent before is there to be read, and then the end.
  [[nodiscard]] socket_progress::state flush() noexcept;
  /// Puts a frame behind what waits, and writes as much as it can. @throws std::bad_alloc
  void post(const socket_frame& head, std::span<const std::byte> body);
  /// Writes some more bytes of a message, of which `done` were written. @pre nothing waits, or `done` > 0
  [[nodiscard]] socket_progress::state write(const socket_head& head, std::span<const std::byte> body,
                                             std::size_t& done);
  /// What is left of a message goes on its own. @throws std::bad_alloc
  void leave_rest(const socket_head& head, std::span<const std::byte> body, std::size_t done);
  [[nodiscard]] bool has_waiting() const noexcept { return waiting_at_ < waiting_.size(); }

  std::mutex mutex;
  bool in_message = false;  ///< a caller of send() has written a part of a message
  bool trusted = false;     ///< it has proved that it is of this job
  bool paused = false;      ///< it is not read from
  bool held = false;        ///< a caller of receive() reads it, and the thread that serves it does not
  bool more = false;        ///< that caller has left something, perhaps decrypted already
  bool over = false;        ///< its end is known, and may not be told yet
  bool left = false;        ///< of that: in peace
  /// When there was no memory any more for what it sends; max: there is.
  deadline::clock::time_point starves_since = deadline::clock::time_point::max();
  std::uint32_t armed = 1;  ///< the events that the thread waits for, of which EPOLLIN is 1
  deadline::clock::time_point last_sent = deadline::clock::now();
  // Under the mutex of the service:
  std::uint64_t id = 0;  ///< in the service
  int peer = -1;         ///< the rank at the other end, once that is known
  bool star = false;     ///< the connection by which a rank came to rank 0
  deadline::clock::time_point due = deadline::clock::time_point::max();  ///< when a stranger is given up
  bool listed = false;  ///< the thread goes on with it without being told by the system
  std::shared_ptr<socket_connection> next_listed;  ///< another one that is listed
  /// Steady clock, in ns: when something came last. Any thread.
  std::atomic<std::int64_t> last_heard{0};
  /// It ends because this process had no memory for what it sent. Any thread.
  std::atomic<bool> no_memory{false};

 private:
  [[nodiscard]] bool lands(const socket_frame& head) const noexcept;
  void begin_landing();
  socket_progress read_some(std::span<std::byte> into) noexcept;
  socket_progress write_some(std::span<const std::byte> bytes) noexcept;

  secure_socket socket_;
  bool plain_;
  std::string where_;
  socket_head head_in_{};
  std::size_t have_ = 0;  // of the head, then of the body
  bool in_body_ = false;
  received_frame coming_;
  std::size_t landing_first_ = 0;
  std::span<std::byte> landing_;  // empty: nothing lands
  std::vector<std::byte> waiting_;
  std::size_t waiting_at_ = 0;
  std::uint64_t with_this_key_ = 0;
};

/// A connected socket's other end as text, without the port.
[[nodiscard]] std::string address_of_peer(int number);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_connection.ipp>
#endif
