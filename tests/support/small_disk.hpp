// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "scratch_directory.hpp"

#include <doctest/doctest.h>

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace cairn_test {

/// A tmpfs of its own and of one size, where the test may mount one; else a message says that the test is
/// skipped.
class small_disk {
 public:
  /// `options`: those of mount(8), as "size=4m,nr_inodes=6".
  explicit small_disk(const char* options) {
    mounted_ = ::mount("none", directory_.path().c_str(), "tmpfs", 0, options) == 0;
    if (!mounted_) MESSAGE("skipped: mounting a tmpfs needs root (" << std::strerror(errno) << ")");
  }
  ~small_disk() {
    if (mounted_) ::umount2(directory_.path().c_str(), MNT_DETACH);
  }
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] const std::string& path() const { return directory_.path(); }
  [[nodiscard]] bool make_read_only() const {
    return ::mount("none", path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  scratch_directory directory_;
  bool mounted_ = false;
};

}  // namespace cairn_test
