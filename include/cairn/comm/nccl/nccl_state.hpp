// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/nccl/nccl_opening.hpp>
#include <cairn/comm/nccl/nccl_options.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// Whether a rank uses NCCL, with whom, and if not, why. Used by one thread.
template <NcclRuntime R>
class nccl_state {
 public:
  nccl_state(const nccl_options& options, int rank) : options_(options), rank_(rank) {}

  /// Collective, of more than one rank. @throws see open_nccl.
  template <Communicator Control>
  void open(Control& control) {
    pipeline_ = open_nccl<R>(control, options_, deadline::in(options_.timeout));
  }
  /// Null in a world of one rank, and once it was given up.
  [[nodiscard]] nccl_pipeline<R>* pipeline() const noexcept { return pipeline_.get(); }
  [[nodiscard]] bool with(int peer) const {
    return pipeline_ != nullptr && broken_.empty() && !without_.contains(peer);
  }
  /// The peer uses it no more.
  void without(int peer) { without_.insert(peer); }
  [[nodiscard]] const std::string& broken() const noexcept { return broken_; }

  /// It is used no more, because of `with` or of this rank itself.
  void give_up(std::string why, int with) noexcept {
    broken_ = why.empty() ? "it was aborted" : std::move(why);
    broken_with_ = with;
  }
  /// Ends what is under way. @pre give_up() was called.
  void abort() noexcept {
    if (pipeline_ != nullptr) static_cast<void>(pipeline_->abort(deadline::in(options_.abort_timeout)));
    pipeline_.reset();
    if (options_.on_failure == nccl_failure_policy::use_control)
      std::fprintf(stderr,
                   "cairn: rank %d no longer uses NCCL (%s); long messages go by the control communicator, "
                   "which is slower\n",
                   rank_, broken_.c_str());
  }
  /// @throws peer_error (peer_failed) if nccl_failure_policy::refuse was chosen. @pre give_up() was called.
  void refuse_after_abort() const {
    if (options_.on_failure == nccl_failure_policy::refuse)
      fail(error_id::peer_failed, broken_ + "; this rank no longer uses NCCL", {.rank = broken_with_});
  }
  /// The same, of a message that would go without it.
  void refuse_message(int to, std::uint64_t bytes) const {
    if (options_.on_failure == nccl_failure_policy::refuse)
      fail(error_id::peer_failed,
           "a message of " + std::to_string(bytes) + " bytes needs NCCL, which was given up: " +
               (broken_.empty() ? "rank " + std::to_string(to) + " uses it no more" : broken_),
           {.rank = to});
  }
  /// In a child after fork(): it is the parent's.
  void leave_to_parent() noexcept { static_cast<void>(pipeline_.release()); }

 private:
  nccl_options options_;
  int rank_;
  std::unique_ptr<nccl_pipeline<R>> pipeline_;
  std::set<int> without_;
  std::string broken_;
  int broken_with_ = -1;
};

/// @throws timeout_error (timeout_peer). `call`: what was under way, with rank `with`; empty: nothing. `where`: see
/// nccl_peers.
[[noreturn]] inline void fail_nccl_late(const std::string& call, int about, std::string where, int with,
                                        bool sending, std::chrono::nanoseconds timeout) {
  std::string words;
  if (!call.empty())
    words.append(call)
        .append(" with rank ")
        .append(std::to_string(with))
        .append(" was under way at the deadline and was aborted; what had come of it is dropped");
  else
    words = sending ? "a message was not taken by the deadline" : "no message came by the deadline";
  fail(error_id::timeout_peer, words + nccl_timeout_text(timeout), {.rank = about, .got = std::move(where)});
}

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
