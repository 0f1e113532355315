// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/comm/socket/socket_service.hpp>
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
#include <cairn/system/wire.hpp>

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
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

inline constexpr std::uint64_t socket_of_listener = 0, socket_of_wake = 1;
inline constexpr std::size_t max_socket_strangers = 64;

struct socket_service::gone_flags {
  explicit gone_flags(int size) : each(static_cast<std::size_t>(size)) {}
  std::vector<std::atomic<bool>> each;
};

inline std::string name_of_host() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

CAIRN_BODY socket_service::socket_service(const socket_world_options& told, const link_key& key,
                                          owned<unforked_file> listening, link_address own_address)
    : options(told),
      context(key),
      own(std::move(own_address)),
      host(name_of_host()),
      peers(static_cast<std::size_t>(told.size)),
      flags(detail::make_shared<gone_flags>(told.size)),
      listener_(std::move(listening)) {
  peer(options.rank).place = {host, own};
  if (listener_ == nullptr) return;
  poller_ = file_descriptor(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = file_descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poller_.open() || !wake_.open() ||
      !control(EPOLL_CTL_ADD, listener_->get(), EPOLLIN, socket_of_listener) ||
      !control(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, socket_of_wake))
    fail_system(errno, "a rank has no descriptors for its connections");
  if (!thread_.start("cairn sockets", [this] { serve(); }))
    fail(error_id::storage_limit,
         "the system gives a rank no thread for its connections; raise the limit of processes (ulimit -u)");
}

CAIRN_BODY socket_service::~socket_service() {
  if (!thread_.joinable()) return;
  std::vector<posting> goodbyes;
  {
    const std::lock_guard lock(mutex);
    for (const auto& each : all_)
      if (each.second->peer >= 0)
        goodbyes.push_back({each.second, {.what = socket_frame::kind::goodbye}, nullptr});
    end_by_ = deadline::in(std::chrono::seconds(2)).time_point();
  }
  post(goodbyes);
  goodbyes.clear();
  ending_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  thread_.join();
}

CAIRN_BODY bool socket_service::control(int what, int number, std::uint32_t events,
                                        std::uint64_t id) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return ::epoll_ctl(poller_.get(), what, number, &event) == 0;
}

CAIRN_BODY void socket_service::serve() noexcept {
  detail::wait_for_a_turn();
  std::vector<std::uint64_t> unfinished;
  for (;;) {
    std::array<epoll_event, 64> events;
    {
      const std::lock_guard lock(mutex);
      unfinished.swap(unfinished_);
    }
    const int ready = ::epoll_wait(poller_.get(), events.data(), static_cast<int>(events.size()),
                                   unfinished.empty() ? next_turn() : 0);
    try {
      for (const auto id : unfinished) go_on(id, false);
      unfinished.clear();
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
      sweep();
    } catch (...) {
      // Memory ran out, which has closed what it ran out for; peers that come ask again.
    }
    if (ending_.load(std::memory_order_acquire) && all_have_heard()) return;
  }
}

/// How long the thread sleeps if nothing comes, in milliseconds.
CAIRN_BODY int socket_service::next_turn() const noexcept {
  const auto now = deadline::clock::now();
  if (ending_.load(std::memory_order_relaxed)) return 20;
  const auto left = std::clamp<std::chrono::nanoseconds>(next_beat_ - now, std::chrono::nanoseconds(0),
                                                         std::chrono::seconds(1));
  const auto sweeps = std::clamp<std::chrono::nanoseconds>(next_sweep_ - now, std::chrono::nanoseconds(0),
                                                           std::chrono::seconds(1));
  return static_cast<int>(std::min(left, sweeps).count() / 1'000'000) + 1;
}

CAIRN_BODY bool socket_service::all_have_heard() {
  const std::lock_guard lock(mutex);
  if (deadline::clock::now() >= end_by_) return true;
  for (const auto& each : all_)
    if (each.second->peer >= 0) return false;
  return true;
}

CAIRN_BODY void socket_service::accept_some() {
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
      last_refused = "rank " + std::to_string(options.rank) +
                     " could not take a connection: " + std::generic_category().message(why) +
                     (why == EMFILE ? "; raise the limit of its open files (ulimit -n)" : "");
      return;
    }
    prepare_socket(made->get(), options.lost_after);
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
CAIRN_BODY void socket_service::forget(const connection_ptr& c) noexcept {
  if (!all_.holds(c->id)) return;
  control(EPOLL_CTL_DEL, c->number(), 0, c->id);
  if (c->peer < 0) --strangers_;
  all_.erase(c->id);
}

