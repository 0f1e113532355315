// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/comm/shared_memory/shared_world.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/shared.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// One rank of a job: the ends of its rings, and what it knows of the others.
class shared_rank {
 public:
  /// Waits for the others until the deadline.
  shared_rank(std::string job, int rank, int size, std::size_t ring_bytes, deadline until)
      : job_(std::move(job)), rank_(rank), until_(until) {
    check_job_name(job_);
    if (size < 1 || size > max_shared_ranks)
      fail(error_id::usage_bad_option, "a job on one host has 1 to 256 ranks", {.got = std::to_string(size)});
    if (rank < 0 || rank >= size)
      fail(error_id::usage_bad_option, "there is no such rank",
           {.expected = "0 to " + std::to_string(size - 1), .got = std::to_string(rank)});
    if (ring_bytes < 4096 || ring_bytes > (std::size_t{64} << 20) || !std::has_single_bit(ring_bytes))
      fail(error_id::usage_bad_option, "the bytes of a ring are a power of two from 4 KiB to 64 MiB",
           {.got = std::to_string(ring_bytes)});
    if (rank == 0)
      gather(size, ring_bytes);
    else
      join(size);
    channels_.resize(static_cast<std::size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
      channel(peer).writer = ring_writer(world_->counters(rank_, peer), world_->ring(rank_, peer));
      channel(peer).reader = ring_reader(world_->counters(peer, rank_), world_->ring(peer, rank_));
    }
  }
  shared_rank(const shared_rank&) = delete;
  shared_rank& operator=(const shared_rank&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return world_->size(); }
  [[nodiscard]] std::shared_ptr<const peer_watch> watch() const {
    return detail::make_shared<shared_watch>(world_, rank_);
  }

