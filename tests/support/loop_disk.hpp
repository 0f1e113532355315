// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "scratch_directory.hpp"

#include <doctest/doctest.h>

#include <sys/mount.h>

#include <cstdlib>
#include <string>

namespace cairn_test {

/// A small XFS of its own, in a file, where the test may mount one; else a message says that the test is skipped.
class loop_disk {
 public:
  loop_disk() {
    const auto image = directory_.path() + "/image", quiet = std::string(" >/dev/null 2>&1");
    const auto runs = [&](const std::string& command) { return std::system((command + quiet).c_str()) == 0; };
    mounted_ = runs("mkdir '" + path() + "'") && runs("truncate -s 320M '" + image + "'") &&
               runs("mkfs.xfs -q -m reflink=1 '" + image + "'") &&
               runs("mount -o loop '" + image + "' '" + path() + "'");
    if (!mounted_) MESSAGE("skipped: an XFS in a file needs root, mkfs.xfs and a loop device");
  }
  ~loop_disk() {
    if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
  }
  loop_disk(const loop_disk&) = delete;
  loop_disk& operator=(const loop_disk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] std::string path() const { return directory_.path() + "/mounted"; }

 private:
  scratch_directory directory_;
  bool mounted_ = false;
};

}  // namespace cairn_test
