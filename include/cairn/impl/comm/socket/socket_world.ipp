// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_dial.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/comm/socket/socket_service.hpp>
#include <cairn/comm/socket/socket_world.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/shared.hpp>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY socket_world::socket_world(const socket_world_options& options, const link_key& key,
                                      owned<unforked_file> listening, link_address told)
    : in_(detail::make_shared<socket_service>(options, key, std::move(listening), std::move(told))) {
  if (options.size == 1) in_->at = socket_service::phase::begun;
}

CAIRN_BODY socket_world::~socket_world() {
  // The thread that may hold its locks, and use OpenSSL's objects, is in the parent: nothing is freed here.
  if (in_->process.in_child()) static_cast<void>(new (std::nothrow) std::shared_ptr<socket_service>(in_));
}

CAIRN_BODY int socket_world::rank() const noexcept {
  return in_->options.rank;
}

CAIRN_BODY int socket_world::size() const noexcept {
  return in_->options.size;
}

/// Asks flags that outlive the service.
struct socket_watch final : peer_watch {
  explicit socket_watch(std::shared_ptr<socket_service::gone_flags> of) : flags(std::move(of)) {}
  [[nodiscard]] bool is_gone(int rank) const noexcept override {
    return rank >= 0 && static_cast<std::size_t>(rank) < flags->each.size() &&
           flags->each[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }
  std::shared_ptr<socket_service::gone_flags> flags;
};

CAIRN_BODY std::shared_ptr<const peer_watch> socket_world::watch() const {
  return detail::make_shared<socket_watch>(in_->flags);
}

// --- Messages

CAIRN_BODY void socket_world::check(int peer) const {
  in_->process.check("a communicator does not work in a child of fork(); make one there");
  if (peer < 0 || peer >= size())
    fail(error_id::usage_bad_option, "there is no such rank",
         {.expected = "0 to " + std::to_string(size() - 1), .got = std::to_string(peer)});
}

CAIRN_BODY void socket_world::fail_lost(int peer) {
  std::string why, who;
  bool no_memory = false;
  {
    const std::lock_guard lock(in_->mutex);
    why = in_->peer(peer).why;
    who = in_->who(peer);
    no_memory = in_->peer(peer).no_memory;
  }
  if (no_memory)
    fail(error_id::storage_out_of_memory,
         "a rank gave up another one: " + why + "; give its host more memory, or run fewer ranks there",
         {.rank = rank(), .item = in_->options.job, .got = who});
  fail(error_id::peer_lost, "a rank is gone: " + why, {.rank = peer, .item = in_->options.job, .got = who});
}

CAIRN_BODY void socket_world::fail_late(int peer, const char* what) {
  std::string who;
  {
    const std::lock_guard lock(in_->mutex);
    who = in_->who(peer);
    if (const auto& c = in_->peer(peer).out) {
      const auto heard = deadline::clock::time_point(
          deadline::clock::duration(c->last_heard.load(std::memory_order_relaxed)));
      const auto silent = deadline::clock::now() - heard;
      // The system asks a silent host each lost_after / 6.
      const auto unanswered = time_since_answer(c->number());
      if (unanswered > in_->options.lost_after / 2)
        who += "; its host has answered nothing for " + silence_text(unanswered) +
               " and may be lost, or the network between";
      else if (silent > in_->options.lost_after)
        who += "; its host answers, but its process has said nothing for " + silence_text(silent) +
               " and may be stopped (state T in ps)";
    }
  }
  fail(error_id::timeout_peer, what, {.rank = peer, .item = in_->options.job, .got = who});
}

/// Tries all addresses of a rank once; null where none of them is its.
CAIRN_BODY std::shared_ptr<socket_connection> socket_world::try_connect(int to, deadline until,
                                                                        attempt& what) {
  auto& in = *in_;
  link_address place;
  {
    const std::lock_guard lock(in.mutex);
    const auto& p = in.peer(to);
    if (p.out != nullptr) return p.out;
    if (p.gone) return nullptr;
    place = p.place.from;
  }
  for (const auto& host : place.hosts) {
    auto made = dial(in, host, place.port, place.link, until);
    if (made.answer && made.answer->what == socket_answer::status::welcome) {
      in.add(made.connection, to, false);
      // Its own may have come meanwhile. All messages go over one, or they would overtake each other.
      const std::lock_guard lock(in.mutex);
      const auto& out = in.peer(to).out;
      return out != nullptr ? out : made.connection;
    }
    // The same address may be that of another host, or of another network.
    what.lacks = what.lacks || made.lacks;
    what.silent = what.silent || made.silent;
    what.says_nothing = what.says_nothing || made.lacks || (made.reached && !made.answer) ||
                        (made.answer && made.answer->what == socket_answer::status::given_up);
    if (!made.text.empty()) what.found = made.text;
    if (until.passed()) break;
  }
  return nullptr;
}

/// Tries to reach a rank that has no connection, one after another, and finds out by them whether it is lost.
struct socket_world::reaching {
  reaching(socket_world& of, int rank) : world(of), to(rank) {}

