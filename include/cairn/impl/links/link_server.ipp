// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/links/link_frame.hpp>
#include <cairn/links/link_server.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/links/offer_table.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/sorted_map.hpp>
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
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a connection waits for before it goes on.
enum class link_wait : std::uint8_t { readable, writable, offer, turn, never };

/// A connection that a link_server has accepted. One thread at a time goes on with it.
struct link_server::connection {
  connection(const tls_context& with, owned<unforked_file> connected)
      : context(with), socket(with, std::move(connected), secure_socket::side::server) {}

  /// Goes on as far as it can. `never`: it is to be closed.
  link_wait go_on(offer_table& offers, const link_server_options& options, std::atomic<std::uint64_t>& sent) {
    std::size_t budget = std::size_t{8} << 20;  // then others have their turn
    for (;;) {
      link_wait next = link_wait::turn;
      switch (at) {
        case phase::handshake:
          next = told(socket.handshake());
          if (next == link_wait::turn) at = phase::request;
          break;
        case phase::request:
          next = read_request(offers, options);
          break;
        case phase::awaiting:
          next = look_for_offer(offers);
          break;
        case phase::answer:
          next = write_all(answer);
          if (next == link_wait::turn) begin_block();
          break;
        case phase::block: {
          const auto before = block_left;
          next = write_block();
          const auto moved = before - block_left;
          sent.fetch_add(moved, std::memory_order_relaxed);
          if (moved >= budget) return next == link_wait::turn ? link_wait::writable : next;
          budget -= moved;
          break;
        }
        case phase::block_end:
          next = write_all(std::span<const std::byte>(end.data(), plain ? end.size() : 1));
          if (next == link_wait::turn) {
            if (!good) left = 0;  // what follows was withdrawn, too
            begin_block();
          }
          break;
      }
      if (next != link_wait::turn) return next;
    }
  }

  /// Whether somebody waits for bytes of it.
  [[nodiscard]] bool owes() const noexcept {
    return at != phase::awaiting && (at != phase::request || have > 0);
  }

  // Under the server's mutex.
  bool busy = false;
  deadline::clock::time_point due = deadline::clock::time_point::max();  // when it is given up
  bool awaits = false;

  const tls_context& context;
  secure_socket socket;

 private:
  enum class phase : std::uint8_t { handshake, request, awaiting, answer, block, block_end };

  link_wait told(socket_progress progress) noexcept {
    switch (progress.what) {
      case socket_progress::state::moved:
        return link_wait::turn;
      case socket_progress::state::wants_read:
        return link_wait::readable;
      case socket_progress::state::wants_write:
        return link_wait::writable;
      case socket_progress::state::ended:
        break;
    }
    return link_wait::never;
  }

  link_wait read_request(offer_table& offers, const link_server_options& options) {
    std::size_t wanted = request_head_bytes;
    if (have >= request_head_bytes) {
      const auto size = request_bytes(std::span<const std::byte>(request).first(request_head_bytes));
      if (!size) return link_wait::never;
      wanted = *size;
    }
    if (have < wanted) {
      const auto got = socket.read(std::span(request).subspan(have, wanted - have));
      have += got.bytes;
      return told(got);
    }
    const auto read = decode_request(std::span<const std::byte>(request).first(have));
    have = 0;
    if (!read) return link_wait::never;
    link_answer made;
    left = 0;
    reading.reset();
    if (read->link != options.link) {
      made.what = link_answer::status::other_link;
    } else if (read->what == link_request::kind::await_offer) {
      awaited = read->key;
      at = phase::awaiting;
      return link_wait::turn;
    } else if (read->what == link_request::kind::fetch) {
      reading = offers.begin(read->key);
      if (!reading) {
        made.what = link_answer::status::not_offered;
      } else {
        made.bytes = reading->size();
        if (read->offset > made.bytes || read->length > made.bytes - read->offset) {
          made.what = link_answer::status::outside;
        } else {
          offset = read->offset;
          left = read->length;
          plain = made.plain_bulk = read->plain_bulk && options.plain_bulk;
          // So much and no more may be encrypted with one key (RFC 8446, 5.5): 2^24.5 records.
          if (!plain && (with_this_key += left) > (std::uint64_t{1} << 36)) {
            socket.renew_key();
            with_this_key = 0;
          }
          if (plain && !tag) tag.emplace(context, socket);
        }
        if (left == 0) reading.reset();
      }
    }
    begin_answer(made);
    return link_wait::turn;
  }

