// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/nccl/nccl_frame.hpp>
#include <cairn/comm/nccl/nccl_options.hpp>
#include <cairn/comm/nccl/nccl_peers.hpp>
#include <cairn/comm/nccl/nccl_requests.hpp>
#include <cairn/comm/nccl/nccl_state.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/fork_guard.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// What basic_nccl_communicator owns, at one address for its whole life. The functions are the
/// communicator's; see there, and nccl_opcode for what ranks say to each other. This page is how two of them
/// agree on a transfer, and what becomes of it.
template <NcclRuntime R, Communicator Control>
class nccl_world {
 public:
  nccl_world(Control control, const nccl_options& options)
      : options_(options),
        rank_(control.rank()),
        size_(control.size()),
        peers_(std::move(control)),
        nccl_(options, rank_) {
    if (options_.buffer_bytes == 0 || options_.buffer_bytes > max_message_bytes)
      fail(error_id::usage_bad_option, "buffer_bytes of a communicator is 1 to 1 GiB",
           {.got = std::to_string(options_.buffer_bytes)});
    if (size_ > 1) nccl_.open(peers_.control());
  }
  nccl_world(const nccl_world&) = delete;
  nccl_world& operator=(const nccl_world&) = delete;
  ~nccl_world() {
    if (process_.in_child()) nccl_.leave_to_parent();
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const std::string& broken() const noexcept { return nccl_.broken(); }
  [[nodiscard]] Control& control() noexcept { return peers_.control(); }

  void send(int to, std::span<const std::byte> bytes, deadline until) {
    check_peer(to);
    if (bytes.size() > max_message_bytes)
      fail(error_id::usage_overflow, "a message is longer than 1 GiB", {.rank = rank_});
    outgoing out{to, 2 * ++last_message_ + (to > rank_ ? 1 : 0), bytes};
    if (to == rank_ || bytes.size() < std::max<std::uint64_t>(options_.min_bytes, 1)) {
      send_by_control(out, until);
      return;
    }
    out_ = &out;
    run(to, until, [&] { return out.done; });
    out_ = nullptr;
  }
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until) {
    check_peer(from);
    run(from, until, [&] { return peers_.has_message(from); });
    return peers_.take_message(from);
  }

 private:
  struct outgoing {
    int to;
    std::uint64_t id;
    std::span<const std::byte> bytes;
    bool offered = false;     ///< an offer was sent
    bool by_control = false;  ///< NCCL does not carry it
    bool done = false;
  };
  /// A transfer: promised to a peer, or under way.
  struct transfer {
    int peer;
    nccl_request what;
    bool moving = false;
    bool arrived = false;  ///< the peer has all of it
    deadline::clock::time_point began = deadline::clock::now();
    std::vector<std::byte> memory = {};
    nccl_message* place = nullptr;  ///< of the bytes, while they move
  };
  static constexpr auto grace = std::chrono::seconds(1);

  void check_peer(int peer) const {
    process_.check("an nccl_communicator does not work in a child of fork()");
    if (peer < 0 || peer >= size_)
      fail(error_id::usage_bad_option, "there is no such rank",
           {.expected = "0 to " + std::to_string(size_ - 1), .got = std::to_string(peer)});
  }

  // --- One call

  /// Serves all ranks until `done` and nothing is promised to anybody. `about`: whom the call is about.
  template <class Done>
  void run(int about, deadline until, Done&& done) {
    const auto began = deadline::clock::now();
    auto pause = min_pause;
    peers_.begin_call(about);
    try {
      for (;;) {
        const bool late = until.passed() || (about == rank_ && out_ == nullptr);
        bool moved = listen(about);
        moved = sweep(about) || moved;
        moved = act(until, done() || late || peers_.lost(about)) || moved;
        if (done() && !transfer_) return;
        if (!done() && !transfer_ && peers_.lost(about))
          fail(error_id::peer_lost, "a rank that a message goes to or comes from is gone",
               {.rank = about, .got = peers_.where()});
        if (late) {
          const std::string call = transfer_ && transfer_->moving ? nccl_.pipeline()->call() : "";
          const int with = transfer_ ? transfer_->peer : about;
          const bool sending = out_ != nullptr;
          const bool good = done();
          leave();
          if (good) return;
          fail_nccl_late(nccl_.pipeline() == nullptr ? call : "", about, peers_.where(), with, sending,
                         until.time_point() - began);
        }
        pause = moved ? min_pause : std::min(2 * pause, max_pause);
        if (!moved) wait(transfer_ ? transfer_->peer : about, until.earlier(deadline::in(pause)));
      }
    } catch (...) {
      leave();
      throw;
    }
  }

