// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>

#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {

/// Numbers of elements, added up so that values of very different size keep their digits. Infinities and NaNs are
/// counted and are in nothing else. Real and imaginary parts of C64 are two numbers; BOOL is 0 or 1. Values of 64-bit
/// integers are rounded to double.
struct value_statistics {
  std::uint64_t numbers = 0;   ///< all of them
  std::uint64_t finite = 0;    ///< neither NaN nor infinite
  std::uint64_t nan = 0;       ///< NaNs
  std::uint64_t infinite = 0;  ///< of either sign
  std::uint64_t zeros = 0;     ///< of either sign
  double min = 0;              ///< of the finite ones; 0 where there are none
  double max = 0;              ///< as min
  double mean = 0;             ///< of the finite ones
  double squares = 0;          ///< the sum of squares of the finite ones
  double deviations = 0;       ///< the sum of squares of their differences from the mean

  /// The standard deviation of the finite ones, all of them being known (divided by their number).
  [[nodiscard]] double deviation() const noexcept;
  /// The square root of the sum of squares.
  [[nodiscard]] double norm() const noexcept;
  /// Takes in those of other elements. The same order gives the same bits.
  void add(const value_statistics& more) noexcept;
};

/// How elements of two tensors differ.
struct value_differences {
  std::uint64_t elements = 0;   ///< that were compared
  std::uint64_t differing = 0;  ///< with other bits, or with another value where the dtypes differ
  std::uint64_t nan = 0;        ///< where one side is NaN and the other is not; in none of the following
  double largest_absolute = 0;  ///< |a - b|
  double largest_relative = 0;  ///< |a - b| / max(|a|, |b|)
  /// Takes in those of other elements.
  void add(const value_differences& more) noexcept;
};

namespace detail {

/// Statistics of `elements` elements, a multiple of granule_of(type), at any alignment.
[[nodiscard]] value_statistics statistics_of(dtype type, const std::byte* data,
                                             std::uint64_t elements) noexcept;

/// Differences of as many elements of one dtype and of another one: both C64, or neither.
[[nodiscard]] value_differences differences_of(dtype type_a, const std::byte* a, dtype type_b,
                                               const std::byte* b, std::uint64_t elements) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/element_values.ipp>
#endif
