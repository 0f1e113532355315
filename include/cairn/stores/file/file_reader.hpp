// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_reads.hpp>
#include <cairn/stores/file/file_source.hpp>
#include <cairn/stores/file/file_tree.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/vector.hpp>

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How a file_store reads its objects, for one call or for those of a load: what was opened for one is open for the
/// next, but for what was used longest ago where that is too much. Any number of threads.
template <FileSystem F>
class file_reader {
 public:
  /// `from_cache`: what the page cache has comes from there; else large requests ask the device for it, as who wants
  /// to know what is there does.
  explicit file_reader(std::shared_ptr<file_tree<F>> tree, bool from_cache = false) noexcept
      : held_(std::move(tree)), tree_(*held_), from_cache_(from_cache) {}

  void read(std::span<const read_range> ranges) {
    for (int attempt = 1;; ++attempt) {
      try {
        return read_once(ranges);
      } catch (const stale&) {
        if (attempt == 3) throw;  // a server forgot the file: opened anew it is found, or it is gone
      }
    }
  }

  [[nodiscard]] bool copy(std::string_view key, std::uint64_t offset, std::span<std::byte> to,
                          std::uint64_t* digest) {
    if constexpr (CachingFileSystem<F>) {
      tree_.check_key(key);
      const auto from = source_of(key);
      if (!from->file.copy_cached(tree_.fs, tree_.io_alignment, tree_.options.direct_io, opener(key),
                                  to.data(), to.size(), offset, digest))
        return false;
      counts_.cached.fetch_add(to.size(), std::memory_order_relaxed);
      return true;
    } else {
      return false;
    }
  }

  [[nodiscard]] bool is_cached(std::string_view key, std::uint64_t offset, std::uint64_t bytes) {
    if constexpr (CachingFileSystem<F>) {
      tree_.check_key(key);
      const auto from = source_of(key);
      return from->file.is_cached(tree_.fs, tree_.io_alignment, tree_.options.direct_io, opener(key), bytes,
                                  offset);
    } else {
      return false;
    }
  }

