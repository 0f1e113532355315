// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/file/file_system_kinds.hpp>
#include <cairn/stores/file/posix_file_system.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/populate.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
[[nodiscard]] inline int system_code(int result) noexcept {
  return result < 0 ? -errno : result;
}
[[nodiscard]] inline int opened_code(int number) noexcept {
  return system_code(above_standard_streams(number));
}

[[nodiscard]] inline std::uint64_t type_in(const struct statfs& s) noexcept {
  return static_cast<std::uint64_t>(s.f_type) & 0xFFFFFFFFU;
}
[[nodiscard]] inline std::optional<file_kind> kind_of(unsigned char type) noexcept {
  if (type == DT_UNKNOWN) return {};
  return type == DT_REG ? file_kind::regular : type == DT_DIR ? file_kind::directory : file_kind::other;
}

[[nodiscard]] inline std::int64_t nanoseconds_of(const struct statx_timestamp& t) noexcept {
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
inline void fill(const struct statx& s, file_status& out) noexcept {
  out.kind = S_ISREG(s.stx_mode)   ? file_kind::regular
             : S_ISDIR(s.stx_mode) ? file_kind::directory
                                   : file_kind::other;
  out.bytes = s.stx_size;
  out.links = s.stx_nlink;
  out.mode = s.stx_mode & 07777u;
  out.identity.device = (std::uint64_t{s.stx_dev_major} << 32) | s.stx_dev_minor;
  out.identity.inode = s.stx_ino;
  out.identity.born = (s.stx_mask & STATX_BTIME) != 0 ? nanoseconds_of(s.stx_btime) : -1;
  out.modified = nanoseconds_of(s.stx_mtime);
  out.changed = nanoseconds_of(s.stx_ctime);
}
}  // namespace detail

CAIRN_BODY std::uint64_t posix_file_system::unique_number() const noexcept {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) == static_cast<::ssize_t>(sizeof number)) return number;
  static std::atomic<std::uint64_t> count{0};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return (static_cast<std::uint64_t>(now.tv_sec) << 34) ^ (static_cast<std::uint64_t>(now.tv_nsec) << 4) ^
         (static_cast<std::uint64_t>(::getpid()) << 48) ^ count.fetch_add(1);
}

