// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the system knows of processes: children, workers, descriptors, memory.
#include <cairn/system/deadline.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

/// A function of the runtime of the address and leak sanitizers.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace cairn_test {

/// The children of this process, whichever thread started them, with those that have ended and that nobody has
/// waited for yet.
inline std::vector<::pid_t> children() {
  std::vector<::pid_t> found;
  const auto own = std::to_string(::getpid());
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const auto name = process.path().filename().string();
    ::pid_t number = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), number).ec != std::errc()) continue;
    // "number (name) state parent ...", where a name may hold anything.
    std::ifstream file(process.path() / "stat");
    std::string stat;
    std::getline(file, stat, '\0');  // an iterator would throw where the process ends meanwhile
    const auto end = stat.rfind(')');
    if (end != std::string::npos && stat.find(" " + own + " ", end) == end + 3) found.push_back(number);
  }
  std::sort(found.begin(), found.end());
  return found;
}
/// Waits until other threads have made a condition true; false after a minute.
template <class Condition>
bool eventually(Condition&& condition) {
  for (const auto until = cairn::deadline::in(std::chrono::minutes(1)); !condition();) {
    if (until.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}
inline std::string proc_file(::pid_t process, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(process) + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}
/// The living children of this process that are workers.
inline std::vector<::pid_t> workers() {
  auto found = children();
  std::erase_if(found, [](::pid_t process) {
    return proc_file(process, "cmdline").find("cairn-worker") == std::string::npos;
  });
  return found;
}
/// A line of /proc/PROCESS/status that is a number, such as "VmRSS" in KiB.
inline long status_of(::pid_t process, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  long value = -1;
  for (std::string word; file >> word;)
    if (word == name + ":") file >> value;
  return value;
}
/// The memory of this process: the bytes that it has allocated, where a sanitizer knows them (it keeps freed memory
/// for a while), else its resident pages.
inline long allocated_kib() {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return static_cast<long>(__sanitizer_get_current_allocated_bytes() / 1024);
  return status_of(::getpid(), "VmRSS");
}
inline std::ptrdiff_t files_of(::pid_t process) {
  return std::distance(std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd"), {});
}
/// The targets of a process's descriptors, by their numbers.
inline std::map<int, std::string> files_by_number(::pid_t process) {
  std::map<int, std::string> found;
  for (const auto& each : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(each.path(), gone);
    if (!gone) found[std::stoi(each.path().filename())] = target;
  }
  return found;
}
/// The targets of the descriptors that a program started by this process would inherit, without those of `before`.
inline std::string inherited_beyond(const std::map<int, std::string>& before) {
  std::string found;
  for (const auto& [number, target] : files_by_number(::getpid())) {
    if (before.contains(number)) continue;
    const int flags = ::fcntl(number, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) found += target + '\n';
  }
  return found;
}
inline std::size_t open_files() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}
/// Whether a process, which need not be a child, ends within four minutes: this machine may be busy.
inline bool ends(::pid_t process) {
  const auto file = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  if (file < 0) return errno == ESRCH;
  pollfd one{file, POLLIN, 0};
  const bool ended = ::poll(&one, 1, 240'000) == 1;
  ::close(file);
  return ended;
}
/// The wait status of a child, which must end by itself.
inline int exit_status_of(::pid_t child) {
  if (!ends(child)) ::kill(child, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}
/// Checks that a child ends with status 0, or with 77 where it cannot do its work here; `why` then says what it
/// needs.
inline void check_good_or_skipped(::pid_t child, const char* why) {
  const int status = exit_status_of(child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    MESSAGE(why);
  else
    CHECK(status == 0);
}

}  // namespace cairn_test