  // --- Listening

  /// Hears a peer until the deadline; whether it said anything.
  bool receive_status(int peer, deadline until) {
    std::vector<std::byte> frame;
    const auto contact = peers_.receive_status(peer, frame, until);
    if (contact == peer_status::gone) forget(peer);
    if (contact == peer_status::good) handle(peer, decode_nccl_frame(frame, peer));
    return contact == peer_status::good;
  }
  bool listen(int peer) {
    int received = 0;
    while (received < 1000 && receive_status(peer, deadline::in(std::chrono::nanoseconds(0)))) ++received;
    return received != 0;
  }
  /// A few of the others, in turn: anybody may want to send to this rank.
  bool sweep(int about) {
    if (transfer_ && transfer_->moving) return transfer_->peer != about && listen(transfer_->peer);
    bool any = false;
    for (int i = 0; i < std::min(size_, 32); ++i) {
      swept_ = (swept_ + 1) % size_;
      if (swept_ != about && swept_ != rank_ && !peers_.lost(swept_)) any = listen(swept_) || any;
    }
    return any;
  }
  void wait(int peer, deadline until) {
    if (peers_.lost(peer) || peer == rank_)
      cairn::detail::sleep_for(max_pause, until);
    else
      receive_status(peer, until);
  }
  /// A rank that is gone takes no part in anything.
  void forget(int peer) {
    offers_.forget(peer);
    starts_.forget(peer);
    if (!transfer_ || transfer_->peer != peer) return;
    if (transfer_->moving)
      end_nccl("rank " + std::to_string(peer) + " is gone");
    else
      transfer_.reset();
  }

  void handle(int peer, nccl_frame frame) {
    const auto wrong = [&](const char* why) {
      fail(error_id::peer_bad_message, std::string("a rank sent a message that is not allowed here: ") + why,
           {.rank = peer});
    };
    const bool promised = transfer_ && transfer_->peer == peer && transfer_->what.id == frame.id &&
                          (frame.ticket == 0 || transfer_->what.ticket == frame.ticket);
    const bool is_out = out_ != nullptr && out_->to == peer && out_->id == frame.id && !out_->done;
    switch (frame.word) {
      case nccl_opcode::more:
      case nccl_opcode::last:
        peers_.take_part(peer, std::move(frame));
        return;
      case nccl_opcode::offer:
        if (peer <= rank_) wrong("the lower rank offers a message");
        if (nccl_.with(peer))
          offers_.put(peer, {frame.id, frame.bytes, false});
        else
          notify(peer, nccl_opcode::by_control, frame.id);
        return;
      case nccl_opcode::give:
        if (peer >= rank_) wrong("the higher rank begins");
        if (nccl_.with(peer))
          starts_.put(peer, {frame.id, frame.bytes, false, frame.ticket});
        else
          notify(peer, nccl_opcode::by_control, frame.id);
        return;
      case nccl_opcode::take:
        if (peer >= rank_) wrong("the higher rank begins");
        if (is_out && !out_->by_control && nccl_.with(peer))
          starts_.put(peer, {frame.id, out_->bytes.size(), true, frame.ticket});
        else
          notify(peer, nccl_opcode::cancel, frame.id, frame.ticket);
        return;
      case nccl_opcode::ready:
        if (!promised || transfer_->moving || peer < rank_) return;  // it was cancelled meanwhile
        if (notify(peer, nccl_opcode::go, frame.id, frame.ticket)) begin();
        return;
      case nccl_opcode::go:
        if (promised && !transfer_->moving && peer < rank_)
          begin();
        else
          notify(peer, nccl_opcode::aborted, frame.id);
        return;
      case nccl_opcode::received:
        if (!promised || !transfer_->moving || !transfer_->what.mine) return;
        transfer_->arrived = true;
        return;
      case nccl_opcode::cancel:
        offers_.cancel(peer, frame.id, false);
        starts_.cancel(peer, frame.id, false);
        starts_.cancel(peer, frame.id, true);
        if (promised && !transfer_->moving) transfer_.reset();
        return;
      case nccl_opcode::by_control:
        if (is_out) out_->by_control = true;
        if (promised && !transfer_->moving) transfer_.reset();
        return;
      case nccl_opcode::aborted:
        nccl_.without(peer);
        if (promised && transfer_->moving)
          give_up("rank " + std::to_string(peer) + " aborted its half of " + nccl_.pipeline()->call());
        else if (promised)
          transfer_.reset();
        if (is_out) out_->by_control = true;
        return;
    }
  }

