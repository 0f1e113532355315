// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/device_runtime.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// The few calls of NCCL that cairn makes, beside those of the device's runtime: cuda::nccl_runtime is
/// NCCL's; tests have one whose ranks hang and whose calls fail.
///
/// Statuses are those of the runtime and of NCCL in one: `success`, `in_progress`, or an error that `name_of`
/// and `text_of` know. None throws, and none but `abort` waits. The calls on a communicator are made with its
/// device in use, by one thread at a time, and none while `state` says `in_progress`, but for `abort`.
///
/// - `make_id(id)`: names a communicator; the id's bytes are sent to the other ranks as they are.
/// - `open(c, size, id, rank)`: begins to open a communicator of the device in use.
/// - `state(c, now)`: what the communicator is at: `in_progress` while the last call goes on, or an error
///   that it met, also in the background.
/// - `send(c, from, bytes, peer, s)`, `receive(c, to, bytes, peer, s)`: in the order of the stream s, once
///   `state` says success; each waits in the stream for its other half on the peer.
/// - `abort(c)`: ends what is under way on this rank and frees the communicator, `c` is no more. May wait.
/// - `register_buffer(c, data, bytes, handle)`: may make transfers from and to this memory cheaper; transfers
///   work also where it fails.
/// - `last_error(c)`: NCCL's own account of the last error; may be empty.
template <class R>
concept NcclRuntime = DeviceRuntime<R> && std::is_trivially_copyable_v<typename R::nccl_id> &&
                      requires(typename R::nccl_type c, typename R::nccl_type& made, typename R::nccl_id& id,
                               int number, int& now, const std::byte* from, std::byte* to,
                               std::uint64_t bytes, typename R::stream_type stream, void*& handle) {
                        { R::in_progress } -> std::convertible_to<int>;
                        { R::make_id(id) } noexcept -> std::same_as<int>;
                        { R::open(made, number, id, number) } noexcept -> std::same_as<int>;
                        { R::state(c, now) } noexcept -> std::same_as<int>;
                        { R::send(c, from, bytes, number, stream) } noexcept -> std::same_as<int>;
                        { R::receive(c, to, bytes, number, stream) } noexcept -> std::same_as<int>;
                        { R::abort(c) } noexcept -> std::same_as<int>;
                        { R::register_buffer(c, to, bytes, handle) } noexcept -> std::same_as<int>;
                        { R::last_error(c) } noexcept -> std::convertible_to<const char*>;
                      };

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
