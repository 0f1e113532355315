// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/roles.hpp>
#include <cairn/model/wire.hpp>
#include <cairn/stores/detail/file_object_writer.hpp>
#include <cairn/stores/detail/file_source.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Objects as files below one directory; a ByteStore. The directory is made when the first object is created.
///
/// - What finish(), put_new() and publish_new() acknowledge survives a power loss: data fsynced once, close
/// checked,
///   renamed without replacing (or linked), directory fsynced, and the entries of all directories above it
///   too.
/// - An unfinished object is `<key>.<16 hexadecimal digits>.part`, locked as long as its writer lives (also a
/// forked
///   child that still holds the descriptor counts as alive). Where the file system has no locks, leftovers()
///   lists those of live writers too.
/// - After an error of the last fsync, that of the directory, the object is whole and stands under its key,
/// but a power
///   loss may still take it away: the call throws.
/// - Large requests go past the page cache (O_DIRECT); where the file system refuses, the page cache is used.
/// No file is
///   ever mapped. No symbolic link below the root is followed.
/// - A file that would grow beyond `ulimit -f` is storage_limit: SIGXFSZ is blocked on the thread during the
/// calls.
/// - Copies share root, options and threads. The threads (at most the larger of the two in_flight options
/// less one)
///   begin when first needed and end with the last copy or object writer. Not to be used in the child of a
///   fork.
/// - All functions may be called by several threads at once. No wait here has a deadline of its own: a call
/// ends when
///   the system call does.
template <FileSystem F = posix_file_system>
class basic_file_store {
 public:
  using cairn_role = role::store;
  using object_writer = detail::file_object_writer<F>;

  /// `root`: a directory that exists or can be made; relative to the working directory of now.
  /// @throws usage_bad_option
  explicit basic_file_store(std::string root, file_store_options options = {}, F file_system = {})
      : tree_(std::make_shared<detail::file_tree<F>>(checked(std::move(root), options), options,
                                                     std::move(file_system), block())) {}

