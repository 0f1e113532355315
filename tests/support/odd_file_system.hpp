// SPDX-License-Identifier: Apache-2.0
#pragma once
// The real file system with one odd answer, as network file systems, FUSE and old kernels give them.
#include <cairn/stores/file/posix_file_system.hpp>

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace cairn_test {

enum class oddity {
  none,
  rename_replaces,    // check-then-rename, and the check is left out
  nfs,                // renameat2: EEXIST where the target is there, EINVAL where it is not
  no_rename_new,      // renameat2 always EINVAL
  link_replaces,      // nfs, and a link that takes the place of what is there
  no_links,           // neither
  exclusive_ignored,  // O_EXCL opens what is there
  lock_not_seen,      // each lock is given
  no_locks,
  directory_sync_fails,
  directory_sync_refused,
  file_sync_fails,
  new_names_unlisted,
  names_remembered_absent,  // a name that was looked for and absent stays so for this client
  unknown_kind,
  kernel_view,
  mounted_nfs,  // with options that are right
  mounted_nocto,
  mounted_local_locks,
  mounted_soft,
  mounted_lustre,  // without flock
  mounted_unread,  // on NFS, with options that the system does not tell
  mounted_volatile,
  mounted_nobarrier,
  full
};

/// Copies share what they remember.
struct odd_file_system : cairn::posix_file_system {
  explicit odd_file_system(oddity o = oddity::none) : odd(o) {}
  oddity odd;

  [[nodiscard]] int open_at(int directory, const char* name, int flags, unsigned mode) {
    if (odd == oddity::full && (flags & O_CREAT) != 0) return -ENOSPC;
    if (odd == oddity::exclusive_ignored) flags &= ~O_EXCL;
    return posix_file_system::open_at(directory, name, flags, mode);
  }
  [[nodiscard]] int rename_new_at(int directory, const char* from, const char* to) const {
    switch (odd) {
      case oddity::rename_replaces:
        return ::renameat(directory, from, directory, to) == 0 ? 0 : -errno;
      case oddity::nfs:
      case oddity::link_replaces:
        return ::faccessat(directory, to, F_OK, 0) == 0 ? -EEXIST : -EINVAL;
      case oddity::no_rename_new:
      case oddity::no_links:
        return -EINVAL;
      default:
        return posix_file_system::rename_new_at(directory, from, to);
    }
  }
  [[nodiscard]] int link_at(int directory, const char* from, const char* to) const {
    if (odd == oddity::no_links) return -EPERM;
    if (odd == oddity::link_replaces) static_cast<void>(::unlinkat(directory, to, 0));
    return posix_file_system::link_at(directory, from, to);
  }
  [[nodiscard]] int try_lock(int file) const {
    if (odd == oddity::no_locks) return -ENOLCK;
    const int r = posix_file_system::try_lock(file);
    return odd == oddity::lock_not_seen ? 0 : r;
  }
  [[nodiscard]] int sync(int file) const {
    return odd == oddity::file_sync_fails ? -EIO : posix_file_system::sync(file);
  }
  [[nodiscard]] int sync_directory(int directory) const {
    return odd == oddity::directory_sync_fails     ? -EIO
           : odd == oddity::directory_sync_refused ? -EINVAL
                                                   : posix_file_system::sync_directory(directory);
  }
  [[nodiscard]] int status_at(int directory, const char* name, cairn::file_status& out) const {
    if (odd != oddity::names_remembered_absent) return posix_file_system::status_at(directory, name, out);
    const std::lock_guard lock(*mutex_);
    if (absent_->count(name) != 0) return -ENOENT;
    const int r = posix_file_system::status_at(directory, name, out);
    if (r == -ENOENT) absent_->insert(name);
    return r;
  }
  [[nodiscard]] int list(int directory, std::vector<cairn::directory_entry>& entries) const {
    return odd == oddity::new_names_unlisted ? 0 : posix_file_system::list(directory, entries);
  }
  [[nodiscard]] int kind(int file, cairn::file_system_kind& out) const {
    const int r = posix_file_system::kind(file, out);
    if (odd == oddity::unknown_kind) out.name = "fuse.cloudfs";
    if (odd == oddity::kernel_view) out.name = "proc";
    if (odd >= oddity::mounted_nfs && odd <= oddity::mounted_soft) {
      out.name = "nfs4";
      out.options = odd == oddity::mounted_nocto         ? "rw,hard,nocto,local_lock=none"
                    : odd == oddity::mounted_local_locks ? "rw,hard,local_lock=all"
                    : odd == oddity::mounted_soft        ? "rw,soft,local_lock=none"
                                                         : "rw,hard,local_lock=none";
    }
    if (odd == oddity::mounted_lustre) {
      out.name = "lustre";
      out.options = "rw,lazystatfs";
    }
    if (odd == oddity::mounted_unread) {
      out.name = "nfs";
      out.options.clear();
    }
    if (odd == oddity::mounted_volatile) out.options = "rw,relatime,volatile";
    if (odd == oddity::mounted_nobarrier) out.options = "rw,nobarrier";
    return r;
  }

 private:
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  std::shared_ptr<std::set<std::string>> absent_ = std::make_shared<std::set<std::string>>();
};

static_assert(cairn::FileSystem<odd_file_system>);

}  // namespace cairn_test
