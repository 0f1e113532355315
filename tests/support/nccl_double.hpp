// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/nccl/nccl_calls.hpp>

#include <support/device_double.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <utility>

namespace cairn_test {

/// NCCL on device_double: non-blocking communicators whose calls are put into streams only some polls later,
/// whose halves wait for each other on the device until they are aborted, and whose aborted receives leave
/// bytes behind. A model of cairn::cuda::NcclRuntime. `reset` of device_double begins each test, then
/// `reset_nccl`.
class nccl_double : public device_double {
  struct comm;

 public:
  using nccl_type = comm*;
  struct nccl_id {
    std::uint64_t number = 0;
  };
  static constexpr int in_progress = 10007;
  static constexpr int invalid_usage = 10005;
  static constexpr int remote_error = 10006;

  // --- What a test does -----------------------------------------------------------------------------------

  /// @pre no communicator is open.
  static void reset_nccl(std::uint32_t seed) {
    auto& n = nccl();
    const std::lock_guard lock(n.mutex);
    n.random.seed(seed);
    n.hung.clear();
    n.broken_links = n.aborts_held = n.misused = false;
    n.transfers = 0;
    n.open_fails_on = -1;
  }
  /// Transfers that this rank has put into its stream never meet the other rank's.
  static void hang(int rank) {
    const std::lock_guard lock(nccl().mutex);
    nccl().hung.insert(rank);
  }
  /// Lets transfers fail half-way, which both ranks find out by polling.
  static void break_links() {
    const std::lock_guard lock(nccl().mutex);
    nccl().broken_links = true;
  }
  static void fail_open_on(int rank) {
    const std::lock_guard lock(nccl().mutex);
    nccl().open_fails_on = rank;
  }
  /// Lets aborts not return until they are released.
  static void hold_aborts(bool hold) {
    const std::lock_guard lock(nccl().mutex);
    nccl().aborts_held = hold;
    nccl().changed.notify_all();
  }
  /// Also after reset_nccl.
  static void refuse_registrations(bool yes) { nccl().no_registrations = yes; }
  static std::uint64_t transfers_made() {
    const std::lock_guard lock(nccl().mutex);
    return nccl().transfers;
  }
  static std::size_t open_communicators() {
    const std::lock_guard lock(nccl().mutex);
    return nccl().comms.size();
  }
  /// True where something was done that NCCL leaves undefined: two lengths for one transfer, calls at the
  /// same time.
  static bool misused() {
    const std::lock_guard lock(nccl().mutex);
    return nccl().misused;
  }

  // --- NcclRuntime ----------------------------------------------------------------------------------------

  static const char* name_of(int status) noexcept {
    return status == remote_error    ? "ncclRemoteError"
           : status == invalid_usage ? "ncclInvalidUsage"
                                     : device_double::name_of(status);
  }
  static const char* text_of(int status) noexcept {
    return status == remote_error    ? "remote process exited or there was a network error"
           : status == invalid_usage ? "invalid usage"
                                     : device_double::text_of(status);
  }
  static int make_id(nccl_id& id) noexcept {
    return call([&](device_double::state&) {
      const std::lock_guard lock(nccl().mutex);
      id.number = ++nccl().last_id;
      return success;
    });
  }
  static int open(nccl_type& made, int size, const nccl_id& id, int rank) noexcept {
    return call([&](device_double::state&) {
      auto& n = nccl();
      const std::lock_guard lock(n.mutex);
      if (rank == n.open_fails_on) return remote_error;
      n.comms.push_back(std::make_unique<comm>());
      made = n.comms.back().get();
      *made = {id.number, rank, size, current(), success, {}, 0};
      ++n.present[id.number];
      return in_progress;
    });
  }
  static int state(nccl_type c, int& now) noexcept {
    std::shared_ptr<operation> due;
    const int status = call([&](device_double::state&) {
      auto& n = nccl();
      const std::lock_guard lock(n.mutex);
      now = c->error;
      if (n.present[c->world] < c->size || c->polls > 0) {
        if (c->polls > 0) --c->polls;
        now = in_progress;
        return success;
      }
      due = std::exchange(c->due, nullptr);
      return success;
    });
    if (due != nullptr) {
      launch(due->where, [due] { arrive(due); });
      auto& w = world();
      const std::lock_guard lock(w.mutex);
      (void)w.put(due->where, {{}, due->done, nullptr, false});
    }
    return status;
  }
  static int send(nccl_type c, const std::byte* from, std::uint64_t bytes, int peer, stream_type s) noexcept {
    return begin(c, {c, peer, true, const_cast<std::byte*>(from), bytes, s});
  }
  static int receive(nccl_type c, std::byte* to, std::uint64_t bytes, int peer, stream_type s) noexcept {
    return begin(c, {c, peer, false, to, bytes, s});
  }
  static int abort(nccl_type c) noexcept {
    auto& n = nccl();
    std::list<std::shared_ptr<operation>> ended;
    {
      std::unique_lock lock(n.mutex);
      n.changed.wait(lock, [&] { return !n.aborts_held; });
      n.launched.erase(std::exchange(c->due, nullptr));
      for (auto at = n.waiting.begin(); at != n.waiting.end();) {
        if ((*at)->of != c) {
          ++at;
          continue;
        }
        // Write the bytes that came so far.
        if (!(*at)->sends) std::memset((*at)->data, 0x66, (*at)->bytes / 2 + 1);
        ended.push_back(*at);
        at = n.waiting.erase(at);
      }
      // Transfers that are still in the stream find no communicator.
      for (const auto& op : n.launched)
        if (op->of == c) op->of = nullptr, ended.push_back(op);
      std::erase_if(n.comms, [&](const auto& each) { return each.get() == c; });
    }
    for (const auto& op : ended) set_flag(op->done);
    return success;
  }
  static int register_buffer(nccl_type c, std::byte* data, std::uint64_t bytes, void*& handle) noexcept {
    return call([&](device_double::state& w) {
      handle = data;
      if (nccl().no_registrations) return invalid_usage;
      return w.holder(data, bytes) == c->device ? success : invalid_value;
    });
  }
  /// Does not wait for what other ranks have under way: they are other processes.
  static int deallocate(std::byte* data) noexcept {
    auto& w = world();
    const std::lock_guard lock(w.mutex);
    w.allocated.erase(data);
    return w.given.erase(data) == 1 ? success : invalid_value;
  }
  static const char* last_error(nccl_type) noexcept { return "socket closed"; }

