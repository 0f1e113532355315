// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/comm/socket/socket_service.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY socket_service::socket_service(const socket_world_options& told, const link_key& key,
                                          owned<unforked_file> listening, link_address own_address)
    : socket_connections(told, key, std::move(listening), std::move(own_address)) {
  start();
}
CAIRN_BODY socket_service::~socket_service() {
  stop();
}

/// How long the thread sleeps if nothing comes, in milliseconds.
CAIRN_BODY int socket_service::sleep_at_most() const noexcept {
  const auto now = deadline::clock::now();
  if (is_ending()) return 20;
  const auto left = std::clamp<std::chrono::nanoseconds>(next_beat_ - now, std::chrono::nanoseconds(0),
                                                         std::chrono::seconds(1));
  const auto sweeps = std::clamp<std::chrono::nanoseconds>(next_sweep_ - now, std::chrono::nanoseconds(0),
                                                           std::chrono::seconds(1));
  return static_cast<int>(std::min(left, sweeps).count() / 1'000'000) + 1;
}

/// What a frame does. False where the reading is to stop; `good` false: the connection is to end.
CAIRN_BODY bool socket_service::take(const connection_ptr& from, received_frame&& frame,
                                     std::vector<posting>& after, bool& good, bool& left) {
  using kind = socket_frame::kind;
  connection_ptr replaced;  // after the lock
  std::unique_lock lock(mutex);
  if (from->peer < 0) {
    const auto said = frame.head.what == kind::hello ? decode_socket_hello(frame.body) : std::nullopt;
    if (!said) return good = false;
    const auto answer = admit(from, *said, replaced);
    lock.unlock();
    from->post({.what = kind::answer}, encode(answer));
    if (answer.what != socket_answer::status::welcome) return good = false;
    return false;  // what follows may be longer than a hello
  }
  if (options.rank == 0 && from->star && at == phase::gathering && frame.head.what != kind::goodbye) {
    if (!std::exchange(peer(from->peer).came, true)) ++peers_came;
    begin_if_all_came(after);
    changed.notify();
  }
  const bool of_rank_0 = from->peer == 0 && from->star;
  switch (frame.head.what) {
    case kind::message: {
      auto& p = peer(from->peer);
      if (!p.ready.empty() && !frame.rest.empty()) {  // who waits gets another one first
        frame.body.insert(frame.body.end(), frame.rest.begin(), frame.rest.end());
        frame.rest = {};
      }
      const auto bytes = frame.body.size() + sizeof frame.body;
      p.ready.push_back(std::move(frame.body));
      p.ready_bytes += bytes;
      if (p.ready.size() == 1) p.landed = !frame.rest.empty();
      if (p.in != from) p.in = from;
      changed.notify();
      return p.ready_bytes < max_message_bytes;
    }
    case kind::heartbeat:
      return true;
    case kind::goodbye:
      left = true;
      return good = false;
    case kind::waiting:
      if (!of_rank_0) return good = false;
      waiting_for.assign(reinterpret_cast<const char*>(frame.body.data()), frame.body.size());
      first_missing = frame.head.rank;
      return true;
    case kind::begun: {
      auto places = decode_socket_places(frame.body);
      if (!of_rank_0 || at != phase::gathering || !places || places->size() != peers.size())
        return good = false;
      for (std::size_t i = 0; i < peers.size(); ++i) peers[i].place = std::move((*places)[i]);
      at = phase::begun;
      changed.notify();
      return true;
    }
    case kind::given_up: {
      if (!of_rank_0 || at != phase::gathering) return good = false;
      try {
        wire_reader in(frame.body);
        failure = decode_failure(in, 0);
      } catch (const wire_error&) {
        failure = make_failure(error_id::peer_failed, "rank 0 gave up to wait for the others", {.rank = 0});
      }
      at = phase::given_up;
      changed.notify();
      return true;
    }
    case kind::lost:
      if (!of_rank_0 || frame.head.rank < 0 || frame.head.rank >= options.size) return good = false;
      mark_gone(frame.head.rank, frame.head.left,
                std::string(reinterpret_cast<const char*>(frame.body.data()), frame.body.size()));
      return true;
    case kind::hello:
    case kind::answer:
      break;
  }
  return good = false;
}