  // --- Transfers

  bool notify(int peer, nccl_opcode word, std::uint64_t id, std::uint64_t ticket = 0) {
    return say(peer, encode_nccl_frame(word, id, 0, ticket), deadline::in(grace));
  }
  bool say(int peer, std::span<const std::byte> frame, deadline until) {
    const auto contact = peers_.say(peer, frame, until);
    if (contact == peer_status::gone) forget(peer);
    return contact == peer_status::good;
  }
  /// Takes back what this rank, the lower one, promised.
  void retract() {
    const auto t = std::exchange(transfer_, std::nullopt);
    if (!t->what.mine && nccl_.with(t->peer)) offers_.put(t->peer, t->what);
    notify(t->peer, nccl_opcode::cancel, t->what.id, t->what.ticket);
  }
  /// Answers what others wait for, where NCCL is used no more.
  void decline_all() {
    const auto offers = offers_.take_all();
    const auto starts = starts_.take_all();
    for (const auto* each : {&offers, &starts})
      for (const auto& [peer, what] : *each)
        if (!what.mine && !peers_.lost(peer)) notify(peer, nccl_opcode::by_control, what.id);
  }
  /// What can be done without waiting. `leaving`: this call has what it came for, nothing new begins.
  bool act(deadline until, bool leaving) {
    if (out_ != nullptr && !out_->done && !nccl_.with(out_->to)) out_->by_control = true;
    if (transfer_ && transfer_->moving) return move();
    if (nccl_.pipeline() == nullptr) decline_all();
    if (out_ != nullptr && !out_->done && out_->by_control && !transfer_ && !peers_.lost(out_->to)) {
      nccl_.refuse_message(out_->to, out_->bytes.size());
      if (out_->offered && out_->to < rank_) notify(out_->to, nccl_opcode::cancel, out_->id);
      send_by_control(*out_, until);
      return true;
    }
    if (transfer_) {
      if (!leaving || transfer_->peer < rank_) return false;
      retract();
      return true;
    }
    if (leaving) return false;
    // Own messages and those of others in turn: else who sends and sends would keep all others waiting.
    const bool others = !starts_.empty() || !offers_.empty();
    if (out_ != nullptr && !out_->done && !out_->offered && (!others || !mine_last_)) {
      out_->offered = true;
      mine_last_ = true;
      const nccl_request mine{out_->id, out_->bytes.size(), true};
      if (out_->to > rank_)
        promise(out_->to, mine, nccl_opcode::give, until);
      else
        say(out_->to, encode_nccl_frame(nccl_opcode::offer, mine.id, mine.bytes), until);
      return true;
    }
    if (!others) return false;
    mine_last_ = false;
    if (!starts_.empty()) {
      const auto [peer, what] = starts_.take(turn_);
      const bool wanted =
          what.mine ? out_ != nullptr && out_->id == what.id && !out_->done : nccl_.with(peer);
      if (wanted)
        promise(peer, what, nccl_opcode::ready, until);
      else
        notify(peer, what.mine ? nccl_opcode::cancel : nccl_opcode::by_control, what.id,
               what.mine ? what.ticket : 0);
      return true;
    }
    const auto [peer, what] = offers_.take(turn_);
    promise(peer, what, nccl_opcode::take, until);
    return true;
  }
  void promise(int peer, nccl_request what, nccl_opcode word, deadline until) {
    transfer made{.peer = peer, .what = what};
    if (word != nccl_opcode::ready) made.what.ticket = ++last_ticket_;
    if (!what.mine) made.memory.resize(static_cast<std::size_t>(what.bytes));
    transfer_ = std::move(made);
    say(peer, encode_nccl_frame(word, what.id, what.bytes, transfer_->what.ticket), until);
  }
  void begin() {
    auto& t = *transfer_;
    if (!t.what.mine) {
      t.place = &peers_.expect(t.peer, std::move(t.memory));
      nccl_.pipeline()->begin_receive(t.peer, t.place->bytes);
    } else {
      nccl_.pipeline()->begin_send(t.peer, out_->bytes);
    }
    t.moving = true;
  }
  bool move() {
    try {
      auto& pipeline = *nccl_.pipeline();
      const bool moved = !pipeline.over() && pipeline.advance();
      if (!pipeline.over()) return moved;
    } catch (const error& e) {
      give_up(e.message());
      return true;
    }
    if (transfer_->what.mine) {
      // Until the receiver has it, it may have to be sent again.
      if (!transfer_->arrived) return false;
      out_->done = true;
      transfer_.reset();
      return true;
    }
    const auto t = std::exchange(transfer_, std::nullopt);
    peers_.arrived(t->peer, *t->place, t->what.id);
    notify(t->peer, nccl_opcode::received, t->what.id, t->what.ticket);
    return true;
  }
  /// this rank no longer uses NCCL. A message that this rank was sending goes by control; of one that it
  /// was receiving nothing is used.
  void give_up(std::string why) {
    end_nccl(std::move(why));
    nccl_.refuse_after_abort();
  }
  void end_nccl(std::string why) noexcept {
    auto t = std::exchange(transfer_, std::nullopt);
    // The device may still write to its own buffers, never to these bytes.
    if (t && t->place != nullptr) peers_.dropped(t->peer, *t->place);
    if (t && t->what.mine && out_ != nullptr) out_->by_control = true;
    nccl_.give_up(std::move(why), t ? t->peer : rank_);
    try {
      // Before the abort, which may take long: the other half waits on its device.
      if (t && !peers_.lost(t->peer)) notify(t->peer, nccl_opcode::aborted, t->what.id);
    } catch (...) {
      // It finds out by its deadline.
    }
    nccl_.abort();
  }
  void send_by_control(outgoing& out, deadline until) {
    peers_.send(out.to, out.id, out.bytes, until);
    out.done = true;
  }
  /// Before a call ends: what is under way is aborted, what was promised or said is taken back.
  void leave() noexcept {
    try {
      const bool begun = transfer_ && (transfer_->moving || transfer_->peer < rank_);
      const bool young = transfer_ && !transfer_->what.mine &&
                         deadline::clock::now() - transfer_->began < options_.transfer_timeout;
      if (begun && young) {
        // The memory is this communicator's own.
      } else if (begun) {
        // The other half has begun, or may begin without asking again.
        const std::string call = transfer_->moving ? nccl_.pipeline()->call() : "a transfer";
        end_nccl(call + " with rank " + std::to_string(transfer_->peer) + " was not done by a deadline");
      } else if (transfer_) {
        retract();
      }
      if (out_ != nullptr && !out_->done && out_->offered && out_->to < rank_ && !peers_.lost(out_->to))
        notify(out_->to, nccl_opcode::cancel, out_->id);
    } catch (...) {
      // The peer finds out by its deadline.
    }
    // What the lower rank asked for is gone; what it gives is not.
    if (out_ != nullptr && !out_->done) starts_.cancel(out_->to, out_->id, true);
    out_ = nullptr;
  }

  static constexpr auto min_pause = std::chrono::microseconds(10);
  static constexpr auto max_pause = std::chrono::microseconds(1000);

  cairn::detail::fork_guard process_;
  nccl_options options_;
  int rank_;
  int size_;
  nccl_peers<Control> peers_;
  nccl_state<R> nccl_;
  nccl_requests offers_;  ///< of higher ranks
  nccl_requests starts_;  ///< of lower ranks, not answered yet
  std::optional<transfer> transfer_;
  outgoing* out_ = nullptr;
  std::uint64_t last_message_ = 0;
  std::uint64_t last_ticket_ = 0;
  int swept_ = 0;
  int turn_ = -1;
  bool mine_last_ = false;  ///< the last transfer that was begun was of a message of this rank
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