 private:
  struct operation {
    comm* of = nullptr;
    int peer = 0;
    bool sends = false;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    stream_type where{};
    std::shared_ptr<bool> done = std::make_shared<bool>(false);
  };
  struct comm {
    std::uint64_t world = 0;
    int rank = 0;
    int size = 0;
    int device = 0;
    int error = 0;
    std::shared_ptr<operation> due;  ///< asked for, and not in the stream yet
    int polls = 0;                   ///< until it is
  };
  struct all {
    std::mutex mutex;  // taken after the devices' one, or alone
    std::condition_variable changed;
    std::mt19937 random{1};
    std::uint64_t last_id = 0;
    std::map<std::uint64_t, int> present;
    std::list<std::unique_ptr<comm>> comms;
    std::list<std::shared_ptr<operation>> waiting;  ///< have arrived, in order
    std::set<std::shared_ptr<operation>> launched;  ///< have not
    std::set<int> hung;
    int open_fails_on = -1;
    bool broken_links = false;
    bool aborts_held = false;
    bool misused = false;
    std::atomic<bool> no_registrations{false};
    std::uint64_t transfers = 0;
  };
  static all& nccl() {
    static all n;
    return n;
  }
  static void set_flag(const std::shared_ptr<bool>& flag) {
    auto& w = world();
    const std::lock_guard lock(w.mutex);
    *flag = true;
    w.changed.notify_all();
  }
  static int begin(nccl_type c, operation what) noexcept {
    return call([&](device_double::state& w) {
      auto& n = nccl();
      const std::lock_guard lock(n.mutex);
      if (c->due != nullptr || c->polls > 0) {
        n.misused = true;
        return invalid_usage;
      }
      if (c->error != success) return c->error;
      if (w.holder(what.data, what.bytes) != c->device || current() != c->device) return invalid_value;
      c->due = std::make_shared<operation>(std::move(what));
      c->polls = static_cast<int>(n.random() % 4);
      n.launched.insert(c->due);
      return in_progress;
    });
  }
  /// Called when a stream has come to its side of a transfer.
  static void arrive(const std::shared_ptr<operation>& op) {
    std::shared_ptr<operation> other;
    {
      auto& n = nccl();
      const std::lock_guard lock(n.mutex);
      n.launched.erase(op);
      if (op->of == nullptr) return;
      n.waiting.push_back(op);
      if (n.hung.contains(op->of->rank)) return;
      for (auto at = n.waiting.begin(); at != n.waiting.end(); ++at) {
        const auto& o = *at;
        if (o->of->world != op->of->world || o->sends == op->sends || o->of->rank != op->peer ||
            o->peer != op->of->rank || n.hung.contains(o->of->rank))
          continue;
        other = o;
        break;
      }
      if (other == nullptr) return;
      n.misused = n.misused || other->bytes != op->bytes;
      const auto& from = op->sends ? op : other;
      const auto& to = op->sends ? other : op;
      if (n.broken_links) {
        std::memcpy(to->data, from->data, std::min(from->bytes, to->bytes) / 2);
        op->of->error = other->of->error = remote_error;
        return;
      }
      std::memcpy(to->data, from->data, std::min(from->bytes, to->bytes));
      ++n.transfers;
      n.waiting.remove(op);
      n.waiting.remove(other);
    }
    set_flag(op->done);
    set_flag(other->done);
  }
};
static_assert(cairn::cuda::NcclRuntime<nccl_double>);

}  // namespace cairn_test
