// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/file_tree.hpp>

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Looks files of a basic_file_store up by their keys, lists, locks and removes them.
template <FileSystem F>
class file_names {
 public:
  using handle = file_handle<F>;
  explicit file_names(file_tree<F>& tree) : tree_(tree) {}

  [[noreturn]] void fail_exists(std::string_view key) const {
    fail(error_id::storage_exists, "an object of this key exists already; it was not touched",
         {.file = tree_.path_of(key)});
  }

  [[nodiscard]] std::optional<file_status> status(std::string_view key) {
    const auto where = split(key);
    file_status s;
    const int error = opened_anew([&] {
      int r = 0;
      const auto directory = tree_.open_directory(where.directory, r);
      return r < 0 ? r : tree_.fs.status_at(directory.get(), std::string(where.name).c_str(), s);
    });
    if (error == -ENOENT || error == -ENOTDIR) return {};
    if (error < 0) fail_io(-error, "stat", tree_.path_of(key));
    return s;
  }
  /// The same of an entry of an open directory.
  [[nodiscard]] std::optional<file_status> status_in(const handle& directory, const std::string& name,
                                                     const std::string& key) {
    file_status s;
    const int r = tree_.fs.status_at(directory.get(), name.c_str(), s);
    if (r == 0) return s;
    if (r == -ESTALE) return status(key);
    if (r != -ENOENT) fail_io(-r, "stat", tree_.path_of(key));
    return {};
  }
  [[nodiscard]] bool occupied(std::string_view key) { return status(key).has_value(); }

  static constexpr unsigned durable_bit = 01000;
  /// The open file with its status, or nothing; `error`: the negative errno, or 0 where no regular file stands there.
  /// By opening it, since clients of NFS then ask for its status anew.
  [[nodiscard]] handle status_opened(std::string_view key, file_status& s, int& error) {
    tree_.check_key(key);
    const auto where = split(key);
    handle file;
    error = opened_anew([&] {
      int r = 0;
      const auto directory = tree_.open_directory(where.directory, r);
      if (r < 0) return r;
      r = uninterrupted([&] {
        return tree_.fs.open_at(directory.get(), std::string(where.name).c_str(), O_RDONLY | O_NONBLOCK, 0);
      });
      file = handle(tree_.fs, r);
      return r < 0 ? r : tree_.fs.status(r, s);
    });
    if (error == 0 && s.kind == file_kind::regular) return file;
    if (error == -ENOENT || error == -ENOTDIR || error == -ELOOP || error == -ENXIO) error = 0;
    return {};
  }
  /// The same where an error is as good as no file.
  [[nodiscard]] handle status_opened(std::string_view key, file_status& s) {
    int ignored = 0;
    return status_opened(key, s, ignored);
  }

  /// Calls visit(directory, key, name) for each regular file whose key begins with `prefix`, in directories
  /// whose files have at most so many parts. Asks for no status where listings tell what is a file.
  template <class Visit>
  void visit(std::string_view prefix, Visit visit_file, std::size_t parts = any_parts) {
    const auto start = split(prefix).directory;
    if (prefix.size() > 1024 || (!start.empty() && !valid_key(start)))
      fail(error_id::storage_bad_key, "a prefix is the beginning of a key",
           {.file = std::string(prefix.substr(0, 600))});
    std::vector<std::string> waiting{std::string(start)};
    while (!waiting.empty()) {
      const auto here = std::move(waiting.back());
      waiting.pop_back();
      int error = 0;
      handle directory;
      std::vector<directory_entry> entries;
      const int listed = opened_anew([&] {
        entries.clear();
        directory = tree_.open_directory(here, error);
        return error < 0 ? error : tree_.fs.list(directory.get(), entries);
      });
      if (error == -ENOTDIR && here.empty()) tree_.fail_for_file(tree_.root);
      if (error == -ENOENT || error == -ENOTDIR || error == -ELOOP) continue;
      if (error < 0) fail_io(-error, "open of the directory", tree_.path_of(here));
      if (listed != 0) fail_io(-listed, "reading of the directory", tree_.path_of(here));
      const auto depth =
          here.empty() ? 1 : 2 + static_cast<std::size_t>(std::count(here.begin(), here.end(), '/'));
      for (const auto& [name, listed_kind] : entries) {
        const auto key = here.empty() ? name : here + '/' + name;
        const std::string_view begins(key);
        if (!begins.starts_with(prefix) && !prefix.starts_with(key + '/')) continue;
        auto kind = listed_kind;
        if (!kind) {
          const auto s = status_in(directory, name, key);
          if (!s) continue;
          kind = s->kind;
        }
        if (kind == file_kind::directory && depth < parts && valid_key(key)) waiting.push_back(key);
        if (kind == file_kind::regular && begins.starts_with(prefix)) visit_file(directory, key, name);
      }
    }
  }

