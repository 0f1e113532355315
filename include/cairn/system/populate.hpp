// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <sys/mman.h>

#include <cstddef>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

inline constexpr int madvise_populate_read = 22;   // MADV_POPULATE_READ, Linux 5.14
inline constexpr int madvise_populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14
inline constexpr int madvise_collapse = 25;        // MADV_COLLAPSE, Linux 6.1

/// Whether the kernel can make the pages of a mapping be there, by the first of them.
[[nodiscard]] inline bool kernel_populates(std::byte* begin) noexcept {
  return ::madvise(begin, 4096, madvise_populate_write) == 0;
}

/// Makes the pages of a fresh mapping be there: false, with errno, if the kernel has no more.
[[nodiscard]] bool populate(std::byte* begin, std::size_t bytes) noexcept;

/// The same for a large mapping, by several threads (0: one for each core, at most 8).
[[nodiscard]] bool populate(std::span<std::byte> block, int threads);

/// Makes a fresh shared mapping be there in huge pages, also where the system gives shared memory none by itself
/// (MADV_COLLAPSE, Linux 6.1): as much of it as the kernel has such pages for, and at least one small page of each of
/// the others that it could touch. Never fails: what is not there is for populate(). Both ends are multiples of 2 MiB.
/// Takes an eighth of the time that small pages take, and requests of a device over it a half to two thirds.
void populate_huge(std::span<std::byte> block) noexcept;

/// Gives memory that may not have been touched yet its pages at once, before it is written, instead of by a fault for
/// each in the middle of a copy: the whole pages of it. Where they are there that is asked alone (under a microsecond a MiB); does
/// nothing where the kernel cannot (before Linux 5.14). What the memory holds stays. Whether some were not there.
bool populate_destination(std::byte* to, std::size_t bytes) noexcept;

/// The same for the pages of a shared mapping that are to be read. False where the kernel does not say that all of them are
/// there: its file may have become shorter, or memory is broken, so that touching them would end the process (SIGBUS).
[[nodiscard]] bool populate_source(const std::byte* from, std::size_t bytes) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/populate.ipp>
#endif