  [[nodiscard]] read_figures figures() const noexcept {
    return {counts_.cached.load(), counts_.direct.load(), counts_.helper_cpu.load()};
  }

  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    tree_.check_key(key);
    for (int attempt = 1;; ++attempt) {
      try {
        return read_all_once(key, cap);
      } catch (const stale&) {
        if (attempt == 3) throw;
      }
    }
  }

 private:
  using handle = file_handle<F>;
  struct stale : storage_error {
    using storage_error::storage_error;
  };
  struct source {
    file_source<F> file;
    std::uint64_t used = 0;  ///< when last
  };
  struct task {
    std::string_view key;
    std::uint64_t offset;
    std::byte* to;
    std::size_t bytes;
    std::uint64_t range_end;
  };

  [[nodiscard]] std::optional<std::vector<std::byte>> read_all_once(std::string_view key, std::uint64_t cap) {
    int error = 0;
    const auto file = open_object(key, error);
    if (error == -ENOENT || error == -ENOTDIR) return {};
    if (error < 0) fail_reading(-error, "open", key, -1);
    file_status s;
    if (const int r = tree_.fs.status(file.get(), s); r != 0) fail_reading(-r, "stat", key, -1);
    if (s.bytes > cap)
      fail(error_id::corrupt_size_mismatch, "the object is longer than it can be",
           {.file = tree_.path_of(key),
            .expected = "at most " + std::to_string(cap) + " bytes",
            .got = std::to_string(s.bytes) + " bytes"});
    std::vector<std::byte> bytes(static_cast<std::size_t>(s.bytes));
    const auto t = read_fully(tree_.fs, file.get(), bytes.data(), bytes.size(), 0);
    if (t.error != 0) fail_reading(t.error, "pread", key, static_cast<std::int64_t>(t.done));
    if (t.done < bytes.size()) fail_truncated(key, 0, bytes.size(), t.done);
    return bytes;
  }

  [[nodiscard]] auto opener(std::string_view key) {
    return [this, key](int flags, int& error) { return open_object(key, error, flags); };
  }
  /// Opens a regular file for reading; negative errno in `error`, -ENOENT also for what is no regular file.
  [[nodiscard]] handle open_object(std::string_view key, int& error, int flags = 0) {
    auto file = open_once(key, error, flags);
    // Descriptors are short: what lies open and is not read gives its own, unless another thread was quicker to take
    // them; what is being read gives its own soon. For a direct way nobody waits: there is the other one.
    const int tries = (flags & O_DIRECT) != 0 ? 2 : 8;
    backoff pause(std::chrono::milliseconds(2), std::chrono::milliseconds(64));
    for (int tried = 1; (error == -EMFILE || error == -ENFILE) && tried < tries; ++tried) {
      if (tried > 1) static_cast<void>(pause.wait(deadline::never()));  // an eighth of a second, all of them
      close_unused();
      file = open_once(key, error, flags);
    }
    return file;
  }
  [[nodiscard]] handle open_once(std::string_view key, int& error, int flags) {
    const auto where = split(key);
    const auto directory = tree_.open_directory(where.directory, error);
    if (error < 0) return {};
    const std::string name(where.name);
    // O_NONBLOCK: opening a pipe that somebody put there must not wait for its other end.
    const int r = uninterrupted(
        [&] { return tree_.fs.open_at(directory.get(), name.c_str(), O_RDONLY | O_NONBLOCK | flags, 0); });
    handle file(tree_.fs, r);
    error = r < 0 ? r : 0;
    file_status s;
    if (error == 0) error = tree_.fs.status(r, s);
    if (error == 0 && s.kind != file_kind::regular) error = -ENOENT;
    return error < 0 ? handle{} : std::move(file);
  }

  /// The file of a key, which stays open while this is held.
  [[nodiscard]] std::shared_ptr<source> source_of(std::string_view key) {
    const std::lock_guard lock(mutex_);
    auto found = sources_.find(std::string(key));
    if (found == sources_.end()) {
      if (sources_.size() >= max_open()) static_cast<void>(close_one_unused());
      found = sources_.try_emplace(std::string(key), detail::make_shared<source>()).first;
    }
    found->second->used = ++uses_;
    return found->second;
  }
  /// Files that lie open at most, but for those that are being read: each takes up to two descriptors, of the few
  /// hundred that a process has.
  [[nodiscard]] static std::size_t max_open() noexcept {
    static const std::size_t most = [] {
      rlimit limit{};
      if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::size_t{16};
      return static_cast<std::size_t>(std::clamp<rlim_t>(limit.rlim_cur / 16, 4, 256));
    }();
    return most;
  }
  bool close_one_unused() {
    auto oldest = sources_.end();
    for (auto i = sources_.begin(); i != sources_.end(); ++i)
      if (i->second.use_count() == 1 && (oldest == sources_.end() || i->second->used < oldest->second->used))
        oldest = i;
    if (oldest == sources_.end()) return false;
    sources_.erase(oldest);
    return true;
  }
  void close_unused() {
    const std::lock_guard lock(mutex_);
    while (close_one_unused()) {
    }
  }
  void forget(std::string_view key) {
    const std::lock_guard lock(mutex_);
    sources_.erase(std::string(key));
  }

  void read_once(std::span<const read_range> ranges) {
    vector<task> tasks;
    const auto step = tree_.options.read_bytes;
    for (const auto& range : ranges) tree_.check_key(range.key);
    for (const auto& range : ranges) {
      std::uint64_t end = 0;
      if (__builtin_add_overflow(range.offset, std::uint64_t{range.destination.size()}, &end) ||
          end > static_cast<std::uint64_t>(INT64_MAX))
        fail_truncated(range.key, range.offset, range.destination.size(), 0);
      auto from = range.offset;
      do {  // also for an empty range: the object must be there
        // Ends at multiples of the step; what is little longer than one step stays one request.
        const auto to = end - from <= step + step / 4 ? end : (from / step + 1) * step;
        tasks.push_back({range.key, from, range.destination.data() + (from - range.offset),
                         static_cast<std::size_t>(to - from), end});
        from = to;
      } while (from < end);
    }
    counts_.helper_cpu += tree_.pool.run(tasks.size(), tree_.options.reads_in_flight,
                                         [&](std::size_t i) { read_task(tasks[i]); });
  }

  void read_task(const task& range) {
    const auto from = source_of(range.key);
    int opening = 0;
    const auto open = [&](int flags, int& error) {
      auto file = open_object(range.key, error, flags);
      if ((flags & O_DIRECT) == 0) opening = error;
      return file;
    };
    const auto t =
        from->file.read(tree_.fs, tree_.bounces, counts_, tree_.io_alignment, tree_.options.direct_io,
                        from_cache_, open, range.to, range.bytes, range.offset);
    if (t.error != 0 && t.error == -opening) fail_reading(t.error, "open", range.key, -1);
    const auto at = static_cast<std::int64_t>(range.offset + t.done);
    if (t.error != 0) fail_reading(t.error, "pread", range.key, at);
    if (t.done < range.bytes) fail_truncated(range.key, range.offset, range.range_end - range.offset, t.done);
  }

  [[noreturn]] void fail_reading(int code, std::string_view call, std::string_view key, std::int64_t offset) {
    try {
      fail_io(code, call, tree_.path_of(key), offset);
    } catch (const storage_error& e) {
      if (code != ESTALE) throw;
      forget(key);
      throw stale(e.id(), e.message(), e.fields());
    }
  }

  [[noreturn]] void fail_truncated(std::string_view key, std::uint64_t offset, std::uint64_t wanted,
                                   std::uint64_t got) const {
    fail(error_id::corrupt_truncated,
         "the file ends before the requested bytes: it was truncated or replaced",
         {.file = tree_.path_of(key),
          .offset = static_cast<std::int64_t>(offset),
          .expected = std::to_string(wanted) + " bytes",
          .got = std::to_string(got) + " bytes"});
  }

  std::shared_ptr<file_tree<F>> held_;
  file_tree<F>& tree_;
  const bool from_cache_;
  read_counts counts_;
  std::mutex mutex_;
  sorted_map<std::string, std::shared_ptr<source>> sources_;
  std::uint64_t uses_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
