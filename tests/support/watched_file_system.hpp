// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file system over another one that shows each call, with the path that it is about, to a watcher before
// and after it is carried out. The watcher may take a call out, tear a write, or end the process: for tests
// that kill or mutate at a point that has a name.
//
//   cairn::basic_file_store<watched_file_system<>> store{"root", {}, watched_file_system<>(watch)};
#include "faulty_file_system.hpp"

#include <cairn/stores/file/posix_file_system.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

enum class file_decision : std::uint8_t {
  carry_out,
  leave_out,  ///< the call does nothing and returns 0
  tear,       ///< pwrite moves half of it
};

/// Any thread.
class file_watch {
 public:
  virtual ~file_watch() = default;
  virtual file_decision before(file_call call, const std::string& path) = 0;
  virtual void after(file_call call, const std::string& path) = 0;
};

/// Copies share the watcher. Paths are the root's, or "<path of the directory>/<name>"; of rename and link
/// the new one.
template <cairn::FileSystem Inner = cairn::posix_file_system>
class watched_file_system {
 public:
  watched_file_system() = default;
  explicit watched_file_system(std::shared_ptr<file_watch> watch, Inner inner = {})
      : watch_(std::move(watch)), inner_(std::move(inner)) {}

  [[nodiscard]] std::string absolute(const std::string& path) { return inner_.absolute(path); }
  [[nodiscard]] std::uint64_t unique_number() { return inner_.unique_number(); }
  [[nodiscard]] int open_directory(const char* path) {
    return opened(path, around(file_call::open_directory, path, [&] { return inner_.open_directory(path); }));
  }
  [[nodiscard]] int open_directory_at(int directory, const char* name) {
    const auto path = path_at(directory, name);
    return opened(path, around(file_call::open_directory, path,
                               [&] { return inner_.open_directory_at(directory, name); }));
  }
  [[nodiscard]] int open_at(int directory, const char* name, int flags, unsigned mode) {
    const auto path = path_at(directory, name);
    return opened(
        path, around(file_call::open, path, [&] { return inner_.open_at(directory, name, flags, mode); }));
  }
  [[nodiscard]] int duplicate(int file) {
    const auto path = path_of(file);
    return opened(path, around(file_call::duplicate, path, [&] { return inner_.duplicate(file); }));
  }
  [[nodiscard]] int close(int file) {
    const auto path = path_of(file);
    {
      const std::lock_guard lock(known_->mutex);
      known_->paths.erase(file);
    }
    return around(file_call::close, path, [&] { return inner_.close(file); });
  }
  [[nodiscard]] std::int64_t pwrite(int file, const void* from, std::size_t bytes, std::uint64_t offset) {
    const auto path = path_of(file);
    const auto decided = watch_ ? watch_->before(file_call::pwrite, path) : file_decision::carry_out;
    const auto n = decided == file_decision::tear ? (bytes + 1) / 2 : bytes;
    const auto moved = inner_.pwrite(file, from, n, offset);
    if (watch_) watch_->after(file_call::pwrite, path);
    return moved;
  }
  [[nodiscard]] std::int64_t pread(int file, void* to, std::size_t bytes, std::uint64_t offset) {
    return inner_.pread(file, to, bytes, offset);
  }
  [[nodiscard]] int truncate(int file, std::uint64_t bytes) {
    return around(file_call::truncate, path_of(file), [&] { return inner_.truncate(file, bytes); });
  }
  [[nodiscard]] int allocate(int file, std::uint64_t bytes) {
    return around(file_call::allocate, path_of(file), [&] { return inner_.allocate(file, bytes); });
  }
  [[nodiscard]] int sync(int file) {
    return around(file_call::sync, path_of(file), [&] { return inner_.sync(file); });
  }
  [[nodiscard]] int sync_directory(int directory) {
    return around(file_call::sync_directory, path_of(directory),
                  [&] { return inner_.sync_directory(directory); });
  }
  [[nodiscard]] int make_directory_at(int directory, const char* name, unsigned mode) {
    return around(file_call::make_directory, path_at(directory, name),
                  [&] { return inner_.make_directory_at(directory, name, mode); });
  }
  [[nodiscard]] int change_mode(int file, unsigned mode) {
    return around(file_call::change_mode, path_of(file), [&] { return inner_.change_mode(file, mode); });
  }
  [[nodiscard]] int rename_new_at(int directory, const char* from, const char* to) {
    return around(file_call::rename, path_at(directory, to),
                  [&] { return inner_.rename_new_at(directory, from, to); });
  }
  [[nodiscard]] int link_at(int directory, const char* from, const char* to) {
    return around(file_call::link, path_at(directory, to),
                  [&] { return inner_.link_at(directory, from, to); });
  }
  [[nodiscard]] int link_across(int old_directory, const char* from, int directory, const char* to)
    requires cairn::LinkingFileSystem<Inner>
  {
    return around(file_call::link, path_at(directory, to),
                  [&] { return inner_.link_across(old_directory, from, directory, to); });
  }
  [[nodiscard]] int clone(int from, int to)
    requires cairn::LinkingFileSystem<Inner>
  {
    return inner_.clone(from, to);
  }
  [[nodiscard]] int unlink_at(int directory, const char* name) {
    return around(file_call::unlink, path_at(directory, name),
                  [&] { return inner_.unlink_at(directory, name); });
  }
  [[nodiscard]] int remove_directory_at(int directory, const char* name) {
    return around(file_call::remove_directory, path_at(directory, name),
                  [&] { return inner_.remove_directory_at(directory, name); });
  }
  [[nodiscard]] int try_lock(int file) {
    return around(file_call::lock, path_of(file), [&] { return inner_.try_lock(file); });
  }
  [[nodiscard]] int status(int file, cairn::file_status& out) { return inner_.status(file, out); }
  [[nodiscard]] int status_at(int directory, const char* name, cairn::file_status& out) {
    return inner_.status_at(directory, name, out);
  }
  [[nodiscard]] int direct(int file, cairn::direct_alignment& out) { return inner_.direct(file, out); }
  [[nodiscard]] int list(int directory, std::vector<cairn::directory_entry>& entries) {
    return inner_.list(directory, entries);
  }
  [[nodiscard]] int free_space(int file, cairn::space_left& out) { return inner_.free_space(file, out); }
  [[nodiscard]] int kind(int file, cairn::file_system_kind& out) { return inner_.kind(file, out); }
  void quotas(int file, std::vector<cairn::quota_use>& out) { inner_.quotas(file, out); }

 private:
  struct handles {
    std::mutex mutex;
    std::map<int, std::string> paths;
  };

  template <class Work>
  int around(file_call call, const std::string& path, Work work) {
    if (!watch_) return work();
    if (watch_->before(call, path) == file_decision::leave_out) return 0;
    const int result = work();
    watch_->after(call, path);
    return result;
  }
  int opened(const std::string& path, int handle) {
    if (handle < 0) return handle;
    const std::lock_guard lock(known_->mutex);
    known_->paths[handle] = path;
    return handle;
  }
  [[nodiscard]] std::string path_of(int handle) {
    const std::lock_guard lock(known_->mutex);
    return known_->paths[handle];
  }
  [[nodiscard]] std::string path_at(int directory, const char* name) {
    return path_of(directory) + '/' + name;
  }

  std::shared_ptr<file_watch> watch_;
  Inner inner_;
  std::shared_ptr<handles> known_ = std::make_shared<handles>();
};

static_assert(cairn::FileSystem<watched_file_system<>>);

}  // namespace cairn_test
