// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/huge_mapping.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void tier_files::put(const std::string& path, std::span<const std::byte> bytes) {
  const detail::file_descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.open()) detail::fail_system(errno, "a file of the local tier could not be made: " + path);
  while (!bytes.empty()) {
    const auto written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) detail::fail_system(errno, "a file of the local tier could not be written: " + path);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}
CAIRN_BODY void tier_files::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    detail::fail_system(errno, "a file of the local tier could not be renamed: " + to);
}
CAIRN_BODY void tier_files::remove(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    detail::fail_system(errno, "a file of the local tier could not be removed: " + path);
}

CAIRN_BODY void tier_files::write(const std::string& path, int file, std::uint64_t offset,
                                  std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) detail::fail_system(errno, "an image of the local tier could not be written: " + path);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}
CAIRN_BODY void tier_files::sync(const std::string& path, int file) {
  detail::file_descriptor opened;
  if (file < 0) {
    opened = detail::file_descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    file = opened.get();
  }
  if (file < 0 || ::fsync(file) != 0)
    detail::fail_system(errno, "a file of the local tier could not be made durable: " + path);
}

namespace detail {

CAIRN_BODY void put_durably(tier_files& files, const std::string& directory, const std::string& temporary,
                            const std::string& name, std::span<const std::byte> bytes, bool on_disk) {
  const auto unfinished = directory + "/" + temporary;
  files.put(unfinished, bytes);
  if (on_disk) files.sync(unfinished, -1);
  files.rename(unfinished, directory + "/" + name);
  if (on_disk) files.sync(directory, -1);
}
CAIRN_BODY std::vector<std::string> names_in_tier(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()),
                                                    [](DIR* d) { return ::closedir(d); });
  if (listing == nullptr) fail_system(errno, "the local tier could not be listed: " + directory);
  std::vector<std::string> found;
  // A listing that breaks off is none: what it lacks would be taken for given up.
  errno = 0;
  while (const auto* entry = ::readdir(listing.get())) {
    found.emplace_back(entry->d_name);
    errno = 0;
  }
  if (errno != 0) fail_system(errno, "the local tier could not be listed: " + directory);
  return found;
}
CAIRN_BODY int read_exactly(int file, std::uint64_t offset, std::span<std::byte> out) noexcept {
  while (!out.empty()) {
    const auto got = ::pread(file, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : file_has_ended;
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return 0;
}
[[nodiscard]] inline int allocate_range(int file, std::uint64_t begin, std::uint64_t bytes) noexcept {
  if (bytes == 0) return 0;
  while (::fallocate(file, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) != 0)
    if (errno != EINTR) return errno;
  return 0;
}
CAIRN_BODY int allocate_file(int file, std::uint64_t bytes) noexcept {
  return allocate_range(file, 0, bytes);
}
CAIRN_BODY int size_new_file(int file, std::uint64_t bytes) noexcept {
  struct statfs system {};
  if (::fstatfs(file, &system) != 0) return errno;
  // Where there is no room for all of it, what there is stays for others; a tmpfs without a limit has no blocks.
  if (system.f_blocks != 0 && system.f_bavail < bytes / static_cast<std::uint64_t>(system.f_bsize))
    return ENOSPC;
  return ::ftruncate(file, static_cast<off_t>(bytes)) != 0 ? errno : 0;
}
CAIRN_BODY int allocate_part(int file, std::uint64_t begin, std::span<std::byte> mapped) noexcept {
  populate_huge(mapped.first(mapped.size() / huge_mapping::unit * huge_mapping::unit));
  return allocate_range(file, begin, mapped.size());
}
CAIRN_BODY int allocate_new_file(int file, std::uint64_t bytes) noexcept {
  struct statfs system {};
  // A disk would write each huge page at once, and read it again.
  if (::fstatfs(file, &system) != 0 || system.f_type != TMPFS_MAGIC) return allocate_file(file, bytes);
  if (const int code = size_new_file(file, bytes); code != 0) return code;
  const huge_mapping whole(file, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE);
  const int code = whole.bytes().empty() ? allocate_file(file, bytes) : allocate_part(file, 0, whole.bytes());
  if (code != 0) static_cast<void>(!::ftruncate(file, 0));  // what came as huge pages would stay
  return code;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