/// @pre the mutex is locked
CAIRN_BODY socket_answer socket_service::admit(const connection_ptr& from, const socket_hello& hello,
                                               connection_ptr& replaced) {
  using status = socket_answer::status;
  socket_answer answer{.size = options.size, .text = options.job};
  if (options.rank == 0 && at == phase::gathering && hello.rank > 0 && hello.rank < options.size) {
    // The same process tries again before it is seen here that it gave up its last try.
    auto& p = peer(hello.rank);
    if (p.admitted && !p.came && p.place.from.link == hello.from.link) {
      replaced = p.out;
      if (replaced != nullptr) forget(replaced);
      p.open = 0;
      p.out.reset();
      let_come_again(p);
    }
  }
  if (hello.job != options.job) {
    answer.what = status::other_job;
  } else if (hello.size != options.size) {
    answer.what = status::other_size;
  } else if (hello.rank < 0 || hello.rank >= options.size) {
    answer.what = status::no_such_rank;
  } else if (hello.listener != own.link && (hello.listener != 0 || options.rank != 0)) {
    answer.what = status::other_listener;
  } else if (hello.rank == options.rank || (options.rank == 0 && peer(hello.rank).admitted)) {
    answer.what = status::taken;
    answer.text = who(hello.rank);
  } else if (at == phase::given_up || is_ending() || peer(hello.rank).gone) {
    answer.what = status::given_up;
  } else {
    auto& p = peer(hello.rank);
    if (options.rank == 0) {
      p.admitted = true;
      p.place = {hello.host, hello.from};
      auto& hosts = p.place.from.hosts;
      hosts.erase(std::remove(hosts.begin(), hosts.end(), from->where()), hosts.end());
      hosts.insert(hosts.begin(), from->where());
    }
    from->due = deadline::clock::time_point::max();
    --strangers_;
    attach(from, hello.rank, options.rank == 0);
  }
  if (answer.what != status::welcome)
    last_refused = "rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.size) + " on " +
                   hello.host + " (" + from->where() + ") of job '" + hello.job + "' was not admitted";
  return answer;
}

/// @pre the mutex is locked
CAIRN_BODY void socket_service::let_come_again(socket_peer& p) noexcept {
  if (std::exchange(p.came, false)) --peers_came;
  p.admitted = false;
}

CAIRN_BODY void socket_service::begin_if_all_came(std::vector<posting>& after) {
  if (options.rank != 0 || at != phase::gathering) return;
  if (peers_came + 1 < options.size) return;
  for (int rank = 1; rank < options.size; ++rank)
    if (peer(rank).gone) return;
  std::vector<socket_place> places;
  places.reserve(peers.size());
  for (const auto& each : peers) places.push_back(each.place);
  const auto body = detail::make_shared<const std::vector<std::byte>>(encode(places));
  after.reserve(after.size() + all_.size());  // all are told, or none yet
  for (const auto& each : all_)
    if (each.second->peer > 0) after.push_back({each.second, {.what = socket_frame::kind::begun}, body});
  at = phase::begun;
}

CAIRN_BODY void socket_service::end(const connection_ptr& ended, bool left) {
  std::vector<posting> after;
  end(ended, left, after);
  post(after);
}

CAIRN_BODY void socket_service::end(const connection_ptr& ended, bool left, std::vector<posting>& after) {
  const std::lock_guard lock(mutex);
  if (!all_.holds(ended->id)) return;
  const int rank = ended->peer;
  if (rank < 0) return forget(ended);
  auto& p = peer(rank);
  // It gave up to wait, for the others or for its answer, and may come again.
  const bool gave_up = (left || !p.came) && options.rank == 0 && at == phase::gathering;
  const bool first = !p.gone, tells = first && !gave_up && options.rank == 0 && at == phase::begun;
  const auto heard = deadline::clock::time_point(
      deadline::clock::duration(ended->last_heard.load(std::memory_order_relaxed)));
  const auto silent = deadline::clock::now() - heard;
  const bool stopped = options.stopped_after.count() > 0 && silent >= options.stopped_after &&
                       time_since_answer(ended->number()) < options.stopped_after / 2;
  // First all that takes memory: an end that was half done would never be told.
  auto why = who(rank);
  if (gave_up)
    why += left ? " gave up to wait" : " closed its connection before it had its answer";
  else if (ended->no_memory)
    why = who(options.rank) + " ran out of memory for what " + why + " sent";
  else if (left)
    why += " has left the job";
  else if (stopped)
    why += " has said nothing for " + silence_text(silent) +
           ", though its host answers; its process is stopped, or gets no processor";
  else if (silent * 10 >= std::min(options.lost_after, may_be_silent()) * 9)
    why += " has not answered for " + silence_text(silent) + "; its host or the network to it is gone";
  else
    why += " has closed its connection; its process ended, or something on the way cut it";
  std::shared_ptr<const std::vector<std::byte>> text;
  if (tells) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(why.data());
    text = detail::make_shared<const std::vector<std::byte>>(bytes, bytes + why.size());
    after.reserve(after.size() + all_.size());
  }
  forget(ended);
  --p.open;
  if (p.out == ended) p.out.reset();
  if (p.in == ended) p.in.reset();
  if (is_ending()) return;
  if (gave_up) {
    last_refused = std::move(why);
    let_come_again(p);
    changed.notify();
    return;
  }
  if (first) p.no_memory = ended->no_memory;
  mark_gone(rank, left, std::move(why));
  if (!tells) return;
  const socket_frame head{.what = socket_frame::kind::lost, .left = left, .rank = rank};
  for (const auto& each : all_)
    if (each.second->peer > 0 && each.second->peer != rank) after.push_back({each.second, head, text});
}

