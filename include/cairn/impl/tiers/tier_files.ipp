// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/file_descriptor.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

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

}  // namespace v1
}  // namespace cairn
