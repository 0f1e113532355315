// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/file_io.hpp>
#include <cairn/stores/file/mapped_file.hpp>
#include <cairn/stores/file/posix_file_system.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How many bytes came which way, and what it took; see read_figures.
struct read_counts {
  std::atomic<std::uint64_t> cached{0};
  std::atomic<std::uint64_t> direct{0};
  std::atomic<std::int64_t> helper_cpu{0};
};

/// A file that several threads read at once: what is in the page cache comes from there if that is wanted, other large
/// requests go past it where the file system can, the rest through it. Each way is opened by the first request that takes it.
template <FileSystem F>
class file_source {
 public:
  /// Reads until `bytes` are there or the file ends. `open(flags, error)` gives a handle, opened with these
  /// flags in addition, or the negative errno. `block`: what direct offsets and lengths are multiples of.
  template <class Open>
  [[nodiscard]] transfer read(F& fs, bounce_buffers& bounces, read_counts& counts, std::size_t block,
                              bool direct_allowed, bool from_cache, Open&& open, std::byte* to,
                              std::size_t bytes, std::uint64_t offset) {
    transfer t;
    if (direct_allowed && bytes >= least_direct) {
      if (const int file = direct_file(fs, block, open); file >= 0) {
        if (from_cache) t.done = read_cached(fs, file, block, open, to, bytes, offset);
        counts.cached.fetch_add(t.done, std::memory_order_relaxed);
        if (const auto done = static_cast<std::size_t>(t.done); bytes - done >= least_direct) {
          const auto rest = read_direct(fs, bounces, block, file, to + done, bytes - done, offset + done);
          counts.direct.fetch_add(rest.done, std::memory_order_relaxed);
          t = {t.done + rest.done, rest.error};
        }
      }
    }
    if (t.error != 0 || (t.done == bytes && bytes != 0)) return t;
    // What direct requests did not bring: all of it, or what follows an odd end. Also for nothing the file
    // must be there.
    const int file = buffered_file(open, true);
    if (file < 0) return {t.done, -file};
    auto rest = read_fully(fs, file, to + t.done, bytes - static_cast<std::size_t>(t.done), offset + t.done);
    rest.done += t.done;
    return rest;
  }
  /// Copies what the page cache has all of, and digests it in the same pass where a digest is wanted: false where it has
  /// less, or where that is not worth it; `to` may hold any bytes then.
  template <class Open>
  [[nodiscard]] bool copy_cached(F& fs, std::size_t block, bool direct_allowed, Open&& open, std::byte* to,
                                 std::size_t bytes, std::uint64_t offset, std::uint64_t* digest) {
    if (bytes < least_direct || !is_cached(fs, block, direct_allowed, open, bytes, offset)) return false;
    const int file = buffered_file(open, false);
    if (file < 0) return false;
    if constexpr (MappingFileSystem<F>)
      if (mapped_.copy(fs, file, to, bytes, offset, digest)) return true;
    // In steps that are still in the processor's cache when they are digested.
    constexpr std::size_t step = 256u << 10;
    hash_state hash;
    for (std::size_t at = 0; at < bytes; at += step) {
      const auto n = std::min(step, bytes - at);
      if (read_cached(fs, file, block, open, to + at, n, offset + at) != n) return false;
      if (digest != nullptr) hash.put(to + at, n);
    }
    if (digest != nullptr) *digest = hash.value();
    return true;
  }
  /// Whether the page cache has all of it, as far as that is known.
  template <class Open>
  [[nodiscard]] bool is_cached(F& fs, std::size_t block, bool direct_allowed, Open&& open,
                               std::uint64_t bytes, std::uint64_t offset) {
    int file = direct_allowed ? direct_file(fs, block, open) : -1;
    if (file < 0) file = buffered_file(open, false);
    const auto pages = whole_pages(block, bytes, offset);
    return file >= 0 && cached_bytes(fs, file, pages.bytes, pages.first) >= pages.bytes;
  }

 private:
  static constexpr std::size_t least_direct = 64u << 10;  // below, one request of the page cache is as good
  /// How often the page cache may have less than the kernel said, as it does for users who may not write the
  /// file. A read that the page cache refuses costs as much as twenty that are not tried, and reads ahead.
  static constexpr int max_misses = 3;

