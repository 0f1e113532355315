// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/file/io_error.hpp>
#include <cairn/stores/file/posix_file_system.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/process_limits.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The error id that belongs to an errno of file I/O, and what to do about it.
struct errno_meaning {
  error_id id;
  std::string_view cure;
};

[[nodiscard]] constexpr errno_meaning meaning_of(int code) noexcept {
  switch (code) {
    case ENOSPC:
      return {error_id::storage_no_space, "free space on the file system or keep fewer checkpoints"};
    case EDQUOT:
      return {error_id::storage_no_space,
              "a quota of the user, group or project on this file system is used up: remove files or ask for "
              "more"};
    case ENOENT:
      return {error_id::storage_not_found, "it is not there, or was removed meanwhile"};
    case EEXIST:
      return {error_id::storage_exists, "something stands there already; nothing was replaced"};
    case EACCES:
    case EPERM:
      return {error_id::storage_permission,
              "give this user the right to do it, or choose another directory; a program that only reads "
              "says cairn::read_only"};
    case EROFS:
      return {error_id::storage_permission,
              "the file system is read-only: mount it writable or choose another directory; a program that "
              "only reads "
              "says cairn::read_only"};
    case EMFILE:
      return {error_id::storage_limit, "this process has too many open files: raise ulimit -n"};
    case ENFILE:
      return {error_id::storage_limit, "the system has too many open files: raise fs.file-max"};
    case ENAMETOOLONG:
      return {error_id::storage_limit, "the name is too long for this file system: choose a shorter one"};
    case EFBIG:
      return {error_id::storage_limit,
              "the file would be larger than allowed: raise ulimit -f, or use a file system for large files"};
    case EMLINK:
      return {error_id::storage_limit, "the directory holds too many entries: use another one"};
    case ENOMEM:
      return {error_id::storage_out_of_memory, "the system is out of memory"};
    case ELOOP:
      return {error_id::storage_bad_key,
              "a symbolic link stands in the way; none is followed below the store's directory"};
    case ENOTDIR:
      return {error_id::storage_bad_key, "a part of the path is no directory"};
    case EISDIR:
      return {error_id::storage_bad_key, "a directory stands there"};
    case EIO:
      return {error_id::storage_io,
              "the device or server reported an I/O error: look at the kernel log; nothing is retried on "
              "this file"};
    case ESTALE:
      return {error_id::storage_io, "the file was replaced on the server"};
    default:
      return {error_id::storage_io, "look at the kernel log and the mount"};
  }
}

/// The limit that stands behind an errno, with its value; empty where there is none to tell.
[[nodiscard]] inline std::string limit_behind(int code, const std::optional<space_left>& left,
                                              const std::vector<quota_use>& quotas) {
  switch (code) {
    case EMFILE:
      return limit_text(RLIMIT_NOFILE, "RLIMIT_NOFILE", "ulimit -n") + ", and " +
             std::to_string(open_descriptors()) + " are open";
    case ENFILE: {
      auto used = kernel_file("/proc/sys/fs/file-nr").value_or("");  // "allocated free maximum"
      if (const auto end = used.find('\n'); end != std::string::npos) used.resize(end);
      const auto from = used.find_last_of(" \t");
      if (from == std::string::npos) return {};
      return "fs.file-max is " + used.substr(from + 1) + ", and " +
             used.substr(0, used.find_first_of(" \t")) + " are open";
    }
    case EFBIG:
      return limit_text(RLIMIT_FSIZE, "RLIMIT_FSIZE", "ulimit -f, in kB there");
    case ENOSPC:
      if (left && left->objects == 0) return "no inodes are left: it is the number of files that is used up";
      return {};
    case EDQUOT: {
      std::string text;
      for (const auto& q : quotas) {
        if (!text.empty()) text += "; ";
        text += std::string(q.group ? "group " : "user ") + std::to_string(q.id) + " has " +
                std::to_string(q.bytes) + " of " +
                (q.bytes_limit == 0 ? "unlimited" : std::to_string(q.bytes_limit)) + " bytes and " +
                std::to_string(q.files) + " of " +
                (q.files_limit == 0 ? "unlimited" : std::to_string(q.files_limit)) + " files";
      }
      if (text.empty())
        text = "user " + std::to_string(::geteuid()) + ", group " + std::to_string(::getegid()) +
               "; 'quota -s', or 'lfs quota' on Lustre, shows the values";
      return text;
    }
    default:
      return {};
  }
}

CAIRN_BODY void fail_io(int code, std::string_view call, std::string_view path, std::int64_t offset,
                        std::optional<std::uint64_t> needed, std::optional<space_left> left,
                        const std::vector<quota_use>& quotas) {
  const auto meaning = meaning_of(code);
  std::string text = std::string(call) + " failed: " + std::system_category().message(code) + " (errno " +
                     std::to_string(code) + "); " + std::string(meaning.cure);
  if (const auto limit = limit_behind(code, left, quotas); !limit.empty()) text += ": " + limit;
  error_fields fields{.file = std::string(path), .offset = offset};
  if (needed) fields.expected = std::to_string(*needed) + " bytes of space";
  if (left)
    fields.got = std::to_string(left->bytes) + " bytes and " + std::to_string(left->objects) + " inodes free";
  fail(meaning.id, text, std::move(fields));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
