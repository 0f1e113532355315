// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file system over another one whose calls fail as a test says: the k-th call of a kind, once or from then
// on.
//
//   faulty_file_system<> fs;                                   // over the real one
//   fs.fail({.call = file_call::pwrite, .k = 3, .error = EIO});
//   cairn::basic_file_store<faulty_file_system<>> store{"root", {}, fs};
//   ... fs.hit() tells whether the fault was reached
//
// Copies share the script and the counts.
#include <cairn/stores/file/posix_file_system.hpp>

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

enum class file_call : std::uint8_t {
  open_directory,
  open,
  duplicate,
  close,
  pwrite,
  pread,
  truncate,
  allocate,
  sync,
  sync_directory,
  make_directory,
  rename,
  link,
  unlink,
  remove_directory,
  lock,
  status,
  direct,
  list,
  free_space,
  change_mode,
  grows,  ///< as a fault's call: what needs space, blocks or inodes: pwrite, allocate, new files, directories
  any     ///< as a fault's call: each of the above counts
};
inline constexpr int file_calls = 21;  ///< that are calls

/// More than 0 while this thread is inside a faulty_file_system: for tests that let allocations fail, but not
/// those of the test double.
inline thread_local int inside_file_system = 0;

struct file_fault {
  enum class manner : std::uint8_t {
    fails,        ///< the call does nothing and returns the error
    fails_after,  ///< the call does its work and returns the error all the same, as a server's lost reply
                  ///< does
    one_byte,     ///< pwrite and pread move one byte
    half,         ///< pwrite and pread move half of it
    nothing       ///< pwrite and pread return 0
  };
  file_call call = file_call::pwrite;
  std::size_t k = 1;  ///< counted from 1
  int error = EIO;
  bool for_ever = false;     ///< or once
  bool only_direct = false;  ///< counts only calls with O_DIRECT
  manner how = manner::fails;
};

template <cairn::FileSystem Inner = cairn::posix_file_system>
class faulty_file_system {
 public:
  explicit faulty_file_system(Inner inner = {}) : inner_(std::move(inner)) {}

  /// Replaces the fault and counts from the beginning again.
  void fail(file_fault fault) {
    const std::lock_guard lock(script_->mutex);
    script_->fault = fault;
    script_->count = 0;
    script_->hits = 0;
    script_->armed = true;
  }
  void heal() {
    const std::lock_guard lock(script_->mutex);
    script_->armed = false;
  }
  [[nodiscard]] std::size_t hits() const {
    const std::lock_guard lock(script_->mutex);
    return script_->hits;
  }
  [[nodiscard]] Inner& inner() { return inner_; }

  [[nodiscard]] std::string absolute(const std::string& path) { return inner_.absolute(path); }
  [[nodiscard]] std::uint64_t unique_number() { return inner_.unique_number(); }
  [[nodiscard]] int open_directory(const char* path) {
    return around(file_call::open_directory, [&] { return inner_.open_directory(path); });
  }
  [[nodiscard]] int open_directory_at(int directory, const char* name) {
    return around(file_call::open_directory, [&] { return inner_.open_directory_at(directory, name); });
  }
  [[nodiscard]] int open_at(int directory, const char* name, int flags, unsigned mode) {
    const bool direct = (flags & O_DIRECT) != 0;
    const int handle = around(
        file_call::open, [&] { return inner_.open_at(directory, name, flags, mode); }, direct,
        (flags & O_CREAT) != 0);
    if (handle >= 0 && direct) {
      const entered guard;
      const std::lock_guard lock(script_->mutex);
      script_->direct_handles.insert(handle);
    }
    return handle;
  }
  [[nodiscard]] int duplicate(int file) {
    return around(file_call::duplicate, [&] { return inner_.duplicate(file); });
  }
  /// Closes the descriptor also where it reports an error, as Linux does.
  [[nodiscard]] int close(int file) {
    const entered guard;
    {
      const std::lock_guard lock(script_->mutex);
      script_->direct_handles.erase(file);
    }
    const int closed = inner_.close(file);
    const int error = reached(file_call::close, false);
    return error != 0 ? -error : closed;
  }
  [[nodiscard]] std::int64_t pwrite(int file, const void* from, std::size_t bytes, std::uint64_t offset) {
    return move_bytes(file_call::pwrite, file, bytes,
                      [&](std::size_t n) { return inner_.pwrite(file, from, n, offset); });
  }
  [[nodiscard]] std::int64_t pread(int file, void* to, std::size_t bytes, std::uint64_t offset) {
    return move_bytes(file_call::pread, file, bytes,
                      [&](std::size_t n) { return inner_.pread(file, to, n, offset); });
  }
  [[nodiscard]] int truncate(int file, std::uint64_t bytes) {
    return around(file_call::truncate, [&] { return inner_.truncate(file, bytes); });
  }
  [[nodiscard]] int allocate(int file, std::uint64_t bytes) {
    return around(file_call::allocate, [&] { return inner_.allocate(file, bytes); });
  }
  [[nodiscard]] int sync(int file) {
    return around(file_call::sync, [&] { return inner_.sync(file); });
  }
  [[nodiscard]] int sync_directory(int directory) {
    return around(file_call::sync_directory, [&] { return inner_.sync_directory(directory); });
  }
  [[nodiscard]] int make_directory_at(int directory, const char* name, unsigned mode) {
    return around(file_call::make_directory, [&] { return inner_.make_directory_at(directory, name, mode); });
  }
  [[nodiscard]] int change_mode(int file, unsigned mode) {
    return around(file_call::change_mode, [&] { return inner_.change_mode(file, mode); });
  }
  [[nodiscard]] int rename_new_at(int directory, const char* from, const char* to) {
    return around(file_call::rename, [&] { return inner_.rename_new_at(directory, from, to); });
  }
  [[nodiscard]] int link_at(int directory, const char* from, const char* to) {
    return around(file_call::link, [&] { return inner_.link_at(directory, from, to); });
  }
  [[nodiscard]] int link_across(int old_directory, const char* from, int directory, const char* to)
    requires cairn::LinkingFileSystem<Inner>
  {
    return around(file_call::link, [&] { return inner_.link_across(old_directory, from, directory, to); });
  }
  [[nodiscard]] int clone(int from, int to)
    requires cairn::LinkingFileSystem<Inner>
  {
    return inner_.clone(from, to);
  }
  [[nodiscard]] int unlink_at(int directory, const char* name) {
    return around(file_call::unlink, [&] { return inner_.unlink_at(directory, name); });
  }
  [[nodiscard]] int remove_directory_at(int directory, const char* name) {
    return around(file_call::remove_directory, [&] { return inner_.remove_directory_at(directory, name); });
  }
  [[nodiscard]] int try_lock(int file) {
    return around(file_call::lock, [&] { return inner_.try_lock(file); });
  }
  [[nodiscard]] int status(int file, cairn::file_status& out) {
    return around(file_call::status, [&] { return inner_.status(file, out); });
  }
  [[nodiscard]] int status_at(int directory, const char* name, cairn::file_status& out) {
    return around(file_call::status, [&] { return inner_.status_at(directory, name, out); });
  }
  [[nodiscard]] int direct(int file, cairn::direct_alignment& out) {
    return around(file_call::direct, [&] { return inner_.direct(file, out); });
  }
  [[nodiscard]] int list(int directory, std::vector<cairn::directory_entry>& entries) {
    return around(file_call::list, [&] { return inner_.list(directory, entries); });
  }
  [[nodiscard]] int free_space(int file, cairn::space_left& out) {
    return around(file_call::free_space, [&] { return inner_.free_space(file, out); });
  }
  [[nodiscard]] int kind(int file, cairn::file_system_kind& out) { return inner_.kind(file, out); }
  void quotas(int file, std::vector<cairn::quota_use>& out) { inner_.quotas(file, out); }

