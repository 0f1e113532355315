// SPDX-License-Identifier: Apache-2.0
#pragma once
// The smallest type that satisfies Codec. It withholds what codecs usually have: copying, default
// construction, a bound that leaves room, a byte for an empty input, calls on anything but a const lvalue.
// Generic code that compiles with it asks for nothing but the concept.
#include <cairn/concepts/codec.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace cairn_test {

/// Turns every bit.
class codec_archetype {
 public:
  static constexpr std::uint16_t id = 0xfffe;

  /// The only way to make one.
  static codec_archetype make() { return {}; }
  codec_archetype(const codec_archetype&) = delete;
  codec_archetype& operator=(const codec_archetype&) = delete;
  codec_archetype(codec_archetype&&) = default;
  codec_archetype& operator=(codec_archetype&&) = default;

  std::uint64_t bound(std::uint64_t bytes) const& { return bytes; }
  std::size_t encode(cairn::dtype, std::span<const std::byte> from, std::span<std::byte> to) const& {
    if (to.size() < from.size() || from.size() > cairn::codec_limit)
      cairn::fail(cairn::error_id::usage_overflow, "too much for this codec");
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = ~from[i];
    return from.size();
  }
  void decode(cairn::dtype, std::span<const std::byte> from, std::span<std::byte> to) const& {
    if (from.size() != to.size())
      cairn::fail(cairn::error_id::corrupt_size_mismatch, "another size than its place");
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = ~from[i];
  }

 private:
  codec_archetype() = default;
};
static_assert(cairn::Codec<codec_archetype>);

// Near misses: each differs from a codec in one point.
struct still_a_codec : codec_archetype {};
static_assert(cairn::Codec<still_a_codec>);
struct no_codec_without_a_number : codec_archetype {
  static constexpr std::uint16_t id = 0;
};
struct no_codec_with_another_number : codec_archetype {
  static constexpr int id = 7;
};
struct no_codec_with_a_number_that_changes : codec_archetype {
  static inline const std::uint16_t id = [] { return static_cast<std::uint16_t>(std::rand()); }();
};
struct no_codec_that_hides_its_size : codec_archetype {
  void encode(cairn::dtype, std::span<const std::byte>, std::span<std::byte>) const;
};
struct no_codec_that_changes_while_it_encodes : codec_archetype {
  std::size_t encode(cairn::dtype, std::span<const std::byte>, std::span<std::byte>);
};
struct no_codec_that_wants_no_dtype : codec_archetype {
  std::size_t encode(std::span<const std::byte>, std::span<std::byte>) const;
};
struct no_codec_that_decodes_what_it_likes : codec_archetype {
  std::size_t decode(cairn::dtype, std::span<const std::byte>, std::span<std::byte>) const;
};
struct no_codec_that_writes_its_input : codec_archetype {
  std::size_t encode(cairn::dtype, std::span<std::byte>, std::span<std::byte>) const;
};
struct no_codec_with_a_small_bound : codec_archetype {
  std::uint32_t bound(std::uint64_t) const;
};
struct no_codec_that_stays : codec_archetype {
  no_codec_that_stays(no_codec_that_stays&&) = delete;
};
static_assert(!cairn::Codec<no_codec_without_a_number>);
static_assert(!cairn::Codec<no_codec_with_another_number>);
static_assert(!cairn::Codec<no_codec_with_a_number_that_changes>);
static_assert(!cairn::Codec<no_codec_that_hides_its_size>);
static_assert(!cairn::Codec<no_codec_that_changes_while_it_encodes>);
static_assert(!cairn::Codec<no_codec_that_wants_no_dtype>);
static_assert(!cairn::Codec<no_codec_that_decodes_what_it_likes>);
static_assert(!cairn::Codec<no_codec_that_writes_its_input>);
static_assert(!cairn::Codec<no_codec_with_a_small_bound>);
static_assert(!cairn::Codec<no_codec_that_stays>);

}  // namespace cairn_test