CAIRN_BODY void socket_service::give_up(const std::exception_ptr& why) {
  std::vector<posting> after;
  {
    const std::lock_guard lock(mutex);
    if (at != phase::gathering) return;
    at = phase::given_up;
    failure = why;
    const auto body = detail::make_shared<const std::vector<std::byte>>(encode_failure(why));
    for (const auto& each : all_)
      if (each.second->peer > 0) after.push_back({each.second, {.what = socket_frame::kind::given_up}, body});
  }
  post(after);
}

CAIRN_BODY std::string silence_text(std::chrono::nanoseconds silent) {
  const auto tenths = silent / std::chrono::milliseconds(100);
  return std::to_string(tenths / 10) + (tenths < 100 ? "." + std::to_string(tenths % 10) : "") + " s";
}

/// How long a process may say nothing.
CAIRN_BODY std::chrono::nanoseconds socket_service::may_be_silent() const noexcept {
  return options.stopped_after.count() > 0 ? options.stopped_after : std::chrono::nanoseconds::max();
}

/// Closes strangers that take too long, tells those that came for whom rank 0 waits, says that this rank lives, and ends
/// those that say nothing.
CAIRN_BODY void socket_service::take_turn() {
  const auto now = deadline::clock::now();
  if (now < next_sweep_ && now < next_beat_) return;
  const auto beat_every = std::min(options.lost_after, may_be_silent()) / 4;
  const bool beat = now >= next_beat_;
  if (beat) {
    // Where this process stood still itself, what others said meanwhile has not been read yet.
    if (now - last_beat_ > beat_every) awake_since_ = now;
    last_beat_ = now;
    next_beat_ = now + beat_every / 2;
  }
  listen_again();
  if (now >= next_sweep_) spares.drop_unused();
  std::vector<connection_ptr> overdue, quiet, silent;
  std::vector<posting> after;
  {
    const std::lock_guard lock(mutex);
    const bool gathering = at == phase::gathering && options.rank == 0;
    if (at == phase::gathering) awake_since_ = now;  // those that wait say nothing
    next_sweep_ = now + (strangers_ > 0 ? std::chrono::milliseconds(100)
                         : gathering    ? std::chrono::milliseconds(500)
                                        : std::chrono::milliseconds(1000));
    std::string missing;
    int first = -1, count = 0;
    for (int rank = 1; gathering && rank < options.size; ++rank) {
      if (peer(rank).came) continue;
      if (first < 0) first = rank;
      if (++count <= 16) missing += (count == 1 ? "" : ", ") + std::to_string(rank);
    }
    if (count > 16) missing += " and " + std::to_string(count - 16) + " more";
    const auto* const text = reinterpret_cast<const std::byte*>(missing.data());
    const auto body = detail::make_shared<const std::vector<std::byte>>(text, text + missing.size());
    for (const auto& each : all_) {
      if (each.second->peer < 0) {
        if (each.second->due <= now) overdue.push_back(each.second);
      } else if (gathering) {
        after.push_back({each.second, {.what = socket_frame::kind::waiting, .rank = first}, body});
      } else if (beat) {
        quiet.push_back(each.second);
        const auto heard = deadline::clock::time_point(
            deadline::clock::duration(each.second->last_heard.load(std::memory_order_relaxed)));
        // Rank 0 hears all, and all hear rank 0, whatever else they have to say to each other. Once it is gone, nobody
        // else tells who is silent; and what one that is gone had sent comes over another connection, or not at all.
        const auto& p = peer(each.second->peer);
        if ((each.second->star || p.gone || peer(0).gone) && !p.paused &&
            now - std::max(heard, awake_since_) > may_be_silent())
          silent.push_back(each.second);
      }
    }
    for (const auto& each : overdue) forget(each);
  }
  for (const auto& each : silent) end(each, false);
  for (const auto& each : quiet) {
    const std::lock_guard lock(each->mutex);
    if (each->in_message || each->has_waiting() || now - each->last_sent < beat_every / 2) continue;
    each->post({.what = socket_frame::kind::heartbeat}, {});
    arm(*each);
  }
  post(after);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
