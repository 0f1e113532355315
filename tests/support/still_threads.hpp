// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

namespace cairn_test {

/// Whether every thread of this process but the calling one sleeps in the kernel.
inline bool other_threads_sleep() {
  const auto self = std::to_string(::syscall(SYS_gettid));
  DIR* const tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) throw std::runtime_error("the threads of this process cannot be listed");
  bool all = true;
  while (const auto* entry = ::readdir(tasks)) {
    const std::string name = entry->d_name;
    if (name[0] == '.' || name == self) continue;
    std::ifstream file("/proc/self/task/" + name + "/stat");
    std::string text;
    std::getline(file, text);  // throws nothing where the thread ends between this and the line before
    const auto state = text.rfind(") ");
    // A thread that has ended meanwhile holds no lock.
    if (state != std::string::npos && text.find_first_of("SZX", state + 2) != state + 2) all = false;
  }
  ::closedir(tasks);
  return all;
}

/// For the moment before a fork() whose child allocates: returns when all other threads, which have nothing
/// to do, sleep. A thread that still cleans up may hold a lock of the sanitizer's allocator, for which the
/// child would wait for ever.
inline void await_still_threads() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  for (int still = 0; still < 3; still = other_threads_sleep() ? still + 1 : 0) {
    if (std::chrono::steady_clock::now() > until)
      throw std::runtime_error("the other threads of this process do not come to rest");
    if (still == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace cairn_test
