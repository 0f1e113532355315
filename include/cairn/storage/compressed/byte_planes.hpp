// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cairn {
inline namespace v1 {

/// Bytes of a number of this type: how many planes its elements are split into. 1 means: none. Part of the
/// format of codecs that use planes.
[[nodiscard]] constexpr std::size_t plane_width(dtype type) noexcept {
  if (type == dtype::c64) return 4;  // two f32
  const auto bits = bits_of(type);
  return bits == 16 || bits == 32 || bits == 64 ? bits / 8 : 1;
}

namespace detail {

// Places in the planes are counted from element `first`, so that what vectors leave over goes element by
// element.
template <std::size_t Width>
void split_plainly(const std::byte* from, std::byte* to, std::size_t elements, std::size_t first) noexcept {
  for (std::size_t i = first; i < elements; ++i)
    for (std::size_t b = 0; b < Width; ++b) to[b * elements + i] = from[i * Width + b];
}
template <std::size_t Width>
void join_plainly(const std::byte* const* planes, std::byte* to, std::size_t elements,
                  std::size_t first) noexcept {
  for (std::size_t i = first; i < elements; ++i)
    for (std::size_t b = 0; b < Width; ++b) to[i * Width + b] = planes[b][i];
}

#if defined(__SSE2__)
/// Sixteen elements, as they lie in memory, become sixteen bytes of each plane: even and odd bytes part, then
/// again within each half.
template <std::size_t Width>
void split_vectors(const __m128i* from, __m128i* planes, std::size_t stride) noexcept {
  if constexpr (Width == 1) {
    *planes = *from;
  } else {
    __m128i even[Width / 2];
    __m128i odd[Width / 2];
    const __m128i low = _mm_set1_epi16(0x00ff);
    for (std::size_t i = 0; i < Width / 2; ++i) {
      const __m128i a = from[2 * i];
      const __m128i b = from[2 * i + 1];
      even[i] = _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low));
      odd[i] = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    }
    split_vectors<Width / 2>(even, planes, stride * 2);
    split_vectors<Width / 2>(odd, planes + stride, stride * 2);
  }
}
template <std::size_t Width>
void join_vectors(const __m128i* planes, std::size_t stride, __m128i* to) noexcept {
  if constexpr (Width == 1) {
    *to = *planes;
  } else {
    __m128i even[Width / 2];
    __m128i odd[Width / 2];
    join_vectors<Width / 2>(planes, stride * 2, even);
    join_vectors<Width / 2>(planes + stride, stride * 2, odd);
    for (std::size_t i = 0; i < Width / 2; ++i) {
      to[2 * i] = _mm_unpacklo_epi8(even[i], odd[i]);
      to[2 * i + 1] = _mm_unpackhi_epi8(even[i], odd[i]);
    }
  }
}
#endif

template <std::size_t Width>
void split_elements(const std::byte* from, std::byte* to, std::size_t elements) noexcept {
  std::size_t i = 0;
#if defined(__SSE2__)
  for (; elements - i >= 16; i += 16) {
    __m128i in[Width];
    __m128i out[Width];
    for (std::size_t v = 0; v < Width; ++v)
      in[v] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * Width) + v);
    split_vectors<Width>(in, out, 1);
    for (std::size_t b = 0; b < Width; ++b)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + b * elements + i), out[b]);
  }
#endif
  split_plainly<Width>(from, to, elements, i);
}
template <std::size_t Width>
void join_elements(const std::byte* const* planes, std::byte* to, std::size_t elements) noexcept {
  std::size_t i = 0;
#if defined(__SSE2__)
  for (; elements - i >= 16; i += 16) {
    __m128i in[Width];
    __m128i out[Width];
    for (std::size_t b = 0; b < Width; ++b)
      in[b] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(planes[b] + i));
    join_vectors<Width>(in, 1, out);
    for (std::size_t v = 0; v < Width; ++v)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * Width) + v, out[v]);
  }
#endif
  join_plainly<Width>(planes, to, elements, i);
}

}  // namespace detail

/// Splits elements of 2, 4 or 8 bytes into planes: byte b of each element goes to plane b, the planes follow
/// one another, and behind them the bytes behind the last whole element as they are. `to` is as long as
/// `from` and does not overlap it. With another width: a copy. Several GB/s.
inline void split_planes(std::size_t width, std::span<const std::byte> from,
                         std::span<std::byte> to) noexcept {
  if (from.empty()) return;
  const std::size_t elements = width == 2 || width == 4 || width == 8 ? from.size() / width : 0;
  const std::size_t done = elements * width;
  if (width == 2) detail::split_elements<2>(from.data(), to.data(), elements);
  if (width == 4) detail::split_elements<4>(from.data(), to.data(), elements);
  if (width == 8) detail::split_elements<8>(from.data(), to.data(), elements);
  if (done < from.size()) std::memcpy(to.data() + done, from.data() + done, from.size() - done);
}

