// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/change_watch.hpp>
#include <cairn/stores/file/directory_watch.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/file_descriptor.hpp>

#include <dirent.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Whether only this host writes into the file system: its kind is known to be local.
inline bool is_local_file_system(const std::string& path) noexcept {
  struct ::statfs found {};
  if (::statfs(path.c_str(), &found) != 0) return false;
  switch (static_cast<std::uint32_t>(found.f_type)) {
    case 0xEF53u:      // ext2, 3, 4
    case 0x58465342u:  // xfs
    case 0x9123683Eu:  // btrfs
    case 0x01021994u:  // tmpfs
    case 0x2FC12FC1u:  // zfs
    case 0x794C7630u:  // overlayfs
    case 0xF2F52010u:  // f2fs
    case 0xCA451A4Eu:  // bcachefs
      return true;
    default:
      return false;
  }
}

class directory_watch final : public change_watch {
 public:
  /// Owns the descriptor, which watches the root.
  directory_watch(int descriptor, int root_watch, std::string root, std::string_view prefix)
      : descriptor_(descriptor),
        root_watch_(root_watch),
        root_(std::move(root)),
        prefix_(prefix),
        local_(is_local_file_system(root_)) {}
  ~directory_watch() override { ::close(descriptor_); }

  /// Watches the last few directories by name, into which something may be written now.
  void watch_newest() {
    std::vector<std::string> names;
    if (auto* entries = ::opendir(root_.c_str()); entries != nullptr) {
      while (const auto* entry = ::readdir(entries))
        if (std::string_view(entry->d_name).starts_with(prefix_)) names.emplace_back(entry->d_name);
      ::closedir(entries);
    }
    detail::sort(names);
    for (auto i = names.size() - std::min(names.size(), max_directories / 2); i < names.size(); ++i)
      watch_inside(names[i]);
  }

  [[nodiscard]] bool wait(deadline until) override {
    for (;;) {
      if (take_events()) return true;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until.left()).count();
      if (left <= 0) return false;
      ::pollfd wanted{descriptor_, POLLIN, 0};
      const auto n = ::poll(&wanted, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
      if (n < 0 && errno != EINTR) return false;  // who waits asks the store
    }
  }
  [[nodiscard]] bool sees_all() const noexcept override { return local_; }

 private:
  static constexpr std::size_t max_directories = 8;

  void watch_inside(const std::string& name) {
    const auto path = root_ + "/" + name;
    const int made =
        ::inotify_add_watch(descriptor_, path.c_str(), IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_ONLYDIR);
    if (made < 0 || detail::contains(inside_, made)) return;
    inside_.push_back(made);
    if (inside_.size() <= max_directories) return;
    ::inotify_rm_watch(descriptor_, inside_.front());
    inside_.erase(inside_.begin());
  }
  /// Whether one of the events that wait is about what is watched.
  bool take_events() {
    bool found = false;
    alignas(::inotify_event) std::array<char, 16384> room;
    for (;;) {
      const auto bytes = ::read(descriptor_, room.data(), room.size());
      if (bytes <= 0) return found;
      for (std::size_t at = 0; at + sizeof(::inotify_event) <= static_cast<std::size_t>(bytes);) {
        ::inotify_event event;
        std::memcpy(&event, room.data() + at, sizeof event);
        const char* text = room.data() + at + sizeof event;
        const std::string name(text, event.len == 0 ? 0 : ::strnlen(text, event.len));
        at += sizeof event + event.len;
        if ((event.mask & IN_IGNORED) != 0) {
          std::erase(inside_, event.wd);
          continue;
        }
        const bool in_root = event.wd == root_watch_;
        if (in_root && !name.starts_with(prefix_)) continue;
        found = true;
        if (in_root && (event.mask & (IN_CREATE | IN_MOVED_TO)) != 0) watch_inside(name);
      }
    }
  }

  int descriptor_;
  int root_watch_;
  std::string root_;
  std::string prefix_;
  bool local_;
  std::vector<int> inside_;  ///< in the order in which they were added
};

CAIRN_BODY std::unique_ptr<change_watch> watch_directory(const std::string& root, std::string_view prefix) {
  const int descriptor = detail::above_standard_streams(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (descriptor < 0) return nullptr;
  const int watched = ::inotify_add_watch(descriptor, root.c_str(),
                                          IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM | IN_ONLYDIR);
  if (watched < 0) {
    ::close(descriptor);
    return nullptr;
  }
  auto made = std::make_unique<directory_watch>(descriptor, watched, root, prefix);
  made->watch_newest();
  return made;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
