// SPDX-License-Identifier: Apache-2.0
// threaded
// uses: cairn::zstd
// Codecs: conformance of each, byte planes, items in frames, and hostile bytes for all of them.
#include <cairn/storage/compressed/byte_planes.hpp>
#include <cairn/storage/compressed/item_frames.hpp>
#if CAIRN_USES_ZSTD + 0
#include <cairn/storage/compressed/zstd_codec.hpp>
#include <cairn/system/digest.hpp>
#endif

#include <doctest/doctest.h>
#include <support/codec_archetype.hpp>
#include <support/codec_conformance.hpp>

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

namespace {
using namespace cairn;
using namespace cairn_test;

TEST_CASE("the smallest codec is a codec") {
  const auto make = [] { return codec_archetype::make(); };
  codec_conformance(make, make);
}

// --- Byte planes

codec_bytes split_slowly(std::size_t width, const codec_bytes& from) {
  codec_bytes to;
  const auto elements = from.size() / width;
  for (std::size_t b = 0; b < width; ++b)
    for (std::size_t i = 0; i < elements; ++i) to.push_back(from[i * width + b]);
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(elements * width), from.end());
  return to;
}

TEST_CASE("bytes are split into planes and joined again, of every width and length") {
  for (const std::size_t width : {2u, 4u, 8u})
    for (std::size_t size = 0; size < 700; size += size < 300 ? 1 : 37)
      for (const std::size_t misaligned : {0u, 1u}) {
        const auto from = make_contents(contents::random, dtype::u8, size);
        guarded_bytes in(size, misaligned);
        std::copy(from.begin(), from.end(), in.span().begin());
        guarded_bytes to(size, 3);
        split_planes(width, in.span(), to.span());
        const auto right = split_slowly(width, from);
        REQUIRE(std::equal(right.begin(), right.end(), to.span().begin()));
        REQUIRE(to.untouched());
        guarded_bytes back(size, 5);
        join_planes(width, to.span(), back.span());
        REQUIRE(std::equal(from.begin(), from.end(), back.span().begin()));
        REQUIRE(back.untouched());
      }
}

TEST_CASE("planes are joined from where they are") {
  const auto from = make_contents(contents::weights, dtype::f32, 4 * 333 + 2);
  codec_bytes split(from.size());
  split_planes(4, from, split);
  std::array<codec_bytes, 4> apart;
  std::array<const std::byte*, 4> planes;
  for (std::size_t b = 0; b < 4; ++b) {
    apart[b].assign(split.begin() + static_cast<std::ptrdiff_t>(333 * b),
                    split.begin() + static_cast<std::ptrdiff_t>(333 * (b + 1)));
    planes[b] = apart[b].data();
  }
  codec_bytes back(from.size());
  join_planes(planes, std::span(split).last(2), back);
  CHECK(back == from);
}

TEST_CASE("numbers have planes, other types have none") {
  CHECK(plane_width(dtype::bf16) == 2);
  CHECK(plane_width(dtype::f16) == 2);
  CHECK(plane_width(dtype::f32) == 4);
  CHECK(plane_width(dtype::f64) == 8);
  CHECK(plane_width(dtype::c64) == 4);
  CHECK(plane_width(dtype::i64) == 8);
  CHECK(plane_width(dtype::u8) == 1);
  CHECK(plane_width(dtype::f8_e4m3) == 1);
  CHECK(plane_width(dtype::f4) == 1);
}

