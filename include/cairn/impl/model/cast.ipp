// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/cast.hpp>
#include <cairn/model/dtype.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cairn {
inline namespace v1 {
namespace detail {

inline float widen(bf16 x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

inline float widen(f16 x) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

inline double widen(double x) noexcept {
  return x;
}

inline float widen(float x) noexcept {
  return x;
}

template <class To>
To narrow(double x) noexcept = delete;
template <>
inline double narrow<double>(double x) noexcept {
  return x;
}
template <>
inline float narrow<float>(double x) noexcept {
  return static_cast<float>(x);
}
/// Round to nearest, ties to even; a NaN stays a NaN.
template <>
inline bf16 narrow<bf16>(double x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
inline f16 narrow<f16>(double x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {  // subnormal: let the float adder round
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return {static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13))};
}

template <class From, class To>
void cast_elements(const std::byte* from, std::byte* to, std::size_t elements) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    From x;
    std::memcpy(&x, from + i * sizeof(From), sizeof(From));
    const To y = narrow<To>(static_cast<double>(widen(x)));
    std::memcpy(to + i * sizeof(To), &y, sizeof(To));
  }
}

template <class From>
cast_function cast_from(dtype to) noexcept {
  switch (to) {
    case dtype::f64:
      return cast_elements<From, double>;
    case dtype::f32:
      return cast_elements<From, float>;
    case dtype::f16:
      return cast_elements<From, f16>;
    case dtype::bf16:
      return cast_elements<From, bf16>;
    default:
      return nullptr;
  }
}

}  // namespace detail

CAIRN_BODY cast_function find_cast(dtype from, dtype to) noexcept {
  switch (from) {
    case dtype::f64:
      return detail::cast_from<double>(to);
    case dtype::f32:
      return detail::cast_from<float>(to);
    case dtype::f16:
      return detail::cast_from<f16>(to);
    case dtype::bf16:
      return detail::cast_from<bf16>(to);
    default:
      return nullptr;
  }
}

}  // namespace v1
}  // namespace cairn
