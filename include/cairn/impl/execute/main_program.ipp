// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/execute/main_program.hpp>
#include <cairn/system/digest.hpp>

#include <elf.h>
#include <link.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

[[nodiscard]] inline std::uint64_t build_of_notes(std::span<const std::byte> notes) noexcept {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data(), sizeof note);
    const std::size_t name = (std::size_t{note.n_namesz} + 3) / 4 * 4;
    const std::size_t content = (std::size_t{note.n_descsz} + 3) / 4 * 4;
    if (name > notes.size() - sizeof note || content > notes.size() - sizeof note - name) return 0;
    const auto* at = notes.data() + sizeof note;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(at, "GNU", 4) == 0)
      return digest(std::span(at + name, note.n_descsz));
    notes = notes.subspan(sizeof note + name + content);
  }
  return 0;
}

CAIRN_BODY main_program this_program() {
  main_program found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        auto& program = *static_cast<main_program*>(out);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          const auto at = static_cast<std::uintptr_t>(info->dlpi_addr + part.p_vaddr);
          if (part.p_type == PT_LOAD) {
            if (program.begin == 0 || at < program.begin) program.begin = at;
            if (at + part.p_memsz > program.end) program.end = at + part.p_memsz;
          } else if (part.p_type == PT_NOTE && program.build == 0) {
            program.build = build_of_notes(
                {reinterpret_cast<const std::byte*>(at), static_cast<std::size_t>(part.p_memsz)});
          }
        }
        return 1;  // the first is the main program
      },
      &found);
  if (found.build == 0) {
    struct stat s {};
    if (::stat("/proc/self/exe", &s) == 0)
      found.build = digest_stream()
                        .put(static_cast<std::uint64_t>(s.st_dev))
                        .put(static_cast<std::uint64_t>(s.st_ino))
                        .put(static_cast<std::int64_t>(s.st_size))
                        .put(static_cast<std::int64_t>(s.st_mtim.tv_sec))
                        .put(static_cast<std::int64_t>(s.st_mtim.tv_nsec))
                        .value();
  }
  return found;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