CAIRN_BODY int posix_file_system::open_directory_at(int directory, const char* name) const noexcept {
  return detail::opened_code(::openat(directory, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

CAIRN_BODY int posix_file_system::open_at(int directory, const char* name, int flags,
                                          unsigned mode) const noexcept {
  return detail::opened_code(
      ::openat(directory, name, flags | O_CLOEXEC | O_NOFOLLOW, static_cast<::mode_t>(mode)));
}

CAIRN_BODY std::int64_t posix_file_system::pwrite(int file, const void* from, std::size_t bytes,
                                                  std::uint64_t offset) const noexcept {
  const auto done = ::pwrite(file, from, bytes, static_cast<::off_t>(offset));
  return done < 0 ? -errno : static_cast<std::int64_t>(done);
}

CAIRN_BODY std::int64_t posix_file_system::pread(int file, void* to, std::size_t bytes,
                                                 std::uint64_t offset) const noexcept {
  const auto done = ::pread(file, to, bytes, static_cast<::off_t>(offset));
  return done < 0 ? -errno : static_cast<std::int64_t>(done);
}

CAIRN_BODY std::int64_t posix_file_system::cached(int file, std::uint64_t offset,
                                                  std::uint64_t bytes) const noexcept {
  if (bytes == 0) return 0;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  struct {
    std::uint64_t offset, bytes;
  } range{offset, bytes};
  struct {
    std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } counts{};
  constexpr long number = 451;  // of cachestat, on all architectures but alpha; libc does not know it yet
  if (::syscall(number, file, &range, &counts, 0U) == 0)
    return static_cast<std::int64_t>(counts.cached * page);
  if (errno != ENOSYS) return -errno;
  const auto first = offset / page * page;
  const auto length = static_cast<std::size_t>(offset + bytes - first);
  // Nothing is read through the mapping.
  void* mapped = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, file, static_cast<::off_t>(first));
  if (mapped == MAP_FAILED) return -errno;
  std::int64_t found = 0;
  int error = 0;
  unsigned char pages[1024];
  for (std::size_t at = 0; at < length && error == 0; at += sizeof pages * page) {
    const auto n = std::min<std::size_t>(length - at, sizeof pages * page);
    if (::mincore(static_cast<char*>(mapped) + at, n, pages) != 0) error = errno;
    for (std::size_t i = 0; i < (n + page - 1) / page && error == 0; ++i) found += pages[i] & 1;
  }
  ::munmap(mapped, length);
  return error != 0 ? -error : found * static_cast<std::int64_t>(page);
}

CAIRN_BODY std::int64_t posix_file_system::read_cached(int file, void* to, std::size_t bytes,
                                                       std::uint64_t offset) const noexcept {
  const iovec place{to, bytes};
  const auto done = ::preadv2(file, &place, 1, static_cast<::off_t>(offset), RWF_NOWAIT);
  return done < 0 ? -errno : static_cast<std::int64_t>(done);
}

CAIRN_BODY int posix_file_system::lease(int file) const noexcept {
  struct statfs s {};
  if (::fstatfs(file, &s) != 0) return -errno;
  // Of others, this kernel does not know all who change a file.
  constexpr std::string_view local[] = {"ext4", "xfs", "btrfs", "f2fs", "tmpfs"};
  const auto name = detail::name_of_file_system(detail::type_in(s));
  if (std::find(std::begin(local), std::end(local), name) == std::end(local)) return -EOPNOTSUPP;
  // Who holds a lease gets a signal when somebody waits for its end. Nobody is to get it; until the system knows that, it
  // is one that ends no program.
  if (::fcntl(file, F_SETSIG, SIGURG) != 0 || ::fcntl(file, F_SETLEASE, F_RDLCK) != 0) return -errno;
  static_cast<void>(::fcntl(file, F_SETOWN, 0));
  return 0;
}

CAIRN_BODY bool posix_file_system::is_leased(int file) const noexcept {
  return ::fcntl(file, F_GETLEASE) == F_RDLCK;
}

CAIRN_BODY void posix_file_system::end_lease(int file) const noexcept {
  static_cast<void>(::fcntl(file, F_SETLEASE, F_UNLCK));
}

CAIRN_BODY const std::byte* posix_file_system::map(int file, std::uint64_t offset,
                                                   std::size_t bytes) const noexcept {
  void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, static_cast<::off_t>(offset));
  return at == MAP_FAILED ? nullptr : static_cast<const std::byte*>(at);
}

CAIRN_BODY void posix_file_system::unmap(const std::byte* at, std::size_t bytes) const noexcept {
  ::munmap(const_cast<std::byte*>(at), bytes);
}

CAIRN_BODY bool posix_file_system::populate(const std::byte* at, std::size_t bytes) const noexcept {
  return detail::populate_source(at, bytes);
}

CAIRN_BODY int posix_file_system::start_writing_back(int file, std::uint64_t offset,
                                                     std::uint64_t bytes) const noexcept {
  return detail::system_code(::sync_file_range(file, static_cast<::off_t>(offset),
                                               static_cast<::off_t>(bytes), SYNC_FILE_RANGE_WRITE));
}

CAIRN_BODY int posix_file_system::rename_new_at(int directory, const char* from,
                                                const char* to) const noexcept {
  return detail::system_code(
      static_cast<int>(::syscall(SYS_renameat2, directory, from, directory, to, RENAME_NOREPLACE)));
}

CAIRN_BODY int posix_file_system::try_lock(int file) const noexcept {
  const int flags = ::fcntl(file, F_GETFL);
  if (flags < 0) return -errno;
  struct flock whole {};
  whole.l_type = (flags & O_ACCMODE) == O_RDONLY ? F_RDLCK : F_WRLCK;
  whole.l_whence = SEEK_SET;
  const int r = detail::system_code(::fcntl(file, F_OFD_SETLK, &whole));
  return r == -EACCES ? -EAGAIN : r;
}

CAIRN_BODY int posix_file_system::status(int file, file_status& out) const noexcept {
  struct statx s {};
  const int r = detail::system_code(::statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &s));
  if (r == 0) detail::fill(s, out);
  return r;
}

CAIRN_BODY int posix_file_system::status_at(int directory, const char* name,
                                            file_status& out) const noexcept {
  struct statx s {};
  const int r =
      detail::system_code(::statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &s));
  if (r == 0) detail::fill(s, out);
  return r;
}

