// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::mpi
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/fork_guard.hpp>

#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

static_assert(max_message_bytes <= INT_MAX, "MPI counts the bytes of a message in an int");

/// Gives the core to others between two polls: yields at first, then sleeps, longer each time.
class mpi_backoff {
 public:
  void pause(deadline until, bool transferring) {
    if (++polls_ <= 256) {
      ::sched_yield();
      return;
    }
    // A large message goes on only while both sides poll; but one that is not taken for long has no receiver.
    const auto longest = std::chrono::microseconds(transferring && polls_ < 5000 ? 50 : 1000);
    sleep_for(std::min<std::chrono::nanoseconds>(sleep_.next(), longest), until);
  }
  void progressed() noexcept { *this = {}; }

 private:
  int polls_ = 0;
  backoff sleep_{std::chrono::microseconds(10), std::chrono::microseconds(1000)};
};

/// What mpi_communicator owns, at one address for its whole life, because MPI writes into it. The functions
/// are the communicator's; see there.
class mpi_world {
 public:
  mpi_world(const mpi_world&) = delete;
  mpi_world& operator=(const mpi_world&) = delete;
  ~mpi_world() = default;

  [[nodiscard]] static std::unique_ptr<mpi_world> open(MPI_Comm parent, deadline until) {
    std::unique_ptr<mpi_world> world(new mpi_world);
    try {
      world->duplicate(parent, until);
    } catch (...) {
      leave(std::move(world));
      throw;
    }
    return world;
  }

  /// Ends it; what MPI may still read or write, and what belongs to the parent of a fork, is never given
  /// back.
  static void leave(std::unique_ptr<mpi_world> world) noexcept {
    if (world != nullptr && !world->idle()) static_cast<void>(world.release());
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  void send(int to, std::span<const std::byte> bytes, deadline until) {
    check_call();
    check_peer(to);
    if (bytes.size() > max_message_bytes)
      fail(error_id::usage_overflow, "a message is longer than 1 GiB", {.rank = rank_});
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    if (to == rank_) {
      inbox_[to].push_back({MPI_REQUEST_NULL, std::move(copy)});
      return;
    }
    await_sent(to, until, "an earlier message to this rank was not taken by the deadline, so none was sent");
    auto& sent = unsent_.emplace(to, operation{MPI_REQUEST_NULL, std::move(copy)}).first->second;
    MPI_Request request = MPI_REQUEST_NULL;
    const auto length = static_cast<int>(sent.bytes.size());
    check(MPI_Isend(sent.bytes.data(), length, MPI_BYTE, to, tag, comm_, &request), "MPI_Isend", to);
    sent.request = request;
    await_sent(to, until, "a message was not taken by the deadline; it may still arrive");
  }

  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until) {
    check_call();
    check_peer(from);
    auto& queue = inbox_[from];
    for (mpi_backoff polling;;) {
      const bool late = until.passed();  // looked at before the poll, so that what has arrived counts
      const bool moved = progress();
      if (!queue.empty() && queue.front().done()) {
        auto bytes = std::move(queue.front().bytes);
        queue.pop_front();
        return bytes;
      }
      if (from == rank_)
        fail(error_id::timeout_peer, "this rank waits for a message of its own that it has not sent",
             {.rank = from});
      if (late)
        fail(error_id::timeout_peer,
             queue.empty() ? "no message came by the deadline"
                           : "a message had begun to arrive and was not complete by the deadline",
             {.rank = from, .got = who(from)});
      if (moved)
        polling.progressed();
      else
        polling.pause(until, !arriving_.empty());
    }
  }

  void free(deadline until) {
    check_call();
    // When all ranks are here, no message of another call is under way, and MPI_Comm_free waits for nobody.
    check(MPI_Ibarrier(comm_, &collective_), "MPI_Ibarrier", -1);
    for (mpi_backoff polling;;) {
      const bool late = until.passed();
      const bool moved = progress();
      if (completed(collective_, "MPI_Ibarrier", -1) && unsent_.empty() && arriving_.empty()) break;
      if (late) {
        broken_ = "not all ranks called free() by the deadline; the duplicate of the communicator is kept";
        fail(error_id::timeout_peer, broken_);
      }
      if (moved)
        polling.progressed();
      else
        polling.pause(until, false);
    }
    check(MPI_Comm_free(&comm_), "MPI_Comm_free", -1);
    comm_ = MPI_COMM_NULL;
    inbox_.clear();
  }

 private:
  static constexpr int tag = 0;
  static constexpr int max_at_once = 64;

  /// A message and what MPI does with it.
  struct operation {
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<std::byte> bytes;
    [[nodiscard]] bool done() const noexcept { return request == MPI_REQUEST_NULL; }
  };

