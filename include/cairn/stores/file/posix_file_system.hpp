// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/file/file_system_kinds.hpp>

#include <unistd.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Tells two files apart, also when an inode number is used again (where the file system keeps birth times).
struct file_identity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;  ///< number within the device; used again after the file is gone
  std::int64_t born = -1;   ///< nanoseconds, -1 where unknown
  friend bool operator==(const file_identity&, const file_identity&) = default;
};

/// What stands under a path.
enum class file_kind : std::uint8_t { regular, directory, other };

/// What stat() says about a path.
struct file_status {
  file_kind kind = file_kind::other;
  std::uint64_t bytes = 0;
  std::uint64_t links = 0;      ///< names that the file has
  unsigned mode = 0;            ///< permission bits, at most 07777
  file_identity identity = {};  ///< tells this file from one that takes its place
  std::int64_t modified = -1;   ///< nanoseconds, -1 where unknown
  std::int64_t changed = -1;    ///< the same, of its attributes, too, which nobody can set back
};

/// An entry of a directory.
struct directory_entry {
  std::string name;                    ///< without the directory
  std::optional<file_kind> kind = {};  ///< nothing where a listing does not tell it
};

/// What the quota of the user or of the group on one file system allows, and what of it is used. Bytes and
/// files; a limit of zero: none.
struct quota_use {
  bool group = false;  ///< of the group, else of the user
  std::uint32_t id = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bytes_limit = 0;  ///< beyond which writes fail with EDQUOT
  std::uint64_t files = 0;        ///< inodes that are used
  std::uint64_t files_limit = 0;  ///< beyond which no file can be made
};

/// What O_DIRECT needs on one file, in bytes. Zero: the file cannot do it.
struct direct_alignment {
  std::uint64_t memory = 0;  ///< of the address in memory
  std::uint64_t offset = 0;  ///< of the offset in the file, and of the length
};

/// The system calls below file_store, so that tests can put faults, a recording or a model in their place.
///
/// - Every function returns what the system call returns, or the negative errno; none throws but bad_alloc.
/// - Handles are non-negative numbers; they are closed on exec. Functions that end in `_at` take the handle
///   of a directory and the name of one entry in it, and never follow a symbolic link there.
/// - `rename_new_at` and `link_at` do not replace: -EEXIST.
/// - `try_lock` takes an exclusive lock that lives as long as the open file description, or a shared one where
///   that is open for reading alone: -EAGAIN if another has a lock that excludes it.
/// - `absolute(path)` is the path as it will be used from now on, whatever the working directory becomes.
/// - `change_mode` sets exactly these permission bits, whatever the umask.
/// - `kind` tells what file system a handle is on.
/// - `quotas` adds the quotas that hold for this user and group on the file system of a handle; what cannot
///   be asked for is left out.
///
/// All functions may be called by several threads at once.
template <class F>
concept FileSystem =
    std::copyable<F> &&
    requires(F& f, int handle, const char* name, int flags, unsigned mode, void* to, const void* from,
             std::size_t n, std::uint64_t offset, file_status& status, direct_alignment& direct,
             std::vector<directory_entry>& entries, space_left& space, std::vector<quota_use>& quotas,
             file_system_kind& kind, std::string path) {
      { f.absolute(path) } -> std::same_as<std::string>;
      { f.unique_number() } -> std::same_as<std::uint64_t>;
      { f.open_directory(name) } -> std::same_as<int>;
      { f.open_directory_at(handle, name) } -> std::same_as<int>;
      { f.open_at(handle, name, flags, mode) } -> std::same_as<int>;
      { f.duplicate(handle) } -> std::same_as<int>;
      { f.close(handle) } -> std::same_as<int>;
      { f.pwrite(handle, from, n, offset) } -> std::same_as<std::int64_t>;
      { f.pread(handle, to, n, offset) } -> std::same_as<std::int64_t>;
      { f.truncate(handle, offset) } -> std::same_as<int>;
      { f.allocate(handle, offset) } -> std::same_as<int>;
      { f.sync(handle) } -> std::same_as<int>;
      { f.sync_directory(handle) } -> std::same_as<int>;
      { f.make_directory_at(handle, name, mode) } -> std::same_as<int>;
      { f.change_mode(handle, mode) } -> std::same_as<int>;
      { f.rename_new_at(handle, name, name) } -> std::same_as<int>;
      { f.link_at(handle, name, name) } -> std::same_as<int>;
      { f.unlink_at(handle, name) } -> std::same_as<int>;
      { f.remove_directory_at(handle, name) } -> std::same_as<int>;
      { f.try_lock(handle) } -> std::same_as<int>;
      { f.status(handle, status) } -> std::same_as<int>;
      { f.status_at(handle, name, status) } -> std::same_as<int>;
      { f.direct(handle, direct) } -> std::same_as<int>;
      { f.list(handle, entries) } -> std::same_as<int>;
      { f.free_space(handle, space) } -> std::same_as<int>;
      { f.kind(handle, kind) } -> std::same_as<int>;
      { f.quotas(handle, quotas) } -> std::same_as<void>;
    };

