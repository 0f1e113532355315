// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/tiers/disk_image.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void write_disk_image(tier_files& files, const std::string& path, const staged_image& image,
                                 deadline until) {
  constexpr std::uint64_t piece = std::uint64_t{8} << 20;
  const auto bytes = image.layout().bytes;
  constexpr int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  file_descriptor file(::open(path.c_str(), flags | O_DIRECT, 0600));
  if (!file.open() && errno == EINVAL) file = file_descriptor(::open(path.c_str(), flags, 0600));
  if (!file.open()) fail_system(errno, "an image of the local tier could not be made: " + path);
  if (allocate_file(file.get(), bytes) == ENOSPC)
    fail_system(ENOSPC, "an image of the local tier could not be allocated: " + path);
  for (std::uint64_t at = 0; at < bytes;) {
    const auto end = std::min(bytes, at + piece);
    image.wait_for(end, until);
    files.write(path, file.get(), at, image.bytes().subspan(at, end - at));
    at = end;
  }
  image.wait_released(until);
  files.sync(path, file.get());
}

CAIRN_BODY std::vector<std::byte> read_disk_image(const std::string& path, std::uint64_t bytes) {
  const file_descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.open()) fail_system(errno, "an image of the local tier could not be opened: " + path);
  std::vector<std::byte> read(bytes);
  const int code = read_exactly(file.get(), 0, read);
  if (code == file_has_ended)
    fail(error_id::corrupt_truncated, "an image of the local tier is shorter than its record says",
         {.file = path});
  if (code != 0) fail_system(code, "an image of the local tier could not be read: " + path);
  return read;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