TEST_CASE("samples tell whether planes pay") {
  const auto estimate = [](dtype type, contents kind, std::size_t size = 200'000) {
    return estimate_planes(plane_width(type), make_contents(kind, type, size));
  };
  for (const auto type : {dtype::bf16, dtype::f32, dtype::f64}) {
    const auto e = estimate(type, contents::weights);
    CHECK(e.pays);
    const auto width = plane_width(type);
    CHECK(e.planes[width - 1].bits < 5);
    CHECK(e.planes[0].bits > 7.8);
  }
  CHECK(estimate(dtype::i64, contents::counter).pays);
  CHECK(estimate(dtype::i64, contents::counter).planes[0].repeated > 0.4);
  CHECK(estimate(dtype::f32, contents::weights).planes[3].repeated < 0.02);
  CHECK_FALSE(estimate(dtype::f32, contents::random).pays);
  CHECK(estimate(dtype::f32, contents::random).whole.bits > 7.9);
  CHECK_FALSE(estimate(dtype::f32, contents::equal).pays);
  CHECK(estimate(dtype::f32, contents::equal).whole.bits < 0.1);
  CHECK_FALSE(estimate(dtype::u8, contents::text).pays);
  CHECK(estimate(dtype::u8, contents::text).whole.bits < 2);
  for (std::size_t size = 0; size < 40; ++size)
    CHECK_FALSE((size < 8 && estimate(dtype::f64, contents::random, size).pays));
}

// --- Items in frames

constexpr std::uint64_t least_frame = 64 * 1024;

template <class C>
struct framed {
  codec_bytes encoded;
  frame_index index;
};
template <class C>
framed<C> frame(const C& codec, dtype type, const codec_bytes& item,
                frame_options options = {least_frame, 1}) {
  codec_bytes encoded;
  auto index = encode_frames(codec, type, item, options, [&](std::span<const std::byte> part) {
    encoded.insert(encoded.end(), part.begin(), part.end());
  });
  return {std::move(encoded), std::move(index)};
}
template <class C>
framed_item expectation(const codec_bytes& item, const codec_bytes& encoded, dtype type) {
  return {.codec = C::id,
          .type = type,
          .decoded_bytes = item.size(),
          .encoded_bytes = encoded.size(),
          .file = "frames",
          .begin = 1000};
}
/// Reads the index and a range as a load does: only the bytes that are needed.
template <class C>
codec_bytes read_range(const C& codec, const codec_bytes& encoded, const framed_item& expected,
                       std::uint64_t begin, std::size_t size, std::size_t threads = 1) {
  const std::span<const std::byte> all(encoded);
  const auto end = all.last(std::min(all.size(), frame_index::trailer_bytes));
  const auto needed = frame_index::needed(end, expected);
  const auto index = frame_index::parse(all.last(static_cast<std::size_t>(needed)), expected);
  const auto range = index.covering(begin, size);
  const codec_bytes part(
      encoded.begin() + static_cast<std::ptrdiff_t>(range.encoded_begin),
      encoded.begin() + static_cast<std::ptrdiff_t>(range.encoded_begin + range.encoded_bytes));
  guarded_bytes to(size, 1);
  decode_range(codec, index, part, begin, to.span(), threads, expected.file, expected.begin);
  CHECK(to.untouched());
  return {to.span().begin(), to.span().end()};
}

template <class C>
void frames_round_trip(const C& codec) {
  std::mt19937_64 random(5);
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, least_frame - 1, least_frame,
                                   least_frame + 1, 3 * least_frame, 5 * least_frame + 4321}) {
    const auto item = make_contents(contents::weights, dtype::f32, static_cast<std::size_t>(size));
    const auto made = frame(codec, dtype::f32, item);
    CHECK(made.index.frames() == (size + least_frame - 1) / least_frame);
    for (const std::size_t threads : {2u, 3u, 16u})
      CHECK(frame(codec, dtype::f32, item, {least_frame, threads}).encoded == made.encoded);
    const auto expected = expectation<C>(item, made.encoded, dtype::f32);
    CHECK(read_range(codec, made.encoded, expected, 0, item.size()) == item);
    CHECK(read_range(codec, made.encoded, expected, 0, item.size(), 4) == item);
    CHECK(read_range(codec, made.encoded, expected, size, 0).empty());
    for (int i = 0; i < 25 && size != 0; ++i) {
      const auto begin = static_cast<std::size_t>(random() % size);
      const auto length = static_cast<std::size_t>(random() % (size - begin + 1));
      CHECK(read_range(codec, made.encoded, expected, begin, length, 1 + random() % 2) ==
            codec_bytes(item.begin() + static_cast<std::ptrdiff_t>(begin),
                        item.begin() + static_cast<std::ptrdiff_t>(begin + length)));
    }
  }
}

TEST_CASE("any range of an item is decoded from its frames alone") {
  frames_round_trip(codec_archetype::make());
}

