// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/options.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <unistd.h>

#include <cstddef>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::size_t file_block() noexcept {
  const long page = ::sysconf(_SC_PAGESIZE);
  return page > 4096 ? static_cast<std::size_t>(page) : 4096;
}

CAIRN_BODY std::string checked_root(std::string root, const file_store_options& o) {
  const auto bad = [](const char* what) {
    fail(error_id::usage_bad_option, std::string("file_store: ") + what);
  };
  if (root.empty() || root.find('\0') != std::string::npos) bad("the directory needs a name");
  if (o.write_bytes == 0 || o.write_bytes % file_block() != 0 || o.write_bytes > (std::size_t{1} << 30))
    bad("write_bytes must be a multiple of the page size, at most 1 GiB");
  if (o.read_bytes == 0 || o.read_bytes % file_block() != 0 || o.read_bytes > (std::size_t{1} << 30))
    bad("read_bytes must be a multiple of the page size, at most 1 GiB");
  if (o.writes_in_flight == 0 || o.writes_in_flight > 64 || o.reads_in_flight == 0 || o.reads_in_flight > 64)
    bad("writes_in_flight and reads_in_flight must be 1 to 64");
  if (o.file_mode && ((*o.file_mode & 0600u) != 0600u || (*o.file_mode & ~0777u) != 0))
    bad("file_mode is permission bits as 0640: the owner must read and write, and no bit above 0777 is "
        "set");
  if (o.directory_mode && ((*o.directory_mode & 0700u) != 0700u || (*o.directory_mode & ~03777u) != 0))
    bad("directory_mode is permission bits as 0750 or 02770: the owner needs 0700, and set-user-id is no "
        "bit of directories");
  return root;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
