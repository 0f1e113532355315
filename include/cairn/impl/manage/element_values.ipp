// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/manage/element_values.hpp>
#include <cairn/model/cast.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/system/finite.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Numbers that are looked at together: they stay in the first cache of a core. A multiple of every granule.
inline constexpr std::size_t values_at_once = 1024;

/// The value of a small float whose bits are sign, exponent, mantissa. `last`: what the largest exponent means.
enum class small_float_end : std::uint8_t { numbers, nan_alone, infinity };
[[nodiscard]] inline double value_of_small_float(unsigned bits, int exponent_bits, int mantissa_bits,
                                                 small_float_end last) noexcept {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + mantissa_bits) & 1) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    if (last == small_float_end::infinity)
      return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                           : std::numeric_limits<double>::quiet_NaN();
    if (last == small_float_end::nan_alone && mantissa == (1u << mantissa_bits) - 1)
      return std::numeric_limits<double>::quiet_NaN();
  }
  const double unit = std::ldexp(1.0, (exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
  return sign * (exponent == 0 ? mantissa : mantissa + (1u << mantissa_bits)) * unit;
}
[[nodiscard]] inline double small_value(dtype type, unsigned bits) noexcept {
  switch (type) {
    case dtype::f8_e5m2:
      return value_of_small_float(bits, 5, 2, small_float_end::infinity);
    case dtype::f8_e4m3:
      return value_of_small_float(bits, 4, 3, small_float_end::nan_alone);
    case dtype::f8_e8m0:
      return bits == 255 ? std::numeric_limits<double>::quiet_NaN()
                         : std::ldexp(1.0, static_cast<int>(bits) - 127);
    case dtype::f6_e2m3:
      return value_of_small_float(bits & 63, 2, 3, small_float_end::numbers);
    case dtype::f6_e3m2:
      return value_of_small_float(bits & 63, 3, 2, small_float_end::numbers);
    case dtype::f4:
      return value_of_small_float(bits & 15, 2, 1, small_float_end::numbers);
    case dtype::boolean:
      return bits != 0;
    case dtype::i8:
      return bits < 128 ? static_cast<int>(bits) : static_cast<int>(bits) - 256;
    default:
      return bits;
  }
}

/// All values of the dtypes of at most 8 bits.
struct small_values {
  double of[static_cast<std::size_t>(last_dtype) + 1][256];
  small_values() noexcept {
    for (std::size_t t = 0; t <= static_cast<std::size_t>(last_dtype); ++t)
      for (unsigned bits = 0; bits < 256; ++bits) of[t][bits] = small_value(static_cast<dtype>(t), bits);
  }
};

template <class Number>
void widen_numbers(const std::byte* from, std::size_t count, double* to) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    Number n;
    std::memcpy(&n, from + i * sizeof n, sizeof n);
    to[i] = static_cast<double>(n);
  }
}

/// The values of elements; of C64 two for each.
inline void widen_values(dtype type, const std::byte* from, std::size_t numbers, double* to) noexcept {
  static const small_values tables;
  const auto* table = tables.of[static_cast<std::size_t>(type)];
  switch (type) {
    case dtype::f64:
      return widen_numbers<double>(from, numbers, to);
    case dtype::f32:
    case dtype::c64:
      return widen_numbers<float>(from, numbers, to);
    case dtype::f16:
    case dtype::bf16:
      return find_cast(type, dtype::f64)(from, reinterpret_cast<std::byte*>(to), numbers);
    case dtype::i16:
      return widen_numbers<std::int16_t>(from, numbers, to);
    case dtype::u16:
      return widen_numbers<std::uint16_t>(from, numbers, to);
    case dtype::i32:
      return widen_numbers<std::int32_t>(from, numbers, to);
    case dtype::u32:
      return widen_numbers<std::uint32_t>(from, numbers, to);
    case dtype::i64:
      return widen_numbers<std::int64_t>(from, numbers, to);
    case dtype::u64:
      return widen_numbers<std::uint64_t>(from, numbers, to);
    case dtype::f4:
      for (std::size_t i = 0; i < numbers; ++i)
        to[i] = table[std::to_integer<unsigned>(from[i / 2]) >> (i % 2 * 4) & 15];
      return;
    case dtype::f6_e2m3:
    case dtype::f6_e3m2:
      for (std::size_t i = 0; i < numbers; i += 4) {
        const auto* at = from + i / 4 * 3;
        const auto bits = std::to_integer<unsigned>(at[0]) | std::to_integer<unsigned>(at[1]) << 8 |
                          std::to_integer<unsigned>(at[2]) << 16;
        for (std::size_t k = 0; k < 4; ++k) to[i + k] = table[bits >> (6 * k) & 63];
      }
      return;
    default:
      for (std::size_t i = 0; i < numbers; ++i) to[i] = table[std::to_integer<unsigned>(from[i])];
  }
}