TEST_CASE("a range names the frames that cover it, and no more") {
  const auto item = make_contents(contents::random, dtype::u8, 4 * least_frame + 10);
  const auto made = frame(codec_archetype::make(), dtype::u8, item);
  const auto covers = [&](std::uint64_t begin, std::uint64_t bytes) {
    const auto r = made.index.covering(begin, bytes);
    return std::array<std::uint64_t, 4>{r.first, r.count, r.encoded_begin, r.encoded_bytes};
  };
  CHECK(covers(0, 1) == std::array<std::uint64_t, 4>{0, 1, 0, least_frame});
  CHECK(covers(least_frame - 1, 2) == std::array<std::uint64_t, 4>{0, 2, 0, 2 * least_frame});
  CHECK(covers(least_frame, least_frame) == std::array<std::uint64_t, 4>{1, 1, least_frame, least_frame});
  CHECK(covers(4 * least_frame + 9, 1) == std::array<std::uint64_t, 4>{4, 1, 4 * least_frame, 10});
  CHECK(covers(item.size(), 0)[1] == 0);
  CHECK_THROWS_AS(covers(item.size(), 1), usage_error);
  CHECK_THROWS_AS(covers(1, item.size()), usage_error);
  CHECK_THROWS_AS(covers(item.size() + 1, 0), usage_error);
  CHECK_THROWS_AS(covers(1, UINT64_MAX), usage_error);
}

TEST_CASE("options of frames are checked") {
  const auto codec = codec_archetype::make();
  const codec_bytes item(100);
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, least_frame / 2, least_frame + 1,
                                    std::uint64_t{1} << 29, std::uint64_t{1} << 63, UINT64_MAX})
    CHECK_THROWS_AS(frame(codec, dtype::u8, item, {bytes, 1}), usage_error);
  CHECK_THROWS_AS(frame(codec, dtype::u8, item, {least_frame, 0}), usage_error);
  CHECK(frame(codec, dtype::u8, item, {std::uint64_t{1} << 28, 1}).index.frames() == 1);
  CHECK_THROWS_AS(static_cast<void>(frame_index(1, dtype::u8, 1, least_frame).encode()), usage_error);
}

/// Sees when its calls begin, and can fail in one.
struct watched_codec {
  static constexpr std::uint16_t id = 0xfffd;
  mutable std::atomic<int> calls{0};
  int fail_at = -1;
  watched_codec() = default;
  watched_codec(watched_codec&&) noexcept {}
  watched_codec& operator=(watched_codec&&) noexcept { return *this; }
  std::uint64_t bound(std::uint64_t bytes) const { return bytes; }
  std::size_t encode(dtype, std::span<const std::byte> from, std::span<std::byte> to) const {
    if (calls.fetch_add(1) == fail_at) throw std::runtime_error("the codec failed");
    std::copy(from.begin(), from.end(), to.begin());
    return from.size();
  }
  void decode(dtype, std::span<const std::byte> from, std::span<std::byte> to) const {
    if (calls.fetch_add(1) == fail_at) fail(error_id::corrupt_bad_value, "a frame that the codec refuses");
    std::copy(from.begin(), from.end(), to.begin());
  }
};

TEST_CASE("an item is encoded a few frames at a time") {
  const codec_bytes item(20 * least_frame);
  watched_codec codec;
  int parts = 0;
  int ahead = 0;
  static_cast<void>(encode_frames(codec, dtype::u8, item, {least_frame, 2}, [&](std::span<const std::byte>) {
    ahead = std::max(ahead, codec.calls.load() - parts);
    ++parts;
  }));
  CHECK(parts == 21);
  CHECK(codec.calls == 20);
  CHECK(ahead == 4);
}

