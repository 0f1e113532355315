// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>

#include <cairn/concepts/codec.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>

#include <doctest/doctest.h>
#include <support/rounds.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

// What every Codec must do.
namespace cairn_test {

using codec_bytes = std::vector<std::byte>;

/// Kinds of contents that items have.
enum class contents { random, zeros, equal, weights, counter, text };
inline constexpr contents all_contents[] = {contents::random,  contents::zeros,   contents::equal,
                                            contents::weights, contents::counter, contents::text};

/// A normal distribution as elements of 4 or 8 bytes, or of 2 bytes (bf16) for any other size.
inline codec_bytes normal_weights(std::size_t width, std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 0.02);
  codec_bytes made(size + 8);
  for (std::size_t at = 0; at < size;) {
    const double y = normal(random);
    const auto x = static_cast<float>(y);
    const auto* from =
        width == 8 ? reinterpret_cast<const std::byte*>(&y) : reinterpret_cast<const std::byte*>(&x);
    const std::size_t skip = width == 4 || width == 8 ? 0 : 2;
    const std::size_t step = width == 4 || width == 8 ? width : 2;
    std::memcpy(made.data() + at, from + skip, step);
    at += step;
  }
  made.resize(size);
  return made;
}

/// `size` bytes of this kind, the same at each call.
inline codec_bytes make_contents(contents kind, cairn::dtype type, std::size_t size) {
  const std::size_t width = std::max(1u, cairn::bits_of(type) / 8);
  codec_bytes made(size);
  switch (kind) {
    case contents::random: {
      std::mt19937_64 random(size + 1);
      for (std::size_t at = 0; at < size; at += 8) {
        const auto x = random();
        std::memcpy(made.data() + at, &x, std::min<std::size_t>(8, size - at));
      }
      break;
    }
    case contents::zeros:
      break;
    case contents::equal:
      std::fill(made.begin(), made.end(), std::byte{0x5a});
      break;
    case contents::weights: {
      static const codec_bytes two = normal_weights(2, 400'000, 1);
      static const codec_bytes four = normal_weights(4, 400'000, 2);
      static const codec_bytes eight = normal_weights(8, 400'000, 3);
      const auto& from = width == 8 ? eight : width == 4 ? four : two;
      std::copy_n(from.begin(), std::min(size, from.size()), made.begin());
      break;
    }
    case contents::counter:
      for (std::uint64_t at = 0, i = 0; at < size; at += width, ++i)
        std::memcpy(made.data() + at, &i, std::min<std::size_t>(std::min<std::size_t>(width, 8), size - at));
      break;
    case contents::text: {
      const std::string words = "the checkpoint exists as a whole or not at all; ";
      for (std::size_t at = 0; at < size; at += words.size())
        std::memcpy(made.data() + at, words.data(), std::min(words.size(), size - at));
      break;
    }
  }
  return made;
}

/// Memory of exactly this size, on the heap, between bytes that must stay as they are.
class guarded_bytes {
 public:
  explicit guarded_bytes(std::size_t size, std::size_t misaligned = 0)
      : before_(64 + misaligned), size_(size), all_(before_ + size + 64, mark) {}
  [[nodiscard]] std::span<std::byte> span() { return std::span(all_).subspan(before_, size_); }
  [[nodiscard]] bool untouched() const {
    const auto marked = [](std::span<const std::byte> part) {
      return std::all_of(part.begin(), part.end(), [](std::byte b) { return b == mark; });
    };
    return marked(std::span(all_).first(before_)) && marked(std::span(all_).subspan(before_ + size_));
  }

 private:
  static constexpr std::byte mark{0xc7};
  std::size_t before_;
  std::size_t size_;
  codec_bytes all_;
};

/// Encodes into memory of exactly the bound.
template <class C>
codec_bytes encode_checked(const C& codec, cairn::dtype type, std::span<const std::byte> from) {
  guarded_bytes to(static_cast<std::size_t>(codec.bound(from.size())), 1);
  const auto size = codec.encode(type, from, to.span());
  REQUIRE(size <= to.span().size());
  CHECK(to.untouched());
  return {to.span().begin(), to.span().begin() + static_cast<std::ptrdiff_t>(size)};
}

/// Decodes hostile bytes and returns the outcome. Fails if bytes outside of the destination change.
enum class decoded { right, others, refused };
template <class C>
decoded decode_checked(const C& codec, cairn::dtype type, const codec_bytes& from,
                       std::span<const std::byte> right, std::size_t size) {
  // Copied into memory of exactly this length, so that a sanitizer sees reads behind it.
  const std::unique_ptr<std::byte[]> exact(new std::byte[from.size()]);
  if (!from.empty()) std::memcpy(exact.get(), from.data(), from.size());
  guarded_bytes to(size, 3);
  decoded result = decoded::refused;
  try {
    codec.decode(type, std::span<const std::byte>(exact.get(), from.size()), to.span());
    result = std::equal(to.span().begin(), to.span().end(), right.begin(), right.end()) ? decoded::right
                                                                                        : decoded::others;
  } catch (const cairn::corrupt_error&) {
  }
  if (!to.untouched()) FAIL("bytes outside of the destination were written");
  return result;
}

/// Runs all that a Codec promises. `make()` gives a codec; `other()` one of the same type with other options.
template <class Make, class MakeOther>
void codec_conformance(Make&& make, MakeOther&& make_other) {
  using cairn::dtype;
  const auto codec = make();
  const auto other = make_other();
  using codec_type = std::remove_const_t<decltype(codec)>;
  static_assert(cairn::Codec<codec_type>);

  SUBCASE("what is decoded is what was encoded, of every dtype, size and kind") {
    const std::size_t sizes[] = {0, 1, 2, 7, 15, 63, 64, 65, 130, 1000, 4096, 9001};
    std::uint64_t wrong = 0;
    std::uint64_t above = 0;
    for (int t = 0; t <= static_cast<int>(cairn::last_dtype); ++t) {
      const auto type = static_cast<dtype>(t);
      for (const auto kind : all_contents)
        for (const auto size : sizes) {
          const auto from = make_contents(kind, type, size);
          const auto encoded = encode_checked(codec, type, from);
          above += encoded.size() > codec.bound(size);
          wrong += decode_checked(codec, type, encoded, from, size) != decoded::right;
          // Any options decode what any other options encoded.
          wrong += decode_checked(other, type, encoded, from, size) != decoded::right;
        }
    }
    CHECK(wrong == 0);
    CHECK(above == 0);
  }
  SUBCASE("long frames") {
    for (const auto type : {dtype::bf16, dtype::f32, dtype::f64, dtype::u8})
      for (const auto kind : {contents::random, contents::weights, contents::counter}) {
        const std::size_t size = 390'007;
        const auto from = make_contents(kind, type, size);
        CHECK(decode_checked(codec, type, encode_checked(codec, type, from), from, size) == decoded::right);
      }
  }
  SUBCASE("the bound ascends and does not overflow") {
    std::uint64_t before = 0;
    for (std::uint64_t n = 0; n <= cairn::codec_limit; n = n * 3 + 1) {
      CHECK(codec.bound(n) >= before);
      CHECK(codec.bound(n) <= 2 * n + 4096);
      before = codec.bound(n);
    }
    CHECK(codec.bound(cairn::codec_limit) >= before);
  }
  SUBCASE("too little room and too much input are the caller's fault") {
    const auto from = make_contents(contents::random, dtype::f32, 1000);
    guarded_bytes to(static_cast<std::size_t>(codec.bound(from.size())) - 1);
    CHECK_THROWS_AS(static_cast<void>(codec.encode(dtype::f32, from, to.span())), cairn::usage_error);
    CHECK(to.untouched());
    const auto size = static_cast<std::size_t>(cairn::codec_limit) + 1;
    void* huge = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(huge != MAP_FAILED);
    const std::span<const std::byte> untouched(static_cast<const std::byte*>(huge), size);
    CHECK_THROWS_AS(static_cast<void>(codec.encode(dtype::f32, untouched, to.span())), cairn::usage_error);
    ::munmap(huge, size);
  }
  SUBCASE("the same bytes become the same bytes, whatever was encoded before and whatever room there is") {
    for (const auto kind : all_contents) {
      const auto from = make_contents(kind, dtype::f32, 30'001);
      const auto encoded = encode_checked(codec, dtype::f32, from);
      static_cast<void>(
          encode_checked(codec, dtype::bf16, make_contents(contents::weights, dtype::bf16, 5000)));
      CHECK(encode_checked(codec, dtype::f32, from) == encoded);
      CHECK(encode_checked(make(), dtype::f32, from) == encoded);
      codec_bytes roomy(static_cast<std::size_t>(codec.bound(from.size())) + 100'000);
      const auto size = codec.encode(dtype::f32, from, roomy);
      CHECK(size == encoded.size());
      CHECK(std::equal(encoded.begin(), encoded.end(), roomy.begin()));
    }
  }
  SUBCASE("what is cut, continued or of another size is refused") {
    for (const auto type : {dtype::bf16, dtype::f32, dtype::u8})
      for (const auto kind : all_contents)
        for (const std::size_t size : {std::size_t{1}, std::size_t{100}, std::size_t{9001}}) {
          const auto from = make_contents(kind, type, size);
          const auto encoded = encode_checked(codec, type, from);
          std::uint64_t taken = 0;
          const std::size_t step = encoded.size() / 60 + 1;
          for (std::size_t keep = 0; keep < encoded.size(); keep += keep + step < encoded.size() ? step : 1) {
            const codec_bytes cut(encoded.begin(), encoded.begin() + static_cast<std::ptrdiff_t>(keep));
            taken += decode_checked(codec, type, cut, from, size) != decoded::refused;
          }
          for (const std::size_t more : {std::size_t{1}, std::size_t{4}, encoded.size()}) {
            codec_bytes longer = encoded;
            longer.resize(encoded.size() + more);
            taken += decode_checked(codec, type, longer, from, size) != decoded::refused;
            std::copy_n(encoded.begin(), more <= encoded.size() ? more : 0,
                        longer.begin() + static_cast<std::ptrdiff_t>(encoded.size()));
            taken += decode_checked(codec, type, longer, from, size) != decoded::refused;
          }
          for (const std::size_t place : {std::size_t{0}, size - 1, size + 1, 2 * size, size + 100'000})
            taken += decode_checked(codec, type, encoded, from, place) != decoded::refused;
          CAPTURE(static_cast<int>(kind));
          CAPTURE(size);
          CHECK(taken == 0);
        }
  }
  SUBCASE("bytes that changed never reach beyond the destination") {
    std::mt19937_64 random(11);
    for (const auto type : {dtype::bf16, dtype::f32, dtype::f64, dtype::u8})
      for (const auto kind : all_contents) {
        const std::size_t size = 3001;
        const auto from = make_contents(kind, type, size);
        const auto encoded = encode_checked(codec, type, from);
        // Each bit of the beginning, which describes the rest, then some bits of all.
        for (std::size_t bit = 0; bit < std::min<std::size_t>(24, encoded.size()) * 8; ++bit) {
          auto flipped = encoded;
          flipped[bit / 8] ^= std::byte{1} << (bit % 8);
          static_cast<void>(decode_checked(codec, type, flipped, from, size));
        }
        for (std::uint64_t i = 0; i < rounds(100); ++i) {
          auto broken = encoded;
          for (auto n = 1 + random() % 8; n > 0; --n)
            broken[random() % broken.size()] = static_cast<std::byte>(random() & 0xff);
          static_cast<void>(decode_checked(codec, type, broken, from, size));
        }
      }
    for (std::uint64_t i = 0; i < rounds(2000); ++i) {
      codec_bytes any(random() % 200);
      for (auto& b : any) b = static_cast<std::byte>(random() & 0xff);
      if (!any.empty() && random() % 2 == 0) any[0] = static_cast<std::byte>(random() % 4);
      static_cast<void>(decode_checked(codec, dtype::f32, any, {}, random() % 500));
    }
  }
  SUBCASE("several threads at once") {
    struct outcome {
      bool right = true;
      std::uint64_t digest = 0;
    };
    std::vector<outcome> outcomes(4);
    {
      std::vector<std::jthread> threads;
      for (auto& mine : outcomes)
        threads.emplace_back([&mine, &codec] {
          cairn::digest_stream all;
          for (int round = 0; round < 3; ++round)
            for (const auto kind : all_contents) {
              const auto from = make_contents(kind, dtype::f32, 50'003);
              codec_bytes encoded(static_cast<std::size_t>(codec.bound(from.size())));
              encoded.resize(codec.encode(dtype::f32, from, encoded));
              codec_bytes back(from.size());
              codec.decode(dtype::f32, encoded, back);
              mine.right = mine.right && back == from;
              all.put(cairn::digest(encoded));
            }
          mine.digest = all.value();
        });
    }
    for (const auto& each : outcomes) {
      CHECK(each.right);
      CHECK(each.digest == outcomes[0].digest);
    }
  }
}

}  // namespace cairn_test
