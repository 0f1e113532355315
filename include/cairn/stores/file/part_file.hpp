// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/file_tree.hpp>
#include <cairn/system/fork_guard.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// An unfinished file in its directory: has a unique name and a lock, gets its final name by publish(), and
/// is removed again if it does not. The lock stays until this is destroyed.
template <FileSystem F>
class part_file {
 public:
  /// Makes the file that is to become `key`. `number`: in its name, by which others may find it; else any.
  /// @throws storage_exists if there is one of that number
  part_file(std::shared_ptr<file_tree<F>> owner, std::string_view key,
            std::optional<std::uint64_t> number = {})
      : tree_(std::move(owner)), key_(key) {
    auto& tree = *tree_;
    const auto where = split(key_);
    for (int attempt = 0; attempt < 64; ++attempt) {
      if (!directory_) directory_ = tree.make_directory(where.directory);
      name_ = part_name(where.name, number ? *number : tree.fs.unique_number());
      const int r = uninterrupted([&] {
        return tree.fs.open_at(directory_.get(), name_.c_str(), O_RDWR | O_CREAT | O_EXCL,
                               tree.options.file_mode.value_or(0666));
      });
      if (r == -EEXIST && number)
        fail(error_id::storage_exists, "another writer has begun this file", {.file = path()});
      if (r == -EEXIST) continue;
      if (r == -ENOENT ||
          r == -ESTALE) {  // the directory was empty, and somebody, or another host, removed it
        directory_ = {};
        continue;
      }
      if (r < 0) tree.fail_at(-r, "open", path(), directory_);
      file_ = file_handle<F>(tree.fs, r);
      linked_ = true;
      if (const auto mode = tree.options.file_mode)
        if (const int changed = tree.fs.change_mode(file_.get(), *mode); changed != 0) {
          const auto where_it_is = path();
          abandon();
          tree.fail_for_mode(-changed, *mode, where_it_is);
        }
      // Between open and lock a cleaner may have taken it for the file of a dead writer.
      const int locked = tree.try_lock(file_.get());
      if (locked != 0 && locked != -EAGAIN && locked != -ESTALE && !tree.says_no_locks(locked)) {
        const auto where_it_is = path();
        abandon();
        fail_io(-locked, "lock", where_it_is);
      }
      file_status s;
      if (locked != -EAGAIN && tree.fs.status(file_.get(), s) == 0 && s.links > 0) {
        identity_ = s.identity;
        if (const auto mode = tree.options.file_mode; mode && s.mode != *mode) {
          const auto where_it_is = path();
          abandon();
          tree.fail_for_mode(0, *mode, where_it_is);
        }
        const int copy = tree.fs.duplicate(file_.get());
        if (copy < 0) {
          const auto where_it_is = path();
          abandon();
          fail_io(-copy, "dup", where_it_is);
        }
        lock_ = file_handle<F>(tree.fs, copy);
        return;
      }
      abandon();
    }
    fail(error_id::storage_io, "no unfinished file could be made: others remove it again and again",
         {.file = tree.path_of(key_)});
  }
  /// Opens the file that somebody else has made, to write into it: not valid() if there is none. It is
  /// neither published nor removed by this.
  struct joined {};
  part_file(joined, std::shared_ptr<file_tree<F>> owner, std::string_view key, std::uint64_t number)
      : tree_(std::move(owner)), key_(key) {
    auto& tree = *tree_;
    const auto where = split(key_);
    int error = 0;
    directory_ = tree.open_directory(where.directory, error);
    if (error == -ENOENT || error == -ENOTDIR) return;
    if (error < 0) fail_io(-error, "open of the directory", tree.path_of(where.directory));
    name_ = part_name(where.name, number);
    const int r = uninterrupted(
        [&] { return tree.fs.open_at(directory_.get(), name_.c_str(), O_RDWR | O_NONBLOCK, 0); });
    if (r < 0 && r != -ENOENT) tree.fail_at(-r, "open", path(), directory_);
    file_ = file_handle<F>(tree.fs, r);
  }
  [[nodiscard]] bool valid() const noexcept { return static_cast<bool>(file_); }
  part_file(part_file&& other) noexcept
      : tree_(std::move(other.tree_)),
        key_(std::move(other.key_)),
        name_(std::move(other.name_)),
        directory_(std::move(other.directory_)),
        file_(std::move(other.file_)),
        lock_(std::move(other.lock_)),
        identity_(other.identity_),
        linked_(std::exchange(other.linked_, false)),
        published_(other.published_),
        process_(other.process_) {}
  part_file& operator=(part_file&& other) noexcept {
    if (this != &other) {
      abandon();
      key_ = std::move(other.key_);
      name_ = std::move(other.name_);
      directory_ = std::move(other.directory_);
      file_ = std::move(other.file_);
      lock_ = std::move(other.lock_);
      identity_ = other.identity_;
      linked_ = std::exchange(other.linked_, false);
      published_ = other.published_;
      process_ = other.process_;
      tree_ = std::move(other.tree_);  // last: what the handles call lives there
    }
    return *this;
  }
  ~part_file() { abandon(); }

