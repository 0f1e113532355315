// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/roles.hpp>
#include <cairn/stores/file/file_object_writer.hpp>
#include <cairn/stores/file/file_proof.hpp>
#include <cairn/stores/file/file_reader.hpp>
#include <cairn/system/wire.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Objects as files below one directory; a ByteStore. The directory is made when the first object is created,
/// in one that is there.
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
  using shared_writer = detail::shared_file_writer<F>;

  /// `root`: a directory that exists or can be made, see file_store_options::root; relative to the working
  /// directory of now.
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
    const auto number = [&](auto n) { out.put(static_cast<std::uint64_t>(n)); };
    number(o.write_bytes), number(o.writes_in_flight), number(o.read_bytes), number(o.reads_in_flight);
    mode(o.file_mode), mode(o.directory_mode);
    out.put(static_cast<std::uint8_t>(o.root)).put(static_cast<std::uint8_t>(o.single_writer));
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
    o.root = in.get_enum(root_directory::make_parents);
    o.single_writer = in.get<std::uint8_t>() != 0;
    in.finish();
    return basic_file_store(std::move(root), o);
  }

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint) {
    tree_->check_key(key);
    if (occupied(key)) fail_exists(key);
    return object_writer(tree_, key, size_hint);
  }

  /// See SharedStore. Who began the file holds its lock; it is removed with that writer. Writers of other
  /// hosts do not find it: bytes of one block come from several writers, which only one host puts together
  /// rightly.
  [[nodiscard]] shared_writer share(std::string_view key, std::uint64_t tag) {
    tree_->check_key(key);
    if (occupied(key)) fail_exists(key);
    return {tree_, detail::part_file<F>(tree_, key, tag ^ detail::host_number()), true};
  }
  [[nodiscard]] std::optional<shared_writer> join(std::string_view key, std::uint64_t tag) {
    tree_->check_key(key);
    detail::part_file<F> part(typename detail::part_file<F>::joined{}, tree_, key,
                              tag ^ detail::host_number());
    if (!part.valid()) return {};
    return shared_writer(tree_, std::move(part), false);
  }

  [[nodiscard]] std::size_t part_alignment() const noexcept { return tree_->part_alignment; }
  /// Shorter parts are right too, but do not use the device well.
  [[nodiscard]] std::size_t min_part() const noexcept { return std::size_t{1} << 20; }

  void read(std::span<const read_range> ranges) { detail::file_reader<F>(*tree_).read(ranges); }

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
    return detail::file_reader<F>(*tree_).read_all(key, cap);
  }

  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) {
    tree_->check_key(key);
    const auto s = status(key);
    if (!s || s->kind != file_kind::regular) return {};
    return s->bytes;
  }

  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix) {
    std::vector<listed_object> found;
    visit(prefix, [&](auto& directory, const std::string& key, const std::string& name) {
      if (detail::is_part_name(name) || !valid_key(key)) return;
      file_status s;
      const int r = tree_->fs.status_at(directory.get(), name.c_str(), s);
      if (r == 0 && s.kind == file_kind::regular) found.push_back({key, s.bytes});
      if (r != 0 && r != -ENOENT) detail::fail_io(-r, "stat", tree_->path_of(key));
    });
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    return found;
  }

  /// See ListsKeys.
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix, std::size_t parts) {
    std::vector<std::string> found;
    visit(
        prefix,
        [&](auto&, const std::string& key, std::string_view name) {
          if (!detail::is_part_name(name) && valid_key(key)) found.push_back(key);
        },
        parts);
    std::sort(found.begin(), found.end());
    return found;
  }

  /// Also removes the directories above it that are empty then, except the root.
  void remove(std::string_view key) {
    tree_->check_key(key);
    unlink(key);
  }

  /// See ConditionalRemove. The file is held open while it is compared and removed, so that one which another
  /// puts under its name has another inode; between the last look at that and the removal nothing is waited
  /// for.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes) {
    file_status opened;
    const auto file = status_opened(key, opened);
    if (!file) {
      if (occupied(key)) detail::fail_io(EIO, "open of a file that is to be removed", tree_->path_of(key));
      remove(key);  // so that what removed it before has come to its fsync
      return true;
    }
    if (opened.bytes != bytes.size()) return false;
    const auto there = read_all(key, bytes.size());
    if (there && !std::equal(there->begin(), there->end(), bytes.begin(), bytes.end())) return false;
    if (const auto now = status(key); now && now->identity != opened.identity) return false;
    unlink(key);
    return true;
  }

  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix) {
    std::vector<std::string> found;
    visit(prefix, [&](auto& directory, const std::string& key, std::string_view name) {
      if (!detail::is_part_name(name)) return;
      const auto file = lockable(directory, std::string(name));
      if (file) found.push_back(key);
    });
    std::sort(found.begin(), found.end());
    return found;
  }

  /// The keys of unfinished objects whose writers live: those that leftovers() leaves out. Beside ByteStore,
  /// like writer_lives().
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix) {
    std::vector<std::string> found;
    visit(prefix, [&](auto& directory, const std::string& key, std::string_view name) {
      if (detail::is_part_name(name) && locked(directory, std::string(name))) found.push_back(key);
    });
    std::sort(found.begin(), found.end());
    return found;
  }
  /// Whether the object writer that finished an object still exists: it keeps its file locked. False where
  /// the file system has no locks, or none that reach the writer's host.
  [[nodiscard]] bool writer_lives(std::string_view key) {
    tree_->check_key(key);
    const auto where = detail::split(key);
    int error = 0;
    const auto directory = tree_->open_directory(where.directory, error);
    return error == 0 && locked(directory, std::string(where.name));
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

  /// See DirectoryStore.
  void make_directory(std::string_view directory) {
    tree_->check_key(directory);
    (void)tree_->make_directory(directory);
  }
  [[nodiscard]] bool adopt_directory(std::string_view directory) {
    tree_->check_key(directory);
    return tree_->adopt_directory(directory);
  }
  void make_name_durable(std::string_view key) {
    tree_->check_key(key);
    const auto where = detail::split(key).directory;
    int error = 0;
    const auto directory = tree_->open_directory(where, error);
    if (error == 0) return tree_->sync_directory(directory, tree_->path_of(where));
    if (error != -ENOENT && error != -ENOTDIR)
      detail::fail_io(-error, "open of the directory", tree_->path_of(where));
  }

  /// See DurabilityHints. The note is the sticky bit of the file, which means nothing else for a file on Linux:
  /// who may read and write it stays as it was. Where a file system does not keep it, no note is seen.
  void note_durable(std::string_view key) noexcept {
    try {
      file_status s;
      if (const auto file = status_opened(key, s))
        static_cast<void>(tree_->fs.change_mode(file.get(), s.mode | settled_bit));
    } catch (...) {  // nobody relies on a note
    }
  }
  [[nodiscard]] bool is_noted_durable(std::string_view key) {
    file_status s;
    return status_opened(key, s) && (s.mode & settled_bit) != 0;
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

  /// See SelfTestingStore: whether names are given once, locks are seen, fsync works, and what file system it
  /// is. The directory is made where the options let it be.
  [[nodiscard]] store_proof prove() { return detail::file_proof<F>(*tree_).run(); }

  /// With the kind of file system, once prove() has seen it: "directory /data/checkpoints (ext4)". No call of
  /// the system.
  [[nodiscard]] std::string describe() const {
    const auto kind = tree_->kind();
    return "directory " + tree_->root + (kind.empty() ? "" : " (" + kind + ")");
  }

  [[nodiscard]] const std::string& root() const noexcept { return tree_->root; }
  [[nodiscard]] const file_store_options& options() const noexcept { return tree_->options; }

 private:
  using handle = detail::file_handle<F>;
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

  static constexpr unsigned settled_bit = 01000;
  /// The open file with its status, or nothing. By opening it, since clients of NFS then ask for its status
  /// anew.
  [[nodiscard]] handle status_opened(std::string_view key, file_status& s) {
    tree_->check_key(key);
    const auto where = detail::split(key);
    int error = 0;
    const auto directory = tree_->open_directory(where.directory, error);
    if (error < 0) return {};
    const int r = detail::uninterrupted([&] {
      return tree_->fs.open_at(directory.get(), std::string(where.name).c_str(), O_RDONLY | O_NONBLOCK, 0);
    });
    handle file(tree_->fs, r);
    if (!file || tree_->fs.status(r, s) != 0 || s.kind != file_kind::regular) return {};
    return file;
  }

  /// Calls visit(directory, key, name) for each regular file whose key begins with `prefix`, in directories
  /// whose files have at most so many parts. Asks for no status where listings tell what is a file.
  template <class Visit>
  void visit(std::string_view prefix, Visit visit_file, std::size_t parts = detail::any_parts) {
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
      if (error == -ENOTDIR && here.empty()) tree_->fail_for_file(tree_->root);
      if (error == -ENOENT || error == -ENOTDIR || error == -ELOOP) continue;
      if (error < 0) detail::fail_io(-error, "open of the directory", tree_->path_of(here));
      std::vector<directory_entry> entries;
      if (const int r = tree_->fs.list(directory.get(), entries); r != 0)
        detail::fail_io(-r, "reading of the directory", tree_->path_of(here));
      const auto depth =
          here.empty() ? 1 : 2 + static_cast<std::size_t>(std::count(here.begin(), here.end(), '/'));
      for (const auto& [name, told] : entries) {
        const auto key = here.empty() ? name : here + '/' + name;
        const std::string_view begins(key);
        if (!begins.starts_with(prefix) && !prefix.starts_with(key + '/')) continue;
        auto kind = told;
        if (!kind) {
          file_status s;
          const int r = tree_->fs.status_at(directory.get(), name.c_str(), s);
          if (r == -ENOENT) continue;
          if (r != 0) detail::fail_io(-r, "stat", tree_->path_of(key));
          kind = s.kind;
        }
        if (kind == file_kind::directory && depth < parts && valid_key(key)) waiting.push_back(key);
        if (kind == file_kind::regular && begins.starts_with(prefix)) visit_file(directory, key, name);
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
  [[nodiscard]] bool locked(const handle& directory, const std::string& name) {
    const int r = detail::uninterrupted(
        [&] { return tree_->fs.open_at(directory.get(), name.c_str(), O_RDWR | O_NONBLOCK, 0); });
    const handle file(tree_->fs, r);
    return r >= 0 && tree_->fs.try_lock(r) == -EAGAIN;
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

static_assert(DurabilityHints<file_store> && SharedStore<file_store> && SelfTestingStore<file_store> &&
              ConditionalRemove<file_store>);

}  // namespace v1
}  // namespace cairn