  void send(int to, std::span<const std::byte> bytes, deadline until) {
    check(to);
    if (bytes.size() > max_message_bytes)
      fail(error_id::usage_overflow, "a message is longer than 1 GiB", {.rank = rank_});
    auto& l = channel(to);
    if (to == rank_) {
      l.ready.emplace_back(bytes.begin(), bytes.end());
      return;
    }
    if (is_gone(to, true)) fail_lost(to);
    if (!l.allocated) {
      world_->allocate_ring(rank_, to);
      l.allocated = true;
    }
    outgoing_message message{bytes};
    if (put(to, message); message.done()) return;
    event_wait wait(*this);
    for (;;) {
      const auto seen = wait.announce(rank_slot::anyone);
      const bool moved = put(to, message);
      if (message.done()) return;
      if (until.passed()) {
        if (is_gone(to, true)) fail_lost(to);
        fail(error_id::timeout_peer, "a rank took no message, or not all of one, by the deadline",
             {.rank = to, .got = who(to)});
      }
      // Two ranks that send to each other at the same time both go on: each takes in what the other sends.
      if (take_from_all() || moved) continue;
      if (is_gone(to, wait.timed_out())) fail_lost(to);
      wait.sleep(seen, until);
    }
  }

  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until) {
    check(from);
    if (auto message = next(from)) return std::move(*message);
    if (from == rank_)
      fail(error_id::timeout_peer, "a rank waits for a message to itself that it has not sent",
           {.rank = from});
    event_wait wait(*this);
    for (bool gone = is_gone(from, false);;) {
      const auto seen = wait.announce(static_cast<std::uint32_t>(from));
      // Once more after the last look at the sender: it may have sent and left between the two.
      if (auto message = next(from)) return std::move(*message);
      if (gone) fail_lost(from);
      if (until.passed()) {
        gone = is_gone(from, true);
        if (gone) continue;
        fail(error_id::timeout_peer, "no message came by the deadline", {.rank = from, .got = who(from)});
      }
      if (is_empty(from)) wait.sleep(seen, until);
      gone = is_gone(from, wait.timed_out());
    }
  }

 private:
  /// Both directions between this rank and another.
  struct channel_state {
    ring_writer writer;
    ring_reader reader;
    std::deque<std::vector<std::byte>> ready;  ///< taken in, not received yet
    std::optional<std::string> broken;         ///< what was wrong in a ring: nothing goes through it any more
    bool allocated = false;
    bool lost = false;
  };

  /// Waits for the event of this rank, in turns that grow, so that a rank that dies is noticed soon.
  class event_wait {
   public:
    explicit event_wait(shared_rank& self) noexcept : slot_(self.world_->slot(self.rank_)) {}
    event_wait(const event_wait&) = delete;
    event_wait& operator=(const event_wait&) = delete;
    ~event_wait() { slot_.waits_for.store(rank_slot::nobody, std::memory_order_relaxed); }

    /// Says what to be woken for. What is looked at after this call and changed later notifies it.
    [[nodiscard]] std::uint32_t announce(std::uint32_t whom) noexcept {
      const auto seen = slot_.event.current();
      slot_.waits_for.store(whom, std::memory_order_seq_cst);
      return seen;
    }
    void sleep(std::uint32_t seen, deadline until) noexcept {
      slot_.event.wait(seen, until.earlier(deadline::in(turn_)));
      timed_out_ = slot_.event.current() == seen;
      if (timed_out_) turn_ = std::min<std::chrono::microseconds>(turn_ * 2, std::chrono::milliseconds(16));
    }
    /// Whether the last turn ended without a notification.
    [[nodiscard]] bool timed_out() const noexcept { return timed_out_; }

   private:
    rank_slot& slot_;
    std::chrono::microseconds turn_{2000};
    bool timed_out_ = false;
  };

  [[nodiscard]] channel_state& channel(int peer) noexcept {
    return channels_[static_cast<std::size_t>(peer)];
  }

  void check(int peer) const {
    rank_claim_->check_process();
    if (peer < 0 || peer >= size())
      fail(error_id::usage_bad_option, "there is no such rank",
           {.expected = "0 to " + std::to_string(size() - 1), .got = std::to_string(peer)});
  }
  [[noreturn]] void fail_lost(int peer) const {
    fail(error_id::peer_lost, "the process of a rank has ended", {.rank = peer, .item = job_});
  }
  /// A rank that is late: "rank 3 on node7, process 1234, which is stopped: kill -CONT 1234 lets it go on".
  [[nodiscard]] std::string who(int peer) const {
    std::array<char, 65> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
    auto text = "rank " + std::to_string(peer) + " on " + host.data();
    const auto process = world_->slot(peer).process.load();
    // Numbers are as rank 0 sees them.
    if (process == 0 || world_->slot(rank_).process.load() != static_cast<std::int32_t>(::getpid()))
      return text;
    const auto number = std::to_string(process);
    text += ", process " + number;
    const auto about = kernel_file("/proc/" + number + "/stat").value_or("");  // "7 (any) name) S 1 ..."
    const auto name_end = about.rfind(')');
    const char state = name_end != about.npos && name_end + 2 < about.size() ? about[name_end + 2] : '?';
    if (state == 'T' || state == 't')
      text += ", which is stopped: kill -CONT " + number + " lets it go on, unless a debugger has it";
    else if (state == 'D')
      text += ", which waits in the kernel, as for a disk or a file system that does not answer";
    else if (state != '?')
      text += ", which lives: look at where it is (gdb -p " + number + ")";
    return text;
  }
  void check_whole(int peer) {
    if (const auto& l = channel(peer); l.broken)
      fail(error_id::peer_bad_message, "what a rank sent through shared memory is damaged: " + *l.broken,
           {.rank = peer});
  }

  /// Whether a rank has left or died. `ask`: the kernel, too, which costs a system call.
  [[nodiscard]] bool is_gone(int peer, bool ask) {
    auto& l = channel(peer);
    if (l.lost) return true;
    l.lost = !is_running(peer, ask);
    return l.lost;
  }
  [[nodiscard]] bool is_running(int peer, bool ask) const noexcept {
    return shared_watch::is_running(*world_, rank_, peer, ask);
  }

  /// Runs what looks at a ring of a pair; what is impossible there breaks the pair.
  template <class Body>
  bool guarded(int peer, Body&& body) {
    check_whole(peer);
    try {
      return body();
    } catch (const wire_error& e) {
      channel(peer).broken = std::string(e.what()) + " (byte " + std::to_string(e.offset) + ")";
    }
    check_whole(peer);
    return false;
  }
  bool put(int to, outgoing_message& message) {
    const bool moved = guarded(to, [&] { return channel(to).writer.put(message); });
    if (moved) wake(to, static_cast<std::uint32_t>(rank_));
    return moved;
  }
  std::size_t take(int from) {
    std::size_t taken = 0;
    guarded(from, [&] { return (taken = channel(from).reader.take(channel(from).ready)) != 0; });
    if (taken != 0) wake(from, rank_slot::anyone);
    return taken;
  }
  [[nodiscard]] bool is_empty(int from) {
    return !guarded(from, [&] { return channel(from).reader.available() != 0; });
  }
  /// Rings a rank's bell if it sleeps for this: a message of `what`, or anyone's room.
  void wake(int peer, std::uint32_t what) noexcept {
    auto& theirs = world_->slot(peer);
    const auto whom = theirs.waits_for.load(std::memory_order_seq_cst);
    if (whom == what || whom == rank_slot::anyone) theirs.event.notify();
  }
  /// The next message, if it lies there. Looks no further than at what lay there at the call: a peer that
  /// goes on sending does not keep us past the deadline.
  [[nodiscard]] std::optional<std::vector<std::byte>> next(int from) {
    auto& l = channel(from);
    if (l.ready.empty() && from != rank_) {
      std::size_t there = 0;
      guarded(from, [&] { return (there = l.reader.available()) != 0; });
      while (there != 0 && l.ready.empty()) there -= std::min(there, take(from));
    }
    if (l.ready.empty()) return std::nullopt;
    std::optional<std::vector<std::byte>> message(std::move(l.ready.front()));
    l.ready.pop_front();
    return message;
  }
  /// Takes in what the others send, up to a limit. Whether there was anything.
  bool take_from_all() {
    std::size_t kept = 0;
    for (const auto& l : channels_) {
      kept += l.reader.partial_bytes();
      for (const auto& each : l.ready) kept += each.size() + sizeof each;
    }
    bool any = false;
    for (int peer = 0; peer < size() && kept < max_message_bytes; ++peer) {
      if (peer == rank_ || channel(peer).broken) continue;
      try {
        any = take(peer) != 0 || any;
      } catch (const peer_error&) {
        // Told when this peer is used.
      }
    }
    return any;
  }

  // --- How ranks meet

  void gather(int size, std::size_t ring_bytes) {
    host_.emplace(job_, until_);
    world_ = detail::make_shared<shared_world>(size, ring_bytes);
    world_->slot(0).process = static_cast<std::int32_t>(::getpid());
    rank_claim_.emplace(*world_, rank_);
    const auto admit = [&](const rendezvous_hello& hello, std::int32_t process) {
      if (hello.size != size) return rendezvous_answer::other_size;
      if (hello.rank < 1 || hello.rank >= size) return rendezvous_answer::no_such_rank;
      if (world_->slot(hello.rank).state.load() != rank_state::absent) return rendezvous_answer::taken;
      const auto here = world_->slot(0).process.load();
      for (int other = 1; other < size; ++other) {
        const auto theirs = world_->slot(other).process.load();
        if (other == hello.rank || theirs == 0) continue;
        if ((process == here) != (theirs == here) || (process != here && process == theirs))
          return rendezvous_answer::mixed;
      }
      world_->slot(hello.rank).process = process;
      return rendezvous_answer::welcome;
    };
    const auto hung_up = [&](int rank) {
      if (world_->slot(rank).state.load() == rank_state::absent) world_->slot(rank).process = 0;
    };
    for (;;) {
      bool all = true;
      bool hopeless = false;
      for (int rank = 1; rank < size; ++rank) {
        auto& state = world_->slot(rank).state;
        auto attached = rank_state::attached;
        if (state.load() == attached && !is_running(rank, true))
          state.compare_exchange_strong(attached, rank_state::lost);
        const auto now = state.load();
        all = all && now == rank_state::attached;
        hopeless = hopeless || (now != rank_state::attached && now != rank_state::absent);
      }
      if (all) break;
      if (hopeless || until_.passed()) {
        world_->phase().store(world_phase::given_up);
        world_->wake_all_ranks();
        fail_rendezvous();
      }
      host_->serve(world_->file(), size, until_.earlier(deadline::in(std::chrono::milliseconds(10))), admit,
                   hung_up);
    }
    world_->phase().store(world_phase::complete);
    world_->wake_all_ranks();
    host_->close();
  }

  void join(int size) {
    auto place = ask_in(job_, rank_, size, until_);
    world_ = detail::make_shared<shared_world>(std::move(place.memory), size);
    rank_claim_.emplace(*world_, rank_);
    static_cast<void>(::send(place.connection.get(), "!", 1, MSG_NOSIGNAL));
    place.connection.close();
    event_wait wait(*this);
    for (;;) {
      const auto seen = wait.announce(rank_slot::nobody);
      const auto rank_0_runs = is_running(0, true);  // before the phase: rank 0 may be complete, and leave
      const auto phase = world_->phase().load();
      if (phase == world_phase::complete) return;
      if (phase == world_phase::given_up) fail_rendezvous();
      if (!rank_0_runs)
        fail(error_id::peer_lost, "rank 0 ended before all ranks of the job had come",
             {.rank = 0, .item = job_});
      if (until_.passed()) fail_rendezvous();
      wait.sleep(seen, until_);
    }
  }

  /// Throws why the rendezvous failed: who died, or else who never came.
  [[noreturn]] void fail_rendezvous() {
    std::string names[3];
    int firsts[3] = {-1, -1, -1};
    const auto add = [&](int kind, int rank) {
      if (firsts[kind] < 0) firsts[kind] = rank;
      names[kind].append(names[kind].empty() ? "" : ", ").append(std::to_string(rank));
    };
    for (int rank = 0; rank < size(); ++rank) {
      const auto state = world_->slot(rank).state.load();
      if (state == rank_state::lost) add(0, rank);
      if (state == rank_state::absent) add(1, rank);
      if (state == rank_state::left) add(2, rank);
    }
    const auto refused = host_ && !host_->refused().empty() ? "; " + host_->refused() : std::string();
    for (const int kind : {0, 2})
      if (firsts[kind] >= 0 && (kind == 0 || firsts[1] < 0))
        fail(error_id::peer_lost, "ranks ended before all ranks of the job had come: " + names[kind],
             {.rank = firsts[kind], .item = job_});
    if (firsts[1] >= 0)
      fail(error_id::timeout_peer, "ranks did not come to the job by the deadline: " + names[1] + refused,
           {.rank = firsts[1], .item = job_});
    fail(error_id::timeout_peer, "rank 0 did not find all ranks of the job by the deadline",
         {.rank = 0, .item = job_});
  }

  std::string job_;
  int rank_;
  deadline until_;
  std::optional<rendezvous_host> host_;
  std::shared_ptr<shared_world> world_;
  std::optional<rank_claim> rank_claim_;
  std::vector<channel_state> channels_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