  link_wait look_for_offer(offer_table& offers) {
    const auto size = offers.size_of(awaited);
    if (!size) {
      // One that asks again while it waits does not keep to the order; its end shows here, too.
      std::byte more;
      const auto got = socket.read({&more, 1});
      return got.what == socket_progress::state::wants_read ? link_wait::offer : link_wait::never;
    }
    begin_answer({.bytes = *size});
    return link_wait::turn;
  }

  void begin_answer(const link_answer& made) {
    answer = encode(made);
    done = 0;
    at = phase::answer;
  }

  void begin_block() {
    done = 0;
    if (left == 0) {
      reading.reset();
      at = phase::request;
      return;
    }
    block_left = static_cast<std::size_t>(std::min<std::uint64_t>(left, bulk_block_bytes));
    left -= block_left;
    tagged = 0;
    good = true;
    if (plain) tag->begin();
    at = phase::block;
  }

  /// Sends some of the block; what was withdrawn meanwhile is made up by zeros, and the block's end says so.
  link_wait write_block() {
    static constexpr std::array<std::byte, 64 * 1024> zeros{};
    const auto put = [this](std::span<const std::byte> bytes) {
      if (!plain) return socket.write(bytes);
      // The tag is made of what is still in the cache from it, not twice of what was not sent.
      if (bytes.size() > tagged) {
        tag->add(bytes.subspan(tagged));
        tagged = bytes.size();
      }
      const auto progress = socket.write_plain(bytes);
      tagged -= progress.bytes;
      return progress;
    };
    while (block_left > 0) {
      socket_progress progress;
      // Plain: 256 KiB at a time, of which the tag is made before they are sent.
      const auto limit = plain ? std::min(block_left, std::size_t{256} << 10) : block_left;
      good = good &&
             reading->read(offset, limit, [&](std::span<const std::byte> bytes) { progress = put(bytes); });
      if (!good) {
        // Of a record that is encrypted already, the rest is sent, and OpenSSL wants to see as many bytes again.
        tagged = 0;
        progress = plain ? socket.write_plain(std::span(zeros).first(std::min(block_left, zeros.size())))
                         : socket.write(std::span(zeros).first(std::min(block_left, zeros.size())));
      }
      if (progress.what != socket_progress::state::moved) return told(progress);
      offset += progress.bytes;
      block_left -= progress.bytes;
    }
    end = {};
    end[0] = static_cast<std::byte>(good ? 0 : 1);
    if (plain) {
      const auto made = tag->end();
      if (good) std::copy(made.begin(), made.end(), end.begin() + 1);
    }
    done = 0;
    at = phase::block_end;
    return link_wait::turn;
  }

  link_wait write_all(std::span<const std::byte> bytes) {
    while (done < bytes.size()) {
      const auto progress = socket.write(bytes.subspan(done));
      if (progress.what != socket_progress::state::moved) return told(progress);
      done += progress.bytes;
    }
    return link_wait::turn;
  }

  phase at = phase::handshake;
  bool plain = false;
  bool good = true;      // the block is what was offered
  std::size_t have = 0;  // of the request
  std::size_t done = 0;  // of the answer, or of the block's end
  std::uint64_t offset = 0, left = 0;
  std::uint64_t with_this_key = 0;
  std::size_t block_left = 0;
  std::size_t tagged = 0;  // bytes that are not sent and already in the tag
  std::array<std::byte, max_request_bytes> request;
  answer_frame answer;
  std::array<std::byte, 1 + bulk_tag_bytes> end;
  std::optional<offer_reading> reading;
  std::optional<bulk_tag> tag;
  offer_key awaited;
};

