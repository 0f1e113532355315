// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_connections.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// For people: how long somebody has said nothing, such as "0.6 s" or "12 s".
[[nodiscard]] std::string silence_text(std::chrono::nanoseconds silent);

/// What ranks say to each other beside messages: admits peers, tells when all have come, says that this rank lives, and
/// notices who is gone, which rank 0 tells the others. Once rank 0 is gone, each judges those to which it has a connection.
class socket_service final : public socket_connections {
 public:
  /// Without `listening` there is no thread. @throws storage_error where the system gives no thread or descriptor
  socket_service(const socket_world_options& told, const link_key& key, owned<unforked_file> listening,
                 link_address own_address);
  /// Says goodbye to all, and waits for at most 2 s until they have heard it.
  ~socket_service();

  /// Ends a connection, and with it the rank at its other end. The mutex of neither is locked.
  /// @throws std::bad_alloc, where nothing has changed
  void end(const std::shared_ptr<socket_connection>& ended, bool left);
  /// Rank 0, which gives up to wait for the others: they throw the same.
  void give_up(const std::exception_ptr& failure);

 private:
  bool take(const connection_ptr& from, received_frame&& frame, std::vector<posting>& after, bool& good,
            bool& left) override;
  void end(const connection_ptr& ended, bool left, std::vector<posting>& after) override;
  void take_turn() override;
  [[nodiscard]] int sleep_at_most() const noexcept override;
  [[nodiscard]] socket_answer admit(const connection_ptr& from, const socket_hello& hello,
                                    connection_ptr& replaced);
  void let_come_again(socket_peer& p) noexcept;
  void begin_if_all_came(std::vector<posting>& after);
  [[nodiscard]] std::chrono::nanoseconds may_be_silent() const noexcept;

  deadline::clock::time_point next_sweep_{}, next_beat_{};
  deadline::clock::time_point last_beat_{}, awake_since_{};  ///< of the thread: it beat on time since then
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_service.ipp>
#endif
