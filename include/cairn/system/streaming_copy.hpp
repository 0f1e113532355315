// SPDX-License-Identifier: Apache-2.0
#pragma once
#if defined(__SSE2__)
#include <cairn/system/compiler.hpp>

#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cairn {
inline namespace v1 {
namespace detail {

/// From here to the next line of 64 bytes: 0 to 63.
[[nodiscard]] inline std::uint64_t bytes_to_line(const std::byte* at) noexcept {
  return (64 - reinterpret_cast<std::uintptr_t>(at) % 64) % 64;
}

#if defined(__SSE2__)
/// One line of 64 bytes; `to` is a multiple of that.
inline void stream_line(std::byte* to, const std::byte* from) noexcept {
  const auto* in = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(in);
  const __m128i b = _mm_loadu_si128(in + 1);
  const __m128i c = _mm_loadu_si128(in + 2);
  const __m128i d = _mm_loadu_si128(in + 3);
  _mm_stream_si128(out, a);
  _mm_stream_si128(out + 1, b);
  _mm_stream_si128(out + 2, c);
  _mm_stream_si128(out + 3, d);
}
/// Copies as many multiples of so many pages as there are, a few lines of each page in turns, and asks for the source of
/// the next ones: a processor follows several pages at once, and at their ends waits for none. Half as much again as one
/// page after the other (as in memcpy of glibc 2.33 and later). Returns how many bytes it copied.
template <std::uint64_t Pages>
[[nodiscard]] std::uint64_t stream_pages(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
  constexpr std::uint64_t page = 4096, lines = 256, all = Pages * page;
  std::uint64_t done = 0;
  for (; bytes - done >= all; done += all)
    for (std::uint64_t at = done; at < done + page; at += lines)
      for (std::uint64_t p = 0; p < all; p += page)
        for (std::uint64_t line = at + p; line < at + p + lines; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(from + line + all), _MM_HINT_T1);  // never faults
          stream_line(to + line, from + line);
        }
  return done;
}
#endif

/// Copies without bringing the destination into the caches, which saves the read of each line before it is
/// written; short copies are ordinary ones. streamed_copies_done() must follow before another thread is told.
inline void streaming_copy(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
#if defined(__SSE2__)
  if (bytes >= 4096) {
    const auto copied = [&](std::uint64_t count) { to += count, from += count, bytes -= count; };
    const std::uint64_t head = bytes_to_line(to);
    std::memcpy(to, from, head);
    copied(head);
    copied(stream_pages<4>(to, from, bytes));
    copied(stream_pages<2>(to, from, bytes));
    while (bytes >= 64) {
      stream_line(to, from);
      copied(64);
    }
  }
#endif
  std::memcpy(to, from, bytes);
}
inline void streamed_copies_done() noexcept {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