struct link_server::inside {
  inside(owned<unforked_file> listening, const tls_context& with, offer_table& served,
         const link_server_options& told)
      : context(with),
        offers(served),
        options(told),
        listener(std::move(listening)),
        poller(::epoll_create1(EPOLL_CLOEXEC)),
        stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!poller.open() || !stop.open()) fail_system(errno, "a link has no descriptors for its connections");
    if (!control(EPOLL_CTL_ADD, listener->get(), EPOLLIN | EPOLLONESHOT, of_listener) ||
        !control(EPOLL_CTL_ADD, stop.get(), EPOLLIN, of_stop))
      fail_system(errno, "a link cannot wait for its connections");
  }

  static constexpr std::uint64_t of_listener = 0, of_stop = 1, of_first_connection = 2;

  bool control(int what, int number, std::uint32_t events, std::uint64_t id) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    return ::epoll_ctl(poller.get(), what, number, &event) == 0;
  }

  void serve() noexcept {
    detail::wait_for_a_turn();
    while (!ended.load(std::memory_order_acquire)) {
      epoll_event event{};
      const int ready = ::epoll_wait(poller.get(), &event, 1, 250);
      try {
        if (ready > 0 && event.data.u64 == of_listener)
          accept_some();
        else if (ready > 0 && event.data.u64 >= of_first_connection)
          go_on(event.data.u64);
        sweep();
      } catch (...) {
        // Memory ran out, which has closed what it ran out for; the peers ask again.
      }
    }
  }

  /// Null, and errno as it is, where nobody waits.
  [[nodiscard]] owned<unforked_file> accept_one() {
    const fork_pause pause;
    file_descriptor made(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!made.open()) return nullptr;
    return detail::make_owned<unforked_file>(std::move(made), pause);
  }
  void accept_some() {
    for (int i = 0; i < 16; ++i) {
      auto made = accept_one();
      if (made == nullptr) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        // Where descriptors ran out, the next sweep looks again.
        if (errno != EAGAIN && errno != EWOULDBLOCK) return;
        break;
      }
      prepare_socket(made->get(), options.lost_after);
      std::vector<std::shared_ptr<connection>> closed;  // after the lock
      const std::lock_guard lock(mutex);
      if (strangers_here >= options.max_strangers) evict(closed);
      if (all.size() - strangers_here >= options.max_connections) {
        refused.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      const int number = made->get();
      auto added = detail::make_shared<connection>(context, std::move(made));
      added->due = deadline::in(options.handshake_timeout).time_point();
      const auto id = next_id++;
      all.try_emplace(id, added);
      ++strangers_here;
      if (!control(EPOLL_CTL_ADD, number, EPOLLIN | EPOLLONESHOT, id)) forget(id);
    }
    rearm_listener();
  }
  void rearm_listener() noexcept {
    control(EPOLL_CTL_MOD, listener->get(), EPOLLIN | EPOLLONESHOT, of_listener);
  }

  /// Makes room for a stranger: the one that came first goes, of those that have not shown the key, where there is any.
  /// A flood would else push out each peer whose process takes a while to answer.
  void evict(std::vector<std::shared_ptr<connection>>& closed) {
    for (const bool shown : {false, true})
      for (const auto& each : all) {
        const auto& c = *each.second;
        if (c.busy || c.socket.trusted() || c.socket.has_shown_key() != shown) continue;
        closed.push_back(each.second);
        return forget(each.first);
      }
  }
  /// @pre the mutex is locked
  void forget(std::uint64_t id) noexcept {
    const auto at = all.find(id);
    if (at == all.end()) return;
    if (at->second->socket.trusted()) {
      refused.fetch_add(at->second->owes() ? 1 : 0, std::memory_order_relaxed);
    } else {
      strangers.fetch_add(1, std::memory_order_relaxed);
      --strangers_here;
    }
    all.erase(at);
  }

  void go_on(std::uint64_t id) {
    std::shared_ptr<connection> mine;
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex);
      const auto at = all.find(id);
      // A connection that was woken while it went on: it sees by itself what has come.
      if (at == all.end() || at->second->busy) return;
      mine = at->second;
      mine->busy = true;
      mine->awaits = false;
      seen = offers_seen;
    }
    const bool was_trusted = mine->socket.trusted();
    auto next = link_wait::never;
    try {
      next = mine->go_on(offers, options, bytes);
    } catch (...) {
      next = link_wait::never;
    }
    const std::lock_guard lock(mutex);
    mine->busy = false;
    if (!was_trusted && mine->socket.trusted()) {
      --strangers_here;
      accepted.fetch_add(1, std::memory_order_relaxed);
    }
    if (next == link_wait::never) return forget(id);
    std::uint32_t events = EPOLLIN;
    if (next == link_wait::writable) events = EPOLLOUT;
    if (next == link_wait::offer) {
      mine->awaits = true;
      if (seen != offers_seen) events |= EPOLLOUT;  // look again at once
    }
    if (mine->socket.trusted())
      mine->due =
          mine->owes() ? deadline::in(options.lost_after).time_point() : deadline::clock::time_point::max();
    if (!control(EPOLL_CTL_MOD, mine->socket.number(), events | EPOLLONESHOT, id)) forget(id);
  }

  /// Closes what is overdue, a few times a second.
  void sweep() {
    const auto now = deadline::clock::now();
    std::vector<std::shared_ptr<connection>> closed;  // after the lock
    const std::lock_guard lock(mutex);
    if (now < next_sweep) return;
    next_sweep = now + std::chrono::milliseconds(100);
    rearm_listener();
    std::vector<std::uint64_t> overdue;
    for (const auto& each : all)
      if (!each.second->busy && each.second->due <= now) {
        overdue.push_back(each.first);
        closed.push_back(each.second);
      }
    for (const auto id : overdue) forget(id);
  }

  const tls_context& context;
  offer_table& offers;
  const link_server_options options;
  owned<unforked_file> listener;
  file_descriptor poller, stop;
  std::atomic<bool> ended{false};
  std::atomic<std::uint64_t> strangers{0}, refused{0}, accepted{0}, bytes{0};
  std::mutex mutex;
  sorted_map<std::uint64_t, std::shared_ptr<connection>> all;
  std::size_t strangers_here = 0;
  std::uint64_t next_id = of_first_connection;
  std::uint64_t offers_seen = 0;
  deadline::clock::time_point next_sweep{};
  std::vector<background_thread> threads;
};