/// What a FileSystem may offer besides, where it keeps in memory what was read or written lately.
///
/// - `cached(file, offset, bytes)`: how many bytes of the pages that hold a range are in memory; at least `bytes`
///   where all are. The negative errno where that is not known: -ENOSYS, -EPERM.
/// - `read_cached(file, to, bytes, offset)`: as pread, of what is in memory alone: fewer bytes, or -EAGAIN, where
///   more would have to be waited for. -EOPNOTSUPP where the file system cannot.
/// - `start_writing_back(file, offset, bytes)`: begins to send what was written to the device, and waits for as much of
///   it as the device's queue is too short for. -ENOSYS, -EINVAL, -ESPIPE, -EOPNOTSUPP where the file system cannot;
///   those and -ENOSPC, which a later sync tells, are no failure of a write, other errors are.
/// - `caching_type`: the class itself. A class that derives from it and reads in its own way does not model this, so
///   that its reads are not bypassed: it names itself where it has these functions, too.
template <class F>
concept CachingFileSystem =
    FileSystem<F> && requires(F& f, int handle, void* to, std::size_t n, std::uint64_t offset) {
      { f.cached(handle, offset, offset) } -> std::same_as<std::int64_t>;
      { f.read_cached(handle, to, n, offset) } -> std::same_as<std::int64_t>;
      { f.start_writing_back(handle, offset, offset) } -> std::same_as<int>;
      requires std::same_as<typename F::caching_type, F>;
    };

/// What a CachingFileSystem may offer besides: a look at what it keeps in memory, without a copy.
///
/// - `lease(file)`: 0 if whoever is going to write to the file or to truncate it has to wait from now on (for
///   /proc/sys/fs/lease-break-time at most, 45 s), and nobody else changes it, such as another host. `file` is open for
///   reading alone. -EACCES, -EAGAIN where it is another user's file, or somebody writes to it; -EOPNOTSUPP.
/// - `is_leased(file)`: whether nobody waits yet.
/// - `end_lease(file)`: those may go on. So does closing the file.
/// - `map(file, offset, bytes)`: its bytes, to be read; null where that cannot be. The offset is a multiple of the size of
///   a page; the range may end behind the file. `unmap(at, bytes)` ends it.
/// - `populate(at, bytes)`: whether these bytes of a mapping can be read now without waiting for a device, and are part of
///   the file: where they are not, reading them ends the process (SIGBUS).
template <class F>
concept MappingFileSystem = CachingFileSystem<F> && requires(F& f, int handle, const std::byte* at,
                                                             std::size_t n, std::uint64_t offset) {
  { f.lease(handle) } -> std::same_as<int>;
  { f.is_leased(handle) } -> std::same_as<bool>;
  { f.end_lease(handle) } -> std::same_as<void>;
  { f.map(handle, offset, n) } -> std::same_as<const std::byte*>;
  { f.unmap(at, n) } -> std::same_as<void>;
  { f.populate(at, n) } -> std::same_as<bool>;
};

/// What a FileSystem may offer besides: files that share their blocks.
///
/// - `link_across(old_directory, old_name, directory, name)`: as link_at, from one directory into another.
/// - `clone(from, to)`: the open empty file `to` gets the bytes of `from`, without a copy of its blocks (FICLONE). Any
///   error: it got none of them.
template <class F>
concept LinkingFileSystem = FileSystem<F> && requires(F& f, int handle, const char* name) {
  { f.link_across(handle, name, handle, name) } -> std::same_as<int>;
  { f.clone(handle, handle) } -> std::same_as<int>;
};

/// The Linux system calls themselves; stateless.
class posix_file_system {
 public:
  using caching_type = posix_file_system;

