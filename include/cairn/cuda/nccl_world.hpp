// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/cuda/nccl_frame.hpp>
#include <cairn/cuda/nccl_opening.hpp>
#include <cairn/cuda/nccl_options.hpp>
#include <cairn/model/deadline.hpp>
#include <cairn/model/error.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {

namespace detail {

/// What basic_nccl_communicator owns, at one address for its whole life. The functions are the
/// communicator's; see there, and nccl_word for what ranks say to each other.
template <NcclRuntime R, Communicator Control>
class nccl_world {
 public:
  nccl_world(Control control, const nccl_options& options)
      : options_(options), control_(std::move(control)), rank_(control_.rank()), size_(control_.size()) {
    if (options_.piece_bytes == 0 || options_.piece_bytes > max_message_bytes)
      fail(error_id::usage_bad_option, "piece_bytes of a communicator is 1 to 1 GiB",
           {.got = std::to_string(options_.piece_bytes)});
    if (size_ > 1) lane_ = open_nccl<R>(control_, options_, deadline::in(options_.patience));
  }
  nccl_world(const nccl_world&) = delete;
  nccl_world& operator=(const nccl_world&) = delete;
  ~nccl_world() {
    if (::getpid() != process_) static_cast<void>(lane_.release());  // of the parent
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const std::string& broken() const noexcept { return broken_; }

  void send(int to, std::span<const std::byte> bytes, deadline until) {
    check_peer(to);
    if (bytes.size() > max_message_bytes)
      fail(error_id::usage_overflow, "a message is longer than 1 GiB", {.rank = rank_});
    outgoing out{to, 2 * ++last_message_ + (to > rank_ ? 1 : 0), bytes};
    if (to == rank_ || bytes.size() < std::max<std::uint64_t>(options_.least_bytes, 1)) {
      send_by_control(out, until);
      return;
    }
    out_ = &out;
    run(to, until, [&] { return out.done; });
    out_ = nullptr;
  }
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until) {
    check_peer(from);
    auto& came = inbox_[from].messages;
    run(from, until, [&] { return !came.empty() && came.front().ready; });
    auto bytes = std::move(came.front().bytes);
    came.pop_front();
    return bytes;
  }

 private:
  struct outgoing {
    int to;
    std::uint64_t id;
    std::span<const std::byte> bytes;
    bool said = false;        ///< an offer was sent
    bool by_control = false;  ///< NCCL does not carry it
    bool done = false;
  };
  struct incoming {
    std::vector<std::byte> bytes;
    bool ready = false;
  };
  struct inbox {
    std::deque<incoming> messages;
    std::uint64_t part_of = 0;  ///< which message has come in part
    std::vector<std::byte> part;
    std::uint64_t by_nccl = 0;  ///< the last that NCCL brought
  };
  struct announced {
    std::uint64_t id;
    std::uint64_t bytes;
    bool mine;  ///< this rank sends it
    std::uint64_t ticket = 0;
  };
  /// A transfer: promised to a peer, or under way.
  struct transfer {
    int peer;
    announced what;
    bool moving = false;
    bool arrived = false;  ///< the peer has all of it
    deadline::clock::time_point began = deadline::clock::now();
    std::vector<std::byte> memory = {};
    incoming* place = nullptr;  ///< of the bytes, while they move
  };
  static constexpr std::size_t part_bytes = std::size_t{16} << 20;
  static constexpr auto grace = std::chrono::seconds(1);

  void check_peer(int peer) const {
    if (::getpid() != process_)
      fail(error_id::usage_wrong_process, "an nccl_communicator does not work in a child of fork()",
           {.expected = "process " + std::to_string(process_),
            .got = "process " + std::to_string(::getpid())});
    if (peer < 0 || peer >= size_)
      fail(error_id::usage_bad_option, "there is no such rank",
           {.expected = "0 to " + std::to_string(size_ - 1), .got = std::to_string(peer)});
  }

  // --- One call

