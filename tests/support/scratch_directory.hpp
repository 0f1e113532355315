// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdlib.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace cairn_test {

/// A new, empty directory, removed with all that is in it.
class scratch_directory {
 public:
  /// Makes it below `where`, or below TMPDIR (/tmp).
  explicit scratch_directory(const char* where = nullptr) {
    const char* base = where != nullptr ? where : std::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/cairn-test.XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make a directory " + path_);
  }
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;
  ~scratch_directory() {
    const auto command = "rm -rf '" + path_ + "'";
    static_cast<void>(!std::system(command.c_str()));
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace cairn_test