[[nodiscard]] constexpr std::uint64_t numbers_of(dtype type, std::uint64_t elements) noexcept {
  return type == dtype::c64 ? 2 * elements : elements;
}
[[nodiscard]] constexpr std::uint64_t bytes_of_numbers(dtype type, std::uint64_t numbers) noexcept {
  return type == dtype::c64 ? 4 * numbers : bytes_of(type, static_cast<std::int64_t>(numbers));
}

/// Of finite numbers. Eight sums each, which a compiler computes at a time.
inline void sum_finite(const double* values, std::size_t count, value_statistics& s) noexcept {
  if (count == 0) return;
  constexpr std::size_t lanes = 8;
  double sum[lanes] = {}, squares[lanes] = {}, deviations[lanes] = {}, low[lanes], high[lanes];
  std::uint64_t zeros[lanes] = {};
  std::fill(low, low + lanes, values[0]);
  std::fill(high, high + lanes, values[0]);
  const auto each = [&](auto&& call) {
    std::size_t i = 0;
    for (; i + lanes <= count; i += lanes)
      for (std::size_t l = 0; l < lanes; ++l) call(values[i + l], l);
    for (; i < count; ++i) call(values[i], i % lanes);
  };
  const auto total = [](const double* parts) {
    double all = 0;
    for (std::size_t l = 0; l < lanes; ++l) all += parts[l];
    return all;
  };
  each([&](double v, std::size_t l) {
    sum[l] += v;
    squares[l] += v * v;
    low[l] = v < low[l] ? v : low[l];
    high[l] = v > high[l] ? v : high[l];
    zeros[l] += v == 0;
  });
  s.finite = count;
  s.mean = total(sum) / static_cast<double>(count);
  // Sums of the largest doubles are infinite where their mean is not.
  if (!is_finite(s.mean)) {
    s.mean = 0;
    for (std::size_t i = 0; i < count; ++i) s.mean += values[i] / static_cast<double>(count);
  }
  s.squares = total(squares);
  each([&](double v, std::size_t l) { deviations[l] += (v - s.mean) * (v - s.mean); });
  s.deviations = total(deviations);
  s.min = *std::min_element(low, low + lanes);
  s.max = *std::max_element(high, high + lanes);
  for (const auto z : zeros) s.zeros += z;
}

CAIRN_BODY value_statistics statistics_of(dtype type, const std::byte* data,
                                          std::uint64_t elements) noexcept {
  double values[values_at_once];
  value_statistics all;
  const auto numbers = numbers_of(type, elements);
  for (std::uint64_t at = 0; at < numbers;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(numbers - at, values_at_once));
    widen_values(type, data + bytes_of_numbers(type, at), count, values);
    value_statistics some;
    some.numbers = count;
    // The highest exponent, and no other one, carries into the place of the sign: a compiler looks at several at a time.
    std::uint64_t odd = 0;
    for (std::size_t i = 0; i < count; ++i)
      odd |= (std::bit_cast<std::uint64_t>(values[i]) & odd_exponent) + (std::uint64_t{1} << 52);
    std::size_t kept = count;
    if (odd >> 63 != 0) {
      kept = 0;
      for (std::size_t i = 0; i < count; ++i) {
        some.nan += is_nan(values[i]);
        some.infinite += is_infinite(values[i]);
        if (is_finite(values[i])) values[kept++] = values[i];
      }
    }
    sum_finite(values, kept, some);
    all.add(some);
    at += count;
  }
  return all;
}