  [[nodiscard]] int file() const noexcept { return file_.get(); }
  [[nodiscard]] const file_handle<F>& directory() const noexcept { return directory_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& key() const noexcept { return key_; }
  [[nodiscard]] std::string path() const {
    const auto where = split(key_);
    return tree_->path_of(where.directory.empty() ? name_ : std::string(where.directory) + '/' + name_);
  }

  /// Makes the bytes durable and gives the file its final name, durably: true; false if something stands
  /// there. `close_others` closes further handles of the file, after the fsync, and returns what close
  /// returned.
  template <class CloseOthers>
  [[nodiscard]] bool publish(CloseOthers close_others) {
    complete(close_others);
    return give_name();
  }
  /// The first half of publish(): makes the bytes durable. After an error the file never gets its final name.
  template <class CloseOthers>
  void complete(CloseOthers close_others) {
    if (const int r = tree_->fs.sync(file_.get()); r != 0) tree_->fail_at(-r, "fsync", path(), directory_);
    // `lock_` stays open: close() tells what it has to tell (network file systems report late), and the writer lives.
    for (const int r : {close_others(), file_.close()})
      if (r != 0 && r != -EINTR) tree_->fail_at(-r, "close", path(), directory_);
  }
  /// The second half. After an error the file may have its final name, or get it later: a server may carry out a rename
  /// of which it was not heard any more.
  [[nodiscard]] bool give_name() {
    const std::string final_name(split(key_).name);
    const auto final_path = tree_->path_of(key_);
    auto& fs = tree_->fs;
    std::string_view call = "rename";
    int r =
        uninterrupted([&] { return fs.rename_new_at(directory_.get(), name_.c_str(), final_name.c_str()); });
    bool by_link = false;
    if (r == -EINVAL || r == -ENOSYS || r == -EOPNOTSUPP) {
      call = "link";
      by_link = true;
      r = uninterrupted([&] { return fs.link_at(directory_.get(), name_.c_str(), final_name.c_str()); });
    }
    if (r != 0) {
      // A repeated request to a server may say "exists" or "not there" after the first one worked: then it is
      // our file that stands there.
      file_status there;
      const int s = fs.status_at(directory_.get(), final_name.c_str(), there);
      if (s == 0 && there.identity == identity_) {
        r = 0;
      } else if (r == -EEXIST) {
        tree_->sync_directory(directory_, final_path);  // who put it there may not have come to this yet
        return false;
      }
    }
    if (r != 0) tree_->fail_at(-r, call, final_path, directory_);
    // On NFS the other name stays until the lock is given up: a client keeps a file that is open when it loses
    // its name under a name of its own (.nfs...), which stays for ever where the client loses power.
    linked_ = by_link;
    published_ = true;
    tree_->sync_directory(directory_, final_path);
    return true;
  }

 private:
  void abandon() noexcept {
    if (published_) {
      static_cast<void>(file_.close());
      static_cast<void>(lock_.close());
    }
    if (linked_ && !process_.in_child())  // the file is the parent's
      static_cast<void>(tree_->fs.unlink_at(directory_.get(), name_.c_str()));
    linked_ = false;
    static_cast<void>(file_.close());
    static_cast<void>(lock_.close());
  }

  std::shared_ptr<file_tree<F>> tree_;
  std::string key_;
  std::string name_;
  file_handle<F> directory_;
  file_handle<F> file_;
  file_handle<F> lock_;  // the same open file; made with it, since descriptors may be used up later
  file_identity identity_;
  bool linked_ = false;     // its name is there, for abandon() to remove
  bool published_ = false;  // it has its final name
  detail::fork_guard process_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