  /// Serves all ranks until `done` and nothing is promised to anybody. `about`: whom the call is about.
  template <class Done>
  void run(int about, deadline until, Done&& done) {
    const auto began = deadline::clock::now();
    auto pause = shortest_pause;
    lost_.clear();
    try {
      for (;;) {
        const bool late = until.passed() || (about == rank_ && out_ == nullptr);
        bool moved = listen(about);
        moved = sweep(about) || moved;
        moved = act(until, done() || late || lost_.contains(about)) || moved;
        if (done() && !transfer_) return;
        if (!done() && !transfer_ && lost_.contains(about))
          fail(error_id::peer_lost, "a rank that a message goes to or comes from is gone", {.rank = about});
        if (late) {
          const std::string call = transfer_ && transfer_->moving ? lane_->call() : "";
          const int with = transfer_ ? transfer_->peer : about;
          const bool sending = out_ != nullptr;
          const bool good = done();
          leave();
          if (good) return;
          const auto what = lane_ == nullptr ? call : "";
          fail_late(what, about, with, sending, until.time_point() - began);
        }
        pause = moved ? shortest_pause : std::min(2 * pause, longest_pause);
        if (!moved) wait(transfer_ ? transfer_->peer : about, until.earlier(deadline::in(pause)));
      }
    } catch (...) {
      leave();
      throw;
    }
  }
  [[noreturn]] static void fail_late(std::string_view call, int about, int with, bool sending,
                                     std::chrono::nanoseconds patience) {
    std::string words;
    if (!call.empty())
      words.append(call)
          .append(" with rank ")
          .append(std::to_string(with))
          .append(" was under way at the deadline and was aborted; what had come of it is dropped");
    else
      words = sending ? "a message was not taken by the deadline" : "no message came by the deadline";
    fail(error_id::timeout_peer, words + nccl_patience_text(patience), {.rank = about});
  }
  // --- Listening

  /// The next frame of a peer, if one comes by the deadline.
  [[nodiscard]] std::optional<std::vector<std::byte>> next(int peer, deadline until) {
    try {
      return control_.receive(peer, until);
    } catch (const timeout_error&) {
      return std::nullopt;
    } catch (const peer_error& e) {
      if (e.id() != error_id::peer_lost || e.fields().rank == rank_) throw;
      if (lost_.insert(peer).second) forget(peer);
      return std::nullopt;
    }
  }
  bool listen(int peer) {
    bool any = false;
    for (int i = 0; i < 1000; ++i) {
      const auto message = next(peer, deadline::in(std::chrono::nanoseconds(0)));
      if (!message) break;
      handle(peer, decode_nccl_frame(*message, peer));
      any = true;
    }
    return any;
  }
  /// A few of the others, in turn: anybody may want to send to this rank.
  bool sweep(int about) {
    if (transfer_ && transfer_->moving) return transfer_->peer != about && listen(transfer_->peer);
    bool any = false;
    for (int i = 0; i < std::min(size_, 32); ++i) {
      swept_ = (swept_ + 1) % size_;
      if (swept_ != about && swept_ != rank_ && !lost_.contains(swept_)) any = listen(swept_) || any;
    }
    return any;
  }
  void wait(int peer, deadline until) {
    if (lost_.contains(peer) || peer == rank_)
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(until.left(), longest_pause));
    else if (const auto message = next(peer, until))
      handle(peer, decode_nccl_frame(*message, peer));
  }
  /// A rank that is gone takes no part in anything.
  void forget(int peer) {
    offers_.erase(peer);
    starts_.erase(peer);
    if (!transfer_ || transfer_->peer != peer) return;
    if (transfer_->moving)
      end_nccl("rank " + std::to_string(peer) + " is gone");
    else
      transfer_.reset();
  }

