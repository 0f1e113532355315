// SPDX-License-Identifier: Apache-2.0
#pragma once
// A memory control group of a test's own, where this user and system let one be made.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

namespace cairn_test {

class memory_group {
 public:
  /// Makes a group below that of this process, or as near to it as possible.
  memory_group() {
    bool second = false;
    std::ifstream groups("/proc/self/cgroup");
    std::string own;
    for (std::string line; std::getline(groups, line);) {
      const auto colon = line.rfind(':');
      if (line.starts_with("0::") && own.empty()) {
        second = true;
        own = line.substr(3);
      } else if (colon != std::string::npos && line.substr(0, colon).ends_with(":memory")) {
        second = false;
        own = line.substr(colon + 1);
      }
    }
    const std::string root = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    limit_ = second ? "/memory.max" : "/memory.limit_in_bytes";
    usage_ = second ? "/memory.current" : "/memory.usage_in_bytes";
    while (!own.empty()) {
      while (!own.empty() && own.back() == '/') own.pop_back();
      folder_ = root + own + "/cairn-test-" + std::to_string(::getpid());
      if (::mkdir(folder_.c_str(), 0755) == 0) {
        if (::access((folder_ + limit_).c_str(), W_OK) == 0 && limit_to(std::uint64_t{1} << 50)) return;
        ::rmdir(folder_.c_str());
      }
      own.resize(own.rfind('/') == std::string::npos ? 0 : own.rfind('/'));
    }
    folder_.clear();
  }
  /// For a process that is in the group.
  memory_group(std::string folder, bool second)
      : folder_(std::move(folder)),
        limit_(second ? "/memory.max" : "/memory.limit_in_bytes"),
        usage_(second ? "/memory.current" : "/memory.usage_in_bytes"),
        owned_(false) {}
  memory_group(const memory_group&) = delete;
  memory_group& operator=(const memory_group&) = delete;
  /// Waits until the processes in it have ended.
  ~memory_group() {
    if (!owned_ || !made()) return;
    for (int i = 0; ::rmdir(folder_.c_str()) != 0 && i < 1000; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  [[nodiscard]] bool made() const { return !folder_.empty(); }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] bool second() const { return limit_ == "/memory.max"; }
  /// The calling process, and what it starts from now on, belong to it.
  [[nodiscard]] bool enter() const { return write(folder_ + "/cgroup.procs", std::to_string(::getpid())); }
  bool limit_to(std::uint64_t bytes) const { return write(folder_ + limit_, std::to_string(bytes)); }
  [[nodiscard]] std::uint64_t usage() const {
    std::uint64_t bytes = 0;
    std::ifstream(folder_ + usage_) >> bytes;
    return bytes;
  }

 private:
  static bool write(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text;
    file.close();
    return !file.fail();
  }
  std::string folder_;
  std::string limit_;
  std::string usage_;
  bool owned_ = true;
};

}  // namespace cairn_test
