// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/system/compiler.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

// CRC-64/NVME: reflected, polynomial 0xAD93D23594C93659, all bits set before and inverted after. In reflected
// words the most significant bit stands for x^0.
inline constexpr std::uint64_t crc64_polynomial = 0x9A6C9329AC4BC9B5u;

/// a * x modulo the polynomial.
[[nodiscard]] constexpr std::uint64_t crc64_times_x(std::uint64_t a) noexcept {
  return (a >> 1) ^ ((a & 1) != 0 ? crc64_polynomial : 0);
}
/// a * b modulo the polynomial.
[[nodiscard]] constexpr std::uint64_t crc64_product(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  for (; b != 0; b <<= 1, a = crc64_times_x(a))
    if ((b >> 63) != 0) sum ^= a;
  return sum;
}
/// x^n modulo the polynomial.
[[nodiscard]] constexpr std::uint64_t crc64_power_of_x(std::uint64_t n) noexcept {
  std::uint64_t result = std::uint64_t{1} << 63;
  for (std::uint64_t square = result >> 1; n != 0; n >>= 1, square = crc64_product(square, square))
    if ((n & 1) != 0) result = crc64_product(result, square);
  return result;
}
/// The checksum of two runs of bytes, one after the other, from those of each.
[[nodiscard]] constexpr std::uint64_t crc64nvme_joined(std::uint64_t first, std::uint64_t second,
                                                       std::uint64_t second_bytes) noexcept {
  return crc64_product(first, crc64_power_of_x(second_bytes * 8)) ^ second;
}

[[nodiscard]] std::uint64_t crc64_by_table(std::uint64_t c, std::span<const std::byte> bytes) noexcept;

#if defined(__x86_64__)
using crc64_lanes = long long __attribute__((vector_size(16)));

/// Carries 16 bytes over so many bits: the product of two reflected words is one bit short, hence the 1.
template <std::uint64_t Bits>
inline constexpr std::array<std::uint64_t, 2> crc64_fold{crc64_power_of_x(Bits + 64 - 1),
                                                         crc64_power_of_x(Bits - 1)};

/// By carry-less multiplication: four strands of 16 bytes, which the tables bring to an end.
[[nodiscard, gnu::target("pclmul,sse2")]] inline std::uint64_t crc64_by_instruction(
    std::uint64_t c, std::span<const std::byte> bytes) noexcept {
  if (bytes.size() < 128) return crc64_by_table(c, bytes);
  const auto* p = bytes.data();
  auto n = bytes.size();
  const auto by = [](const std::array<std::uint64_t, 2>& fold) {
    return crc64_lanes{static_cast<long long>(fold[0]), static_cast<long long>(fold[1])};
  };
  const auto far_ahead = by(crc64_fold<512>);
  const auto ahead = by(crc64_fold<128>);
  crc64_lanes lane[4];
  std::memcpy(lane, p, sizeof lane);
  lane[0] ^= crc64_lanes{static_cast<long long>(c), 0};
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
    for (std::size_t i = 0; i < 4; ++i) {
      crc64_lanes next;
      std::memcpy(&next, p + 16 * i, sizeof next);
      lane[i] = __builtin_ia32_pclmulqdq128(lane[i], far_ahead, 0x00) ^
                __builtin_ia32_pclmulqdq128(lane[i], far_ahead, 0x11) ^ next;
    }
  auto all = lane[0];
  for (std::size_t i = 1; i < 4; ++i)
    all = __builtin_ia32_pclmulqdq128(all, ahead, 0x00) ^ __builtin_ia32_pclmulqdq128(all, ahead, 0x11) ^
          lane[i];
  std::array<std::byte, sizeof all> last;
  std::memcpy(last.data(), &all, sizeof all);
  return crc64_by_table(crc64_by_table(0, last), {p, n});
}
#endif

/// CRC-64/NVME of pieces one after the other.
[[nodiscard]] std::uint64_t crc64nvme(std::span<const std::span<const std::byte>> pieces) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/crc64nvme.ipp>
#endif