  void handle(int peer, nccl_frame frame) {
    const auto wrong = [&](const char* why) {
      fail(error_id::peer_bad_message, std::string("a rank says what it must not: ") + why, {.rank = peer});
    };
    const bool promised = transfer_ && transfer_->peer == peer && transfer_->what.id == frame.id &&
                          (frame.ticket == 0 || transfer_->what.ticket == frame.ticket);
    const bool is_out = out_ != nullptr && out_->to == peer && out_->id == frame.id && !out_->done;
    switch (frame.word) {
      case nccl_word::more:
      case nccl_word::last:
        take_part(peer, std::move(frame));
        return;
      case nccl_word::offer:
        if (peer <= rank_) wrong("the lower rank offers a message");
        if (usable(peer))
          offers_[peer] = {frame.id, frame.bytes, false};
        else
          tell(peer, nccl_word::by_control, frame.id);
        return;
      case nccl_word::give:
        if (peer >= rank_) wrong("the higher rank begins");
        if (usable(peer))
          starts_[peer] = {frame.id, frame.bytes, false, frame.ticket};
        else
          tell(peer, nccl_word::by_control, frame.id);
        return;
      case nccl_word::take:
        if (peer >= rank_) wrong("the higher rank begins");
        if (is_out && !out_->by_control && usable(peer))
          starts_[peer] = {frame.id, out_->bytes.size(), true, frame.ticket};
        else
          tell(peer, nccl_word::cancel, frame.id, frame.ticket);
        return;
      case nccl_word::ready:
        if (!promised || transfer_->moving || peer < rank_) return;  // it was cancelled meanwhile
        if (tell(peer, nccl_word::go, frame.id, frame.ticket)) begin();
        return;
      case nccl_word::go:
        if (promised && !transfer_->moving && peer < rank_)
          begin();
        else
          tell(peer, nccl_word::aborted, frame.id);
        return;
      case nccl_word::received:
        if (!promised || !transfer_->moving || !transfer_->what.mine) return;
        transfer_->arrived = true;
        return;
      case nccl_word::cancel:
        erase(offers_, peer, frame.id, false);
        erase(starts_, peer, frame.id, false);
        erase(starts_, peer, frame.id, true);
        if (promised && !transfer_->moving) transfer_.reset();
        return;
      case nccl_word::by_control:
        if (is_out) out_->by_control = true;
        if (promised && !transfer_->moving) transfer_.reset();
        return;
      case nccl_word::aborted:
        without_nccl_.insert(peer);
        if (promised && transfer_->moving)
          give_up("rank " + std::to_string(peer) + " aborted its half of " + lane_->call());
        else if (promised)
          transfer_.reset();
        if (is_out) out_->by_control = true;
        return;
    }
  }
  void take_part(int peer, nccl_frame frame) {
    auto& box = inbox_[peer];
    // A message whose sender gave up in the middle is dropped.
    if (box.part_of != frame.id) box.part.clear();
    box.part_of = frame.id;
    if (frame.part.size() > frame.bytes - std::min<std::uint64_t>(frame.bytes, box.part.size()))
      fail(error_id::peer_bad_message, "more of a message came than it has", {.rank = peer});
    if (box.part.empty())
      box.part = std::move(frame.part);
    else
      box.part.insert(box.part.end(), frame.part.begin(), frame.part.end());
    if (frame.word == nccl_word::more) return;
    if (box.part.size() != frame.bytes)
      fail(error_id::peer_bad_message, "less of a message came than it has", {.rank = peer});
    auto whole = std::exchange(box.part, {});
    // A sender whose half failed at the very end sends again what is here.
    if (box.by_nccl != frame.id) box.messages.push_back({std::move(whole), true});
  }
  static void erase(std::map<int, announced>& from, int peer, std::uint64_t id, bool mine) {
    const auto at = from.find(peer);
    if (at != from.end() && at->second.id == id && at->second.mine == mine) from.erase(at);
  }

  // --- Transfers

