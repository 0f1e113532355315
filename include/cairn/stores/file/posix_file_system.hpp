// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/file/file_system_kinds.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Tells two files apart, also when an inode number is used again (where the file system keeps birth times).
struct file_identity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t born = -1;  ///< nanoseconds, -1 where unknown
  friend bool operator==(const file_identity&, const file_identity&) = default;
};

/// What stands under a path.
enum class file_kind : std::uint8_t { regular, directory, other };

/// What stat() tells of a path.
struct file_status {
  file_kind kind = file_kind::other;
  std::uint64_t bytes = 0;
  std::uint64_t links = 0;
  unsigned mode = 0;  ///< permission bits, at most 07777
  file_identity identity = {};
};

/// An entry of a directory.
struct directory_entry {
  std::string name;
  std::optional<file_kind> kind = {};  ///< nothing where a listing does not tell it
};

/// What the quota of the user or of the group on one file system allows, and what of it is used. Bytes and
/// files; a limit of zero: none.
struct quota_use {
  bool group = false;  ///< of the group, else of the user
  std::uint32_t id = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bytes_limit = 0;
  std::uint64_t files = 0;
  std::uint64_t files_limit = 0;
};

/// What O_DIRECT needs on one file, in bytes. Zero: the file cannot do it.
struct direct_alignment {
  std::uint64_t memory = 0;
  std::uint64_t offset = 0;
};

/// The system calls below file_store, so that tests can put faults, a recording or a model in their place.
///
/// - Every function returns what the system call returns, or the negative errno; none throws but bad_alloc.
/// - Handles are non-negative numbers; they are closed on exec. Functions that end in `_at` take the handle
///   of a directory and the name of one entry in it, and never follow a symbolic link there.
/// - `rename_new_at` and `link_at` do not replace: -EEXIST.
/// - `try_lock` takes an exclusive lock that lives as long as the open file description: -EAGAIN if another
/// has it.
/// - `absolute(path)` is the path as it will be used from now on, whatever the working directory becomes.
/// - `change_mode` sets exactly these permission bits, whatever the umask.
/// - `kind` tells what file system a handle is on.
/// - `quotas` adds the quotas that hold for this user and group on the file system of a handle; what cannot
/// be asked for is left out.
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

