// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/peer_link.hpp>
#include <cairn/links/link_client.hpp>
#include <cairn/links/link_frame.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/links/offer_table.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/thread_pool.hpp>
#include <cairn/system/unforked_file.hpp>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
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

/// A connection to a peer, used by one call at a time. Every function throws peer_error (peer_lost) where the
/// connection ends, timeout_error (timeout_peer) at the deadline; it is of no use afterwards.
class link_connection {
 public:
  link_connection(const tls_context& with, owned<unforked_file> connected, int rank, std::string where,
                  std::chrono::nanoseconds lost_after)
      : context_(with),
        socket_(with, std::move(connected), secure_socket::side::client),
        rank_(rank),
        where_(std::move(where)),
        lost_after_(lost_after) {}

  /// False where the peer ends the connection instead of proving who it is.
  [[nodiscard]] bool handshake(deadline until) {
    for (;;) {
      const auto progress = socket_.handshake();
      if (progress.what == socket_progress::state::moved) return true;
      if (progress.what == socket_progress::state::ended) return false;
      wait(progress.what, until, until);
    }
  }
  void ask(const link_request& request, deadline until) {
    asked_for_plain_ = request.plain_bulk;
    const auto bytes = encode(request);
    for (std::size_t done = 0; done < bytes.size();) {
      const auto progress = socket_.write(std::span(bytes).subspan(done));
      done += progress.bytes;
      if (progress.what != socket_progress::state::moved) wait(progress.what, until, silence());
    }
  }
  /// `patient`: the peer may take its time until it answers.
  [[nodiscard]] link_answer answer(deadline until, bool patient = false) {
    answer_frame frame;
    read(frame, until, patient);
    const auto got = decode_answer(frame);
    if (!got || (got->plain_bulk && !asked_for_plain_))
      fail_bad("an answer of a peer is not one of a link; see that all ranks run the same version of cairn");
    return *got;
  }
  /// Reads the blocks of an answer. False where the peer withdrew them meanwhile.
  [[nodiscard]] bool blocks(std::span<std::byte> into, bool plain, deadline until) {
    if (plain && !tag_) tag_.emplace(context_, socket_);
    while (!into.empty()) {
      const auto block = into.first(std::min(into.size(), bulk_block_bytes));
      into = into.subspan(block.size());
      std::array<std::byte, 1 + bulk_tag_bytes> end{};
      if (!plain) {
        read(block, until, false);
        read(std::span(end).first(1), until, false);
        if (end[0] != std::byte{0}) return false;
        continue;
      }
      tag_->begin();
      for (std::size_t done = 0, tagged = 0; done < block.size();) {
        const auto progress = socket_.read_plain(block.subspan(done));
        done += progress.bytes;
        // While it is in the cache, but not in small pieces.
        if (done - tagged >= (std::size_t{128} << 10) || done == block.size()) {
          tag_->add(block.subspan(tagged, done - tagged));
          tagged = done;
        }
        if (progress.what != socket_progress::state::moved) wait(progress.what, until, silence());
      }
      const auto made = tag_->end();
      read(end, until, false);
      if (end[0] != std::byte{0}) return false;
      bulk_tag::tag sent;
      std::copy_n(end.begin() + 1, sent.size(), sent.begin());
      if (!bulk_tag::same(made, sent))
        fail_bad(
            "bytes of a peer were changed on their way; look for a faulty network card or for an attacker");
    }
    return true;
  }
  /// Whether the peer has ended it, or sent what nobody asked for. One system call.
  [[nodiscard]] bool is_over() const noexcept {
    char byte;
    const auto got = ::recv(socket_.number(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  [[nodiscard]] deadline silence() const noexcept { return deadline::in(lost_after_); }
  void read(std::span<std::byte> into, deadline until, bool patient) {
    while (!into.empty()) {
      const auto progress = socket_.read(into);
      into = into.subspan(progress.bytes);
      if (progress.what != socket_progress::state::moved)
        wait(progress.what, until, patient ? deadline::never() : silence());
    }
  }
  /// Waits until the socket may go on. `silent`: when the peer counts as lost.
  void wait(socket_progress::state what, deadline until, deadline silent) {
    if (what == socket_progress::state::ended)
      fail(error_id::peer_lost, "the connection to a peer ended; its process, its host or the network failed",
           {.rank = rank_, .got = where_});
    const short events = what == socket_progress::state::wants_write ? POLLOUT : POLLIN;
    if (poll_one(socket_.number(), events, until.earlier(silent))) return;
    if (until.passed())
      fail(error_id::timeout_peer, "a peer did not answer by the deadline", {.rank = rank_, .got = where_});
    fail(error_id::peer_lost, "a peer has sent nothing for tls_link_options::lost_after",
         {.rank = rank_, .got = where_});
  }
  [[noreturn]] void fail_bad(const char* why) const {
    fail(error_id::peer_bad_message, why, {.rank = rank_, .got = where_});
  }

  const tls_context& context_;
  secure_socket socket_;
  std::optional<bulk_tag> tag_;
  bool asked_for_plain_ = false;
  int rank_;
  std::string where_;
  std::chrono::nanoseconds lost_after_;
};

/// Bytes that one request asks for.
struct fetch_piece {
  std::uint64_t offset;
  std::span<std::byte> destination;
};

struct link_client::inside {
  inside(int of, link_address at, const tls_context& with, thread_pool& helpers,
         const link_client_options& told)
      : rank(of), address(std::move(at)), context(with), threads(helpers), options(told) {}

  /// A connection that was made before, or none.
  [[nodiscard]] owned<link_connection> take_idle() {
    for (;;) {
      owned<link_connection> found;
      {
        const std::lock_guard lock(mutex);
        if (idle.empty()) return {};
        found = std::move(idle.back());
        idle.pop_back();
      }
      if (!found->is_over()) return found;
    }
  }
  void give_back(owned<link_connection> used) {
    owned<link_connection> closed;  // after the lock
    const std::lock_guard lock(mutex);
    if (idle.size() < 2 * options.connections)
      idle.push_back(std::move(used));
    else
      closed = std::move(used);
  }

  [[nodiscard]] owned<link_connection> connect(deadline until) {
    backoff pauses(std::chrono::milliseconds(5), std::chrono::milliseconds(500));
    const auto silence = deadline::in(options.lost_after);
    for (int attempt = 1;; ++attempt) {
      std::string refused_by, lost_at;
      // What came of the addresses: one took a connection and said nothing, or took none, or has nobody who listens.
      bool silent = false, swallows = false, closed = false, lacks = false;
      // Once: others who connect at the same time change it, and each address is to be asked.
      const auto first = good_host.load(std::memory_order_relaxed);
      for (std::size_t i = 0; i < address.hosts.size(); ++i) {
        const auto number = (first + i) % address.hosts.size();
        const auto leave = [&] {
          auto expected = number;
          good_host.compare_exchange_strong(expected, (number + 1) % address.hosts.size(),
                                            std::memory_order_relaxed);
        };
        const auto& host = address.hosts[number];
        const auto where = host + " port " + std::to_string(address.port);
        // An address that swallows what is sent there leaves time for those after it.
        const auto addresses_left = static_cast<std::int64_t>(address.hosts.size() - i);
        const auto limit =
            until.earlier(deadline::in(std::min(options.handshake_timeout, until.left() / addresses_left)));
        int why = 0;
        auto connected = connect_to(host, address.port, limit, why);
        if (connected == nullptr) {
          leave();
          lacks = lacks || is_own_lack(why, host);
          swallows = swallows || why == ETIMEDOUT;
          closed = closed || why == ECONNREFUSED;
          if (until.passed() && !lacks) fail_late(where);
          lost_at += (lost_at.empty() ? "" : ", ") + where + ": " + std::generic_category().message(why);
          continue;
        }
        prepare_socket(connected->get(), options.lost_after);
        try {
          auto made = detail::make_owned<link_connection>(context, std::move(connected), rank, where,
                                                          options.lost_after);
          if (!made->handshake(limit)) {
            refused_by = where;
            continue;
          }
          made->ask({.link = address.link}, limit);
          if (made->answer(limit).what != link_answer::status::ok) {  // another link of this job
            leave();
            continue;
          }
          good_host.store(number, std::memory_order_relaxed);
          gone.store(false, std::memory_order_relaxed);
          return made;
        } catch (const timeout_error&) {
          leave();
          if (until.passed()) throw;
          silent = true;
          lost_at += (lost_at.empty() ? "" : ", ") + where + ": no answer";
        } catch (const peer_error& e) {
          if (e.id() != error_id::peer_lost) throw;
          leave();
          lost_at += (lost_at.empty() ? "" : ", ") + where + ": it ended the connection";
        }
      }
      // A process that is stopped, or has no time, a network that fails over, and this process's want of descriptors pass.
      const bool may_pass = silent || lacks || (swallows && !closed);
      if (may_pass && !silence.passed() && pauses.wait(until)) continue;
      if (lacks)
        fail(error_id::storage_limit,
             "this rank cannot connect to a peer: it, or its host, has no more descriptors, ports or "
             "memory; close files, or raise the limit of open files (ulimit -n)",
             {.got = "rank " + std::to_string(rank) + " at " + lost_at});
      if (may_pass && until.passed()) fail_late(lost_at);
      // A peer that is flooded with connections drops some: it is asked again a few times. One that is not there is not.
      if (!refused_by.empty() && attempt < 7) {
        if (!pauses.wait(until)) fail_late(refused_by);
        continue;
      }
      // Who refuses may be of another job, at an address that this host has as well: the peer may be at the other one.
      if (!refused_by.empty() && lost_at.empty())
        fail(error_id::peer_refused,
             "a peer ended the connection before both had proved to be of this job; see that all ranks have "
             "the key of the same run, that no other program listens there, and that the peer has fewer than "
             "its "
             "max_connections",
             {.rank = rank, .got = refused_by});
      if (!refused_by.empty()) lost_at += ", " + refused_by + ": it refused";
      gone.store(true, std::memory_order_relaxed);
      fail(error_id::peer_lost,
           "a peer cannot be reached; its process or host ended, or a firewall is between",
           {.rank = rank, .got = lost_at.empty() ? "another link listens at its address" : lost_at});
    }
  }
  [[noreturn]] void fail_late(const std::string& where) const {
    fail(error_id::timeout_peer, "a peer was not reached by the deadline", {.rank = rank, .got = where});
  }

  /// call(connection) with a connection, which is kept if it returns. One that was kept may have ended since: then call is
  /// made again with a new one. The peer is gone where that ends, too.
  template <class Call>
  void with_connection(deadline until, Call&& call) {
    if (until.passed()) fail_late(address.hosts.empty() ? std::string() : address.hosts.front());
    if (auto kept = take_idle()) {
      try {
        call(*kept);
        return give_back(std::move(kept));
      } catch (const peer_error& e) {
        if (e.id() != error_id::peer_lost) throw;
      }
    }
    auto made = connect(until);
    try {
      call(*made);
    } catch (const peer_error& e) {
      if (e.id() == error_id::peer_lost) gone.store(true, std::memory_order_relaxed);
      throw;
    }
    give_back(std::move(made));
  }

  const int rank;
  const link_address address;
  const tls_context& context;
  thread_pool& threads;
  const link_client_options options;
  std::atomic<bool> gone{false};
  std::atomic<std::size_t> good_host{0};  // the one that answered last
  mutable std::mutex mutex;
  std::vector<owned<link_connection>> idle;
};

CAIRN_BODY link_client::link_client(int rank, link_address address, const tls_context& context,
                                    thread_pool& threads, const link_client_options& options)
    : in_(detail::make_owned<inside>(rank, std::move(address), context, threads, options)) {}
CAIRN_BODY link_client::link_client(link_client&& other) noexcept = default;
CAIRN_BODY link_client::~link_client() = default;

CAIRN_BODY std::uint64_t link_client::await_offer(const offer_key& key, deadline until) {
  std::uint64_t bytes = 0;
  in_->with_connection(until, [&](link_connection& peer) {
    peer.ask({.what = link_request::kind::await_offer, .link = in_->address.link, .key = key}, until);
    const auto answer = peer.answer(until, true);
    if (answer.what != link_answer::status::ok) fail_not_offered(in_->rank, key);
    bytes = answer.bytes;
  });
  return bytes;
}

CAIRN_BODY std::uint64_t link_client::fetch(const offer_key& key, std::span<const fetch_range> ranges,
                                            deadline until) {
  auto& in = *in_;
  // Long enough that the time between two requests does not count, short enough that connections share small fetches.
  constexpr std::size_t piece_bytes = std::size_t{4} << 20;
  // Of large pieces the next one is asked for, and of small ones so many that the way there and back does not count; as
  // few as fit into a socket that the peer does not read at that time.
  constexpr std::size_t bytes_ahead = 2 * piece_bytes, requests_ahead = 32;
  std::vector<fetch_piece> pieces;
  for (const auto& range : ranges)
    for (std::size_t at = 0; at < range.destination.size(); at += piece_bytes)
      pieces.push_back({range.offset + at,
                        range.destination.subspan(at, std::min(piece_bytes, range.destination.size() - at))});
  if (pieces.empty()) pieces.push_back({0, {}});

  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<bool> ended{false};  // a connection cannot go on
  const auto work = [&](std::size_t) {
    std::vector<std::size_t> mine;  // asked for and not yet there, the oldest first
    const auto one_more = [&] {
      if (ended.load(std::memory_order_relaxed)) return false;
      const auto number = next.fetch_add(1, std::memory_order_relaxed);
      if (number < pieces.size()) mine.push_back(number);
      return number < pieces.size();
    };
    if (!one_more()) return;
    struct ending {
      std::atomic<bool>& ended;
      bool well = false;
      ~ending() {
        if (!well) ended.store(true, std::memory_order_relaxed);
      }
    } end{ended};
    auto refused = link_answer::status::ok;
    in.with_connection(until, [&](link_connection& peer) {
      const auto ask = [&](std::size_t number) {
        peer.ask({.what = link_request::kind::fetch,
                  .plain_bulk = in.options.plain_bulk,
                  .link = in.address.link,
                  .offset = pieces[number].offset,
                  .length = pieces[number].destination.size(),
                  .key = key},
                 until);
      };
      const auto asked_for = [&] {
        std::size_t sum = 0;
        for (const auto number : mine) sum += pieces[number].destination.size();
        return sum;
      };
      for (const auto number : mine) ask(number);
      // What was asked for is read even where it is of no use, so that the connection can be used again.
      while (!mine.empty()) {
        while (mine.size() < requests_ahead && asked_for() < bytes_ahead &&
               refused == link_answer::status::ok && one_more())
          ask(mine.back());
        const auto answer = peer.answer(until);
        const auto destination = pieces[mine.front()].destination;
        if (answer.what != link_answer::status::ok)
          refused = answer.what;
        else if (!peer.blocks(destination, answer.plain_bulk, until))
          refused = link_answer::status::not_offered;
        bytes.store(answer.bytes, std::memory_order_relaxed);
        mine.erase(mine.begin());
      }
    });
    if (refused == link_answer::status::outside)
      for (const auto& range : ranges)
        check_range(range, bytes.load(std::memory_order_relaxed), in.rank, key);
    if (refused != link_answer::status::ok) fail_not_offered(in.rank, key);
    end.well = true;
  };
  std::uint64_t wanted = 0;
  for (const auto& piece : pieces) wanted += piece.destination.size();
  const auto connections = static_cast<std::size_t>(
      std::clamp<std::uint64_t>((wanted + piece_bytes - 1) / piece_bytes, 1, in.options.connections));
  if (connections == 1)
    work(0);
  else
    static_cast<void>(in.threads.run(connections, connections, work));
  for (const auto& range : ranges) check_range(range, bytes.load(), in.rank, key);
  return bytes.load();
}

CAIRN_BODY bool link_client::is_gone() const noexcept {
  if (in_->gone.load(std::memory_order_relaxed)) return true;
  const std::lock_guard lock(in_->mutex);
  return !in_->idle.empty() && in_->idle.back()->is_over();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
