// SPDX-License-Identifier: Apache-2.0
/// Random numbers that are a function of their place: no hidden state moves on, so any rank can draw any of
/// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <vector>

namespace gpt {

/// A mixing step (the finaliser of SplitMix64): each bit of the result depends on each bit of the argument.
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The random number at a place, for example {seed, step, micro-batch, draw}.
inline std::uint64_t random_at(std::initializer_list<std::uint64_t> place) {
  std::uint64_t state = 0x6a09e667f3bcc909u;
  for (const std::uint64_t word : place) state = mix(state ^ word);
  return state;
}

/// A uniform number in [0, 1) with 24 bits, exact as float and as double.
inline double uniform(std::uint64_t random) {
  return static_cast<double>(random >> 40) * 0x1p-24;
}

/// The generator of one rank: 16 bytes of state that a checkpoint keeps for each rank.
class rank_generator {
 public:
  rank_generator(std::uint64_t seed, std::size_t rank) : key(random_at({seed, 0x72616e6b, rank})) {}

  /// The next number.
  std::uint64_t operator()() { return random_at({key, count++}); }

  /// The state as bytes, and back.
  /// @throws std::runtime_error if the bytes are not 16.
  std::vector<std::byte> save() const {
    std::vector<std::byte> bytes;
    for (const std::uint64_t word : {key, count})
      for (unsigned i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(word >> (8 * i)));
    return bytes;
  }
  void restore(std::span<const std::byte> bytes) {
    if (bytes.size() != 16) throw std::runtime_error("the state of a random generator has 16 bytes");
    key = count = 0;
    for (unsigned i = 0; i < 8; ++i) {
      key |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
      count |= std::to_integer<std::uint64_t>(bytes[8 + i]) << (8 * i);
    }
  }

 private:
  std::uint64_t key;
  std::uint64_t count = 0;
};

}  // namespace gpt