  // On the page, for g++ 12 takes a byte of the string for uninitialised where it is inlined.
  [[nodiscard, gnu::noinline]] std::string absolute(const std::string& path) const {
    if (!path.empty() && path.front() == '/') return path;
    std::vector<char> buffer(4096);
    while (::getcwd(buffer.data(), buffer.size()) == nullptr) {
      if (errno != ERANGE || buffer.size() > (std::size_t{1} << 20)) return path;
      buffer.resize(buffer.size() * 2);
    }
    std::string here(buffer.data());
    if (path.empty() || path == ".") return here;
    if (here.back() != '/') here += '/';
    return here + path;
  }

  /// Differs between all calls of all processes, with overwhelming probability.
  [[nodiscard]] std::uint64_t unique_number() const noexcept;

  [[nodiscard]] int open_directory(const char* path) const noexcept;
  [[nodiscard]] int open_directory_at(int directory, const char* name) const noexcept;
  [[nodiscard]] int open_at(int directory, const char* name, int flags, unsigned mode) const noexcept;
  [[nodiscard]] int duplicate(int file) const noexcept;
  [[nodiscard]] int close(int file) const noexcept;

  [[nodiscard]] std::int64_t pwrite(int file, const void* from, std::size_t bytes,
                                    std::uint64_t offset) const noexcept;
  [[nodiscard]] std::int64_t pread(int file, void* to, std::size_t bytes,
                                   std::uint64_t offset) const noexcept;
  /// By cachestat (Linux 6.5), else by mincore; the latter takes all for cached where this user may not write the file.
  [[nodiscard]] std::int64_t cached(int file, std::uint64_t offset, std::uint64_t bytes) const noexcept;
  [[nodiscard]] std::int64_t read_cached(int file, void* to, std::size_t bytes,
                                         std::uint64_t offset) const noexcept;
  [[nodiscard]] int start_writing_back(int file, std::uint64_t offset, std::uint64_t bytes) const noexcept;
  /// On ext4, xfs, btrfs, f2fs and tmpfs, where this user owns the file or has CAP_LEASE.
  [[nodiscard]] int lease(int file) const noexcept;
  [[nodiscard]] bool is_leased(int file) const noexcept;
  void end_lease(int file) const noexcept;
  [[nodiscard]] const std::byte* map(int file, std::uint64_t offset, std::size_t bytes) const noexcept;
  void unmap(const std::byte* at, std::size_t bytes) const noexcept;
  /// Linux 5.14.
  [[nodiscard]] bool populate(const std::byte* at, std::size_t bytes) const noexcept;
  [[nodiscard]] int truncate(int file, std::uint64_t bytes) const noexcept;
  /// Reserves the space and makes the file that long. -EOPNOTSUPP where the file system cannot.
  [[nodiscard]] int allocate(int file, std::uint64_t bytes) const noexcept;
  [[nodiscard]] int sync(int file) const noexcept;
  [[nodiscard]] int sync_directory(int directory) const noexcept;

  [[nodiscard]] int make_directory_at(int directory, const char* name, unsigned mode) const noexcept;
  [[nodiscard]] int change_mode(int file, unsigned mode) const noexcept;
  [[nodiscard]] int rename_new_at(int directory, const char* from, const char* to) const noexcept;
  [[nodiscard]] int link_at(int directory, const char* from, const char* to) const noexcept;
  [[nodiscard]] int link_across(int old_directory, const char* old_name, int directory,
                                const char* name) const noexcept;
  [[nodiscard]] int clone(int from, int to) const noexcept;
  [[nodiscard]] int unlink_at(int directory, const char* name) const noexcept;
  [[nodiscard]] int remove_directory_at(int directory, const char* name) const noexcept;
  [[nodiscard]] int try_lock(int file) const noexcept;

  [[nodiscard]] int status(int file, file_status& out) const noexcept;
  [[nodiscard]] int status_at(int directory, const char* name, file_status& out) const noexcept;
  /// From statx where kernel and headers know it, else 4096.
  [[nodiscard]] int direct(int file, direct_alignment& out) const noexcept;
  /// All but "." and "..", in no order. Most file systems tell the kinds.
  [[nodiscard]] int list(int directory, std::vector<directory_entry>& entries) const;
  [[nodiscard]] int free_space(int file, space_left& out) const noexcept;
  [[nodiscard]] int kind(int file, file_system_kind& out) const;
  /// Works where kernel (Linux 5.14) and file system can tell; NFS and Lustre cannot.
  void quotas(int file, std::vector<quota_use>& out) const;
};

static_assert(MappingFileSystem<posix_file_system> && LinkingFileSystem<posix_file_system>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file/posix_file_system.ipp>
#endif