  mpi_world() = default;

  [[nodiscard]] static bool is_finalised() noexcept {
    int finalised = 0;
    return MPI_Finalized(&finalised) != MPI_SUCCESS || finalised != 0;
  }
  [[nodiscard]] static bool on_main_thread() noexcept {
    int main = 0;
    return MPI_Is_thread_main(&main) == MPI_SUCCESS && main != 0;
  }

  void duplicate(MPI_Comm parent, deadline until) {
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised == 0)
      fail(error_id::usage_bad_option,
           "MPI is not initialised; call MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) "
           "before an mpi_communicator is made");
    if (is_finalised())
      fail(error_id::usage_bad_option,
           "MPI was finalised already; make an mpi_communicator before MPI_Finalize");
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_FUNNELED)
      fail(error_id::usage_bad_option,
           "MPI was initialised for programs of one thread, and cairn writes with threads of its own; call "
           "MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) instead of MPI_Init",
           {.expected = "MPI_THREAD_FUNNELED or more", .got = "MPI_THREAD_SINGLE"});
    funnelled_ = level == MPI_THREAD_FUNNELED;
    check_thread();
    if (parent == MPI_COMM_NULL) fail(error_id::usage_bad_option, "MPI_COMM_NULL has no ranks");
    int between_groups = 0;
    check(MPI_Comm_test_inter(parent, &between_groups), "MPI_Comm_test_inter", -1);
    if (between_groups != 0)
      fail(error_id::usage_bad_option,
           "an intercommunicator joins two groups of ranks; give cairn an intracommunicator");
    check(MPI_Comm_rank(parent, &rank_), "MPI_Comm_rank", -1);
    check(MPI_Comm_size(parent, &size_), "MPI_Comm_size", -1);
    check(MPI_Comm_idup(parent, &comm_, &collective_), "MPI_Comm_idup", -1);
    await_collective("MPI_Comm_idup", until);
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", -1);
    learn_hosts(until);
  }
  void await_collective(std::string_view call, deadline until) {
    for (mpi_backoff polling;;) {
      const bool late = until.passed();
      if (completed(collective_, call, -1)) return;
      if (late)
        fail(error_id::timeout_peer,
             "not all ranks made an mpi_communicator by the deadline; all ranks of the communicator make it, "
             "in the same order with their other collective calls");
      polling.pause(until, false);
    }
  }

  /// The names of all hosts, now: those who wait in vain for a rank tell where it was.
  void learn_hosts(deadline until) {
    constexpr std::size_t room = 64;  // as the names of Linux, with their end
    const auto ranks = static_cast<std::size_t>(size_);
    names_.assign((ranks + 1) * room, '\0');
    if (::gethostname(names_.data(), room - 1) != 0) names_[0] = '?';
    check(MPI_Iallgather(names_.data(), room, MPI_CHAR, names_.data() + room, room, MPI_CHAR, comm_,
                         &collective_),
          "MPI_Iallgather", -1);
    await_collective("MPI_Iallgather", until);
    std::map<std::string, std::uint32_t> numbers;
    for (std::size_t each = 1; each <= ranks; ++each) {
      const std::string name(names_.data() + each * room);
      const auto [known, is_new] = numbers.emplace(name, static_cast<std::uint32_t>(hosts_.size()));
      if (is_new) hosts_.push_back(name);
      host_of_.push_back(known->second);
    }
    names_ = {};
  }
  [[nodiscard]] std::string who(int peer) const {
    const auto at = static_cast<std::size_t>(peer);
    std::string text = "rank " + std::to_string(peer);
    return at < host_of_.size() ? text + " on " + hosts_[host_of_[at]] : text;
  }

  void check_call() const {
    process_.check("an mpi_communicator does not work in a child of fork()");
    if (is_finalised())
      fail(error_id::usage_closed,
           "MPI was finalised; end what uses an mpi_communicator before MPI_Finalize");
    check_thread();
    if (!broken_.empty()) fail_broken();
    if (comm_ == MPI_COMM_NULL) fail(error_id::usage_closed, "this communicator was freed");
  }
  void check_thread() const {
    if (funnelled_ && !on_main_thread())
      fail(error_id::usage_bad_option,
           "with MPI_THREAD_FUNNELED only the thread that initialised MPI may use an mpi_communicator; call "
           "from it, or initialise MPI with MPI_THREAD_SERIALIZED");
  }
  void check_peer(int peer) const {
    if (peer < 0 || peer >= size_)
      fail(error_id::usage_bad_option, "there is no such rank",
           {.expected = "0 to " + std::to_string(size_ - 1), .got = std::to_string(peer)});
  }
  /// What MPI says of a call becomes an error, and the communicator is broken: nothing tells what MPI did.
  void check(int code, std::string_view call, int peer) {
    if (code == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
    int length = 0;
    if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
    broken_ = std::string(call) + " failed: ";
    broken_ += length > 0 ? std::string(text.data(), static_cast<std::size_t>(length))
                          : "MPI has no words for its error " + std::to_string(code);
    broken_peer_ = peer;
    fail_broken();
  }
  [[noreturn]] void fail_broken() const {
    fail(error_id::peer_failed, broken_ + "; this communicator is broken and refuses every call",
         {.rank = broken_peer_, .got = broken_peer_ < 0 ? std::string() : who(broken_peer_)});
  }
  [[nodiscard]] bool completed(MPI_Request& request, std::string_view call, int peer) {
    if (request == MPI_REQUEST_NULL) return true;
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), call, peer);
    return done != 0;
  }

  void await_sent(int to, deadline until, std::string_view what) {
    for (mpi_backoff polling; unsent_.contains(to);) {
      const bool late = until.passed();
      const bool moved = progress();
      if (!unsent_.contains(to)) return;
      if (late) fail(error_id::timeout_peer, what, {.rank = to, .got = who(to)});
      if (moved)
        polling.progressed();
      else
        polling.pause(until, true);
    }
  }

  /// One poll of everything: what was sent, what arrives, and what begins to arrive. True if something moved.
  bool progress() {
    bool moved = false;
    for (auto sent = unsent_.begin(); sent != unsent_.end();) {
      const bool done = completed(sent->second.request, "MPI_Isend", sent->first);
      sent = done ? unsent_.erase(sent) : std::next(sent);
      moved = moved || done;
    }
    for (int i = 0; i < max_at_once; ++i) {
      int found = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status{};
      check(MPI_Improbe(MPI_ANY_SOURCE, tag, comm_, &found, &message, &status), "MPI_Improbe", -1);
      if (found == 0) break;
      take(message, status);
      moved = true;
    }
    return std::erase_if(arriving_,
                         [&](const auto& each) {
                           return completed(each.second->request, "MPI_Imrecv", each.first);
                         }) > 0 ||
           moved;
  }
  void take(MPI_Message message, const MPI_Status& status) {
    const int from = status.MPI_SOURCE;
    int length = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &length), "MPI_Get_count", from);
    if (length < 0 || static_cast<std::size_t>(length) > max_message_bytes) {
      broken_ = "a message is longer than 1 GiB";
      broken_peer_ = from;
      fail(error_id::peer_bad_message, broken_, {.rank = from});
    }
    try {
      auto& queue = inbox_[from];
      auto& coming = queue.emplace_back();
      coming.bytes.resize(static_cast<std::size_t>(length));
      arriving_.emplace_back(from, &coming);
      check(MPI_Imrecv(coming.bytes.data(), length, MPI_BYTE, &message, &coming.request), "MPI_Imrecv", from);
    } catch (const std::bad_alloc&) {
      // The message was matched already: it can neither be left nor be put back.
      broken_ = "memory ran out for a message of " + std::to_string(length) + " bytes";
      broken_peer_ = from;
      throw;
    }
  }

  /// Whether all of it can be given back: MPI uses none of it any more.
  [[nodiscard]] bool idle() noexcept {
    if (process_.in_child()) return false;
    if (is_finalised()) return true;
    try {
      if (collective_ == MPI_REQUEST_NULL && unsent_.empty() && arriving_.empty()) return true;
      if (!broken_.empty() || collective_ != MPI_REQUEST_NULL) return false;
      check_thread();
      progress();
      return unsent_.empty() && arriving_.empty();
    } catch (...) {
      return false;
    }
  }

  fork_guard process_;
  bool funnelled_ = true;
  int rank_ = 0;
  int size_ = 0;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Request collective_ = MPI_REQUEST_NULL;         ///< of the duplication, and of free()
  std::map<int, operation> unsent_;                   ///< by receiver: what MPI has not taken yet
  std::map<int, std::deque<operation>> inbox_;        ///< by sender, in order: what came, or is coming
  std::vector<std::pair<int, operation*>> arriving_;  ///< those of the inbox that are not complete
  std::vector<char> names_;                           ///< what learn_hosts() sends, and receives into
  std::vector<std::string> hosts_;                    ///< each once
  std::vector<std::uint32_t> host_of_;                ///< by rank: which of hosts_
  std::string broken_;                                ///< why nothing works any more
  int broken_peer_ = -1;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
