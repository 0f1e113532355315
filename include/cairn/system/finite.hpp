// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <bit>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

// By their bits: std::isnan and its like are constants in programs that are compiled with -ffast-math. By reference: such
// compilers take arguments for finite, too.

/// The exponent of what is not finite.
inline constexpr std::uint64_t odd_exponent = 0x7ff0000000000000u;

[[nodiscard]] constexpr std::uint64_t magnitude_bits(const double& value) noexcept {
  return std::bit_cast<std::uint64_t>(value) & (UINT64_MAX >> 1);
}
[[nodiscard]] constexpr bool is_nan(const double& value) noexcept {
  return magnitude_bits(value) > odd_exponent;
}
[[nodiscard]] constexpr bool is_infinite(const double& value) noexcept {
  return magnitude_bits(value) == odd_exponent;
}
[[nodiscard]] constexpr bool is_finite(const double& value) noexcept {
  return magnitude_bits(value) < odd_exponent;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