  /// What the page cache is asked about: it counts whole pages.
  struct page_range {
    std::uint64_t first;
    std::uint64_t bytes;
  };
  [[nodiscard]] static page_range whole_pages(std::size_t block, std::uint64_t bytes,
                                              std::uint64_t offset) noexcept {
    const auto first = offset / block * block;
    return {first, (offset + bytes + block - 1) / block * block - first};
  }
  /// What the page cache has of a range; all of it where that is not known and the last reads were there.
  [[nodiscard]] std::uint64_t cached_bytes([[maybe_unused]] F& fs, [[maybe_unused]] int file,
                                           [[maybe_unused]] std::uint64_t bytes,
                                           [[maybe_unused]] std::uint64_t offset) {
    if constexpr (CachingFileSystem<F>) {
      if (misses_.load(std::memory_order_relaxed) >= max_misses) return 0;
      const auto n = fs.cached(file, offset, bytes);
      if (n >= 0) return static_cast<std::uint64_t>(n);
      return unknown_hits_.load(std::memory_order_relaxed) ? bytes : 0;
    } else {
      return 0;
    }
  }
  /// Where the part of a range that is cached from its beginning on ends, as far as few questions find it: whole
  /// blocks, of which `there` bytes are cached in all.
  [[nodiscard]] static std::uint64_t cached_end(F& fs, int file, std::size_t block, std::uint64_t first,
                                                std::uint64_t there) {
    constexpr int max_questions = 5;
    auto end = first;
    auto beyond = first + there / block * block;  // often it is just this
    auto middle = beyond;
    for (int i = 0; i < max_questions && end < middle && middle - first >= least_direct; ++i) {
      const auto wanted = middle - end;
      const auto n = fs.cached(file, end, wanted);
      (n >= 0 && static_cast<std::uint64_t>(n) >= wanted ? end : beyond) = middle;
      middle = end + (beyond - end) / 2 / block * block;
    }
    return end;
  }
  /// The bytes of the beginning of a range that the page cache gave. What is wrong with the file is left to the
  /// other ways to find. Nothing is asked for that is not there: the kernel would begin to read it, and the device be
  /// asked twice.
  template <class Open>
  [[nodiscard]] std::uint64_t read_cached([[maybe_unused]] F& fs, [[maybe_unused]] int direct,
                                          [[maybe_unused]] std::size_t block, [[maybe_unused]] Open& open,
                                          [[maybe_unused]] std::byte* to, [[maybe_unused]] std::size_t bytes,
                                          [[maybe_unused]] std::uint64_t offset) {
    if constexpr (CachingFileSystem<F>) {
      if (misses_.load(std::memory_order_relaxed) >= max_misses) return 0;
      const auto pages = whole_pages(block, bytes, offset);
      const auto there = fs.cached(direct, pages.first, pages.bytes);
      const bool all = there >= 0 && static_cast<std::uint64_t>(there) >= pages.bytes;
      // One try where it is not known, and the next ones if that was good.
      if (there < 0 && tried_unknown_.exchange(true, std::memory_order_relaxed) &&
          !unknown_hits_.load(std::memory_order_relaxed))
        return 0;
      std::uint64_t wanted = bytes;
      if (there >= 0 && !all) {
        if (static_cast<std::uint64_t>(there) < bytes / 2) return 0;
        const auto end = cached_end(fs, direct, block, pages.first, static_cast<std::uint64_t>(there));
        if (end < offset + least_direct) return 0;
        wanted = std::min<std::uint64_t>(bytes, end - offset);
      }
      const int file = buffered_file(open, false);
      if (file < 0) return 0;
      std::uint64_t done = 0;
      for (int idle = 0; done < wanted;) {
        const auto rest = static_cast<std::size_t>(wanted - done);
        const auto n = fs.read_cached(file, to + done, rest, offset + done);
        if (n > 0 && static_cast<std::uint64_t>(n) <= rest) {
          done += static_cast<std::uint64_t>(n);
          idle = 0;
        } else if ((n == -EOPNOTSUPP || n == -EINVAL || n == -ENOSYS) && all) {
          // As on tmpfs: all of it is there, so that nothing is waited for.
          return done + read_fully(fs, file, to + done, rest, offset + done).done;
        } else if (n != -EINTR || ++idle >= max_interruptions) {
          break;
        }
      }
      if (there < 0) unknown_hits_.store(done == bytes, std::memory_order_relaxed);
      if (done < bytes / 2 && (there < 0 || all)) misses_.fetch_add(1, std::memory_order_relaxed);
      return done;
    } else {
      return 0;
    }
  }

