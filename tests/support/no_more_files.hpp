// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <stdexcept>

namespace cairn_test {

/// This process can open no file until it ends.
class no_more_files {
 public:
  no_more_files() {
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(next);
    if (next < 0 || ::getrlimit(RLIMIT_NOFILE, &before_) != 0) throw std::runtime_error("no limit is known");
    const ::rlimit none{.rlim_cur = static_cast<::rlim_t>(next), .rlim_max = before_.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &none) != 0) throw std::runtime_error("no limit can be set");
  }
  no_more_files(const no_more_files&) = delete;
  no_more_files& operator=(const no_more_files&) = delete;
  ~no_more_files() { static_cast<void>(::setrlimit(RLIMIT_NOFILE, &before_)); }

 private:
  ::rlimit before_{};
};

}  // namespace cairn_test
