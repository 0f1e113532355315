// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_connections.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/thread_settings.hpp>
#include <cairn/system/unforked_file.hpp>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

inline constexpr std::uint64_t socket_of_listener = 0, socket_of_wake = 1;

inline constexpr std::size_t max_socket_strangers = 64;

/// Until what had no memory is tried again.
inline constexpr int pause_without_memory_ms = 20;

CAIRN_BODY socket_connections::socket_connections(const socket_world_options& told, const link_key& key,
                                                  owned<unforked_file> listening, link_address own_address)
    : socket_members(told, std::move(own_address)), context(key), listener_(std::move(listening)) {
  if (listener_ == nullptr) return;
  poller_ = file_descriptor(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = file_descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poller_.open() || !wake_.open() ||
      !control(EPOLL_CTL_ADD, listener_->get(), EPOLLIN, socket_of_listener) ||
      !control(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, socket_of_wake))
    fail_system(errno, "a rank has no descriptors for its connections");
}

CAIRN_BODY void socket_connections::start() {
  if (listener_ != nullptr && !thread_.start("cairn sockets", [this] { serve(); }))
    fail(error_id::storage_limit,
         "the system gives a rank no thread for its connections; raise the limit of processes (ulimit -u)");
}
CAIRN_BODY void socket_connections::stop() {
  if (!thread_.joinable()) return;
  std::vector<posting> goodbyes;
  {
    const std::lock_guard lock(mutex);
    try {
      for (const auto& each : all_)
        if (each.second->peer >= 0)
          goodbyes.push_back({each.second, {.what = socket_frame::kind::goodbye}, nullptr});
    } catch (...) {
      // No memory for it: the end of their connections tells the others.
    }
    end_by_ = deadline::in(std::chrono::seconds(2)).time_point();
  }
  post(goodbyes);
  goodbyes.clear();
  ending_.store(true, std::memory_order_release);
  wake();
  thread_.join();
}
CAIRN_BODY void socket_connections::wake() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
}
CAIRN_BODY void socket_connections::listen_again() noexcept {
  if (!listens_) listens_ = control(EPOLL_CTL_MOD, listener_->get(), EPOLLIN, socket_of_listener);
}

CAIRN_BODY bool socket_connections::control(int what, int number, std::uint32_t events,
                                            std::uint64_t id) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return ::epoll_ctl(poller_.get(), what, number, &event) == 0;
}

CAIRN_BODY void socket_connections::serve() noexcept {
  detail::wait_for_a_turn();
  for (;;) {
    std::array<epoll_event, 64> events;
    connection_ptr unfinished;
    int sleep_ms = sleep_at_most();
    {
      const std::lock_guard lock(mutex);
      unfinished = std::move(unfinished_);
      sleep_ms = std::min(sleep_ms, std::exchange(unfinished_ms_, std::numeric_limits<int>::max()));
    }
    const int ready = ::epoll_wait(poller_.get(), events.data(), static_cast<int>(events.size()), sleep_ms);
    while (unfinished != nullptr) {
      const auto c = std::move(unfinished);
      {
        const std::lock_guard lock(mutex);
        unfinished = std::move(c->next_listed);
        c->listed = false;
      }
      go_on(c->id, false);
    }
    try {
      for (int i = 0; i < ready; ++i) {
        const auto id = events[static_cast<std::size_t>(i)].data.u64;
        std::uint64_t count = 0;
        if (id == socket_of_listener)
          accept_some();
        else if (id == socket_of_wake)
          static_cast<void>(!::read(wake_.get(), &count, sizeof count));
        else
          go_on(id, false);
      }
      take_turn();
    } catch (...) {
      // Memory ran out for who comes, who asks again, or for what is told, which the next turn tells.
    }
    if (ending_.load(std::memory_order_acquire) && all_have_heard()) return;
  }
}

CAIRN_BODY bool socket_connections::all_have_heard() {
  const std::lock_guard lock(mutex);
  if (deadline::clock::now() >= end_by_) return true;
  for (const auto& each : all_)
    if (each.second->peer >= 0) return false;
  return true;
}

