// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/file_io.hpp>
#include <cairn/stores/file/io_error.hpp>
#include <cairn/stores/file/options.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/thread_pool.hpp>
#include <cairn/system/vector.hpp>

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {

/// The directory that a key stands in ("" for the root) and its name there.
struct split_key {
  std::string_view directory;
  std::string_view name;
};
[[nodiscard]] inline split_key split(std::string_view key) noexcept {
  const auto slash = key.rfind('/');
  if (slash == std::string_view::npos) return {{}, key};
  return {key.substr(0, slash), key.substr(slash + 1)};
}

inline constexpr std::size_t part_suffix_bytes = 22;  // ".", 16 hexadecimal digits, ".part"

/// True for names that file_store gives to unfinished files: `<name>.<16 hexadecimal digits>.part`.
[[nodiscard]] constexpr bool is_part_name(std::string_view name) noexcept {
  if (name.size() <= part_suffix_bytes || !name.ends_with(".part")) return false;
  const auto suffix = name.substr(name.size() - part_suffix_bytes);
  if (suffix[0] != '.') return false;
  for (std::size_t i = 1; i <= 16; ++i)
    if (!((suffix[i] >= '0' && suffix[i] <= '9') || (suffix[i] >= 'a' && suffix[i] <= 'f'))) return false;
  return true;
}

[[nodiscard]] inline std::string part_name(std::string_view name, std::uint64_t unique) {
  std::string out(name);
  out += '.';
  for (int shift = 60; shift >= 0; shift -= 4) out += "0123456789abcdef"[(unique >> shift) & 15];
  return out += ".part";
}

/// A number for what the kernel, or else its administrators, call this host; a random one where nobody calls
/// it anything, so that it is never taken for another host.
[[nodiscard]] inline std::uint64_t host_number_of(std::string_view boot, std::string_view machine,
                                                  std::string_view node) noexcept {
  std::uint64_t n = 0xcbf29ce484222325U;
  const auto add = [&](std::string_view text) {
    for (const char c : text) n = (n ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  };
  if (!boot.empty())
    add(boot);
  else if (!machine.empty() || !node.empty())
    add(machine), add("/"), add(node);
  else if (::getrandom(&n, sizeof n, 0) != static_cast<::ssize_t>(sizeof n))
    n ^= static_cast<std::uint64_t>(::getpid());
  return n;
}
/// The same in all processes of this host since it was started, most probably another one elsewhere.
[[nodiscard]] inline std::uint64_t host_number() {
  static const std::uint64_t number = [] {
    char node[256] = "";
    if (::gethostname(node, sizeof node - 1) != 0) node[0] = '\0';
    return host_number_of(kernel_file("/proc/sys/kernel/random/boot_id").value_or(""),
                          kernel_file("/etc/machine-id").value_or(""), node);
  }();
  return number;
}

/// Splits a relative path at its slashes and calls visit(part) until it returns false.
template <class Visit>
void for_each_part(std::string_view path, Visit visit) {
  while (!path.empty()) {
    const auto slash = path.find('/');
    if (!visit(std::string(path.substr(0, slash)))) return;
    path = slash == std::string_view::npos ? std::string_view{} : path.substr(slash + 1);
  }
}

/// What the objects of one file_store share: the root, the options, the threads. Finds and makes directories.
template <FileSystem F>
struct file_tree {
  file_tree(std::string root_path, file_store_options o, F file_system, std::size_t alignment)
      : fs(std::move(file_system)),
        root(fs.absolute(root_path)),
        options(o),
        io_alignment(alignment),
        bounces(std::min<std::size_t>(o.write_bytes, std::max<std::size_t>(alignment, 1u << 20)), alignment) {
    while (root.size() > 1 && root.back() == '/') root.pop_back();
  }

  F fs;
  std::string root;
  file_store_options options;
  std::size_t io_alignment;
  thread_pool pool;
  bounce_buffers bounces;

  [[nodiscard]] std::string path_of(std::string_view key) const {
    std::string path = root;
    if (key.empty()) return path;
    if (path.back() != '/') path += '/';
    return path.append(key);
  }

  void check_key(std::string_view key) const {
    if (!valid_key(key) || is_part_name(split(key).name))
      fail(error_id::storage_bad_key,
           "a key is a relative path of [A-Za-z0-9._-] and '/', without empty, '.' or '..' parts, of at most "
           "512 "
           "bytes, and no name of an unfinished file",
           {.file = std::string(key.substr(0, 600))});
  }

  /// Opens an existing directory below the root; negative errno in `error`.
  [[nodiscard]] file_handle<F> open_directory(std::string_view directory, int& error) {
    file_handle<F> here;
    error = opened_anew([&] {
      int r = uninterrupted([&] { return fs.open_directory(root.c_str()); });
      here = file_handle<F>(fs, r);
      for_each_part(directory, [&](const std::string& part) {
        if (r < 0) return false;
        r = uninterrupted([&] { return fs.open_directory_at(here.get(), part.c_str()); });
        if (r >= 0) here = file_handle<F>(fs, r);
        return r >= 0;
      });
      return r;
    });
    if (error < 0) return {};
    error = 0;
    return here;
  }

  /// Opens a directory below the root, making it and its parents where missing. Its entry and those of its
  /// parents are durable on return, also if another process made them: it may not have come to its own fsync
  /// yet.
  [[nodiscard]] file_handle<F> make_directory(std::string_view directory) {
    for (int attempt = 0; attempt < 16; ++attempt) {
      auto here = make_root();
      std::string path = root;
      bool vanished = false;
      for_each_part(directory, [&](const std::string& part) {
        path += '/' + part;
        int r = open_or_make(here, part, path);
        if (r == -ENOENT) {
          vanished = true;
          return false;
        }
        file_handle<F> child(fs, r);
        make_entry_durable(here, child, path);
        here = std::move(child);
        return true;
      });
      if (!vanished) return here;
    }
    fail(error_id::storage_io,
         "the directory cannot be made: it is gone each time; is this a view of the kernel that keeps no "
         "files, or does another program remove it?",
         {.file = path_of(directory)});
  }

  /// True if a directory is there, whose entry from now on is taken to be made durable by others. So are
  /// those of the directories above it: make_directory() makes each of them durable before what is in it.
  [[nodiscard]] bool adopt_directory(std::string_view directory) {
    vector<file_identity> seen;
    int error = uninterrupted([&] { return fs.open_directory(root.c_str()); });
    file_handle<F> here(fs, error);
    const auto see = [&] {
      file_status s;
      if (fs.status(here.get(), s) == 0 && s.identity.born >= 0) seen.push_back(s.identity);
    };
    if (error >= 0) see();
    for_each_part(directory, [&](const std::string& part) {
      if (error < 0) return false;
      error = uninterrupted([&] { return fs.open_directory_at(here.get(), part.c_str()); });
      here = file_handle<F>(fs, error);
      if (error >= 0) see();
      return error >= 0;
    });
    if (error == -ENOENT || error == -ENOTDIR) return false;
    if (error < 0) fail_io(-error, "open of the directory", path_of(directory));
    for (const auto& s : seen) note_durable(s);
    return true;
  }

  /// try_lock() of an open file. The first lock that is given or refused shows that the file system has locks.
  [[nodiscard]] int try_lock(int file) {
    const int r = uninterrupted([&] { return fs.try_lock(file); });
    if (r == 0 || r == -EAGAIN) has_locks_.store(true, std::memory_order_relaxed);
    return r;
  }
  /// Whether this answer of try_lock() says that the file system has no locks. Where one was given or refused
  /// before, it is an error of the moment.
  [[nodiscard]] bool says_no_locks(int answer) const noexcept {
    const bool says = answer == -ENOLCK || answer == -ENOSYS || answer == -EOPNOTSUPP || answer == -EINVAL;
    return says && !has_locks_.load(std::memory_order_relaxed);
  }

  /// fsync of a directory; file systems that cannot do that and say so need none.
  void sync_directory(const file_handle<F>& directory, std::string_view path) {
    const int r = fs.sync_directory(directory.get());
    if (r != 0 && r != -EINVAL && r != -EBADF) fail_io(-r, "fsync of the directory", path);
  }

  [[nodiscard]] std::optional<space_left> free_space(const file_handle<F>& at) {
    space_left left;
    if (fs.free_space(at.get(), left) != 0) return {};
    return left;
  }

  /// Something that is no directory stands at `path`, the root or above it.
  [[noreturn]] static void fail_for_file(std::string_view path) {
    fail(error_id::storage_not_found,
         "a file stands where the store's directory should be: " + std::system_category().message(ENOTDIR) +
             "; give the path of a directory",
         {.file = std::string(path)});
  }

  /// What self_test() found there; nothing before.
  [[nodiscard]] std::string kind() const {
    const std::lock_guard lock(mutex_);
    return kind_;
  }
  void set_kind(std::string name) {
    const std::lock_guard lock(mutex_);
    kind_ = std::move(name);
  }

  /// The typed error; with the free space where that matters.
  [[noreturn]] void fail_at(int code, std::string_view call, std::string_view path, const file_handle<F>& at,
                            std::int64_t offset = -1, std::optional<std::uint64_t> needed = {}) {
    std::optional<space_left> left;
    std::vector<quota_use> quotas;
    if ((code == ENOSPC || code == EDQUOT) && at) left = free_space(at);
    if (code == EDQUOT && at) fs.quotas(at.get(), quotas);
    fail_io(code, call, path, offset, left ? needed : std::nullopt, left, quotas);
  }

  /// `code`: of fchmod, or 0 where it worked and the bits are others all the same.
  [[noreturn]] static void fail_for_mode(int code, unsigned mode, std::string_view path) {
    char bits[16];
    std::snprintf(bits, sizeof bits, "%04o", mode);
    fail(error_id::storage_permission,
         "the file system does not take these permission bits" +
             (code == 0 ? std::string() : ": " + std::system_category().message(code)) +
             "; leave file_mode and directory_mode out, or use a file system that keeps permissions",
         {.file = std::string(path), .expected = bits});
  }

 private:
  /// A handle, or -ENOENT if it, or what it is to be in, vanished meanwhile.
  int open_or_make(const file_handle<F>& parent, const std::string& name, const std::string& path) {
    int r = uninterrupted([&] { return fs.open_directory_at(parent.get(), name.c_str()); });
    if (r == -ENOENT) {
      r = uninterrupted([&] {
        return fs.make_directory_at(parent.get(), name.c_str(), options.directory_mode.value_or(0777));
      });
      if (r == -ENOENT || r == -ESTALE) return -ENOENT;
      if (r != 0 && r != -EEXIST) fail_at(-r, "mkdir", path, parent);
      const bool made = r == 0;
      r = uninterrupted([&] { return fs.open_directory_at(parent.get(), name.c_str()); });
      if (made && r >= 0 && options.directory_mode) set_directory_mode(r, path);
    }
    if (r == -ESTALE) return -ENOENT;
    if (r < 0 && r != -ENOENT) fail_at(-r, "open of the directory", path, parent);
    return r;
  }

  void set_directory_mode(int handle, const std::string& path) {
    file_status s;
    int r = fs.status(handle, s);
    const unsigned mode = *options.directory_mode | (s.mode & 02000u);
    if (r == 0) r = fs.change_mode(handle, mode);
    if (r == 0) r = fs.status(handle, s);
    // The system takes the set-group-id bit away from who is not in the directory's group.
    if (r == 0 && (s.mode & ~02000u) == (mode & ~02000u)) return;
    static_cast<void>(fs.close(handle));
    fail_for_mode(-r, mode, path);
  }

  file_handle<F> make_root() { return make_path(root, 0); }

  file_handle<F> make_path(const std::string& path, int depth) {
    int r = opened_anew([&] { return uninterrupted([&] { return fs.open_directory(path.c_str()); }); });
    if (r >= 0) {
      file_handle<F> here(fs, r);
      // Who made it may not have come to its fsync yet; a parent that this user cannot open was not made by
      // cairn.
      if (!is_noted_durable(here)) {
        r = uninterrupted([&] { return fs.open_directory_at(here.get(), ".."); });
        file_handle<F> parent(fs, r);
        if (parent) make_entry_durable(parent, here, path);
      }
      return here;
    }
    if (r == -ENOTDIR) fail_for_file(path);
    if (r != -ENOENT || depth > 256) fail_io(-r, "open of the directory", path);
    if (options.root != root_directory::make_parents &&
        (depth > 0 || options.root == root_directory::must_exist))
      fail(error_id::storage_not_found,
           depth == 0 ? "the store's directory is not there: is its disk mounted? It is not made here, see "
                        "file_store_options::root"
                      : "the directory above the store's is not there: is its disk mounted? Make it, or say "
                        "file_store_options{.root = cairn::root_directory::make_parents}",
           {.file = path});
    const auto slash = path.find_last_of('/');
    const auto name = slash == std::string::npos ? path : path.substr(slash + 1);
    auto above = slash == std::string::npos ? std::string(".") : path.substr(0, slash);
    while (above.size() > 1 && above.back() == '/') above.pop_back();
    if (above.empty()) above = "/";
    if (name.empty() || path == above) fail_io(ENOENT, "open of the directory", path);
    const auto parent = make_path(above, depth + 1);
    file_handle<F> here(fs, open_or_make(parent, name, path));
    if (!here) fail_io(ENOENT, "open of the directory", path);
    make_entry_durable(parent, here, path);
    return here;
  }

  /// Makes the entry of `child` in `parent` durable, once.
  void make_entry_durable(const file_handle<F>& parent, const file_handle<F>& child,
                          const std::string& path) {
    if (is_noted_durable(child)) return;
    sync_directory(parent, path + "/..");
    file_status s;
    if (fs.status(child.get(), s) == 0 && s.identity.born >= 0) note_durable(s.identity);
  }
  void note_durable(const file_identity& directory) {
    const std::lock_guard lock(mutex_);
    if (detail::contains(durable_, directory)) return;
    if (durable_.size() >= 1024) durable_.clear();
    durable_.push_back(directory);
  }
  bool is_noted_durable(const file_handle<F>& directory) {
    file_status s;
    if (fs.status(directory.get(), s) != 0) return false;
    const std::lock_guard lock(mutex_);
    return detail::contains(durable_, s.identity);
  }

  std::atomic<bool> has_locks_{false};
  mutable std::mutex mutex_;
  std::string kind_;
  vector<file_identity> durable_;  // directories whose entry is known to be durable
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
