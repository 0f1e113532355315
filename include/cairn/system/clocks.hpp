// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {

/// The current time in nanoseconds of the steady clock, which all processes of a host share.
[[nodiscard]] std::int64_t steady_now() noexcept;
/// The CPU time of the calling thread in nanoseconds. Costs half a microsecond.
[[nodiscard]] std::int64_t thread_cpu_now() noexcept;
/// The CPU time of all threads of this process in nanoseconds.
[[nodiscard]] std::int64_t process_cpu_now() noexcept;

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/clocks.ipp>
#endif