  /// Null where it was not reached; it may be gone then.
  std::shared_ptr<socket_connection> once(deadline until) {
    auto& in = *world.in_;
    const auto may_be_silent = in.options.stopped_after;
    bool judges = false;  // rank 0 tells who is stopped, and without it nobody does
    {
      const std::lock_guard lock(in.mutex);
      judges = may_be_silent.count() > 0 && in.peer(0).gone;
    }
    last = {};
    const auto began = deadline::clock::now();
    auto made = world.try_connect(to, judges ? until.earlier(deadline::in(may_be_silent)) : until, last);
    failed = made != nullptr || last.says_nothing ? 0 : failed + 1;
    silent = judges && made == nullptr && last.silent ? silent + 1 : 0;
    if (silent == 1) silent_since = began;
    if (failed >= tries_before_lost && reached_by.passed())
      in.lose(to, " cannot be reached: " + last.found);
    else if (silent >= tries_before_lost && deadline::clock::now() - silent_since >= may_be_silent)
      in.lose(to, " takes connections and says nothing; its process is stopped, or gets no processor");
    return made;
  }

  attempt last;

 private:
  /// One alone may have failed because this host, and not the other, stood still.
  static constexpr int tries_before_lost = 2;

  socket_world& world;
  const int to;
  const deadline reached_by = deadline::in(world.in_->options.lost_after);
  int failed = 0, silent = 0;  // one after another
  deadline::clock::time_point silent_since;
};

/// A connection to a rank that has none yet.
CAIRN_BODY std::shared_ptr<socket_connection> socket_world::connect(int to, deadline until) {
  auto& in = *in_;
  backoff pause(std::chrono::milliseconds(20), std::chrono::milliseconds(500));
  for (reaching tries(*this, to);;) {
    if (auto made = tries.once(until)) return made;
    bool gone = false;
    {
      const std::lock_guard lock(in.mutex);
      gone = in.peer(to).gone;
    }
    if (gone) fail_lost(to);
    if (!pause.wait(until)) {
      if (tries.last.lacks)
        fail(error_id::storage_limit,
             "this rank could not connect to another one by the deadline: it, or its host, has no more "
             "descriptors, ports or memory; close files, or raise the limit of open files (ulimit -n)",
             {.rank = rank(), .item = in.options.job, .got = tries.last.found});
      fail_late(to, "a rank did not answer by the deadline");
    }
  }
}

CAIRN_BODY void socket_world::send(int to, std::span<const std::byte> bytes, deadline until) {
  auto& in = *in_;
  check(to);
  if (bytes.size() > max_message_bytes)
    fail(error_id::usage_overflow, "a message is longer than 1 GiB", {.rank = rank()});
  std::shared_ptr<socket_connection> c;
  {
    const std::lock_guard lock(in.mutex);
    auto& p = in.peer(to);
    if (to == rank()) {
      p.ready.emplace_back(bytes.begin(), bytes.end());
      return;
    }
    c = p.out;
    if (p.gone) c = nullptr;
  }
  if (c == nullptr) c = connect(to, until);
  const auto head = encode(socket_frame{.what = socket_frame::kind::message, .bytes = bytes.size()});
  std::size_t done = 0;
  bool begun = false;
  using state = socket_progress::state;
  for (;;) {
    auto what = state::moved;
    {
      const std::lock_guard lock(c->mutex);
      if (!begun) what = c->flush();
      if (what == state::moved) {
        begun = c->in_message = true;
        what = c->write(head, bytes, done);
      }
      if (what == state::moved) {
        c->in_message = false;
        if (c->has_waiting()) static_cast<void>(c->flush());
        in.arm(*c);
        return;
      }
      if (begun && (what == state::ended || until.passed())) {
        c->in_message = false;
        try {
          if (what != state::ended) c->leave_rest(head, bytes, done);
        } catch (...) {
          // Nothing can follow half a message.
          ::shutdown(c->number(), SHUT_RDWR);
        }
        in.arm(*c);
      }
    }
    if (what != state::ended &&
        in.flags->each[static_cast<std::size_t>(to)].load(std::memory_order_acquire)) {
      // It was found to be gone, or stopped: the system may hold on to what it does not take for much longer.
      const std::lock_guard lock(c->mutex);
      c->in_message = false;
      ::shutdown(c->number(), SHUT_RDWR);
      what = state::ended;
    }
    if (what == state::ended) {
      // What it had sent before comes first.
      ::shutdown(c->number(), SHUT_RDWR);
      in.read_all_of(to);
      in.end(c, false);
      fail_lost(to);
    }
    if (until.passed()) fail_late(to, "a rank took no message, or not all of one, by the deadline");
    static_cast<void>(poll_one(c->number(), what == state::wants_read ? POLLIN : POLLOUT,
                               until.earlier(deadline::in(std::chrono::milliseconds(100)))));
  }
}

/// While it lives, the caller of receive() reads a connection itself, which spares it to be woken by the thread.
struct held_connection {
  held_connection(socket_service& of, std::size_t first_bytes, std::span<std::byte> land_in)
      : service(of), first(first_bytes), rest(land_in) {}
  held_connection(const held_connection&) = delete;
  held_connection& operator=(const held_connection&) = delete;
  ~held_connection() { hold(nullptr); }
  /// Whether it was not held before.
  bool hold(const std::shared_ptr<socket_connection>& next) {
    if (next == held) return false;
    if (held != nullptr) {
      {
        const std::lock_guard lock(held->mutex);
        held->end_landing();
      }
      service.hold(held, false);
    }
    held = next;
    if (held != nullptr) {
      service.hold(held, true);
      const std::lock_guard lock(held->mutex);
      held->land(first, rest);
    }
    return held != nullptr;
  }
  socket_service& service;
  const std::size_t first;
  const std::span<std::byte> rest;
  std::shared_ptr<socket_connection> held;
};

CAIRN_BODY std::vector<std::byte> socket_world::receive(int from, deadline until) {
  return take_next(from, 0, {}, until).sent;
}
CAIRN_BODY borrowed_message socket_world::borrow(int from, deadline until) {
  return borrow_into(from, 0, {}, until);
}
CAIRN_BODY borrowed_message socket_world::borrow_into(int from, std::size_t first, std::span<std::byte> rest,
                                                      deadline until) {
  auto message = take_next(from, first, rest, until);
  const auto bytes = message.sent.size();
  if (message.landed || !spare_buffers::is_worth_it(bytes)) return message;
  return {{}, {in_->spares.share(std::move(message.sent)), bytes}};
}

/// The next message, as one that was sent.
CAIRN_BODY borrowed_message socket_world::take_next(int from, std::size_t first, std::span<std::byte> rest,
                                                    deadline until) {
  auto& in = *in_;
  check(from);
  held_connection own(in, first, rest);
  auto next_look = deadline::in(std::chrono::seconds(1));
  bool all_read = false;
  for (reaching tries(*this, from);;) {
    const auto seen = in.changed.current();
    const auto without_memory = [&] {
      in.changed.wait(seen, until.earlier(deadline::in(std::chrono::milliseconds(pause_without_memory_ms))));
    };
    bool lost = false, alone = false, read = false;
    auto next = until;
    std::shared_ptr<socket_connection> over_which;
    {
      std::unique_lock lock(in.mutex);
      auto& p = in.peer(from);
      if (!p.ready.empty()) {
        borrowed_message message{std::move(p.ready.front()), {}, std::exchange(p.landed, false)};
        p.ready.pop_front();
        if (from == rank()) return message;
        p.ready_bytes -= message.sent.size() + sizeof message.sent;
        const bool resumes = p.paused && p.ready_bytes < max_message_bytes / 2;
        lock.unlock();
        if (resumes) in.resume(from);
        return message;
      }
      // What it sent before its end may still be under way over another connection, which ends, too, where it left in peace.
      const auto over = p.gone_at + (p.left ? std::min<std::chrono::nanoseconds>(in.options.lost_after,
                                                                                 std::chrono::minutes(1))
                                            : std::chrono::seconds(1));
      lost = p.gone && (p.open == 0 || all_read);
      read = p.gone && p.open > 0 && deadline::clock::now() >= over;
      if (p.gone) next = next.earlier(deadline::at(over));
      alone = p.open == 0 && !p.gone && from != 0 && in.peer(0).gone;
      if (!p.gone && !p.paused) over_which = p.in;
    }
    if (lost) fail_lost(from);
    if (read) {
      // The thread that reads it may have had no turn for as long.
      all_read = in.read_all_of(from);
      if (!all_read) without_memory();
      continue;
    }
    if (from == rank() || until.passed())
      fail_late(from, from == rank() ? "a rank waits for a message to itself that it has not sent"
                                     : "no message came by the deadline");
    // Rank 0 tells who is gone. Without it, a connection does.
    if (alone) {
      if (next_look.passed()) {
        static_cast<void>(tries.once(until.earlier(deadline::in(std::chrono::seconds(2)))));
        next_look = deadline::in(std::chrono::seconds(1));
        continue;
      }
      next = next.earlier(next_look);
    }
    if (own.hold(over_which)) {
      // What the thread has left, of which poll() may know nothing.
      if (!in.go_on(over_which->id, true)) without_memory();
      continue;
    }
    if (over_which == nullptr) {
      in.changed.wait(seen, next);
    } else {
      // A rank sends over one connection alone. What others tell of it is looked at a few times a second.
      next = next.earlier(deadline::in(std::chrono::milliseconds(50)));
      if (poll_one(over_which->number(), POLLIN, next) && !in.go_on(over_which->id, true)) without_memory();
    }
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