CAIRN_BODY void socket_service::arm(socket_connection& c) noexcept {
  const bool out = c.has_waiting() && !c.in_message;
  // Of one that is not to be read, its end is told once.
  const std::uint32_t events = (c.paused || c.held ? EPOLLET : EPOLLIN) | (out ? EPOLLOUT : 0U);
  if (events == c.armed || c.id == 0) return;
  c.armed = events;
  control(EPOLL_CTL_MOD, c.number(), events, c.id);
}

CAIRN_BODY void socket_service::resume(int rank) {
  std::vector<connection_ptr> paused;
  {
    const std::lock_guard lock(mutex);
    peer(rank).paused = false;
    for (const auto& each : all_)
      if (each.second->peer == rank) {
        paused.push_back(each.second);
        unfinished_.push_back(each.first);
      }
  }
  for (const auto& each : paused) {
    const std::lock_guard lock(each->mutex);
    each->paused = false;
    arm(*each);
  }
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
}

CAIRN_BODY void socket_service::hold(socket_connection& c, bool held) {
  const std::lock_guard lock(c.mutex);
  c.held = held;
  arm(c);
  if (held || !std::exchange(c.more, false)) return;
  const std::lock_guard of_all(mutex);
  unfinished_.push_back(c.id);
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
}

CAIRN_BODY void socket_service::go_on(std::uint64_t id, bool by_caller) {
  connection_ptr c;
  bool stranger = false, pause = false;
  {
    const std::lock_guard lock(mutex);
    const auto at_id = all_.find(id);
    if (at_id == all_.end()) return;
    c = at_id->second;
    stranger = c->peer < 0;
    if (!stranger && peer(c->peer).ready_bytes >= max_message_bytes) peer(c->peer).paused = true;
    if (!stranger) pause = peer(c->peer).paused;
  }
  std::vector<posting> after;
  bool good = true, left = false, more = false;
  try {
    const std::lock_guard lock(c->mutex);
    auto progress = socket_progress::state::moved;
    if (!c->trusted) {
      progress = c->handshake().what;
      c->trusted = progress == socket_progress::state::moved;
      good = progress != socket_progress::state::ended;
    }
    if (good && c->trusted) {
      if (!c->in_message) good = c->flush() != socket_progress::state::ended;
      c->paused = pause;
      if (good && !c->paused && c->held == by_caller) {
        const auto longest = stranger ? max_hello_bytes : max_message_bytes;
        const auto came = c->read(
            [&](received_frame&& frame) { return take(c, std::move(frame), after, good, left); }, longest);
        good = good && came != socket_progress::state::ended;
        // Perhaps decrypted already, of which epoll knows nothing.
        more = came == socket_progress::state::moved && !by_caller;
        c->more = came == socket_progress::state::moved && by_caller;
      }
    }
    if (good) arm(*c);
  } catch (...) {
    good = false;
  }
  if (!good) {
    end(c, left, after);
  } else if (more) {
    const std::lock_guard lock(mutex);
    unfinished_.push_back(id);
  }
  const bool begins = !after.empty() && after.front().head.what == socket_frame::kind::begun;
  post(after);
  if (!begins) return;
  const std::lock_guard lock(mutex);
  all_know = true;
  changed.notify();
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
  if (options.rank == 0 && from->star && !peer(from->peer).came && frame.head.what != kind::goodbye) {
    peer(from->peer).came = true;
    ++peers_came;
    begin_if_all_came(after);
    changed.notify();
  }
  const bool of_rank_0 = from->peer == 0 && from->star;
  switch (frame.head.what) {
    case kind::message: {
      auto& p = peer(from->peer);
      p.ready_bytes += frame.body.size() + sizeof frame.body;
      p.ready.push_back(std::move(frame.body));
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
  } else if (at == phase::given_up || ending_.load(std::memory_order_relaxed) || peer(hello.rank).gone) {
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

/// @pre the mutex is locked
CAIRN_BODY void socket_service::attach(const connection_ptr& c, int rank, bool star) {
  c->peer = rank;
  c->star = star;
  auto& p = peer(rank);
  ++p.open;
  if (p.out == nullptr) p.out = c;
}

CAIRN_BODY void socket_service::add(const connection_ptr& made, int rank, bool star) {
  const std::lock_guard of_connection(made->mutex);
  const std::lock_guard lock(mutex);
  made->trusted = true;
  made->id = next_id_++;
  made->armed = EPOLLIN;
  all_.try_emplace(made->id, made);
  attach(made, rank, star);
  if (!control(EPOLL_CTL_ADD, made->number(), EPOLLIN, made->id))
    fail_system(errno, "a rank cannot wait for its connections");
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
  for (const auto& each : all_)
    if (each.second->peer > 0) after.push_back({each.second, {.what = socket_frame::kind::begun}, body});
  at = phase::begun;
}

CAIRN_BODY void socket_service::post(std::vector<posting>& all) noexcept {
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

CAIRN_BODY std::string socket_service::who(int rank) const {
  const auto& place = peers[static_cast<std::size_t>(rank)].place;
  std::string text = "rank " + std::to_string(rank);
  if (!place.host.empty()) text += " on " + place.host;
  if (!place.from.hosts.empty()) text += " (" + place.from.hosts.front() + ")";
  return text;
}

CAIRN_BODY std::vector<std::byte> socket_service::hello(std::uint64_t wanted) const {
  return encode(socket_hello{wanted, options.rank, options.size, options.job, host, own});
}

/// @pre the mutex is locked
CAIRN_BODY void socket_service::mark_gone(int rank, bool left, std::string why) {
  auto& p = peer(rank);
  if (!p.gone) {
    p.gone = true;
    p.left = left;
    p.gone_at = deadline::clock::now();
    p.why = std::move(why);
    flags->each[static_cast<std::size_t>(rank)].store(true, std::memory_order_release);
  }
  changed.notify();
}

CAIRN_BODY void socket_service::lose(int rank, const std::string& why) {
  const std::lock_guard lock(mutex);
  mark_gone(rank, false, who(rank) + why);
}

CAIRN_BODY void socket_service::end(const connection_ptr& ended, bool left) {
  std::vector<posting> after;
  end(ended, left, after);
  post(after);
}
CAIRN_BODY void socket_service::end(const connection_ptr& ended, bool left, std::vector<posting>& after) {
  const std::lock_guard lock(mutex);
  if (!all_.holds(ended->id)) return;
  forget(ended);
  const int rank = ended->peer;
  if (rank < 0) return;
  auto& p = peer(rank);
  --p.open;
  if (p.out == ended) p.out.reset();
  if (p.in == ended) p.in.reset();
  if (ending_.load(std::memory_order_relaxed)) return;
  if ((left || !p.came) && options.rank == 0 && at == phase::gathering) {
    // It gave up to wait, for the others or for its answer. It may come again.
    last_refused =
        who(rank) + (left ? " gave up to wait" : " closed its connection before it had its answer");
    let_come_again(p);
    changed.notify();
    return;
  }
  const auto heard = deadline::clock::time_point(
      deadline::clock::duration(ended->last_heard.load(std::memory_order_relaxed)));
  const auto silent = deadline::clock::now() - heard;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silent).count();
  const bool first = !p.gone;
  const bool stopped = options.stopped_after.count() > 0 && silent >= options.stopped_after &&
                       time_since_answer(ended->number()) < options.stopped_after / 2;
  auto why = who(rank);
  if (left)
    why += " has left the job";
  else if (stopped)
    why += " has said nothing for " + std::to_string(seconds) +
           " s, though its host answers; its process is stopped, or gets no processor";
  else if (silent * 10 >= std::min(options.lost_after, may_be_silent()) * 9)
    why += " has not answered for " + std::to_string(seconds) + " s; its host or the network to it is gone";
  else
    why += " has closed its connection; its process ended, or something on the way cut it";
  mark_gone(rank, left, why);
  if (!first || options.rank != 0 || at != phase::begun) return;
  const auto* const text = reinterpret_cast<const std::byte*>(why.data());
  const socket_frame head{.what = socket_frame::kind::lost, .left = left, .rank = rank};
  const auto body = detail::make_shared<const std::vector<std::byte>>(text, text + why.size());
  for (const auto& each : all_)
    if (each.second->peer > 0 && each.second->peer != rank) after.push_back({each.second, head, body});
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

/// How long a process may say nothing.
CAIRN_BODY std::chrono::nanoseconds socket_service::may_be_silent() const noexcept {
  return options.stopped_after.count() > 0 ? options.stopped_after : std::chrono::nanoseconds::max();
}

/// Closes strangers that take too long, tells those that came for whom rank 0 waits, says that this rank lives, and ends
/// those that say nothing.
CAIRN_BODY void socket_service::sweep() {
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
  if (!listens_) listens_ = control(EPOLL_CTL_MOD, listener_->get(), EPOLLIN, socket_of_listener);
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
        // Rank 0 hears all, and all hear rank 0, whatever else they have to say to each other.
        if (each.second->star && !peer(each.second->peer).paused &&
            now - std::max(heard, awake_since_) > may_be_silent())
          silent.push_back(each.second);
      }
    }
    for (const auto& each : overdue) forget(each);
  }
  for (const auto& each : silent) end(each, false, after);
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