/// Takes one pair of numbers with other bits in.
inline void compare_numbers(const double& a, const double& b, double difference,
                            value_differences& d) noexcept {
  if (is_nan(a) || is_nan(b)) {
    d.nan += is_nan(a) != is_nan(b);
    return;
  }
  if (a == b && difference == 0) return;
  const auto absolute =
      is_infinite(a) || is_infinite(b) ? std::numeric_limits<double>::infinity() : difference;
  d.largest_absolute = std::max(d.largest_absolute, absolute);
  const auto larger = std::max(std::fabs(a), std::fabs(b));
  d.largest_relative = std::max(d.largest_relative, is_infinite(larger) ? larger : absolute / larger);
}

/// |a - b| of two numbers, of 64-bit integers before they are rounded.
[[nodiscard]] inline double difference_of(dtype type, const std::byte* a, const std::byte* b, double value_a,
                                          double value_b) noexcept {
  if (type == dtype::u64) {
    std::uint64_t x, y;
    std::memcpy(&x, a, 8), std::memcpy(&y, b, 8);
    return static_cast<double>(x < y ? y - x : x - y);
  }
  if (type == dtype::i64) {
    std::int64_t x, y;
    std::memcpy(&x, a, 8), std::memcpy(&y, b, 8);
    const auto up = static_cast<std::uint64_t>(x < y ? y : x),
               down = static_cast<std::uint64_t>(x < y ? x : y);
    return static_cast<double>(up - down);
  }
  return std::fabs(value_a - value_b);
}

CAIRN_BODY value_differences differences_of(dtype type_a, const std::byte* a, dtype type_b,
                                            const std::byte* b, std::uint64_t elements) noexcept {
  double values_a[values_at_once], values_b[values_at_once];
  value_differences d;
  d.elements = elements;
  const bool alike = type_a == type_b;
  const std::size_t parts = type_a == dtype::c64 ? 2 : 1;
  const auto numbers = elements * parts;
  for (std::uint64_t at = 0; at < numbers;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(numbers - at, values_at_once));
    const auto* from_a = a + bytes_of_numbers(type_a, at);
    const auto* from_b = b + bytes_of_numbers(type_b, at);
    const auto unit = bits_of(type_a) / 8 / parts;
    at += count;
    if (alike && std::memcmp(from_a, from_b, static_cast<std::size_t>(bytes_of_numbers(type_a, count))) == 0)
      continue;
    widen_values(type_a, from_a, count, values_a);
    widen_values(type_b, from_b, count, values_b);
    for (std::size_t i = 0; i < count; i += parts) {
      bool differs = false;
      for (auto k = i; k < i + parts; ++k) {
        const auto x = values_a[k], y = values_b[k];
        const bool same = !alike      ? is_nan(x) || is_nan(y) ? is_nan(x) && is_nan(y) : x == y
                          : unit == 0 ? x == y && std::signbit(x) == std::signbit(y)
                                      : std::memcmp(from_a + k * unit, from_b + k * unit, unit) == 0;
        if (same) continue;
        differs = true;
        compare_numbers(
            x, y,
            alike ? difference_of(type_a, from_a + k * unit, from_b + k * unit, x, y) : std::fabs(x - y), d);
      }
      d.differing += differs;
    }
  }
  return d;
}

}  // namespace detail

CAIRN_BODY double value_statistics::deviation() const noexcept {
  return finite == 0 ? 0 : std::sqrt(deviations / static_cast<double>(finite));
}
CAIRN_BODY double value_statistics::norm() const noexcept {
  return std::sqrt(squares);
}
CAIRN_BODY void value_statistics::add(const value_statistics& more) noexcept {
  numbers += more.numbers, nan += more.nan, infinite += more.infinite, zeros += more.zeros;
  squares += more.squares;
  if (more.finite == 0) return;
  min = finite == 0 ? more.min : std::min(min, more.min);
  max = finite == 0 ? more.max : std::max(max, more.max);
  const auto both = static_cast<double>(finite + more.finite);
  const auto apart = more.mean - mean;
  deviations += more.deviations +
                apart * apart * (static_cast<double>(finite) / both) * static_cast<double>(more.finite);
  mean += apart * (static_cast<double>(more.finite) / both);
  finite += more.finite;
}
CAIRN_BODY void value_differences::add(const value_differences& more) noexcept {
  elements += more.elements, differing += more.differing, nan += more.nan;
  largest_absolute = std::max(largest_absolute, more.largest_absolute);
  largest_relative = std::max(largest_relative, more.largest_relative);
}

}  // namespace v1
}  // namespace cairn
