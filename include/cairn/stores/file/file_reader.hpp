// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/file/file_source.hpp>
#include <cairn/stores/file/file_tree.hpp>

#include <fcntl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How a file_store reads its objects. Any thread; made for one call.
template <FileSystem F>
class file_reader {
 public:
  explicit file_reader(file_tree<F>& tree) noexcept : tree_(tree) {}

  void read(std::span<const read_range> ranges) {
    for (int attempt = 1;; ++attempt) {
      try {
        return read_once(ranges);
      } catch (const stale&) {
        if (attempt == 3) throw;  // a server forgot the file: opened anew it is found, or it is gone
      }
    }
  }

  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    tree_.check_key(key);
    int error = 0;
    const auto file = open_object(key, error);
    if (error == -ENOENT || error == -ENOTDIR) return {};
    if (error < 0) fail_io(-error, "open", tree_.path_of(key));
    file_status s;
    if (const int r = tree_.fs.status(file.get(), s); r != 0) fail_io(-r, "stat", tree_.path_of(key));
    if (s.bytes > cap)
      fail(error_id::corrupt_size_mismatch, "the object is longer than it can be",
           {.file = tree_.path_of(key),
            .expected = "at most " + std::to_string(cap) + " bytes",
            .got = std::to_string(s.bytes) + " bytes"});
    std::vector<std::byte> bytes(static_cast<std::size_t>(s.bytes));
    const auto t = read_fully(tree_.fs, file.get(), bytes.data(), bytes.size(), 0);
    if (t.error != 0) fail_io(t.error, "pread", tree_.path_of(key), static_cast<std::int64_t>(t.done));
    if (t.done < bytes.size()) fail_truncated(key, 0, bytes.size(), t.done);
    return bytes;
  }

 private:
  using handle = file_handle<F>;
  struct stale : storage_error {
    using storage_error::storage_error;
  };
  struct source {
    std::string_view key;
    std::atomic<std::size_t> tasks{0};  // that are not done yet
    file_source<F> file;
  };
  struct task {
    std::size_t source;
    std::uint64_t offset;
    std::byte* to;
    std::size_t bytes;
    std::uint64_t range_end;
  };

  /// Opens a regular file for reading; negative errno in `error`, -ENOENT also for what is no regular file.
  [[nodiscard]] handle open_object(std::string_view key, int& error, int flags = 0) {
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

  void read_once(std::span<const read_range> ranges) {
    std::map<std::string_view, std::size_t> index;
    for (const auto& range : ranges) {
      tree_.check_key(range.key);
      index.try_emplace(range.key, index.size());
    }
    std::vector<source> sources(index.size());
    for (const auto& [key, i] : index) sources[i].key = key;
    std::vector<task> tasks;
    const auto step = tree_.options.read_bytes;
    for (const auto& range : ranges) {
      std::uint64_t end = 0;
      if (__builtin_add_overflow(range.offset, std::uint64_t{range.destination.size()}, &end) ||
          end > static_cast<std::uint64_t>(INT64_MAX))
        fail_truncated(range.key, range.offset, range.destination.size(), 0);
      const auto i = index.find(range.key)->second;
      auto from = range.offset;
      do {  // also for an empty range: the object must be there
        // Ends at multiples of the step; what is little longer than one step stays one request.
        const auto to = end - from <= step + step / 4 ? end : (from / step + 1) * step;
        tasks.push_back({i, from, range.destination.data() + (from - range.offset),
                         static_cast<std::size_t>(to - from), end});
        ++sources[i].tasks;
        from = to;
      } while (from < end);
    }
    tree_.pool.run(tasks.size(), tree_.options.reads_in_flight, [&](std::size_t i) {
      auto& from = sources[tasks[i].source];
      read_piece(from, tasks[i]);
      if (--from.tasks == 0) from.file.close();
    });
  }

  void read_piece(source& from, const task& piece) {
    int opening = 0;
    const auto open = [&](int flags, int& error) {
      auto file = open_object(from.key, error, flags);
      if ((flags & O_DIRECT) == 0) opening = error;
      return file;
    };
    const auto t = from.file.read(tree_.fs, tree_.bounces, tree_.io_alignment, tree_.options.direct_io, open,
                                  piece.to, piece.bytes, piece.offset);
    if (opening < 0) fail_reading(-opening, "open", from.key, -1);
    const auto at = static_cast<std::int64_t>(piece.offset + t.done);
    if (t.error != 0) fail_reading(t.error, "pread", from.key, at);
    if (t.done < piece.bytes) fail_truncated(from.key, piece.offset, piece.range_end - piece.offset, t.done);
  }

  [[noreturn]] void fail_reading(int code, std::string_view call, std::string_view key,
                                 std::int64_t offset) const {
    try {
      fail_io(code, call, tree_.path_of(key), offset);
    } catch (const storage_error& e) {
      if (code == ESTALE) throw stale(e.id(), e.message(), e.fields());
      throw;
    }
  }

  [[noreturn]] void fail_truncated(std::string_view key, std::uint64_t offset, std::uint64_t wanted,
                                   std::uint64_t got) const {
    fail(error_id::corrupt_truncated,
         "the file ends before the bytes that are wanted: it was cut, or is another one",
         {.file = tree_.path_of(key),
          .offset = static_cast<std::int64_t>(offset),
          .expected = std::to_string(wanted) + " bytes",
          .got = std::to_string(got) + " bytes"});
  }

  file_tree<F>& tree_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