CAIRN_BODY int posix_file_system::direct(int file, direct_alignment& out) const noexcept {
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

CAIRN_BODY int posix_file_system::list(int directory, std::vector<directory_entry>& entries) const {
  const int own = detail::opened_code(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
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
    if (name != "." && name != "..") entries.push_back({std::move(name), detail::kind_of(entry->d_type)});
  }
}

CAIRN_BODY int posix_file_system::free_space(int file, space_left& out) const noexcept {
  struct statvfs s {};
  const int r = detail::system_code(::fstatvfs(file, &s));
  if (r != 0) return r;
  if (s.f_blocks == 0) return -EOPNOTSUPP;  // a file system that does not count, as some of FUSE
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(std::uint64_t{s.f_bavail}, std::uint64_t{s.f_frsize}, &bytes))
    bytes = std::numeric_limits<std::uint64_t>::max();
  out.bytes = bytes;
  out.objects = s.f_files == 0 ? std::numeric_limits<std::uint64_t>::max() : s.f_favail;
  return 0;
}

CAIRN_BODY int posix_file_system::kind(int file, file_system_kind& out) const {
  struct statfs s {};
  const int r = detail::system_code(::fstatfs(file, &s));
  if (r != 0) return r;
  out.type = detail::type_in(s);
  out.name = detail::name_of_file_system(out.type);
#ifdef STATX_MNT_ID
  struct statx where {};
  if (::statx(file, "", AT_EMPTY_PATH, STATX_MNT_ID, &where) == 0 && (where.stx_mask & STATX_MNT_ID) != 0)
    detail::look_up_mount(where.stx_mnt_id, out);
#endif
  return 0;
}

CAIRN_BODY void posix_file_system::quotas(int file, std::vector<quota_use>& out) const {
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

CAIRN_BODY int posix_file_system::open_directory(const char* path) const noexcept {
  return detail::opened_code(::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

CAIRN_BODY int posix_file_system::duplicate(int file) const noexcept {
  return detail::system_code(::fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

CAIRN_BODY int posix_file_system::close(int file) const noexcept {
  return detail::system_code(::close(file));
}

CAIRN_BODY int posix_file_system::truncate(int file, std::uint64_t bytes) const noexcept {
  return detail::system_code(::ftruncate(file, static_cast<::off_t>(bytes)));
}

CAIRN_BODY int posix_file_system::allocate(int file, std::uint64_t bytes) const noexcept {
  return detail::system_code(::fallocate(file, 0, 0, static_cast<::off_t>(bytes)));
}

CAIRN_BODY int posix_file_system::sync(int file) const noexcept {
  return detail::system_code(::fsync(file));
}

CAIRN_BODY int posix_file_system::sync_directory(int directory) const noexcept {
  return detail::system_code(::fsync(directory));
}

CAIRN_BODY int posix_file_system::make_directory_at(int directory, const char* name,
                                                    unsigned mode) const noexcept {
  return detail::system_code(::mkdirat(directory, name, static_cast<::mode_t>(mode)));
}

CAIRN_BODY int posix_file_system::change_mode(int file, unsigned mode) const noexcept {
  return detail::system_code(::fchmod(file, static_cast<::mode_t>(mode)));
}

CAIRN_BODY int posix_file_system::link_at(int directory, const char* from, const char* to) const noexcept {
  return detail::system_code(::linkat(directory, from, directory, to, 0));
}

CAIRN_BODY int posix_file_system::link_across(int old_directory, const char* old_name, int directory,
                                              const char* name) const noexcept {
  return detail::system_code(::linkat(old_directory, old_name, directory, name, 0));
}

CAIRN_BODY int posix_file_system::clone(int from, int to) const noexcept {
  return detail::system_code(::ioctl(to, FICLONE, from));
}

CAIRN_BODY int posix_file_system::unlink_at(int directory, const char* name) const noexcept {
  return detail::system_code(::unlinkat(directory, name, 0));
}

CAIRN_BODY int posix_file_system::remove_directory_at(int directory, const char* name) const noexcept {
  return detail::system_code(::unlinkat(directory, name, AT_REMOVEDIR));
}

}  // namespace v1
}  // namespace cairn