  /// Where it is not `needed`, as what is cached can be read past the page cache, too, descriptors that are short are
  /// waited for now and then alone.
  template <class Open>
  [[nodiscard]] int buffered_file(Open& open, bool needed) {
    const std::lock_guard lock(mutex_);
    if (!buffered_) {
      if (!needed && !short_until_.passed()) return -EMFILE;
      int error = 0;
      buffered_ = open(0, error);
      if (error == -EMFILE || error == -ENFILE) short_until_ = deadline::in(std::chrono::seconds(1));
      if (error < 0) return error;
    }
    return buffered_.get();
  }
  /// Negative where there is none: then the buffered way tells what is wrong, if anything is.
  template <class Open>
  [[nodiscard]] int direct_file(F& fs, std::size_t block, Open& open) {
    if (refused_.load(std::memory_order_relaxed)) return -1;
    const std::lock_guard lock(mutex_);
    if (tried_direct_) return direct_.get();
    int error = 0;
    direct_ = open(O_DIRECT, error);
    // Other errors pass, such as that descriptors are short.
    tried_direct_ = error >= 0 || error == -EINVAL || error == -EOPNOTSUPP;
    if (error < 0) return -1;
    direct_alignment needs;
    if (fs.direct(direct_.get(), needs) != 0 || needs.offset == 0 || block % needs.offset != 0 ||
        needs.memory == 0 || block % needs.memory != 0)
      static_cast<void>(direct_.close());
    memory_alignment_ = needs.memory;
    return direct_.get();
  }

  /// Whole blocks go straight to their place where that is aligned; else, and at the edges, through a buffer.
  [[nodiscard]] transfer read_direct(F& fs, bounce_buffers& bounces, std::size_t block, int file,
                                     std::byte* to, std::size_t bytes, std::uint64_t offset) {
    const auto end = offset + bytes;
    const auto first = (offset + block - 1) / block * block;
    const auto last = end / block * block;
    const bool straight =
        first < last && reinterpret_cast<std::uintptr_t>(to + (first - offset)) % memory_alignment_ == 0;
    if (!straight) return through_buffer(fs, bounces, block, file, to, bytes, offset);
    transfer t;
    if (first > offset) {
      t = through_buffer(fs, bounces, block, file, to, static_cast<std::size_t>(first - offset), offset);
      if (t.error != 0 || t.done < first - offset) return t;
    }
    const auto middle =
        request(fs, block, file, to + (first - offset), static_cast<std::size_t>(last - first), first);
    t.done += middle.done;
    t.error = middle.error;
    if (t.error != 0 || middle.done < last - first || last == end) return t;
    const auto tail = through_buffer(fs, bounces, block, file, to + (last - offset),
                                     static_cast<std::size_t>(end - last), last);
    return {t.done + tail.done, tail.error};
  }
  [[nodiscard]] transfer through_buffer(F& fs, bounce_buffers& bounces, std::size_t block, int file,
                                        std::byte* to, std::size_t bytes, std::uint64_t offset) {
    const auto buffer = bounces.take();
    transfer t;
    while (t.done < bytes) {
      const auto at = offset + t.done;
      const auto begin = at / block * block;
      const auto end = (offset + bytes + block - 1) / block * block;
      const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(bounces.size(), end - begin));
      const auto got = request(fs, block, file, buffer.data(), length, begin);
      if (got.error != 0) return {t.done, got.error};
      const auto there = begin + got.done;
      const auto n = there > at ? std::min<std::uint64_t>(there - at, bytes - t.done) : 0;
      std::memcpy(to + t.done, buffer.data() + (at - begin), static_cast<std::size_t>(n));
      t.done += n;
      if (got.done < length) break;
    }
    return t;
  }
  /// Ends early at the end of the file, where the file system refuses, and where a call stops between two
  /// blocks.
  [[nodiscard]] transfer request(F& fs, std::size_t block, int file, std::byte* to, std::size_t bytes,
                                 std::uint64_t offset) {
    transfer t;
    for (int idle = 0; t.done < bytes;) {
      const auto rest = static_cast<std::size_t>(bytes - t.done);
      const auto n = fs.pread(file, to + t.done, rest, offset + t.done);
      if (n > 0 && static_cast<std::uint64_t>(n) <= rest) {
        t.done += static_cast<std::uint64_t>(n);
        if (t.done % block != 0) break;
        idle = 0;
      } else if (n == -EINVAL) {
        refused_.store(true, std::memory_order_relaxed);
        break;
      } else if (n == 0) {
        break;
      } else if (n != -EINTR || ++idle >= max_interruptions) {
        t.error = n < 0 ? static_cast<int>(-n) : EIO;
        break;
      }
    }
    return t;
  }

  std::mutex mutex_;
  file_handle<F> buffered_;
  file_handle<F> direct_;
  mapped_file<F> mapped_;  // of buffered_: gone before it is closed
  std::uint64_t memory_alignment_ = 1;
  bool tried_direct_ = false;
  deadline short_until_ = deadline::in(std::chrono::seconds(0));
  std::atomic<bool> refused_{false};
  std::atomic<int> misses_{0};
  std::atomic<bool> tried_unknown_{false};
  std::atomic<bool> unknown_hits_{false};
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
