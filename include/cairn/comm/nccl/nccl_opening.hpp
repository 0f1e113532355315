// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/nccl/nccl_options.hpp>
#include <cairn/comm/nccl/nccl_pipeline.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

[[nodiscard]] inline std::string nccl_timeout_text(std::chrono::nanoseconds timeout) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return " (" + std::to_string(std::max<std::int64_t>(0, ms)) + " ms after the call)";
}

/// Opens NCCL's communicator of all ranks. The control communicator brings its id and the size of pieces from
/// rank 0 to the others, along a tree; while NCCL opens it, it is asked who is gone, where it knows. Collective.
/// @throws timeout_error (timeout_peer), peer_error, storage_error.
template <NcclRuntime R, Communicator Control>
[[nodiscard]] std::unique_ptr<nccl_pipeline<R>> open_nccl(Control& control, const nccl_options& options,
                                                          deadline until) {
  const int rank = control.rank();
  const int size = control.size();
  auto buffer_bytes = options.buffer_bytes;
  typename R::nccl_id id{};
  const int parent = rank & (rank - 1);
  std::vector<std::byte> first;
  int status = R::success;
  if (rank == 0) {
    status = R::make_id(id);
    if (status == R::success) {
      first.resize(sizeof buffer_bytes + sizeof id);
      std::memcpy(first.data(), &buffer_bytes, sizeof buffer_bytes);
      std::memcpy(first.data() + sizeof buffer_bytes, &id, sizeof id);
    }
  } else {
    first = control.receive(parent, until);
  }
  for (int h = 0; (1 << h) < size - rank && (rank & (1 << h)) == 0; ++h)
    control.send(rank + (1 << h), first, until);
  if (first.empty())
    fail(error_id::peer_failed,
         std::string("ncclGetUniqueId failed on rank 0") +
             (rank == 0 ? std::string(": ") + R::text_of(status) : std::string()),
         {.rank = 0});
  if (first.size() != sizeof id + sizeof buffer_bytes)
    fail(error_id::peer_bad_message,
         "rank 0 sent no valid id of NCCL's communicator; do all ranks run the same version?",
         {.rank = parent});
  std::memcpy(&buffer_bytes, first.data(), sizeof buffer_bytes);
  std::memcpy(&id, first.data() + sizeof buffer_bytes, sizeof id);
  if (buffer_bytes == 0 || buffer_bytes > max_message_bytes)
    fail(error_id::peer_bad_message, "the length of NCCL's buffers is invalid", {.rank = parent});
  int device = options.device;
  if (device < 0)
    check_call<R>(R::current_device(device), "cudaGetDevice (asking for the current device)", -1);
  auto pipeline =
      std::make_unique<nccl_pipeline<R>>(device, buffer_bytes, size, id, rank, options.abort_timeout);
  std::shared_ptr<const peer_watch> watch;
  if constexpr (DetectsLostPeers<Control>) watch = std::as_const(control).watch_peers();
  int peer = rank;
  for (cairn::detail::backoff polling(std::chrono::microseconds(20), std::chrono::microseconds(1000));;) {
    const bool late = until.passed();
    peer = (peer + 1) % size;  // one at a time: each may be a system call
    const bool lost = peer != rank && watch != nullptr && watch->is_gone(peer);
    if (pipeline->opened()) return pipeline;
    if (lost)
      fail(error_id::peer_lost,
           "rank " + std::to_string(peer) +
               " is gone, before NCCL's communicator was open on all ranks; look for its error",
           {.rank = peer});
    if (late)
      fail(error_id::timeout_peer,
           "ncclCommInitRankConfig on rank " + std::to_string(rank) +
               " was not done by the deadline: not all ranks opened NCCL's communicator" +
               nccl_timeout_text(options.timeout));
    std::this_thread::sleep_for(polling.next());
  }
}

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