TEST_CASE("errors of codec and sink arrive, and name the file") {
  const codec_bytes item(5 * least_frame);
  watched_codec codec;
  codec.fail_at = 3;
  CHECK_THROWS_AS(frame(codec, dtype::u8, item, {least_frame, 2}), std::runtime_error);
  codec.fail_at = -1;
  CHECK_THROWS_AS(
      static_cast<void>(encode_frames(codec, dtype::u8, item, {least_frame, 1},
                                      [](std::span<const std::byte>) { throw std::bad_alloc(); })),
      std::bad_alloc);
  const auto made = frame(codec, dtype::u8, item);
  codec.fail_at = codec.calls + 2;
  try {
    static_cast<void>(read_range(codec, made.encoded,
                                 expectation<watched_codec>(item, made.encoded, dtype::u8), 0, item.size()));
    FAIL("nothing was thrown");
  } catch (const corrupt_error& e) {
    CHECK(e.fields().file == "frames");
    CHECK(e.fields().offset == static_cast<std::int64_t>(1000 + 2 * least_frame));
  }
  codec.fail_at = -1;
  codec_bytes out(10);
  CHECK_THROWS_AS(decode_range(codec, made.index, std::span(made.encoded).first(5), 0, out), usage_error);
  const auto one = std::span<const std::byte>(made.encoded).first(least_frame);
  CHECK_THROWS_AS(decode_range(codec, made.index, one, 0, out, 0), usage_error);
  CHECK_THROWS_AS(decode_range(codec_archetype::make(), made.index, one, 0, out), usage_error);
}

/// Puts the digest of an index right, so that what lies behind it is read.
void seal(codec_bytes& encoded, std::uint64_t frames) {
  const auto index = static_cast<std::size_t>(frames) * 12 + 40;
  if (encoded.size() < index) return;
  const auto value = digest(std::span<const std::byte>(encoded).last(index).first(index - 8));
  std::memcpy(encoded.data() + encoded.size() - 8, &value, 8);
}
/// What the item is when it is read from these bytes, or nothing where they are refused.
template <class C>
std::optional<codec_bytes> accepted(const C& codec, const codec_bytes& encoded, const framed_item& expected) {
  try {
    return read_range(codec, encoded, expected, 0, static_cast<std::size_t>(expected.decoded_bytes));
  } catch (const corrupt_error&) {
    return {};
  }
}

template <class C>
void frames_are_checked(const C& codec) {
  const auto item = make_contents(contents::weights, dtype::f32, 3 * least_frame + 100);
  const auto made = frame(codec, dtype::f32, item);
  const auto expected = expectation<C>(item, made.encoded, dtype::f32);
  REQUIRE(accepted(codec, made.encoded, expected) == item);
  std::mt19937_64 random(3);

  SUBCASE("every bit of the index, and some of the frames") {
    const std::size_t index = 4 * 12 + 40;
    for (std::size_t byte = made.encoded.size() - index; byte < made.encoded.size(); ++byte)
      for (const unsigned bit : {0u, 4u, 7u}) {
        auto broken = made.encoded;
        broken[byte] ^= std::byte{1} << bit;
        CHECK_FALSE(accepted(codec, broken, expected));
        // Also where the digest of the index was made anew.
        seal(broken, 4);
        if (byte < made.encoded.size() - 8) CHECK_FALSE(accepted(codec, broken, expected));
      }
    for (int i = 0; i < 60; ++i) {
      auto broken = made.encoded;
      broken[random() % (broken.size() - index)] ^= std::byte{1} << (random() % 8);
      CHECK_FALSE(accepted(codec, broken, expected));
    }
  }
  SUBCASE("every length") {
    for (std::size_t size = 0; size < made.encoded.size(); size += size < 150 ? 1 : 3011) {
      auto cut = codec_bytes(made.encoded.begin(), made.encoded.begin() + static_cast<std::ptrdiff_t>(size));
      auto known = expected;
      known.encoded_bytes = size;
      CHECK_FALSE(accepted(codec, cut, known));
      cut.assign(made.encoded.end() - static_cast<std::ptrdiff_t>(size), made.encoded.end());
      CHECK_FALSE(accepted(codec, cut, known));
    }
  }
  SUBCASE("what a reader expects") {
    for (const auto& change : std::initializer_list<std::function<void(framed_item&)>>{
             [](auto& e) { e.codec = 77; }, [](auto& e) { e.type = dtype::bf16; },
             [](auto& e) { ++e.decoded_bytes; }, [](auto& e) { e.decoded_bytes = UINT64_MAX; },
             [](auto& e) { e.decoded_bytes = 0; }, [](auto& e) { ++e.encoded_bytes; },
             [](auto& e) { --e.encoded_bytes; }, [](auto& e) { e.encoded_bytes = UINT64_MAX; }}) {
      auto other = expected;
      change(other);
      CHECK_THROWS_AS(static_cast<void>(frame_index::parse(made.encoded, other)), corrupt_error);
    }
  }
  SUBCASE("a claim of any size takes no memory") {
    // 2^63 bytes in 2^47 frames, as the reader expects.
    auto claim = codec_bytes(made.encoded.end() - 40, made.encoded.end());
    const std::uint64_t numbers[] = {std::uint64_t{1} << 63, std::uint64_t{1} << 47};
    std::memcpy(claim.data() + 16, numbers, sizeof numbers);
    auto known = expected;
    known.decoded_bytes = numbers[0];
    for (const std::uint64_t bytes : {std::uint64_t{40}, std::uint64_t{1} << 40, UINT64_MAX}) {
      known.encoded_bytes = bytes;
      CHECK_THROWS_AS(static_cast<void>(frame_index::parse(claim, known)), corrupt_error);
    }
  }
  SUBCASE("anything") {
    for (std::uint64_t i = 0; i < rounds(600); ++i) {
      auto broken = made.encoded;
      for (auto n = 1 + random() % 6; n > 0; --n)
        broken[broken.size() - 1 - random() % 88] = static_cast<std::byte>(random() & 0xff);
      if (random() % 2 == 0) seal(broken, 4);
      const auto read = accepted(codec, broken, expected);
      if (read) CHECK(*read == item);
    }
  }
}