CAIRN_BODY link_server::link_server(owned<unforked_file> listening, const tls_context& context,
                                    offer_table& offers, const link_server_options& options)
    : in_(detail::make_owned<inside>(std::move(listening), context, offers, options)) {
  in_->threads.reserve(options.threads);
  for (std::size_t i = 0; i < std::max<std::size_t>(options.threads, 1); ++i) {
    background_thread next;
    if (!next.start("cairn link", [in = in_.get()] { in->serve(); })) break;
    in_->threads.push_back(std::move(next));
  }
  if (in_->threads.empty())
    fail(error_id::storage_limit,
         "the system gives a link no thread; raise the limit of processes (ulimit -u)");
}

CAIRN_BODY link_server::~link_server() {
  in_->ended.store(true, std::memory_order_release);
  // A child of fork() shares the kernel's objects with its parent, and has none of the threads.
  if (!process_.in_child()) {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(in_->stop.get(), &one, sizeof one));
  }
  in_->threads.clear();
}

CAIRN_BODY void link_server::offered() noexcept {
  auto& in = *in_;
  const std::lock_guard lock(in.mutex);
  ++in.offers_seen;
  for (const auto& each : in.all)
    if (each.second->awaits && !each.second->busy)
      in.control(EPOLL_CTL_MOD, each.second->socket.number(), EPOLLIN | EPOLLOUT | EPOLLONESHOT, each.first);
}

CAIRN_BODY link_server_counts link_server::counts() const noexcept {
  return {in_->strangers.load(std::memory_order_relaxed), in_->refused.load(std::memory_order_relaxed),
          in_->accepted.load(std::memory_order_relaxed), in_->bytes.load(std::memory_order_relaxed)};
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
