// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/store_errors.hpp>
#include <cairn/stores/file/file_names.hpp>
#include <cairn/stores/file/part_file.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What link() of basic_file_store does: a hard link; where the file system refuses it, a file that shares the blocks of
/// the other one (FICLONE); else a copy.
template <FileSystem F>
class file_link {
 public:
  file_link(std::shared_ptr<file_tree<F>> tree, std::string_view from, std::string_view to, deadline until)
      : tree_(std::move(tree)), from_(from), to_(to), until_(until) {}

  void run() {
    file_status source;
    int error = 0;
    const auto file = file_names<F>(*tree_).status_opened(from_, source, error);
    if (error < 0) fail_io(-error, "open of the file that is to be linked", tree_->path_of(from_));
    if (!file) fail_no_object(tree_->path_of(from_));
    if constexpr (LinkingFileSystem<F>)
      if (linked(source)) return;
    copy(file, source.bytes);
  }

 private:
  /// False where the file system gives this file no second name.
  [[nodiscard]] bool linked(const file_status& source) {
    const auto old_place = split(from_), place = split(to_);
    for (int attempt = 0; attempt < 16; ++attempt) {
      int r = 0;
      const auto old_directory = tree_->open_directory(old_place.directory, r);
      if (r == -ENOENT || r == -ENOTDIR) fail_no_object(tree_->path_of(from_));
      if (r < 0) fail_io(-r, "open of the directory", tree_->path_of(old_place.directory));
      const auto directory = tree_->make_directory(place.directory);
      r = uninterrupted([&] {
        return tree_->fs.link_across(old_directory.get(), std::string(old_place.name).c_str(),
                                     directory.get(), std::string(place.name).c_str());
      });
      if (r == -ESTALE) continue;
      if (r == -ENOENT) {
        if (!file_names<F>(*tree_).occupied(from_)) fail_no_object(tree_->path_of(from_));
        continue;  // somebody removed the empty directory
      }
      if (r == -EEXIST) {
        // A repeated request to a server may say so after the first one worked: then it is our name.
        file_status there;
        const int s = tree_->fs.status_at(directory.get(), std::string(place.name).c_str(), there);
        if (s != 0 || there.identity != source.identity) file_names<F>(*tree_).fail_exists(to_);
        r = 0;
      }
      if (r == -EPERM || r == -EXDEV || r == -EMLINK || r == -EOPNOTSUPP || r == -ENOSYS || r == -EINVAL ||
          r == -EACCES)
        return false;
      if (r != 0) tree_->fail_at(-r, "link", tree_->path_of(to_), directory);
      tree_->sync_directory(directory, tree_->path_of(to_));
      return true;
    }
    fail(error_id::storage_io,
         "the directory is removed again and again while a file is being linked into it",
         {.file = tree_->path_of(to_)});
  }

  void copy(const file_handle<F>& source, std::uint64_t bytes) {
    const file_size_signal_blocked guard;
    if (file_names<F>(*tree_).occupied(to_)) file_names<F>(*tree_).fail_exists(to_);
    part_file<F> part(tree_, to_);
    if (!cloned(source, part)) {
      const auto buffer = tree_->bounces.take();
      for (std::uint64_t at = 0; at < bytes;) {
        if (until_.passed())
          fail(error_id::timeout_write,
               "the file was not copied in time; its file system makes no links to it",
               {.file = tree_->path_of(to_), .offset = static_cast<std::int64_t>(at)});
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(tree_->bounces.size(), bytes - at));
        const auto read = read_fully(tree_->fs, source.get(), buffer.data(), n, at);
        if (read.error != 0 || read.done != n)
          fail_io(read.error != 0 ? read.error : EIO, "pread of the file that is to be linked",
                  tree_->path_of(from_), static_cast<std::int64_t>(at + read.done));
        const auto written = write_fully(tree_->fs, part.file(), buffer.data(), n, at);
        if (written.error != 0)
          tree_->fail_at(written.error, "pwrite", part.path(), part.directory(),
                         static_cast<std::int64_t>(at + written.done), bytes - at);
        at += n;
      }
    }
    if (!part.publish([] { return 0; })) file_names<F>(*tree_).fail_exists(to_);
  }

  [[nodiscard]] bool cloned([[maybe_unused]] const file_handle<F>& source,
                            [[maybe_unused]] const part_file<F>& part) {
    if constexpr (LinkingFileSystem<F>)
      return uninterrupted([&] { return tree_->fs.clone(source.get(), part.file()); }) == 0;
    else
      return false;
  }

  std::shared_ptr<file_tree<F>> tree_;
  std::string from_;
  std::string to_;
  deadline until_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