  /// See Portable: root and options. Where the file system is the system's own.
  [[nodiscard]] std::vector<std::byte> description() const
    requires std::is_empty_v<F>
  {
    const auto& o = tree_->options;
    wire_writer out;
    const auto mode = [&](std::optional<unsigned> m) { out.put(m ? static_cast<std::int32_t>(*m) : -1); };
    out.put(tree_->root).put(static_cast<std::uint8_t>(o.direct_io));
    for (const auto n : {o.write_bytes, o.writes_in_flight, o.read_bytes, o.reads_in_flight})
      out.put(static_cast<std::uint64_t>(n));
    mode(o.file_mode), mode(o.directory_mode);
    return out.take();
  }
  [[nodiscard]] static basic_file_store from_description(std::span<const std::byte> bytes)
    requires std::is_empty_v<F>
  {
    wire_reader in(bytes);
    const auto mode = [&]() -> std::optional<unsigned> {
      const auto m = in.get<std::int32_t>();
      return m < 0 ? std::nullopt : std::optional<unsigned>(static_cast<unsigned>(m));
    };
    auto root = in.get_string();
    file_store_options o;
    o.direct_io = in.get<std::uint8_t>() != 0;
    o.write_bytes = in.get<std::uint64_t>(), o.writes_in_flight = in.get<std::uint64_t>();
    o.read_bytes = in.get<std::uint64_t>(), o.reads_in_flight = in.get<std::uint64_t>();
    o.file_mode = mode(), o.directory_mode = mode();
    in.finish();
    return basic_file_store(std::move(root), o);
  }

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint) {
    tree_->check_key(key);
    if (occupied(key)) fail_exists(key);
    return object_writer(tree_, key, size_hint);
  }

  [[nodiscard]] std::size_t part_alignment() const noexcept { return tree_->part_alignment; }
  /// Shorter parts are right too, but do not use the device well.
  [[nodiscard]] std::size_t min_part() const noexcept { return std::size_t{1} << 20; }

  void read(std::span<const read_range> ranges) {
    for (int attempt = 1;; ++attempt) {
      try {
        return read_once(ranges);
      } catch (const stale&) {
        if (attempt == 3) throw;  // a server forgot the file: opened anew it is found, or it is gone
      }
    }
  }

  void put_new(std::string_view key, std::span<const std::byte> bytes) {
    if (!publish_new(key, bytes)) fail_exists(key);
  }

  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    tree_->check_key(key);
    const detail::file_size_signal_blocked guard;
    detail::part_file<F> part(tree_, key);
    const auto t = detail::write_fully(tree_->fs, part.file(), bytes.data(), bytes.size(), 0);
    if (t.error != 0)
      tree_->fail_at(t.error, "pwrite", part.path(), part.directory(), static_cast<std::int64_t>(t.done),
                     bytes.size() - t.done);
    return part.publish([] { return 0; });
  }

  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    tree_->check_key(key);
    int error = 0;
    const auto file = open_object(key, error);
    if (error == -ENOENT || error == -ENOTDIR) return {};
    if (error < 0) detail::fail_io(-error, "open", tree_->path_of(key));
    file_status s;
    if (const int r = tree_->fs.status(file.get(), s); r != 0)
      detail::fail_io(-r, "stat", tree_->path_of(key));
    if (s.bytes > cap)
      fail(error_id::corrupt_size_mismatch, "the object is longer than it can be",
           {.file = tree_->path_of(key),
            .expected = "at most " + std::to_string(cap) + " bytes",
            .got = std::to_string(s.bytes) + " bytes"});
    std::vector<std::byte> bytes(static_cast<std::size_t>(s.bytes));
    const auto t = detail::read_fully(tree_->fs, file.get(), bytes.data(), bytes.size(), 0);
    if (t.error != 0)
      detail::fail_io(t.error, "pread", tree_->path_of(key), static_cast<std::int64_t>(t.done));
    if (t.done < bytes.size()) fail_truncated(key, 0, bytes.size(), t.done);
    return bytes;
  }

  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) {
    tree_->check_key(key);
    const auto s = status(key);
    if (!s || s->kind != file_kind::regular) return {};
    return s->bytes;
  }

  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix) {
    std::vector<listed_object> found;
    visit(prefix, [&](auto&, const std::string& key, std::string_view name, const file_status& s) {
      if (!detail::is_part_name(name) && valid_key(key)) found.push_back({key, s.bytes});
    });
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    return found;
  }

  /// Also removes the directories above it that are empty then, except the root.
  void remove(std::string_view key) {
    tree_->check_key(key);
    unlink(key);
  }

  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix) {
    std::vector<std::string> found;
    visit(prefix, [&](auto& directory, const std::string& key, std::string_view name, const file_status&) {
      if (!detail::is_part_name(name)) return;
      const auto file = lockable(directory, std::string(name));
      if (file) found.push_back(key);
    });
    std::sort(found.begin(), found.end());
    return found;
  }

  /// Removes what leftovers() listed. @throws storage_bad_key for other keys; storage_exists if its writer
  /// lives.
  void discard(std::string_view key) {
    const auto where = detail::split(key);
    if (!detail::is_part_name(where.name) ||
        !valid_key(key.substr(0, key.size() - detail::part_suffix_bytes)))
      fail(error_id::storage_bad_key,
           "only unfinished objects are discarded, under the keys that leftovers() gives",
           {.file = std::string(key.substr(0, 600))});
    int error = 0;
    const auto directory = tree_->open_directory(where.directory, error);
    if (error == -ENOENT || error == -ENOTDIR) return;
    if (error < 0) detail::fail_io(-error, "open of the directory", tree_->path_of(where.directory));
    file_status s;
    if (tree_->fs.status_at(directory.get(), std::string(where.name).c_str(), s) == -ENOENT)
      return unlink(key);
    const auto file =
        lockable(directory, std::string(where.name));  // kept, so that nobody else takes it for his
    if (!file)
      fail(error_id::storage_exists,
           "the unfinished object belongs to a writer that lives: it was not discarded",
           {.file = tree_->path_of(key)});
    unlink(key);
  }

  [[nodiscard]] std::optional<space_left> free_space() {
    auto path = tree_->root;
    for (;;) {  // of the nearest directory above while the root is not made yet
      const int r = detail::uninterrupted([&] { return tree_->fs.open_directory(path.c_str()); });
      if (r >= 0) return tree_->free_space(detail::file_handle<F>(tree_->fs, r));
      const auto slash = path.find_last_of('/');
      if (r != -ENOENT || slash == std::string::npos || path == "/") return {};
      path.resize(slash == 0 ? 1 : slash);
    }
  }

  [[nodiscard]] std::string describe() const { return "directory " + tree_->root; }

  [[nodiscard]] const std::string& root() const noexcept { return tree_->root; }
  [[nodiscard]] const file_store_options& options() const noexcept { return tree_->options; }

 private:
  using handle = detail::file_handle<F>;
  struct stale : storage_error {
    using storage_error::storage_error;
  };
  struct source {
    std::string_view key;
    std::atomic<std::size_t> tasks{0};  // that are not done yet
    detail::file_source<F> file;
  };
  struct task {
    std::size_t source;
    std::uint64_t offset;
    std::byte* to;
    std::size_t bytes;
    std::uint64_t range_end;
  };

  static std::size_t block() noexcept {
    const long page = ::sysconf(_SC_PAGESIZE);
    return page > 4096 ? static_cast<std::size_t>(page) : 4096;
  }
  static std::string checked(std::string root, const file_store_options& o) {
    const auto bad = [](const char* what) {
      fail(error_id::usage_bad_option, std::string("file_store: ") + what);
    };
    if (root.empty() || root.find('\0') != std::string::npos) bad("the directory needs a name");
    if (o.write_bytes == 0 || o.write_bytes % block() != 0 || o.write_bytes > (std::size_t{1} << 30))
      bad("write_bytes must be a multiple of the page size, at most 1 GiB");
    if (o.read_bytes == 0 || o.read_bytes % block() != 0 || o.read_bytes > (std::size_t{1} << 30))
      bad("read_bytes must be a multiple of the page size, at most 1 GiB");
    if (o.writes_in_flight == 0 || o.writes_in_flight > 64 || o.reads_in_flight == 0 ||
        o.reads_in_flight > 64)
      bad("writes_in_flight and reads_in_flight must be 1 to 64");
    if (o.file_mode && ((*o.file_mode & 0600u) != 0600u || (*o.file_mode & ~0777u) != 0))
      bad("file_mode is permission bits as 0640: the owner must read and write, and no bit above 0777 is "
          "set");
    if (o.directory_mode && ((*o.directory_mode & 0700u) != 0700u || (*o.directory_mode & ~03777u) != 0))
      bad("directory_mode is permission bits as 0750 or 02770: the owner needs 0700, and set-user-id is no "
          "bit of directories");
    return root;
  }

  [[noreturn]] void fail_exists(std::string_view key) const {
    fail(error_id::storage_exists, "an object of this key exists already; it was not touched",
         {.file = tree_->path_of(key)});
  }
  [[noreturn]] void fail_truncated(std::string_view key, std::uint64_t offset, std::uint64_t wanted,
                                   std::uint64_t got) const {
    fail(error_id::corrupt_truncated,
         "the file ends before the bytes that are wanted: it was cut, or is another one",
         {.file = tree_->path_of(key),
          .offset = static_cast<std::int64_t>(offset),
          .expected = std::to_string(wanted) + " bytes",
          .got = std::to_string(got) + " bytes"});
  }

  [[nodiscard]] std::optional<file_status> status(std::string_view key) {
    const auto where = detail::split(key);
    int error = 0;
    const auto directory = tree_->open_directory(where.directory, error);
    file_status s;
    if (error == 0) error = tree_->fs.status_at(directory.get(), std::string(where.name).c_str(), s);
    if (error == -ENOENT || error == -ENOTDIR) return {};
    if (error < 0) detail::fail_io(-error, "stat", tree_->path_of(key));
    return s;
  }
  [[nodiscard]] bool occupied(std::string_view key) { return status(key).has_value(); }

  /// Opens a regular file for reading; negative errno in `error`, -ENOENT also for what is no regular file.
  [[nodiscard]] handle open_object(std::string_view key, int& error, int flags = 0) {
    const auto where = detail::split(key);
    const auto directory = tree_->open_directory(where.directory, error);
    if (error < 0) return {};
    const std::string name(where.name);
    // O_NONBLOCK: opening a pipe that somebody put there must not wait for its other end.
    const int r = detail::uninterrupted(
        [&] { return tree_->fs.open_at(directory.get(), name.c_str(), O_RDONLY | O_NONBLOCK | flags, 0); });
    handle file(tree_->fs, r);
    error = r < 0 ? r : 0;
    file_status s;
    if (error == 0) error = tree_->fs.status(r, s);
    if (error == 0 && s.kind != file_kind::regular) error = -ENOENT;
    return error < 0 ? handle{} : std::move(file);
  }

  void read_once(std::span<const read_range> ranges) {
    std::map<std::string_view, std::size_t> index;
    for (const auto& range : ranges) {
      tree_->check_key(range.key);
      index.try_emplace(range.key, index.size());
    }
    std::vector<source> sources(index.size());
    for (const auto& [key, i] : index) sources[i].key = key;
    std::vector<task> tasks;
    const auto step = tree_->options.read_bytes;
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
    tree_->pool.run(tasks.size(), tree_->options.reads_in_flight, [&](std::size_t i) {
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
    const auto t = from.file.read(tree_->fs, tree_->bounces, tree_->part_alignment, tree_->options.direct_io,
                                  open, piece.to, piece.bytes, piece.offset);
    if (opening < 0) fail_reading(-opening, "open", from.key, -1);
    const auto at = static_cast<std::int64_t>(piece.offset + t.done);
    if (t.error != 0) fail_reading(t.error, "pread", from.key, at);
    if (t.done < piece.bytes) fail_truncated(from.key, piece.offset, piece.range_end - piece.offset, t.done);
  }

  [[noreturn]] void fail_reading(int code, std::string_view call, std::string_view key,
                                 std::int64_t offset) const {
    try {
      detail::fail_io(code, call, tree_->path_of(key), offset);
    } catch (const storage_error& e) {
      if (code == ESTALE) throw stale(e.id(), e.message(), e.fields());
      throw;
    }
  }

  /// Calls visit(directory, key, name, status) for each regular file whose key begins with `prefix`.
  template <class Visit>
  void visit(std::string_view prefix, Visit visit_file) {
    const auto start = detail::split(prefix).directory;
    if (prefix.size() > 1024 || (!start.empty() && !valid_key(start)))
      fail(error_id::storage_bad_key, "a prefix is the beginning of a key",
           {.file = std::string(prefix.substr(0, 600))});
    std::vector<std::string> waiting{std::string(start)};
    while (!waiting.empty()) {
      const auto here = std::move(waiting.back());
      waiting.pop_back();
      int error = 0;
      const auto directory = tree_->open_directory(here, error);
      if (error == -ENOENT || error == -ENOTDIR || error == -ELOOP) continue;
      if (error < 0) detail::fail_io(-error, "open of the directory", tree_->path_of(here));
      std::vector<std::string> names;
      if (const int r = tree_->fs.list(directory.get(), names); r != 0)
        detail::fail_io(-r, "reading of the directory", tree_->path_of(here));
      for (const auto& name : names) {
        const auto key = here.empty() ? name : here + '/' + name;
        const std::string_view begins(key);
        if (!begins.starts_with(prefix) && !prefix.starts_with(key + '/')) continue;
        file_status s;
        const int r = tree_->fs.status_at(directory.get(), name.c_str(), s);
        if (r == -ENOENT) continue;
        if (r != 0) detail::fail_io(-r, "stat", tree_->path_of(key));
        if (s.kind == file_kind::directory && valid_key(key)) waiting.push_back(key);
        if (s.kind == file_kind::regular && begins.starts_with(prefix)) visit_file(directory, key, name, s);
      }
    }
  }

  /// An unfinished file, locked; nothing if its writer lives or it cannot be opened.
  [[nodiscard]] handle lockable(const handle& directory, const std::string& name) {
    const int r = detail::uninterrupted(
        [&] { return tree_->fs.open_at(directory.get(), name.c_str(), O_RDWR | O_NONBLOCK, 0); });
    handle file(tree_->fs, r);
    if (!file || tree_->fs.try_lock(r) == -EAGAIN) return {};
    return file;
  }

  void unlink(std::string_view key) {
    auto where = detail::split(key);
    int error = 0;
    auto directory = tree_->open_directory(where.directory, error);
    // Gone with its directory: what removed that may not have come to its fsync yet.
    while ((error == -ENOENT || error == -ENOTDIR) && !where.directory.empty()) {
      where = detail::split(where.directory);
      directory = tree_->open_directory(where.directory, error);
      if (error == 0) return tree_->sync_directory(directory, tree_->path_of(where.directory));
    }
    if (error == -ENOENT) return;
    if (error < 0) detail::fail_io(-error, "open of the directory", tree_->path_of(where.directory));
    auto r = detail::uninterrupted(
        [&] { return tree_->fs.unlink_at(directory.get(), std::string(where.name).c_str()); });
    if (r != 0 && r != -ENOENT) detail::fail_io(-r, "unlink", tree_->path_of(key));
    tree_->sync_directory(directory, tree_->path_of(where.directory));
    prune(where.directory);
  }

  /// Removes empty directories from here upwards. Not needed for correctness: stops silently.
  void prune(std::string_view path) {
    while (!path.empty()) {
      const auto where = detail::split(path);
      int error = 0;
      const auto above = tree_->open_directory(where.directory, error);
      if (error < 0 || tree_->fs.remove_directory_at(above.get(), std::string(where.name).c_str()) != 0)
        return;
      tree_->sync_directory(above, tree_->path_of(where.directory));
      path = where.directory;
    }
  }

  std::shared_ptr<detail::file_tree<F>> tree_;
};

/// Objects as files below a directory: `file_store{"checkpoints"}`.
using file_store = basic_file_store<>;

static_assert(ByteStore<file_store>);

}  // namespace v1
}  // namespace cairn