TEST_CASE("frames and their index are checked") {
  frames_are_checked(codec_archetype::make());
}

#if CAIRN_USES_ZSTD + 0

TEST_CASE("zstd_codec is a codec") {
  codec_conformance([] { return zstd_codec{}; }, [] { return zstd_codec({.level = 3, .planes = false}); });
}
TEST_CASE("zstd_codec of a higher level, without planes, is a codec") {
  codec_conformance([] { return zstd_codec({.level = 5, .planes = false}); }, [] { return zstd_codec{}; });
}

TEST_CASE("zstd: any range of an item is decoded from its frames alone") {
  frames_round_trip(zstd_codec{});
}
TEST_CASE("zstd: frames and their index are checked") {
  frames_are_checked(zstd_codec{});
}

double ratio(const zstd_codec& codec, dtype type, contents kind, std::size_t size = 300'000) {
  const auto from = make_contents(kind, type, size);
  return static_cast<double>(encode_checked(codec, type, from).size()) / static_cast<double>(size);
}

TEST_CASE("zstd: weights become shorter, and planes are why") {
  const zstd_codec with;
  const zstd_codec without({.planes = false});
  CHECK(ratio(with, dtype::bf16, contents::weights) < 0.68);
  CHECK(ratio(with, dtype::f32, contents::weights) < 0.85);
  CHECK(ratio(with, dtype::f64, contents::weights) < 0.89);
  for (const auto type : {dtype::bf16, dtype::f32, dtype::f64})
    CHECK(ratio(with, type, contents::weights) < ratio(without, type, contents::weights));
  CHECK(ratio(with, dtype::i64, contents::counter) < 0.02);
  CHECK(ratio(with, dtype::f32, contents::zeros) < 0.001);
  CHECK(ratio(with, dtype::u8, contents::text) < 0.01);
}