 private:
  struct script {
    std::mutex mutex;
    file_fault fault;
    std::size_t count = 0;
    std::size_t hits = 0;
    bool armed = false;
    std::set<int> direct_handles;
  };

  struct entered {
    entered() noexcept { ++inside_file_system; }
    ~entered() { --inside_file_system; }
    entered(const entered&) = delete;
    entered& operator=(const entered&) = delete;
  };

  /// The error of this call, or 0.
  [[nodiscard]] int reached(file_call call, bool direct, bool grows = false) {
    const std::lock_guard lock(script_->mutex);
    auto& s = *script_;
    grows |= call == file_call::pwrite || call == file_call::allocate || call == file_call::make_directory;
    if (!s.armed ||
        (s.fault.call != call && s.fault.call != file_call::any &&
         !(grows && s.fault.call == file_call::grows)) ||
        (s.fault.only_direct && !direct))
      return 0;
    ++s.count;
    if (s.count < s.fault.k || (s.count > s.fault.k && !s.fault.for_ever)) return 0;
    ++s.hits;
    return s.fault.error;
  }
  template <class Call>
  int around(file_call call, Call work, bool direct = false, bool grows = false) {
    const entered guard;
    const int error = reached(call, direct, grows);
    if (error == 0) return work();
    if (how() == file_fault::manner::fails_after) static_cast<void>(work());
    return -error;
  }
  template <class Call>
  std::int64_t move_bytes(file_call call, int file, std::size_t bytes, Call work) {
    const entered guard;
    bool direct = false;
    {
      const std::lock_guard lock(script_->mutex);
      direct = script_->direct_handles.count(file) != 0;
    }
    const int error = reached(call, direct);
    if (error == 0) return work(bytes);
    switch (how()) {
      case file_fault::manner::one_byte:
        // A direct write moves whole sectors.
        return work(direct ? std::min<std::size_t>(bytes, 512) : std::min<std::size_t>(bytes, 1));
      case file_fault::manner::half:
        return work(direct ? std::max<std::size_t>(bytes / 1024 * 512, 512) : (bytes + 1) / 2);
      case file_fault::manner::nothing:
        return 0;
      case file_fault::manner::fails_after:
        static_cast<void>(work(bytes));
        return -error;
      case file_fault::manner::fails:
        return -error;
    }
    return -error;
  }
  [[nodiscard]] file_fault::manner how() const {
    const std::lock_guard lock(script_->mutex);
    return script_->fault.how;
  }

  Inner inner_;
  std::shared_ptr<script> script_ = std::make_shared<script>();
};

static_assert(cairn::FileSystem<faulty_file_system<>>);

}  // namespace cairn_test
