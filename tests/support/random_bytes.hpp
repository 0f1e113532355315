// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cairn_test {

/// Fills bytes with the random numbers of a seed (splitmix64), eight at a time: megabytes of them are made, without
/// optimisation.
inline void fill_random(std::span<std::byte> bytes, std::uint64_t seed) {
  auto* to = bytes.data();
  for (auto left = bytes.size(); left > 0;) {
    seed += 0x9e3779b97f4a7c15U;
    auto number = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9U;
    number = (number ^ number >> 27) * 0x94d049bb133111ebU;
    number ^= number >> 31;
    const auto size = left < sizeof number ? left : sizeof number;
    std::memcpy(to, &number, size);
    to += size;
    left -= size;
  }
}

}  // namespace cairn_test
