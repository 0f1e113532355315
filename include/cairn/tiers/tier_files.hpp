// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The changes of which holding a save consists, in the directory of a local tier. Tests derive from it to stop
/// between two of them. Any thread.
class tier_files {
 public:
  tier_files() = default;
  tier_files(const tier_files&) = delete;
  tier_files& operator=(const tier_files&) = delete;
  virtual ~tier_files() = default;
  /// Writes a file whole, in place of one that is there, readable by this user alone. @throws storage_error
  virtual void put(const std::string& path, std::span<const std::byte> bytes);
  /// Renames a file, in place of one that is there. @throws storage_error
  virtual void rename(const std::string& from, const std::string& to);
  /// Removes a file; no error if there is none. @throws storage_error
  virtual void remove(const std::string& path);
  /// On a disk: writes bytes of an image into its file, which is open. @throws storage_error
  virtual void write(const std::string& path, int file, std::uint64_t offset,
                     std::span<const std::byte> bytes);
  /// On a disk: what was done to this file, or to the names in this directory, survives a loss of power from here
  /// on. `file`: its descriptor; negative: it is opened. @throws storage_error
  virtual void sync(const std::string& path, int file);
};

namespace detail {

/// Gives a file of a directory its name when it is whole: writes it under the name `temporary`, and renames it.
/// `on_disk`: bytes and name survive a loss of power when this returns. @throws storage_error
void put_durably(tier_files& files, const std::string& directory, const std::string& temporary,
                 const std::string& name, std::span<const std::byte> bytes, bool on_disk);
/// The names in a directory. @throws storage_error
[[nodiscard]] std::vector<std::string> names_in_tier(const std::string& directory);
/// What read_exactly() returns where the file ends before what is wanted.
inline constexpr int file_has_ended = -1;
/// Fills `out` from this offset of a file on. Returns 0, file_has_ended, or the errno.
[[nodiscard]] int read_exactly(int file, std::uint64_t offset, std::span<std::byte> out) noexcept;
/// Gives the first bytes of a file their room, so that no write to them, nor to memory that they are mapped to, finds none.
/// Returns 0 or the errno.
[[nodiscard]] int allocate_file(int file, std::uint64_t bytes) noexcept;
/// Images in memory are whole huge pages.
inline constexpr std::uint64_t tier_image_unit = std::uint64_t{2} << 20;
/// What an image of so many bytes takes in memory. A rank that has nothing to write has one, too, and nothing cannot be mapped.
[[nodiscard]] constexpr std::uint64_t tier_image_size(std::uint64_t bytes) noexcept {
  return bytes == 0 ? tier_image_unit : (bytes + tier_image_unit - 1) / tier_image_unit * tier_image_unit;
}
/// The same for a new file, which becomes so long: on a tmpfs in huge pages where the kernel makes them (MADV_COLLAPSE, Linux
/// 6.1): a quarter of the time, and reading, mapping and removing it take less, too. Where it fails the file takes no room.
[[nodiscard]] int allocate_new_file(int file, std::uint64_t bytes) noexcept;
/// The same, a part after another. First the file becomes so long: ENOSPC where a tmpfs has no room for it now. Then each part,
/// `mapped`, which begins with this offset of the file, a multiple of 2 MiB, gets its room; where that fails it keeps what it got.
[[nodiscard]] int size_new_file(int file, std::uint64_t bytes) noexcept;
[[nodiscard]] int allocate_part(int file, std::uint64_t begin, std::span<std::byte> mapped) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/tiers/tier_files.ipp>
#endif