CAIRN_BODY void socket_connections::accept_some() {
  for (int i = 0; i < 16; ++i) {
    owned<unforked_file> made;
    int why = 0;
    {
      const fork_pause pause;
      file_descriptor number(::accept4(listener_->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (number.open())
        made = detail::make_owned<unforked_file>(std::move(number), pause);
      else
        why = errno;
    }
    if (why == EAGAIN) return;
    if (why == EINTR || why == ECONNABORTED) continue;
    if (made == nullptr) {
      // Who waits to be let in would wake the thread at once again. The next sweep tries again.
      listens_ = !control(EPOLL_CTL_MOD, listener_->get(), 0, socket_of_listener);
      const std::lock_guard lock(mutex);
      last_refused = refused_connection(options.rank, why);
      return;
    }
    prepare_socket(made->get(), options.lost_after, options.stopped_after);
    auto added = detail::make_shared<socket_connection>(context, std::move(made), secure_socket::side::server,
                                                        options.plain);
    added->due = deadline::in(options.handshake_timeout).time_point();
    connection_ptr evicted;  // after the lock
    const std::lock_guard lock(mutex);
    // Whoever came first goes, which is one that does not speak, where there is any; ranks try again.
    if (strangers_ >= max_socket_strangers + peers.size())
      for (const auto& each : all_)
        if (each.second->peer < 0) {
          evicted = each.second;
          forget(evicted);
          break;
        }
    added->id = next_id_++;
    all_.try_emplace(added->id, added);
    ++strangers_;
    if (!control(EPOLL_CTL_ADD, added->number(), EPOLLIN, added->id)) forget(added);
  }
}

/// @pre the mutex is locked
CAIRN_BODY void socket_connections::forget(const connection_ptr& c) noexcept {
  if (!all_.holds(c->id)) return;
  control(EPOLL_CTL_DEL, c->number(), 0, c->id);
  if (c->peer < 0) --strangers_;
  all_.erase(c->id);
}

CAIRN_BODY void socket_connections::arm(socket_connection& c) noexcept {
  const bool out = c.has_waiting() && !c.in_message;
  const bool starves = c.starves_since != deadline::clock::time_point::max();
  // Of one that is not to be read, its end is told once.
  const std::uint32_t events =
      (c.paused || c.held || starves || c.over ? EPOLLET : EPOLLIN) | (out ? EPOLLOUT : 0U);
  if (events == c.armed || c.id == 0) return;
  c.armed = events;
  control(EPOLL_CTL_MOD, c.number(), events, c.id);
}

/// The thread goes on with it without being told by the system. @pre the mutex is locked
CAIRN_BODY void socket_connections::look_again(const connection_ptr& c, int after_ms) noexcept {
  unfinished_ms_ = std::min(unfinished_ms_, after_ms);
  if (!std::exchange(c->listed, true)) c->next_listed = std::exchange(unfinished_, c);
}

CAIRN_BODY void socket_connections::resume(int rank) noexcept {
  const std::lock_guard lock(mutex);
  peer(rank).paused = false;
  const auto now = deadline::clock::now().time_since_epoch().count();
  for (const auto& each : all_)
    if (each.second->peer == rank) {
      // What it said meanwhile is not read yet: it has not been silent.
      each.second->last_heard.store(now, std::memory_order_relaxed);
      look_again(each.second, 0);
    }
  wake();
}

CAIRN_BODY void socket_connections::hold(const connection_ptr& c, bool held) noexcept {
  const std::lock_guard lock(c->mutex);
  c->held = held;
  arm(*c);
  const bool starves = c->starves_since != deadline::clock::time_point::max();
  if (held || (!std::exchange(c->more, false) && !starves)) return;
  const std::lock_guard of_all(mutex);
  look_again(c, starves ? pause_without_memory_ms : 0);
  wake();
}

CAIRN_BODY bool socket_connections::go_on(std::uint64_t id, bool by_caller) {
  connection_ptr c;
  bool stranger = false, pause = false;
  {
    const std::lock_guard lock(mutex);
    const auto at_id = all_.find(id);
    if (at_id == all_.end()) return true;
    c = at_id->second;
    stranger = c->peer < 0;
    if (!stranger && peer(c->peer).ready_bytes >= max_message_bytes) peer(c->peer).paused = true;
    if (!stranger) pause = peer(c->peer).paused;
  }
  std::vector<posting> after;
  bool more = false, starves = false;
  std::unique_lock of_connection(c->mutex);
  bool good = !c->over, left = c->left;
  try {
    auto progress = socket_progress::state::moved;
    if (!c->trusted) {
      progress = c->handshake().what;
      c->trusted = progress == socket_progress::state::moved;
      good = progress != socket_progress::state::ended;
    }
    if (good && c->trusted) {
      // Whoever takes nothing more may have sent something before it left: the end is what is read, not what is written.
      if (!c->in_message) static_cast<void>(c->flush());
      c->paused = pause;
      if (good && !c->paused && c->held == by_caller) {
        const auto longest = stranger ? max_hello_bytes : max_message_bytes;
        const auto came =
            c->read([&](received_frame&& frame) { return take(c, std::move(frame), after, good, left); },
                    longest, spares);
        good = good && came != socket_progress::state::ended;
        // Perhaps decrypted already, of which epoll knows nothing.
        more = came == socket_progress::state::moved && !by_caller;
        c->more = came == socket_progress::state::moved && by_caller;
        c->starves_since = deadline::clock::time_point::max();
      }
    }
  } catch (...) {
    // Who sent it is not to blame, and what it sent is there yet: others may give memory back. A stranger comes again.
    const auto now = deadline::clock::now();
    c->starves_since = std::min(c->starves_since, now);
    c->last_heard.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    c->no_memory = now - c->starves_since >= options.lost_after;
    good = starves = !stranger && !c->no_memory;
  }
  c->over = !good;
  c->left = left;
  arm(*c);
  of_connection.unlock();
  if (!good) try {
      end(c, left, after);
    } catch (...) {
      starves = true;
    }
  if (more || starves) {
    const std::lock_guard lock(mutex);
    look_again(c, starves ? pause_without_memory_ms : 0);
  }
  const bool begins = !after.empty() && after.front().head.what == socket_frame::kind::begun;
  post(after);
  if (begins) {
    const std::lock_guard lock(mutex);
    all_know = true;
    changed.notify();
  }
  return !starves;
}

CAIRN_BODY bool socket_connections::read_all_of(int rank) {
  std::vector<connection_ptr> of_it;
  {
    const std::lock_guard lock(mutex);
    for (const auto& each : all_)
      if (each.second->peer == rank) of_it.push_back(each.second);
  }
  bool all = true;
  for (const auto& each : of_it) {
    bool held = false;
    {
      const std::lock_guard lock(each->mutex);
      held = each->held;
    }
    all = go_on(each->id, held) && all;
  }
  return all;
}

/// @pre the mutex is locked
CAIRN_BODY void socket_connections::attach(const connection_ptr& c, int rank, bool star) {
  c->peer = rank;
  c->star = star;
  auto& p = peer(rank);
  ++p.open;
  if (p.out == nullptr) p.out = c;
}

CAIRN_BODY void socket_connections::add(const connection_ptr& made, int rank, bool star) {
  const std::lock_guard of_connection(made->mutex);
  const std::lock_guard lock(mutex);
  made->trusted = true;
  made->id = next_id_++;
  made->armed = EPOLLIN;
  // The thread looks for it once the mutex is free. Where there is no room for it, nothing is left of it.
  all_.try_emplace(made->id, made);
  if (!control(EPOLL_CTL_ADD, made->number(), EPOLLIN, made->id)) {
    const int why = errno;
    all_.erase(made->id);
    fail_system(why, "a rank cannot wait for its connections");
  }
  attach(made, rank, star);
}

CAIRN_BODY void socket_connections::post(std::vector<posting>& all) noexcept {
  for (auto& each : all) {
    try {
      const std::lock_guard lock(each.to->mutex);
      each.to->post(each.head, each.body != nullptr ? std::span(*each.body) : std::span<const std::byte>());
      arm(*each.to);
    } catch (...) {
      // No memory for it. Its reader would wait for ever: the end of the connection tells it.
      ::shutdown(each.to->number(), SHUT_RDWR);
    }
  }
  all.clear();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
