// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// What file system a file is on.
struct file_system_kind {
  std::uint64_t type = 0;  ///< f_type of statfs
  std::string name;        ///< as mount calls it: "ext4", "nfs4", "fuse.sshfs"; else "type 0x..."
  std::string mounted;     ///< "SOURCE on DIRECTORY (OPTIONS)"; empty where the system does not tell
  std::string options;     ///< those of the mount and of the file system, with commas between; empty likewise
};

namespace detail {

/// The name that belongs to an f_type, for systems that do not tell which mount a file is on.
[[nodiscard]] std::string name_of_file_system(std::uint64_t type);

/// Fills in what /proc/self/mountinfo says of a mount; leaves `kind` as it is where it says nothing.
void look_up_mount(std::uint64_t mount, file_system_kind& kind);

/// Whether this is one of the options of its mount.
[[nodiscard]] bool is_mounted_with(const file_system_kind& kind, std::string_view option);

/// How well a kind of file system is known to carry checkpoints.
enum class file_system_support : std::uint8_t {
  tried,       ///< checkpoints were saved and resumed on it, or all of its answers were looked at
  documented,  ///< its documents promise what is needed; it was not tried
  unknown,     ///< neither
  no_files     ///< a view of the kernel: it keeps no files
};
[[nodiscard]] file_system_support support_of(std::string_view name);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file/file_system_kinds.ipp>
#endif