TEST_CASE("zstd: incompressible bytes take one byte more") {
  for (const std::size_t size : {0u, 1u, 63u, 64u, 1000u, 300'000u}) {
    const auto from = make_contents(contents::random, dtype::f32, size);
    const auto encoded = encode_checked(zstd_codec{}, dtype::f32, from);
    REQUIRE(encoded.size() == size + 1);
    CHECK(encoded[0] == std::byte{0});
    CHECK(std::equal(from.begin(), from.end(), encoded.begin() + 1));
  }
}

TEST_CASE("zstd: options are checked, and cross to another process") {
  for (const int level : {0, -1, 23, 1 << 30}) CHECK_THROWS_AS(zstd_codec({.level = level}), usage_error);
  const auto again = zstd_codec::from_description(zstd_codec({.level = 7, .planes = false}).description());
  CHECK(again.options().level == 7);
  CHECK_FALSE(again.options().planes);
  const auto description = zstd_codec{}.description();
  for (std::size_t size = 0; size < description.size(); ++size)
    CHECK_THROWS_AS(static_cast<void>(zstd_codec::from_description(std::span(description).first(size))),
                    wire_error);
  auto longer = description;
  longer.push_back(std::byte{0});
  CHECK_THROWS_AS(static_cast<void>(zstd_codec::from_description(longer)), wire_error);
  longer = description;
  longer[0] = std::byte{100};
  CHECK_THROWS_AS(static_cast<void>(zstd_codec::from_description(longer)), usage_error);
  longer = description;
  longer[4] = std::byte{2};
  CHECK_THROWS_AS(static_cast<void>(zstd_codec::from_description(longer)), wire_error);
}

TEST_CASE("zstd: a codec is copied and moved, and each works") {
  zstd_codec first({.level = 2});
  const zstd_codec second = first;
  const zstd_codec third = std::move(first);
  const auto from = make_contents(contents::weights, dtype::bf16, 10'000);
  CHECK(encode_checked(second, dtype::bf16, from) == encode_checked(third, dtype::bf16, from));
  first = third;
  CHECK(encode_checked(first, dtype::bf16, from) == encode_checked(third, dtype::bf16, from));
}

/// A zstd frame as the codec would not write it: `change` sets parameters.
codec_bytes zstd_frame(const codec_bytes& from, const std::function<void(ZSTD_CCtx*)>& change) {
  const std::unique_ptr<ZSTD_CCtx, decltype([](ZSTD_CCtx* c) { ZSTD_freeCCtx(c); })> context(
      ZSTD_createCCtx());
  change(context.get());
  codec_bytes to(ZSTD_compressBound(from.size()));
  const auto size = ZSTD_compress2(context.get(), to.data(), to.size(), from.data(), from.size());
  REQUIRE(ZSTD_isError(size) == 0);
  to.resize(size);
  return to;
}
codec_bytes as_whole(codec_bytes frame) {
  frame.insert(frame.begin(), std::byte{1});
  return frame;
}

TEST_CASE("zstd: frames that claim missing bytes are refused, and cost nothing") {
  const zstd_codec codec;
  const codec_bytes zeros(std::size_t{4} << 20);
  const auto plain = zstd_frame(zeros, [](ZSTD_CCtx*) {});
  const auto take = [&](const codec_bytes& encoded, std::size_t size) {
    return decode_checked(codec, dtype::u8, encoded, std::span(zeros).first(size), size);
  };
  SUBCASE("a bomb: little that becomes much") {
    CHECK(plain.size() < 1000);
    for (const std::size_t size : {std::size_t{0}, std::size_t{64}, std::size_t{1000}, zeros.size() - 1})
      CHECK(take(as_whole(plain), size) == decoded::refused);
    codec_bytes to(zeros.size(), std::byte{1});
    codec.decode(dtype::u8, as_whole(plain), to);
    CHECK(to == zeros);
  }
  SUBCASE("no size, two frames, frames to be skipped") {
    const codec_bytes small(1000);
    const auto unsized = zstd_frame(
        small, [](ZSTD_CCtx* c) { static_cast<void>(ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0)); });
    CHECK(take(as_whole(unsized), 1000) == decoded::refused);
    const auto half = zstd_frame(codec_bytes(500), [](ZSTD_CCtx*) {});
    codec_bytes two = half;
    two.insert(two.end(), half.begin(), half.end());
    CHECK(take(as_whole(two), 1000) == decoded::refused);
    const auto one = zstd_frame(small, [](ZSTD_CCtx*) {});
    CHECK(take(as_whole(one), 1000) == decoded::right);
    // A frame to be skipped, of four bytes, behind and before.
    wire_writer skipped;
    skipped.put(std::uint32_t{0x184D2A50}).put(std::uint32_t{4}).put(std::uint32_t{0});
    codec_bytes with = one;
    with.insert(with.end(), skipped.view().begin(), skipped.view().end());
    CHECK(take(as_whole(with), 1000) == decoded::refused);
    with.assign(skipped.view().begin(), skipped.view().end());
    with.insert(with.end(), one.begin(), one.end());
    CHECK(take(as_whole(with), 1000) == decoded::refused);
    const auto sealed = zstd_frame(
        small, [](ZSTD_CCtx* c) { static_cast<void>(ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1)); });
    CHECK(take(as_whole(sealed), 1000) == decoded::right);
    auto damaged = sealed;
    damaged.back() ^= std::byte{1};
    CHECK(take(as_whole(damaged), 1000) == decoded::refused);
  }
  SUBCASE("what is no zstd frame") {
    // Of an old version, to be skipped, a dictionary, anything.
    for (const std::uint32_t magic : {0xFD2FB527u, 0x184D2A50u, 0xEC30A437u, 0u}) {
      auto other = as_whole(plain);
      std::memcpy(other.data() + 1, &magic, sizeof magic);
      codec_bytes to(zeros.size());
      try {
        codec.decode(dtype::u8, other, to);
        FAIL("it was decoded");
      } catch (const corrupt_error& e) {
        CHECK(e.id() == error_id::corrupt_bad_magic);
      }
    }
  }
  SUBCASE("a window of any size") {
    const auto wide = zstd_frame(zeros, [](ZSTD_CCtx* c) {
      static_cast<void>(
          ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, ZSTD_cParam_getBounds(ZSTD_c_windowLog).upperBound));
    });
    CHECK(take(as_whole(wide), zeros.size()) == decoded::right);
  }
}

