// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

namespace detail {
/// A file as Boost's mapped_region takes it.
struct mappable_file {
  int file;
  [[nodiscard]] boost::interprocess::mapping_handle_t get_mapping_handle() const noexcept {
    boost::interprocess::mapping_handle_t handle{};
    handle.handle = file;
    return handle;
  }
};
}  // namespace detail

/// Anonymous memory that other processes map through its file descriptor (memfd_create): it has no name, so
/// that nothing is left when the last process that has it ends; children of fork() do not have it. Its size
/// is sealed. Unmapped by the destructor.
class shared_segment {
 public:
  /// Memory that is not there yet: see allocate(). @throws storage_error
  explicit shared_segment(std::uint64_t bytes) {
    rlimit file_limit{};
    if (::getrlimit(RLIMIT_FSIZE, &file_limit) == 0 && file_limit.rlim_cur != RLIM_INFINITY &&
        bytes > file_limit.rlim_cur)
      fail(error_id::storage_limit, "the limit of file sizes is below the size of shared memory (ulimit -f)",
           {.expected = std::to_string(bytes) + " bytes",
            .got = std::to_string(file_limit.rlim_cur) + " bytes"});
    {
      const detail::fork_pause pause;
      detail::file_descriptor made(::memfd_create("cairn", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      if (!made.open()) detail::fail_system(errno, "shared memory could not be made");
      file_ = detail::make_owned<detail::unforked_file>(std::move(made), pause);
    }
    if (::ftruncate(file(), static_cast<off_t>(bytes)) != 0)
      detail::fail_system(errno, "shared memory could not be made");
    if (::fcntl(file(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      detail::fail_system(errno, "the size of shared memory could not be sealed");
    identify(bytes);
    map(bytes);
  }
  /// Maps what another process made, or a file of a tmpfs that only this user may open, whose size nobody
  /// changes. @throws peer_error (peer_bad_message) if it is none of these or has another size, storage_error.
  shared_segment(detail::file_descriptor file, std::uint64_t bytes)
      : shared_segment(unforked(std::move(file)), bytes) {}
  shared_segment(detail::owned<detail::unforked_file> file, std::uint64_t bytes) : file_(std::move(file)) {
    const int seals = ::fcntl(this->file(), F_GET_SEALS);
    if ((seals < 0 || (seals & F_SEAL_SHRINK) == 0) && !private_file(this->file()))
      fail(error_id::peer_bad_message,
           "the descriptor of another process is not shared memory of a fixed size");
    identify(bytes);
    map(bytes);
  }

  /// Makes the pages be there, so that no write fails later; zero. @throws storage_error (storage_no_space,
  /// storage_out_of_memory) where there is no memory for them.
  void allocate() const {
    int result = 0;
    do {
      result = ::fallocate(file(), 0, 0, static_cast<off_t>(region_.get_size()));
    } while (result != 0 && errno == EINTR);
    if (result != 0)
      fail(error_id::storage_out_of_memory, "there is no memory for a segment of shared memory",
           {.expected = std::to_string(region_.get_size()) + " bytes"});
  }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(region_.get_address()), region_.get_size()};
  }
  /// The descriptor, which this object owns; -1 in a child of fork().
  [[nodiscard]] int file() const noexcept { return file_->get(); }
  /// The same for the same memory in each process, and different for all that live.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

 private:
  static detail::owned<detail::unforked_file> unforked(detail::file_descriptor file) {
    const detail::fork_pause pause;
    return detail::make_owned<detail::unforked_file>(std::move(file), pause);
  }
  static bool private_file(int file) noexcept {
    constexpr long tmpfs = 0x01021994;
    struct stat s {};
    struct statfs system {};
    return ::fstat(file, &s) == 0 && ::fstatfs(file, &system) == 0 &&
           static_cast<long>(system.f_type) == tmpfs && S_ISREG(s.st_mode) && s.st_uid == ::geteuid() &&
           (s.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  }
  void identify(std::uint64_t bytes) {
    struct stat s {};
    if (::fstat(file(), &s) != 0) detail::fail_system(errno, "shared memory could not be examined");
    if (static_cast<std::uint64_t>(s.st_size) != bytes)
      fail(error_id::peer_bad_message, "shared memory has another size than announced",
           {.expected = std::to_string(bytes), .got = std::to_string(s.st_size)});
    id_ = s.st_ino ^
          (static_cast<std::uint64_t>(s.st_dev) << 40);  // files have numbers of their own file system
  }
  /// At an address where the kernel can map huge pages as such, if the segment is large enough for one.
  void map(std::uint64_t bytes) {
    constexpr std::size_t huge = std::size_t{2} << 20;
    const std::size_t reserved = bytes >= huge && bytes < SIZE_MAX / 2 ? bytes + huge : 0;
    void* first = MAP_FAILED;
    if (reserved != 0)
      first = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const bool chosen = first != MAP_FAILED;
    auto* const begin = static_cast<std::byte*>(chosen ? first : nullptr);
    auto* const at =
        chosen ? begin + (huge - reinterpret_cast<std::uintptr_t>(begin) % huge) % huge : nullptr;
    try {
      using boost::interprocess::mapped_region;
      const detail::mappable_file file{this->file()};
      const auto size = static_cast<std::size_t>(bytes);
      region_ = chosen ? mapped_region(file, boost::interprocess::read_write, 0, size, at, MAP_FIXED)
                       : mapped_region(file, boost::interprocess::read_write, 0, size);
    } catch (const boost::interprocess::interprocess_exception& e) {
      if (chosen) ::munmap(first, reserved);
      detail::fail_system(e.get_native_error(), "shared memory could not be mapped");
    }
    if (chosen) {
      const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
      auto* const end = at + (bytes + page - 1) / page * page;
      if (at != begin) ::munmap(begin, static_cast<std::size_t>(at - begin));
      ::munmap(end, static_cast<std::size_t>(begin + reserved - end));
    }
    file_->mapped(this->bytes());
  }

  std::uint64_t id_ = 0;
  boost::interprocess::mapped_region region_;
  detail::owned<detail::unforked_file> file_;  // ends before the region does
};

}  // namespace v1
}  // namespace cairn
