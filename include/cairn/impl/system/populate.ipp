// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/populate.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY bool populate(std::byte* begin, std::size_t bytes) noexcept {
  for (;;) {
    if (::madvise(begin, bytes, madvise_populate_write) == 0) return true;
    if (errno == EINTR) continue;
    // An older kernel, or one that is told to refuse: touch the pages instead.
    if (errno == EINVAL || errno == ENOSYS || errno == EPERM || errno == EAGAIN) break;
    return false;
  }
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < bytes; at += page)
    *reinterpret_cast<volatile std::byte*>(begin + at) = std::byte{0};
  return true;
}

CAIRN_BODY bool populate(std::span<std::byte> block, int threads) {
  constexpr std::size_t part = std::size_t{32} << 20;
  const std::size_t parts = (block.size() + part - 1) / part;
  std::atomic<bool> done{true};
  const auto wanted = static_cast<std::size_t>(threads > 0 ? threads : std::min(8, usable_cores()));
  parallel_for(parts, wanted, [&](std::size_t i, std::size_t) {
    if (done.load() && !populate(block.data() + i * part, std::min(part, block.size() - i * part)))
      done.store(false);
  });
  return done.load();
}

CAIRN_BODY void populate_huge(std::span<std::byte> block) noexcept {
  constexpr std::size_t huge = std::size_t{2} << 20;
  // The kernel makes one huge page of those that are there and fills what is missing: one page is enough.
  for (std::size_t at = 0; at < block.size(); at += huge)
    if (::madvise(block.data() + at, 1, madvise_populate_write) != 0) return;
  // One call for all of it: each call waits once for all cores.
  static_cast<void>(::madvise(block.data(), block.size(), madvise_collapse));
}

CAIRN_BODY bool populate_destination(std::byte* to, std::size_t bytes) noexcept {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto first = (reinterpret_cast<std::uintptr_t>(to) + page - 1) / page * page;
  const auto last = (reinterpret_cast<std::uintptr_t>(to) + bytes) / page * page;
  // Most often all pages are there, which costs a tenth to ask of what it costs to try.
  std::array<unsigned char, 256> there;
  bool is_new = false;
  while (first < last) {
    const auto length = std::min<std::uintptr_t>(last - first, there.size() * page);
    auto* const at = reinterpret_cast<void*>(first);
    if (::mincore(at, length, there.data()) != 0 ||
        !std::all_of(there.begin(), there.begin() + static_cast<std::ptrdiff_t>(length / page),
                     [](unsigned char p) { return (p & 1) != 0; })) {
      static_cast<void>(::madvise(at, length, madvise_populate_write));
      is_new = true;
    }
    first += length;
  }
  return is_new;
}

CAIRN_BODY bool populate_source(const std::byte* from, std::size_t bytes) noexcept {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto past = reinterpret_cast<std::uintptr_t>(from) % page;
  auto* const first = const_cast<std::byte*>(from - past);
  while (::madvise(first, bytes + past, madvise_populate_read) != 0)
    if (errno != EINTR) return false;
  return true;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
