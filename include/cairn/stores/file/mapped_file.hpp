// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/posix_file_system.hpp>
#include <cairn/system/digesting_copy.hpp>
#include <cairn/system/shared.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A file whose bytes are copied out of the page cache by this process instead of by the kernel: in half of the time
/// where the kernel keeps it in large pages, as it does what was read or written in large pieces, and digested in the
/// same pass. Nobody truncates it meanwhile, which would end the process: it is leased as long as anybody copies, and no
/// longer (see MappingFileSystem). Any number of threads, which have returned when it is destroyed.
template <FileSystem F>
class mapped_file {
 public:
  /// False where it cannot be done so: `to` is as it was. `file`, the same for each call, is open as long as this lives.
  [[nodiscard]] bool copy(F& fs, int file, std::byte* to, std::size_t bytes, std::uint64_t offset,
                          std::uint64_t* digest) {
    const copier c(*this, fs, file, bytes, offset);
    if (c.held == nullptr) return false;
    const auto* const from = c.held->at + (offset - c.held->first);
    // Whether somebody waits is asked last, so that it is from now on that nobody truncates it for a while.
    if (!fs.populate(from, bytes) || !fs.is_leased(file)) {
      refuse();
      return false;
    }
    copy_and_digest(to, from, bytes, digest);
    return true;
  }

 private:
  static constexpr std::uint64_t window_bytes = 64u << 20;
  /// What begins in a window ends in what is mapped of it.
  static constexpr std::uint64_t mapped_bytes = window_bytes + (4u << 20);

  struct window {
    window(F& f, int file, std::uint64_t offset)
        : fs(f), at(f.map(file, offset, mapped_bytes)), first(offset) {}
    window(window&&) = delete;
    window& operator=(window&&) = delete;
    ~window() {
      if (at != nullptr) fs.unmap(at, mapped_bytes);
    }
    F& fs;
    const std::byte* at;
    std::uint64_t first;
  };

  /// One of those who copy. The first one takes the lease, the last one ends it: also where a child of fork() has the file
  /// open, too, which closing it would not.
  struct copier {
    copier(mapped_file& m, F& fs, int file, std::size_t bytes, std::uint64_t offset)
        : of(m), system(fs), number(file), held(m.window_of(fs, file, bytes, offset)) {}
    copier(copier&&) = delete;
    copier& operator=(copier&&) = delete;
    ~copier() {
      if (held == nullptr) return;
      held.reset();
      const std::lock_guard lock(of.mutex_);
      if (--of.copying_ == 0) system.end_lease(number);
    }
    mapped_file& of;
    F& system;
    int number;
    std::shared_ptr<window> held;
  };

  void refuse() noexcept {
    std::shared_ptr<window> last;  // unmapped after the lock is given back
    const std::lock_guard lock(mutex_);
    refused_ = true;
    last = std::move(window_);
  }
  /// Counts the caller among those who copy; null, and not counted, where nothing can be mapped.
  [[nodiscard]] std::shared_ptr<window> window_of(F& fs, int file, std::size_t bytes, std::uint64_t offset) {
    const auto first = offset / window_bytes * window_bytes;
    if (offset - first + bytes > mapped_bytes) return nullptr;
    std::shared_ptr<window> last;  // unmapped after the lock is given back
    const std::lock_guard lock(mutex_);
    if (refused_) return nullptr;
    if (window_ == nullptr || window_->first != first) {
      auto next = detail::make_shared<window>(fs, file, first);
      if (next->at == nullptr) return nullptr;
      last = std::exchange(window_, std::move(next));
    }
    if (copying_ == 0) {
      file_status s;
      refused_ = fs.lease(file) != 0;
      file_bytes_ = !refused_ && fs.status(file, s) == 0 ? s.bytes : 0;
    }
    if (refused_) last = std::exchange(window_, nullptr);
    // Behind its end a file has zeros in its last page, which read() would not bring.
    if (offset > file_bytes_ || bytes > file_bytes_ - offset) {
      if (copying_ == 0 && !refused_) fs.end_lease(file);
      return nullptr;
    }
    ++copying_;
    return window_;
  }

  std::mutex mutex_;
  bool refused_ = false;
  std::uint64_t file_bytes_ = 0;  // since there is a lease
  int copying_ = 0;
  std::shared_ptr<window> window_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
