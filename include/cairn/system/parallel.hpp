// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/function_ref.hpp>

#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Cores of the machine, at least 1.
[[nodiscard]] int usable_cores() noexcept;
/// Threads of a load: enough to keep a device busy while others verify, whatever the number of cores.
[[nodiscard]] std::uint64_t load_threads() noexcept;

/// Calls `call(i, thread)` for each i in [0, count), ascending, on up to `threads` threads including this
/// one; `thread` counts them from 0. Returns when all calls have ended. After an exception no further call
/// begins; the first one is thrown here. Goes on with fewer threads where the system gives no more.
void parallel_for(std::size_t count, std::size_t threads, function_ref<void(std::size_t, std::size_t)> call);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/parallel.ipp>
#endif
