// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <chrono>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// What becomes of long messages once NCCL has failed on a rank, or was aborted at a deadline.
enum class nccl_broken : std::uint8_t {
  use_control,  ///< they go by the control communicator, which a line on stderr says once
  refuse,       ///< each is a peer_error (peer_failed)
};

/// Options of nccl_communicator.
struct nccl_options {
  /// The device that messages go through; negative: the one that is current when the communicator is made.
  int device = -1;
  /// Shorter messages go by the control communicator, in bytes.
  std::uint64_t min_bytes = std::uint64_t{64} << 10;
  /// Messages are cut into pieces of so many bytes. Two of them are taken in device memory, and two in pinned
  /// memory. Rank 0's counts.
  std::uint64_t buffer_bytes = std::uint64_t{4} << 20;
  /// How long the constructor waits for the other ranks.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
  nccl_broken when_broken = nccl_broken::use_control;
  /// A transfer to this rank that is younger is not aborted at the deadline of a call: it goes on in the next
  /// call. Waits may be short, and what they interrupt long.
  std::chrono::nanoseconds transfer_timeout = std::chrono::seconds(10);
  /// How long NCCL's abort is waited for; then it goes on in its thread, and what it may use is kept.
  std::chrono::nanoseconds abort_timeout = std::chrono::seconds(10);
};

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
