// SPDX-License-Identifier: Apache-2.0
#pragma once
// A complete store over files below a directory, by POSIX calls and std::filesystem. It has the seven functions
// that ByteStore asks for and keeps every promise of theirs, and nothing else: cairn::file_store is the one that
// is quick.
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_errors.hpp>
#include <cairn/system/error.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

class plain_store {
 public:
  explicit plain_store(std::string directory) : root_(std::move(directory)) {
    std::filesystem::create_directories(root_);
  }

  // --- Writing: under a name that no key can have, until finish() links it to its key

  class object_writer {
   public:
    void write(std::span<const cairn::write_range> parts) {
      const auto file = take();
      for (const auto& part : parts) {
        for (std::size_t done = 0; done < part.bytes.size();) {
          const auto n = ::pwrite(file->fd, part.bytes.data() + done, part.bytes.size() - done,
                                  static_cast<off_t>(part.offset + done));
          if (n < 0 && errno != EINTR) fail_io("pwrite", key_);
          if (n > 0) done += static_cast<std::size_t>(n);
        }
        written_ += part.bytes.size();
        size_ = std::max(size_, part.offset + part.bytes.size());
      }
      file_ = file;  // after an error the object stays broken
    }
    void finish() {
      const auto file = take();
      if (written_ != size_)
        cairn::fail(cairn::error_id::usage_incomplete_object, "bytes are missing", {.file = key_});
      if (::fsync(file->fd) != 0) fail_io("fsync", key_);
      // Of several writers of one key, link() lets exactly one succeed.
      if (::link(file->path.c_str(), (root_ + "/" + key_).c_str()) != 0) fail_io("link", key_);
      sync_parents(root_, key_);
    }

   private:
    friend plain_store;
    struct unfinished {
      std::string path;
      int fd;
      unfinished(const unfinished&) = delete;
      unfinished& operator=(const unfinished&) = delete;
      unfinished(std::string p, int f) : path(std::move(p)), fd(f) {}
      ~unfinished() {
        ::close(fd);
        ::unlink(path.c_str());
      }
    };
    object_writer(std::string root, std::string_view key, std::shared_ptr<unfinished> file)
        : root_(std::move(root)), key_(key), file_(std::move(file)) {}
    std::shared_ptr<unfinished> take() {
      if (!file_)
        cairn::fail(cairn::error_id::usage_closed, "this object has ended; begin another one",
                    {.file = key_});
      return std::exchange(file_, nullptr);
    }
    std::string root_, key_;
    std::shared_ptr<unfinished> file_;
    std::uint64_t written_ = 0, size_ = 0;
  };

  object_writer create(std::string_view key, std::uint64_t) {
    static std::atomic<unsigned> count{0};
    if (size(key)) cairn::fail_object_exists(key);
    std::filesystem::create_directories(std::filesystem::path(path_of(key)).parent_path());
    auto path = root_ + "/~" + std::to_string(::getpid()) + "." + std::to_string(count++);
    const int fd = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0) fail_io("open", key);
    return {root_, key, std::make_shared<object_writer::unfinished>(std::move(path), fd)};
  }

  /// True for exactly one of all that publish under this key.
  bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    try {
      auto writer = create(key, bytes.size());
      const cairn::write_range whole{0, bytes};
      writer.write({&whole, 1});
      writer.finish();
      return true;
    } catch (const cairn::storage_error& e) {
      if (e.id() == cairn::error_id::storage_exists) return false;
      throw;
    }
  }

  // --- Reading

  void read(std::span<const cairn::read_range> ranges) {
    for (const auto& range : ranges) {
      const auto there = size(range.key);
      const auto wanted = range.destination.size();
      if (!there) cairn::fail_no_object(range.key);
      cairn::check_range(range, *there);
      const int fd = ::open(path_of(range.key).c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) fail_io("open", range.key);
      std::size_t done = 0;
      int code = 0;
      while (done < wanted && code == 0) {
        const auto n = ::pread(fd, range.destination.data() + done, wanted - done,
                               static_cast<off_t>(range.offset + done));
        if (n > 0) done += static_cast<std::size_t>(n);
        if (n == 0 || (n < 0 && errno != EINTR)) code = n == 0 ? EIO : errno;
      }
      ::close(fd);
      if (code != 0) fail_io("pread", range.key, code);
    }
  }
  std::optional<std::uint64_t> size(std::string_view key) {
    struct stat found {};
    if (::stat(path_of(key).c_str(), &found) == 0)
      return S_ISREG(found.st_mode) ? std::optional(static_cast<std::uint64_t>(found.st_size)) : std::nullopt;
    if (errno != ENOENT && errno != ENOTDIR) fail_io("stat", key);
    return std::nullopt;
  }
  std::vector<cairn::listed_object> list(std::string_view prefix) {
    std::vector<cairn::listed_object> found;
    std::error_code gone;  // others may remove files meanwhile
    for (std::filesystem::recursive_directory_iterator at(root_, gone), end; !gone && at != end;
         at.increment(gone)) {
      auto key = at->path().lexically_relative(root_).string();
      if (!key.starts_with(prefix) || key.starts_with('~') || !at->is_regular_file(gone)) continue;
      if (const auto bytes = size(key)) found.push_back({std::move(key), *bytes});
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    return found;
  }

  void remove(std::string_view key) {
    if (::unlink(path_of(key).c_str()) != 0) {
      if (errno != ENOENT && errno != ENOTDIR) fail_io("unlink", key);
      return;
    }
    sync_parents(root_, key);
  }
  [[nodiscard]] std::string describe() const { return "plain files in " + root_; }

 private:
  [[nodiscard]] std::string path_of(std::string_view key) const {
    cairn::check_key(key);
    return root_ + "/" + std::string(key);
  }
  /// The name of the key is durable: its directory, and those above it, which it may have made.
  static void sync_parents(const std::string& root, std::string_view key) {
    for (auto slash = key.rfind('/');; slash = key.substr(0, slash).rfind('/')) {
      const auto directory = slash == key.npos ? root : root + "/" + std::string(key.substr(0, slash));
      const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      const bool durable = fd >= 0 && ::fsync(fd) == 0;
      const int code = errno;
      if (fd >= 0) ::close(fd);
      if (!durable) fail_io("fsync of the directory", key, code);
      if (slash == key.npos) return;
    }
  }
  [[noreturn]] static void fail_io(const char* call, std::string_view key, int code = errno) {
    if (code == EEXIST) cairn::fail_object_exists(key);
    const auto id = code == ENOENT   ? cairn::error_id::storage_not_found
                    : code == ENOSPC ? cairn::error_id::storage_no_space
                    : code == EACCES ? cairn::error_id::storage_permission
                                     : cairn::error_id::storage_io;
    cairn::fail(id, std::string(call) + ": " + std::strerror(code), {.file = std::string(key)});
  }

  std::string root_;
};