/// The Linux system calls themselves; stateless.
class posix_file_system {
 public:
  // Where it is inlined, g++ 12 takes a byte of the string for uninitialised.
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
  [[nodiscard]] std::uint64_t unique_number() const noexcept {
    std::uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) == static_cast<::ssize_t>(sizeof number)) return number;
    static std::atomic<std::uint64_t> count{0};
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return (static_cast<std::uint64_t>(now.tv_sec) << 34) ^ (static_cast<std::uint64_t>(now.tv_nsec) << 4) ^
           (static_cast<std::uint64_t>(::getpid()) << 48) ^ count.fetch_add(1);
  }

  [[nodiscard]] int open_directory(const char* path) const noexcept {
    return code(::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  [[nodiscard]] int open_directory_at(int directory, const char* name) const noexcept {
    return code(::openat(directory, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  }
  [[nodiscard]] int open_at(int directory, const char* name, int flags, unsigned mode) const noexcept {
    return code(::openat(directory, name, flags | O_CLOEXEC | O_NOFOLLOW, static_cast<::mode_t>(mode)));
  }
  [[nodiscard]] int duplicate(int file) const noexcept { return code(::fcntl(file, F_DUPFD_CLOEXEC, 0)); }
  [[nodiscard]] int close(int file) const noexcept { return code(::close(file)); }

  [[nodiscard]] std::int64_t pwrite(int file, const void* from, std::size_t bytes,
                                    std::uint64_t offset) const noexcept {
    const auto done = ::pwrite(file, from, bytes, static_cast<::off_t>(offset));
    return done < 0 ? -errno : static_cast<std::int64_t>(done);
  }
  [[nodiscard]] std::int64_t pread(int file, void* to, std::size_t bytes,
                                   std::uint64_t offset) const noexcept {
    const auto done = ::pread(file, to, bytes, static_cast<::off_t>(offset));
    return done < 0 ? -errno : static_cast<std::int64_t>(done);
  }
  [[nodiscard]] int truncate(int file, std::uint64_t bytes) const noexcept {
    return code(::ftruncate(file, static_cast<::off_t>(bytes)));
  }
  /// Reserves the space and makes the file that long. -EOPNOTSUPP where the file system cannot.
  [[nodiscard]] int allocate(int file, std::uint64_t bytes) const noexcept {
    return code(::fallocate(file, 0, 0, static_cast<::off_t>(bytes)));
  }
  [[nodiscard]] int sync(int file) const noexcept { return code(::fsync(file)); }
  [[nodiscard]] int sync_directory(int directory) const noexcept { return code(::fsync(directory)); }

  [[nodiscard]] int make_directory_at(int directory, const char* name, unsigned mode) const noexcept {
    return code(::mkdirat(directory, name, static_cast<::mode_t>(mode)));
  }
  [[nodiscard]] int change_mode(int file, unsigned mode) const noexcept {
    return code(::fchmod(file, static_cast<::mode_t>(mode)));
  }
  [[nodiscard]] int rename_new_at(int directory, const char* from, const char* to) const noexcept {
    return code(static_cast<int>(::syscall(SYS_renameat2, directory, from, directory, to, RENAME_NOREPLACE)));
  }
  [[nodiscard]] int link_at(int directory, const char* from, const char* to) const noexcept {
    return code(::linkat(directory, from, directory, to, 0));
  }
  [[nodiscard]] int unlink_at(int directory, const char* name) const noexcept {
    return code(::unlinkat(directory, name, 0));
  }
  [[nodiscard]] int remove_directory_at(int directory, const char* name) const noexcept {
    return code(::unlinkat(directory, name, AT_REMOVEDIR));
  }
  [[nodiscard]] int try_lock(int file) const noexcept {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const int r = code(::fcntl(file, F_OFD_SETLK, &whole));
    return r == -EACCES ? -EAGAIN : r;
  }

  [[nodiscard]] int status(int file, file_status& out) const noexcept {
    struct statx s {};
    const int r = code(::statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &s));
    if (r == 0) fill(s, out);
    return r;
  }
  [[nodiscard]] int status_at(int directory, const char* name, file_status& out) const noexcept {
    struct statx s {};
    const int r = code(::statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &s));
    if (r == 0) fill(s, out);
    return r;
  }
  /// From statx where kernel and headers know it, else 4096.
  [[nodiscard]] int direct(int file, direct_alignment& out) const noexcept {
    out = {4096, 4096};
#ifdef STATX_DIOALIGN
    struct statx s {};
    if (::statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) == 0 && (s.stx_mask & STATX_DIOALIGN) != 0)
      out = {s.stx_dio_mem_align, s.stx_dio_offset_align};
#else
    (void)file;
#endif
    return 0;
  }
  /// All but "." and "..", in no order. Most file systems tell the kinds.
  [[nodiscard]] int list(int directory, std::vector<directory_entry>& entries) const {
    const int own = code(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (own < 0) return own;
    DIR* stream = ::fdopendir(own);
    if (stream == nullptr) {
      const int r = -errno;
      ::close(own);
      return r;
    }
    struct closer {
      DIR* stream;
      ~closer() { ::closedir(stream); }
    } guard{stream};
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(stream);
      if (entry == nullptr) return -errno;
      std::string name = entry->d_name;
      if (name != "." && name != "..") entries.push_back({std::move(name), kind_of(entry->d_type)});
    }
  }
  [[nodiscard]] int free_space(int file, space_left& out) const noexcept {
    struct statvfs s {};
    const int r = code(::fstatvfs(file, &s));
    if (r != 0) return r;
    if (s.f_blocks == 0) return -EOPNOTSUPP;  // a file system that does not count, as some of FUSE
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(std::uint64_t{s.f_bavail}, std::uint64_t{s.f_frsize}, &bytes))
      bytes = std::numeric_limits<std::uint64_t>::max();
    out.bytes = bytes;
    out.objects = s.f_files == 0 ? std::numeric_limits<std::uint64_t>::max() : s.f_favail;
    return 0;
  }
  [[nodiscard]] int kind(int file, file_system_kind& out) const {
    struct statfs s {};
    const int r = code(::fstatfs(file, &s));
    if (r != 0) return r;
    out.type = static_cast<std::uint64_t>(s.f_type) & 0xFFFFFFFFU;
    out.name = detail::name_of_file_system(out.type);
#ifdef STATX_MNT_ID
    struct statx where {};
    if (::statx(file, "", AT_EMPTY_PATH, STATX_MNT_ID, &where) == 0 && (where.stx_mask & STATX_MNT_ID) != 0)
      detail::look_up_mount(where.stx_mnt_id, out);
#endif
    return 0;
  }
  /// Where kernel (Linux 5.14) and file system can tell; NFS and Lustre cannot.
  void quotas(int file, std::vector<quota_use>& out) const {
    for (const bool group : {false, true}) {
      const std::uint32_t id = group ? ::getegid() : ::geteuid();
      struct if_dqblk q {};
      constexpr long quotactl_fd = 443;
      if (::syscall(quotactl_fd, file, QCMD(Q_GETQUOTA, group ? GRPQUOTA : USRQUOTA), id, &q) == 0)
        out.push_back({.group = group,
                       .id = id,
                       .bytes = q.dqb_curspace,
                       .bytes_limit = q.dqb_bhardlimit * QIF_DQBLKSIZE,
                       .files = q.dqb_curinodes,
                       .files_limit = q.dqb_ihardlimit});
    }
  }

 private:
  static int code(int result) noexcept { return result < 0 ? -errno : result; }
  static std::optional<file_kind> kind_of(unsigned char type) noexcept {
    if (type == DT_UNKNOWN) return {};
    return type == DT_REG ? file_kind::regular : type == DT_DIR ? file_kind::directory : file_kind::other;
  }
  static void fill(const struct statx& s, file_status& out) noexcept {
    out.kind = S_ISREG(s.stx_mode)   ? file_kind::regular
               : S_ISDIR(s.stx_mode) ? file_kind::directory
                                     : file_kind::other;
    out.bytes = s.stx_size;
    out.links = s.stx_nlink;
    out.mode = s.stx_mode & 07777u;
    out.identity.device = (std::uint64_t{s.stx_dev_major} << 32) | s.stx_dev_minor;
    out.identity.inode = s.stx_ino;
    out.identity.born = (s.stx_mask & STATX_BTIME) != 0
                            ? std::int64_t{s.stx_btime.tv_sec} * 1'000'000'000 + s.stx_btime.tv_nsec
                            : -1;
  }
};

static_assert(FileSystem<posix_file_system>);

}  // namespace v1
}  // namespace cairn
