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

/// Copies without bringing the destination into the caches, which saves the read of each line before it is
/// written; short copies are ordinary ones. streamed_copies_done() must follow before another thread is told.
inline void streaming_copy(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
#if defined(__SSE2__)
  if (bytes >= 4096) {
    const std::uint64_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
      // Streaming stores wait at each new page of the destination; a prefetch, which never faults, looks it
      // up before: a sixth of the time where the memory is not the bound.
      if (reinterpret_cast<std::uintptr_t>(to) % 4096 == 0)
        _mm_prefetch(reinterpret_cast<const char*>(to + 4096), _MM_HINT_T0);
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
