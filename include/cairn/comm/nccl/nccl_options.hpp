// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <chrono>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// How a rank sends long messages after NCCL has failed there, or was aborted at a deadline.
enum class nccl_failure_policy : std::uint8_t {
  use_control,  ///< they go by the control communicator, which a line on stderr says once
  refuse,       ///< each is a peer_error (peer_failed)
};

/// Options of nccl_communicator.
struct nccl_options {
  /// The device for messages; negative: the device that is current when the communicator is made.
  int device = -1;
  /// Messages with fewer bytes go by the control communicator.
  std::uint64_t min_bytes = std::uint64_t{64} << 10;
  /// The size of the buffers through which a message goes, in bytes. There are two in device memory and
  /// two in pinned memory. Rank 0's value is used.
  std::uint64_t buffer_bytes = std::uint64_t{4} << 20;
  /// How long the constructor waits for the other ranks.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
  /// How this rank sends long messages when NCCL has failed.
  nccl_failure_policy on_failure = nccl_failure_policy::use_control;
  /// A transfer to this rank that has not lasted so long is not aborted at the deadline of a call, but
  /// goes on in the next call, so that a short wait does not abort a long transfer.
  std::chrono::nanoseconds transfer_timeout = std::chrono::seconds(10);
  /// How long to wait for NCCL's abort. After that it goes on in its thread, and the memory that it may
  /// use is kept.
  std::chrono::nanoseconds abort_timeout = std::chrono::seconds(10);
};

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