TEST_CASE("zstd: planes that do not fit are refused") {
  const zstd_codec codec;
  const auto from = make_contents(contents::weights, dtype::f32, 40'002);
  const auto encoded = encode_checked(codec, dtype::f32, from);
  REQUIRE(encoded[0] == std::byte{2});
  REQUIRE(encoded[1] == std::byte{4});
  for (const auto type : {dtype::u8, dtype::bf16, dtype::f64, dtype::f4})
    CHECK(decode_checked(codec, type, encoded, from, from.size()) == decoded::refused);
  CHECK(decode_checked(codec, dtype::c64, encoded, from, from.size()) == decoded::right);
  for (const unsigned width : {0u, 1u, 2u, 8u, 255u}) {
    auto broken = encoded;
    broken[1] = static_cast<std::byte>(width);
    CHECK(decode_checked(codec, dtype::f32, broken, from, from.size()) == decoded::refused);
  }
  // One plane, of a type that has none.
  const codec_bytes zeros(100);
  const auto plane_of_zeros = zstd_frame(zeros, [](ZSTD_CCtx*) {});
  wire_writer one;
  one.put(std::uint8_t{2}).put(std::uint8_t{1}).put(static_cast<std::uint32_t>(plane_of_zeros.size()));
  one.raw(plane_of_zeros);
  CHECK(decode_checked(codec, dtype::u8, one.take(), zeros, zeros.size()) == decoded::refused);
  for (std::size_t plane = 0; plane < 4; ++plane)
    for (const std::uint32_t size : {0u, 1u, 9999u, 10'000u, 10'001u, 0x7fffffffu, 0xffffffffu}) {
      auto broken = encoded;
      std::uint32_t before = 0;
      std::memcpy(&before, broken.data() + 2 + 4 * plane, 4);
      if (before == size) continue;
      std::memcpy(broken.data() + 2 + 4 * plane, &size, 4);
      CHECK(decode_checked(codec, dtype::f32, broken, from, from.size()) == decoded::refused);
      // Sizes that add up, but are those of no plane.
      std::uint32_t other = 0;
      std::memcpy(&other, broken.data() + 2 + 4 * ((plane + 1) % 4), 4);
      other += before - size;
      std::memcpy(broken.data() + 2 + 4 * ((plane + 1) % 4), &other, 4);
      CHECK(decode_checked(codec, dtype::f32, broken, from, from.size()) == decoded::refused);
    }
}

#endif

}  // namespace