/// The reverse: element i of `to` is made of byte i of each plane; there are as many planes as an element has
/// bytes (2, 4 or 8), of at least `to.size() / planes.size()` bytes each, and then the bytes of `tail`, as
/// many as `to` has behind its last whole element. `to` does not overlap them.
inline void join_planes(std::span<const std::byte* const> planes, std::span<const std::byte> tail,
                        std::span<std::byte> to) noexcept {
  if (to.empty()) return;
  const std::size_t width = planes.size();
  const std::size_t elements = width == 2 || width == 4 || width == 8 ? to.size() / width : 0;
  if (width == 2) detail::join_elements<2>(planes.data(), to.data(), elements);
  if (width == 4) detail::join_elements<4>(planes.data(), to.data(), elements);
  if (width == 8) detail::join_elements<8>(planes.data(), to.data(), elements);
  if (!tail.empty()) std::memcpy(to.data() + elements * width, tail.data(), tail.size());
}
/// The reverse of split_planes(width, ...).
inline void join_planes(std::size_t width, std::span<const std::byte> from,
                        std::span<std::byte> to) noexcept {
  std::array<const std::byte*, 8> planes{};
  const std::size_t used = width == 2 || width == 4 || width == 8 ? width : 0;
  const std::size_t elements = used == 0 ? 0 : from.size() / used;
  for (std::size_t b = 0; b < used; ++b) planes[b] = from.data() + b * elements;
  join_planes(std::span(planes.data(), used), from.subspan(elements * used), to);
}

/// What a compressor would make of bytes, guessed from samples: how often each byte occurs, and how much of a
/// sample was there before.
class compressibility {
 public:
  /// Adds a sample; of one longer than 65,535 bytes the first so many.
  void add(std::span<const std::byte> sample) noexcept {
    sample = sample.first(std::min<std::size_t>(sample.size(), 0xffff));
    for (const std::byte b : sample) ++counts_[std::to_integer<std::size_t>(b)];
    total_ += sample.size();
    // Eight bytes: fewer are there before by chance, too, where few values are frequent, as in exponents.
    constexpr std::size_t length = 8;
    std::array<std::uint16_t, 1024> last{};  // one more than the place where bytes of this hash began
    for (std::size_t i = 0; i + length <= sample.size(); ++i) {
      std::uint64_t bytes;
      std::memcpy(&bytes, sample.data() + i, length);
      auto& place = last[bytes * 0x9e3779b97f4a7c15u >> 54];
      repeated_ += place != 0 && std::memcmp(sample.data() + place - 1, &bytes, length) == 0;
      place = static_cast<std::uint16_t>(i + 1);
    }
  }
  /// Bits for each byte, from 0 to 8; 8 where nothing was added.
  [[nodiscard]] double bits() const noexcept {
    if (total_ == 0) return 8;
    const auto n = static_cast<double>(total_);
    double entropy = 0;
    int different = 0;
    for (const auto count : counts_) {
      if (count == 0) continue;
      const auto share = static_cast<double>(count) / n;
      entropy -= share * std::log2(share);
      ++different;
    }
    // A sample has less entropy than what it was taken from (Miller and Madow's correction).
    entropy = std::min(8.0, entropy + (different - 1) / (2 * n) * 1.442695);
    return entropy * (1 - repeated()) + std::min(1.0, entropy) * repeated();
  }
  /// The share of places, from 0 to 1, whose next bytes were in their sample before.
  [[nodiscard]] double repeated() const noexcept {
    return total_ == 0 ? 0 : static_cast<double>(repeated_) / static_cast<double>(total_);
  }

 private:
  std::array<std::uint32_t, 256> counts_{};
  std::uint64_t total_ = 0;
  std::uint64_t repeated_ = 0;
};

/// Whether it pays to split bytes into planes before they are compressed.
struct plane_estimate {
  /// What was estimated of one part of the bytes.
  struct part {
    double bits = 8;      ///< for each byte; see compressibility
    double repeated = 0;  ///< share of places
  };
  bool pays = false;             ///< the planes, compressed one by one, are expected to be clearly shorter
  part whole;                    ///< the bytes as they are
  std::array<part, 8> planes{};  ///< each plane
};

/// Looks at 32 KiB at most, evenly spread; about 0.3 ms, however long `from` is. `width` is 1, 2, 4 or 8.
[[nodiscard]] inline plane_estimate estimate_planes(std::size_t width, std::span<const std::byte> from) {
  constexpr std::size_t max_samples = 8;
  constexpr std::size_t sample_bytes = 4096;
  const std::size_t samples = std::clamp<std::size_t>(from.size() / sample_bytes, 1, max_samples);
  // A multiple of eight, so that each sample begins with an element.
  const std::size_t stride = from.size() / samples / 8 * 8;
  compressibility whole;
  std::array<compressibility, 8> planes;
  std::array<std::byte, sample_bytes> split;
  for (std::size_t s = 0; s < samples; ++s) {
    const auto rest = from.subspan(s * stride);
    const auto sample = rest.first(std::min(rest.size(), sample_bytes));
    whole.add(sample);
    if (width == 1) continue;
    split_planes(width, sample, std::span(split).first(sample.size()));
    const std::size_t elements = sample.size() / width;
    for (std::size_t b = 0; b < width; ++b) planes[b].add(std::span(split).subspan(b * elements, elements));
  }
  plane_estimate e;
  e.whole = {whole.bits(), whole.repeated()};
  if (width == 1 || from.size() < width) return e;
  double sum = 0;
  for (std::size_t b = 0; b < width; ++b) {
    e.planes[b] = {planes[b].bits(), planes[b].repeated()};
    sum += e.planes[b].bits;
  }
  e.pays = sum / static_cast<double>(width) + 0.05 < e.whole.bits;
  return e;
}

}  // namespace v1
}  // namespace cairn