  [[nodiscard]] bool usable(int peer) const {
    return lane_ != nullptr && broken_.empty() && !without_nccl_.contains(peer);
  }
  bool tell(int peer, nccl_word word, std::uint64_t id, std::uint64_t ticket = 0) {
    return say(peer, encode_nccl_frame(word, id, 0, ticket), deadline::in(grace));
  }
  /// False: the peer is gone, or did not take it in time. That is no matter of this call, unless it is about
  /// the same peer, which is noticed elsewhere.
  bool say(int peer, std::span<const std::byte> frame, deadline until) {
    try {
      control_.send(peer, frame, until);
      return true;
    } catch (const timeout_error&) {
      return false;
    } catch (const peer_error& e) {
      if (e.id() != error_id::peer_lost || e.fields().rank == rank_) throw;
      if (lost_.insert(peer).second) forget(peer);
      return false;
    }
  }
  /// Takes back what this rank, the lower one, promised.
  void retract() {
    const auto t = std::exchange(transfer_, std::nullopt);
    if (!t->what.mine && usable(t->peer)) offers_[t->peer] = t->what;
    tell(t->peer, nccl_word::cancel, t->what.id, t->what.ticket);
  }
  /// Answers what others wait for, where NCCL is used no more.
  void decline_all() {
    const auto offers = std::exchange(offers_, {});
    const auto starts = std::exchange(starts_, {});
    for (const auto* each : {&offers, &starts})
      for (const auto& [peer, what] : *each)
        if (!what.mine && !lost_.contains(peer)) tell(peer, nccl_word::by_control, what.id);
  }
  /// What can be done without waiting. `leaving`: this call has what it came for, nothing new begins.
  bool act(deadline until, bool leaving) {
    if (out_ != nullptr && !out_->done && !usable(out_->to)) out_->by_control = true;
    if (transfer_ && transfer_->moving) return move();
    if (lane_ == nullptr) decline_all();
    if (out_ != nullptr && !out_->done && out_->by_control && !transfer_ && !lost_.contains(out_->to)) {
      if (options_.when_broken == nccl_broken::refuse)
        fail(error_id::peer_failed,
             "a message of " + std::to_string(out_->bytes.size()) +
                 " bytes needs NCCL, which was given up: " +
                 (broken_.empty() ? "rank " + std::to_string(out_->to) + " uses it no more" : broken_),
             {.rank = out_->to});
      if (out_->said && out_->to < rank_) tell(out_->to, nccl_word::cancel, out_->id);
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
    if (out_ != nullptr && !out_->done && !out_->said && (!others || !mine_last_)) {
      out_->said = true;
      mine_last_ = true;
      const announced mine{out_->id, out_->bytes.size(), true};
      if (out_->to > rank_)
        promise(out_->to, mine, nccl_word::give, until);
      else
        say(out_->to, encode_nccl_frame(nccl_word::offer, mine.id, mine.bytes), until);
      return true;
    }
    if (!others) return false;
    mine_last_ = false;
    if (!starts_.empty()) {
      const auto [peer, what] = take_turn(starts_);
      const bool wanted = what.mine ? out_ != nullptr && out_->id == what.id && !out_->done : usable(peer);
      if (wanted)
        promise(peer, what, nccl_word::ready, until);
      else
        tell(peer, what.mine ? nccl_word::cancel : nccl_word::by_control, what.id,
             what.mine ? what.ticket : 0);
      return true;
    }
    const auto [peer, what] = take_turn(offers_);
    promise(peer, what, nccl_word::take, until);
    return true;
  }
  /// The next rank behind the one whose turn was last, and what it waits for.
  [[nodiscard]] std::pair<int, announced> take_turn(std::map<int, announced>& from) {
    auto next = from.upper_bound(turn_);
    if (next == from.end()) next = from.begin();
    const std::pair<int, announced> taken(*next);
    from.erase(next);
    turn_ = taken.first;
    return taken;
  }
  void promise(int peer, announced what, nccl_word word, deadline until) {
    transfer made{.peer = peer, .what = what};
    if (word != nccl_word::ready) made.what.ticket = ++last_ticket_;
    if (!what.mine) made.memory.resize(static_cast<std::size_t>(what.bytes));
    transfer_ = std::move(made);
    say(peer, encode_nccl_frame(word, what.id, what.bytes, transfer_->what.ticket), until);
  }
  void begin() {
    auto& t = *transfer_;
    if (!t.what.mine) {
      auto& messages = inbox_[t.peer].messages;
      t.place = &messages.emplace_back(std::move(t.memory), false);
      lane_->begin_receive(t.peer, t.place->bytes);
    } else {
      lane_->begin_send(t.peer, out_->bytes);
    }
    t.moving = true;
  }
  bool move() {
    try {
      const bool moved = !lane_->over() && lane_->advance();
      if (!lane_->over()) return moved;
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
    t->place->ready = true;
    inbox_[t->peer].by_nccl = t->what.id;
    tell(t->peer, nccl_word::received, t->what.id, t->what.ticket);
    return true;
  }
  /// NCCL is used no more on this rank. A message that this rank was sending goes by control; of one that it
  /// was receiving nothing is used.
  void give_up(std::string why) {
    end_nccl(std::move(why));
    if (options_.when_broken == nccl_broken::refuse)
      fail(error_id::peer_failed, broken_ + "; NCCL is used no more on this rank", {.rank = broken_with_});
  }
  void end_nccl(std::string why) noexcept {
    auto t = std::exchange(transfer_, std::nullopt);
    if (t && t->place != nullptr) {
      auto& messages = inbox_[t->peer].messages;
      // The device may still write to its own buffers, never to these bytes.
      messages.erase(
          std::find_if(messages.begin(), messages.end(), [&](const auto& m) { return &m == t->place; }));
    }
    if (t && t->what.mine && out_ != nullptr) out_->by_control = true;
    broken_ = why.empty() ? "it was aborted" : std::move(why);
    broken_with_ = t ? t->peer : rank_;
    try {
      // Before the abort, which may take long: the other half waits on its device.
      if (t && !lost_.contains(t->peer)) tell(t->peer, nccl_word::aborted, t->what.id);
    } catch (...) {
      // It finds out by its deadline.
    }
    if (lane_ != nullptr) static_cast<void>(lane_->abort(deadline::in(options_.abort_limit)));
    lane_.reset();
    if (options_.when_broken == nccl_broken::use_control)
      std::fprintf(stderr,
                   "cairn: rank %d uses NCCL no more (%s); long messages go by the control communicator, "
                   "which is slower\n",
                   rank_, broken_.c_str());
  }
  void send_by_control(outgoing& out, deadline until) {
    std::size_t at = 0;
    do {
      const auto part = out.bytes.subspan(at, std::min(part_bytes, out.bytes.size() - at));
      at += part.size();
      const auto word = at == out.bytes.size() ? nccl_word::last : nccl_word::more;
      control_.send(out.to, encode_nccl_frame(word, out.id, out.bytes.size(), 0, part), until);
    } while (at != out.bytes.size());
    out.done = true;
  }
  /// Before a call ends: what is under way is aborted, what was promised or said is taken back.
  void leave() noexcept {
    try {
      const bool begun = transfer_ && (transfer_->moving || transfer_->peer < rank_);
      const bool young = transfer_ && !transfer_->what.mine &&
                         deadline::clock::now() - transfer_->began < options_.transfer_time;
      if (begun && young) {
        // The memory is this communicator's own.
      } else if (begun) {
        // The other half has begun, or may begin without asking again.
        const std::string call = transfer_->moving ? lane_->call() : "a transfer";
        end_nccl(call + " with rank " + std::to_string(transfer_->peer) + " was not done by a deadline");
      } else if (transfer_) {
        retract();
      }
      if (out_ != nullptr && !out_->done && out_->said && out_->to < rank_ && !lost_.contains(out_->to))
        tell(out_->to, nccl_word::cancel, out_->id);
    } catch (...) {
      // The peer finds out by its deadline.
    }
    // What the lower rank asked for is gone; what it gives is not.
    if (out_ != nullptr && !out_->done) erase(starts_, out_->to, out_->id, true);
    out_ = nullptr;
  }

  static constexpr auto shortest_pause = std::chrono::microseconds(10);
  static constexpr auto longest_pause = std::chrono::microseconds(1000);

  ::pid_t process_ = ::getpid();
  nccl_options options_;
  Control control_;
  int rank_;
  int size_;
  std::unique_ptr<nccl_lane<R>> lane_;  ///< null in a world of one rank, and once it was given up
  std::map<int, inbox> inbox_;
  std::map<int, announced> offers_;  ///< of higher ranks
  std::map<int, announced> starts_;  ///< of lower ranks, not answered yet
  std::optional<transfer> transfer_;
  outgoing* out_ = nullptr;
  std::uint64_t last_message_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::set<int> without_nccl_;
  std::set<int> lost_;  ///< seen to be gone in this call
  int swept_ = 0;
  int turn_ = -1;
  bool mine_last_ = false;  ///< the last transfer that was begun was of a message of this rank
  std::string broken_;      ///< why NCCL is used no more
  int broken_with_ = -1;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