  /// What asking for the lock of a file told of its writer.
  enum class writer : std::uint8_t { dead, lives, no_file };
  struct asked {
    writer of;
    handle file = {};  ///< of a dead writer, locked where the file system has locks
  };
  /// A file that this user may not write is opened for reading and gets a shared lock, which keeps its maker
  /// from taking it as well. Of one that he may not read either the writer counts as living: nobody can tell.
  /// @throws storage_error where it is not known for another reason
  [[nodiscard]] asked ask(const handle& directory, const std::string& name, std::string_view key) {
    const auto open = [&](int flags) {
      return uninterrupted(
          [&] { return tree_.fs.open_at(directory.get(), name.c_str(), flags | O_NONBLOCK, 0); });
    };
    const auto forbidden = [](int error) { return error == -EACCES || error == -EPERM; };
    int r = open(O_RDWR);
    if (forbidden(r) || r == -EROFS) r = open(O_RDONLY);
    if (forbidden(r)) return {writer::lives};
    if (r == -ENOENT || r == -ESTALE || r == -ELOOP || r == -ENXIO || r == -EISDIR) return {writer::no_file};
    if (r < 0) fail_io(-r, "open, to see whether its writer lives,", tree_.path_of(key));
    handle file(tree_.fs, r);
    const int locked = tree_.try_lock(r);
    if (locked == -EAGAIN) return {writer::lives};
    if (locked == -ESTALE) return {writer::no_file};
    if (locked != 0 && !tree_.says_no_locks(locked))
      fail_io(-locked, "asking for the lock, to see whether its writer lives,", tree_.path_of(key));
    return {writer::dead, std::move(file)};
  }

  /// The keys of unfinished files whose writers are so, sorted. @throws as ask()
  [[nodiscard]] std::vector<std::string> unfinished(std::string_view prefix, writer of) {
    std::vector<std::string> found;
    visit(prefix, [&](auto& directory, const std::string& key, std::string_view name) {
      if (is_part_name(name) && ask(directory, std::string(name), key).of == of) found.push_back(key);
    });
    detail::sort(found);
    return found;
  }

  /// `held`: the open file, if it is, which is closed once it has lost its name: on NFS its directory is not
  /// empty before.
  void unlink(std::string_view key, handle held = {}) {
    auto where = split(key);
    int error = 0;
    handle directory;
    const int r = opened_anew([&] {
      directory = tree_.open_directory(where.directory, error);
      return error < 0 ? error : uninterrupted([&] {
        return tree_.fs.unlink_at(directory.get(), std::string(where.name).c_str());
      });
    });
    // Gone with its directory: what removed that may not have come to its fsync yet.
    while ((error == -ENOENT || error == -ENOTDIR) && !where.directory.empty()) {
      where = split(where.directory);
      directory = tree_.open_directory(where.directory, error);
      if (error == 0) return tree_.sync_directory(directory, tree_.path_of(where.directory));
    }
    if (error == -ENOENT) return;
    if (error < 0) fail_io(-error, "open of the directory", tree_.path_of(where.directory));
    if (r != 0 && r != -ENOENT) fail_io(-r, "unlink", tree_.path_of(key));
    static_cast<void>(held.close());
    tree_.sync_directory(directory, tree_.path_of(where.directory));
    prune(where.directory);
  }

  /// Removes empty directories from here upwards. Not needed for correctness: stops silently.
  void prune(std::string_view path) {
    while (!path.empty()) {
      const auto where = split(path);
      int error = 0;
      const auto above = tree_.open_directory(where.directory, error);
      if (error < 0 || tree_.fs.remove_directory_at(above.get(), std::string(where.name).c_str()) != 0)
        return;
      tree_.sync_directory(above, tree_.path_of(where.directory));
      path = where.directory;
    }
  }

 private:
  file_tree<F>& tree_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
