// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/nccl/nccl_world.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/peer_watch.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// Ranks with a device each, whose long messages go from device to device by NCCL; models Communicator. Short
/// ones, and what the ranks have to agree on before a transfer, go by a control communicator: any other
/// Communicator of the same ranks, which carries nothing else.
///
///     cairn::cuda::nccl_communicator comm{cairn::mpi_communicator{MPI_COMM_WORLD}};
///
/// - **Its own.** The constructor is collective: rank 0 names a communicator of NCCL, the control
///   communicator brings the name to all, and all open it (non-blocking, at most 4 blocks of threads). What
///   the trainer does with NCCL is never mixed with it. A world of one rank uses neither NCCL nor a device.
/// - **A transfer** begins when both ranks are in a call of this communicator and have nothing else under
///   way; until then nothing is put into a stream, and a wait that ends leaves nothing behind. Then pieces go
///   through pinned memory and buffers that NCCL knows (4 x buffer_bytes in all), on a stream of lowest
///   priority. send() of a long message returns when the receiver's half is done as well; while a rank waits
///   for anybody, it takes in what others send.
/// - **The deadline.** NCCL cannot take back an operation that waits for its other half. A transfer that
///   is under way when the deadline of the sender's call passes, or of the receiver's once the transfer
///   has lasted transfer_timeout, is aborted (ncclCommAbort, which ends all of this communicator on that
///   rank) and the call throws timeout_error (timeout_peer), naming the call, the rank and the time.
///   Nothing that came of it is ever seen. The other rank is told; its call goes on.
/// - **Errors** of NCCL and of the device, also those that come in the background, abort in the same way.
/// - **Afterwards** this rank no longer uses NCCL: with nccl_failure_policy::use_control (default) its long
///   messages go by the control communicator, those under way too, and a line on stderr says so; with
///   nccl_failure_policy::refuse the call that met it, and all that need NCCL later, throw peer_error
///   (peer_failed). Make a new communicator to use NCCL again.
/// - NCCL's abort runs in a thread of its own for at most 10 s. If it hangs, or the device does not become
///   idle, what they may still use is never given back.
/// - The control communicator decides which ranks are lost, and says where a rank is that does not come. In a child of fork() the copy refuses every call.
///
/// One thread at a time uses it; the device that is current for that thread stays so. Calls are good while
/// streams of the trainer are captured into graphs. The destructor aborts, since anything else would wait for
/// other ranks; destroy it when all ranks are done with it (ckpt.close()).
template <NcclRuntime R, Communicator Control>
class basic_nccl_communicator {
 public:
  using cairn_role = role::communicator;

  /// @throws usage_error (usage_bad_option); timeout_error (timeout_peer) if not all ranks come by options.timeout;
  /// peer_error: peer_failed with NCCL's words, peer_lost as soon as the control communicator knows that a rank is gone,
  /// also one whose constructor threw; and what else the control communicator throws.
  explicit basic_nccl_communicator(Control control, const nccl_options& options = {})
      : world_(std::make_unique<world_type>(std::move(control), options)) {}

  [[nodiscard]] int rank() const { return world().rank(); }
  [[nodiscard]] int size() const { return world().size(); }
  void send(int to, std::span<const std::byte> bytes, deadline until) { world().send(to, bytes, until); }
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until) {
    return world().receive(from, until);
  }

  /// What the control communicator knows of ranks that are gone; see DetectsLostPeers.
  [[nodiscard]] std::shared_ptr<const peer_watch> watch_peers() const
    requires DetectsLostPeers<Control>
  {
    return std::as_const(world().control()).watch_peers();
  }

  /// The control communicator, for what it offers besides messages, such as mpi_communicator::free() when the ranks are done
  /// with this communicator. Messages that are sent or received by it are taken for this communicator's own.
  [[nodiscard]] Control& control() { return world().control(); }

  /// Why this rank no longer uses NCCL; empty while it does.
  [[nodiscard]] const std::string& broken() const { return world().broken(); }

 private:
  using world_type = detail::nccl_world<R, Control>;
  [[nodiscard]] world_type& world() const {
    if (world_ == nullptr) fail(error_id::usage_closed, "this communicator was moved from");
    return *world_;
  }

  std::unique_ptr<world_type> world_;
};

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
