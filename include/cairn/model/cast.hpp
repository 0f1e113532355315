// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>

#include <cstddef>

namespace cairn {
inline namespace v1 {

/// Converts `elements` elements, contiguous, at any alignment, from one dtype to another. Called by several
/// threads at once on different memory. Planners may bring their own.
using cast_function = void (*)(const std::byte* from, std::byte* to, std::size_t elements) noexcept;

/// The conversion between two of f64, f32, f16 and bf16 (to nearest, ties to even; from f64 to the 16-bit
/// types by way of f32), or nullptr where there is none.
[[nodiscard]] cast_function find_cast(dtype from, dtype to) noexcept;

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/cast.ipp>
#endif
