// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/crc64nvme.hpp>
#include <cairn/system/compiler.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

/// For eight bytes at a time.
inline constexpr auto crc64_tables = [] {
  std::array<std::array<std::uint64_t, 256>, 8> t{};
  for (std::size_t i = 0; i < 256; ++i) {
    std::uint64_t c = i;
    for (int k = 0; k < 8; ++k) c = crc64_times_x(c);
    t[0][i] = c;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xff];
  return t;
}();

CAIRN_BODY std::uint64_t crc64_by_table(std::uint64_t c, std::span<const std::byte> bytes) noexcept {
  const auto& t = crc64_tables;
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    for (unsigned i = 0; i < 8; ++i) c ^= static_cast<std::uint64_t>(p[i]) << (8 * i);
    std::uint64_t next = 0;
    for (unsigned i = 0; i < 8; ++i) next ^= t[7 - i][(c >> (8 * i)) & 0xff];
    c = next;
  }
  for (; n != 0; --n, ++p) c = (c >> 8) ^ t[0][(c ^ *p) & 0xff];
  return c;
}

CAIRN_BODY std::uint64_t crc64nvme(std::span<const std::span<const std::byte>> pieces) noexcept {
  std::uint64_t c = ~std::uint64_t{0};
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("pclmul") != 0;
  if (has_instruction) {
    for (const auto& piece : pieces) c = crc64_by_instruction(c, piece);
    return ~c;
  }
#endif
  for (const auto& piece : pieces) c = crc64_by_table(c, piece);
  return ~c;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
