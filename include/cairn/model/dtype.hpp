// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace cairn {
inline namespace v1 {

/// Element types: those of the safetensors format, with its names. The numbers are stored in manifests and
/// never change.
enum class dtype : std::uint8_t {
  boolean = 0,
  u8,
  i8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  f16,
  bf16,
  f32,
  f64,
  c64,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f6_e2m3,
  f6_e3m2,
  f4,
};
/// The dtype with the largest number.
inline constexpr dtype last_dtype = dtype::f4;

/// Element types without a C++ arithmetic type: only the bits, no arithmetic.
struct bf16 {
  std::uint16_t bits;
};
/// IEEE half precision, as its bits.
struct f16 {
  std::uint16_t bits;
};
/// OCP FP8 with 5 bits of exponent, as its bits.
struct f8_e5m2 {
  std::uint8_t bits;
};
/// OCP FP8 with 4 bits of exponent, as its bits.
struct f8_e4m3 {
  std::uint8_t bits;
};
/// OCP MX scale, a power of two, as its bits.
struct f8_e8m0 {
  std::uint8_t bits;
};

namespace detail {
struct dtype_facts {
  std::string_view name;
  std::uint8_t bits;
};
inline constexpr std::array<dtype_facts, 20> dtype_table{{
    {"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"I16", 16},    {"U16", 16},    {"I32", 32}, {"U32", 32},
    {"I64", 64},    {"U64", 64},    {"F16", 16},    {"BF16", 16},   {"F32", 32},    {"F64", 64}, {"C64", 64},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
}};
static_assert(dtype_table.size() == static_cast<std::size_t>(last_dtype) + 1);
}  // namespace detail

/// The name in safetensors headers, such as "BF16".
constexpr std::string_view name_of(dtype t) noexcept {
  return detail::dtype_table[static_cast<std::size_t>(t)].name;
}
/// Size of one element in bits; 4 and 6 for the packed types.
constexpr unsigned bits_of(dtype t) noexcept {
  return detail::dtype_table[static_cast<std::size_t>(t)].bits;
}
/// The smallest number of elements that fill whole bytes: 1 for most types, 2 for f4, 4 for f6. Shards
/// are cut at multiples of it.
constexpr std::int64_t granule_of(dtype t) noexcept {
  return bits_of(t) % 8 == 0 ? 1 : bits_of(t) == 4 ? 2 : 4;
}
/// Bytes of `elements` elements (a multiple of granule_of). Does not check for overflow; see checked_bytes in
/// extents.hpp.
constexpr std::uint64_t bytes_of(dtype t, std::int64_t elements) noexcept {
  return static_cast<std::uint64_t>(elements) / static_cast<std::uint64_t>(granule_of(t)) *
         (bits_of(t) * static_cast<std::uint64_t>(granule_of(t)) / 8);
}
/// The inverse of name_of; nothing for an unknown name.
constexpr std::optional<dtype> dtype_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < detail::dtype_table.size(); ++i)
    if (detail::dtype_table[i].name == name) return static_cast<dtype>(i);
  return std::nullopt;
}

/// Maps a C++ type to its dtype. Specialise it for foreign element types:
/// `template <> struct cairn::dtype_for<my_bf16> { static constexpr cairn::dtype value = cairn::dtype::bf16;
/// };`
template <class T>
struct dtype_for {};
template <class T>
  requires std::integral<T>
struct dtype_for<T> {
  static constexpr dtype value = [] {
    if constexpr (std::same_as<T, bool>)
      return dtype::boolean;
    else if constexpr (std::is_signed_v<T>)
      return sizeof(T) == 1   ? dtype::i8
             : sizeof(T) == 2 ? dtype::i16
             : sizeof(T) == 4 ? dtype::i32
                              : dtype::i64;
    else
      return sizeof(T) == 1   ? dtype::u8
             : sizeof(T) == 2 ? dtype::u16
             : sizeof(T) == 4 ? dtype::u32
                              : dtype::u64;
  }();
};
template <class T>
  requires std::is_enum_v<T> && (!std::same_as<T, std::byte>)
struct dtype_for<T> : dtype_for<std::underlying_type_t<T>> {};
template <>
struct dtype_for<std::byte> {
  static constexpr dtype value = dtype::u8;
};
template <>
struct dtype_for<float> {
  static constexpr dtype value = dtype::f32;
};
template <>
struct dtype_for<double> {
  static constexpr dtype value = dtype::f64;
};
template <>
struct dtype_for<bf16> {
  static constexpr dtype value = dtype::bf16;
};
template <>
struct dtype_for<f16> {
  static constexpr dtype value = dtype::f16;
};
template <>
struct dtype_for<f8_e5m2> {
  static constexpr dtype value = dtype::f8_e5m2;
};
template <>
struct dtype_for<f8_e4m3> {
  static constexpr dtype value = dtype::f8_e4m3;
};
template <>
struct dtype_for<f8_e8m0> {
  static constexpr dtype value = dtype::f8_e8m0;
};

/// A type whose values cairn can store: it has a dtype of its own size.
template <class T>
concept Element = requires {
  { dtype_for<T>::value } -> std::convertible_to<dtype>;
} && std::is_trivially_copyable_v<T> && bits_of(dtype_for<T>::value) == 8 * sizeof(T);
/// The dtype of elements of type T.
template <Element T>
inline constexpr dtype dtype_v = dtype_for<T>::value;

}  // namespace v1
}  // namespace cairn
