// SPDX-License-Identifier: Apache-2.0
#pragma once
// The real file system as the client of an NFS server shows it: renameat2 replaces nothing only by refusing, and a
// file that loses its name while it is open here keeps one, ".nfs...", until it is closed here. Copies share what
// is open.
#include <cairn/stores/file/posix_file_system.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace cairn_test {

struct nfs_client_file_system : cairn::posix_file_system {
  [[nodiscard]] int open_at(int directory, const char* name, int flags, unsigned mode) const {
    const int file = posix_file_system::open_at(directory, name, flags, mode);
    if (file >= 0) {
      const std::lock_guard lock(state_->mutex);
      // A handle is copied: the directory's may be closed before the file.
      auto& entry = state_->entries[key_of(directory, name)];
      if (!entry) entry = std::make_shared<open_name>(directory, name);
      state_->files[file] = entry;
    }
    return file;
  }
  [[nodiscard]] int duplicate(int file) const {
    const int copy = posix_file_system::duplicate(file);
    const std::lock_guard lock(state_->mutex);
    if (const auto found = state_->files.find(file); copy >= 0 && found != state_->files.end())
      state_->files[copy] = found->second;
    return copy;
  }
  [[nodiscard]] int close(int file) const {
    std::shared_ptr<open_name> last;
    const std::lock_guard lock(state_->mutex);
    if (const auto found = state_->files.find(file); found != state_->files.end()) {
      last = std::move(found->second);
      state_->files.erase(found);
      if (last.use_count() == 2) {  // the table's and this one
        for (auto i = state_->entries.begin(); i != state_->entries.end(); ++i)
          if (i->second == last) {
            state_->entries.erase(i);
            break;
          }
        if (last->removed) static_cast<void>(::unlinkat(last->directory, last->name.c_str(), 0));
      }
    }
    return posix_file_system::close(file);
  }
  [[nodiscard]] int unlink_at(int directory, const char* name) const {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->entries.find(key_of(directory, name));
    if (found == state_->entries.end()) return posix_file_system::unlink_at(directory, name);
    char other[32];
    std::snprintf(other, sizeof other, ".nfs%016llx", static_cast<unsigned long long>(++state_->count));
    if (::renameat(directory, name, directory, other) != 0) return -errno;
    found->second->name = other;
    found->second->removed = true;
    state_->entries.emplace(key_of(directory, other), found->second);
    state_->entries.erase(found);
    return 0;
  }
  [[nodiscard]] int rename_new_at(int directory, const char*, const char* to) const {
    return ::faccessat(directory, to, F_OK, 0) == 0 ? -EEXIST : -EINVAL;
  }

 private:
  struct open_name {
    open_name(int in, std::string called) : directory(::dup(in)), name(std::move(called)) {}
    open_name(const open_name&) = delete;
    open_name& operator=(const open_name&) = delete;
    ~open_name() { ::close(directory); }
    int directory;
    std::string name;
    bool removed = false;
  };
  using key = std::pair<std::uint64_t, std::string>;  // the directory's inode, the name in it
  struct state {
    std::mutex mutex;
    std::map<int, std::shared_ptr<open_name>> files;
    std::map<key, std::shared_ptr<open_name>> entries;
    std::uint64_t count = 0;
  };
  static key key_of(int directory, const char* name) {
    struct ::stat s {};
    static_cast<void>(::fstat(directory, &s));
    return {s.st_ino, name};
  }
  std::shared_ptr<state> state_ = std::make_shared<state>();
};

static_assert(cairn::FileSystem<nfs_client_file_system>);

}  // namespace cairn_test
