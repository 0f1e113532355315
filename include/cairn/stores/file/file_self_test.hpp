// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/file_tree.hpp>
#include <cairn/system/algorithm.hpp>

#include <fcntl.h>

#include <cerrno>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the names of files that a self-test makes begin with; all of them look like unfinished objects.
inline constexpr std::string_view self_test_prefix = "cairn-probe";

/// Tries what file_store relies on in its directory: see SelfTestingStore. Empty files only, so that a disk
/// without a free block is no reason to refuse. One thread, once.
template <FileSystem F>
class file_self_test {
 public:
  explicit file_self_test(file_tree<F>& tree) : tree_(tree) {
    report_.single_writer = tree.options.single_writer;
  }
  ~file_self_test() {
    for (const auto& name : names_) static_cast<void>(tree_.fs.unlink_at(directory_.get(), name.c_str()));
  }
  file_self_test(const file_self_test&) = delete;
  file_self_test& operator=(const file_self_test&) = delete;

  [[nodiscard]] store_test_report run() {
    learn_kind();
    if (report_.has(verdict::unusable)) return std::move(report_);
    directory_ = tree_.make_directory("");
    learn_kind();
    // Where locks do not keep them from it, others may clean the files away meanwhile: what goes wrong once
    // is tried again.
    const auto of_kind = report_.points.size();
    for (int attempt = 1; attempt <= 3; ++attempt) {
      while (report_.points.size() > of_kind) report_.points.pop_back();
      try_all();
      auto right = of_kind;
      while (right < report_.points.size() && report_.points[right].outcome == verdict::right) ++right;
      if (right == report_.points.size()) break;
    }
    return std::move(report_);
  }

 private:
  using handle = file_handle<F>;
  using verdict = store_check::verdict;
  static std::string text_of(int r) {
    return r >= 0 ? std::string("done")
                  : std::system_category().message(-r) + " (errno " + std::to_string(-r) + ")";
  }
  void note(std::string what, verdict v, std::string seen, std::string follows = {}) {
    if (v == verdict::right) follows.clear();
    report_.points.push_back({std::move(what), v, std::move(seen), std::move(follows)});
  }
  /// A full disk is no fault of its kind, and resuming is what may free it.
  static bool is_full(int r) { return r == -ENOSPC || r == -EDQUOT; }

  void learn_kind() {
    if (!report_.kind.empty()) return;
    const int r = uninterrupted([&] { return tree_.fs.open_directory(tree_.root.c_str()); });
    const handle root(tree_.fs, r);
    file_system_kind kind;
    if (!root || tree_.fs.kind(r, kind) != 0 || kind.name.empty()) return;
    tree_.set_kind(kind.name);
    const auto known = support_of(kind.name);
    if (known == file_system_support::no_files)
      note("a file system for files", verdict::unusable, kind.name,
           "it is a view of the kernel and keeps no files: give the store another directory");
    else if (known == file_system_support::unknown)
      note("a kind of file system that is known", verdict::weaker, kind.name,
           "checkpoints were never tried on it: what stands here was tried, whether it keeps what it "
           "acknowledged was not");
    else
      note("a kind of file system that is known", verdict::right,
           kind.name + (known == file_system_support::tried ? "" : ", by its documents: it was not tried"));
    judge_mount(kind);
    report_.kind = std::move(kind.name);
    report_.from = std::move(kind.mounted);
  }

  /// What other hosts do is not seen from here, but what this mount was told is.
  void judge_mount(const file_system_kind& kind) {
    const auto first_of = [&](std::initializer_list<const char*> options) -> std::string {
      for (const auto* option : options)
        if (is_mounted_with(kind, option)) return option;
      return {};
    };
    const char* own_locks =
        "whether a writer on another host lives is not seen: a run that resumes ends its save at once "
        "instead "
        "of waiting for it; leave this option out";
    const auto forgets = first_of({"volatile", "fsync=volatile", "nobarrier", "barrier=0"});
    if (!forgets.empty())
      note("fsync reaches the device", verdict::weaker, "mounted with " + forgets,
           "a committed checkpoint may be lost or damaged where the host loses power: leave this option out");
    const bool by_options = kind.name == "nfs" || kind.name == "nfs4" || kind.name == "lustre";
    if (kind.options.empty() && by_options)
      note("the options of its mount are known", verdict::weaker, "they could not be read",
           "whether its locks reach other hosts and whether an open asks the server was not judged: look at "
           "them "
           "with findmnt");
    if (kind.options.empty()) return;
    if (kind.name == "lustre") {
      const bool shared = is_mounted_with(kind, "flock");
      note("locks reach other hosts", shared ? verdict::right : verdict::weaker,
           shared ? "mounted with flock" : "not mounted with flock",
           "whether a writer on another host lives is not seen: a run that resumes ends its save at once "
           "instead "
           "of waiting for it; mount with flock");
    }
    if (kind.name != "nfs" && kind.name != "nfs4") return;
    const auto local = first_of({"local_lock=all", "local_lock=posix", "nolock"});
    note("locks reach other hosts", local.empty() ? verdict::right : verdict::weaker,
         local.empty() ? "they are the server's" : "mounted with " + local, own_locks);
    const bool old = is_mounted_with(kind, "nocto");
    note("an open asks the server", old ? verdict::single_job : verdict::right,
         old ? "mounted with nocto" : "not mounted with nocto",
         "what other hosts made or removed is seen late, and two jobs could commit one step: leave nocto "
         "out, or "
         "say file_store_options{.single_writer = true} where one job alone writes");
    const auto soft = first_of({"soft", "softerr"});
    note(
        "requests wait for the server", soft.empty() ? verdict::right : verdict::weaker,
        soft.empty() ? "mounted with hard" : "mounted with " + soft,
        "a server that is away for longer than timeo and retrans say fails the save that is under way: mount "
        "with hard");
  }

  /// A file that did not exist, locked where that can be: what try_lock() said, or the error of making it.
  int make_file(handle& file, std::string& name) {
    for (int attempt = 0;; ++attempt) {
      name = part_name(self_test_prefix, tree_.fs.unique_number());
      const int r = uninterrupted([&] {
        return tree_.fs.open_at(directory_.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL,
                                tree_.options.file_mode.value_or(0666));
      });
      file = handle(tree_.fs, r);
      if (r < 0) return r;
      names_.push_back(name);
      const int locked = tree_.try_lock(r);
      // Between open and lock a cleaner may have taken it for the file of a dead writer.
      file_status s;
      if (attempt >= 64 || (locked != -EAGAIN && tree_.fs.status(r, s) == 0 && s.links > 0)) return locked;
    }
  }

  void try_all() {
    handle one;
    handle other;
    std::string from;
    std::string taken;
    const int locked = make_file(one, from);
    if (!one && is_full(locked))
      return note("a file can be made", verdict::weaker, text_of(locked), "nothing more could be tried");
    if (!one) tree_.fail_at(-locked, "open", tree_.path_of(from), directory_);
    try_exclusive_creation(from);
    try_lock(locked, from);
    try_sync(one);
    const int second = make_file(other, taken);
    if (!other && is_full(second)) return;
    if (!other) tree_.fail_at(-second, "open", tree_.path_of(taken), directory_);
    try_names(from, taken);
  }

  void try_exclusive_creation(const std::string& name) {
    const int r = uninterrupted(
        [&] { return tree_.fs.open_at(directory_.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0666); });
    const handle file(tree_.fs, r);
    note("a name is made once (O_EXCL)", r == -EEXIST ? verdict::right : verdict::single_job, text_of(r),
         "two writers can have the same unfinished file: use another file system");
  }

  void try_lock(int first, const std::string& name) {
    const char* follows =
        "whether a writer lives is not seen: a run that resumes ends saves of earlier runs at once instead "
        "of "
        "waiting for them, also those of a worker process that still writes; for NFS and Lustre see their "
        "mount options";
    if (first != 0) return note("a lock is given", verdict::weaker, text_of(first), follows);
    const int r = uninterrupted([&] { return tree_.fs.open_at(directory_.get(), name.c_str(), O_RDWR, 0); });
    const handle second(tree_.fs, r);
    const int again = second ? tree_.try_lock(r) : r;
    note("a lock is seen from a second open", again == -EAGAIN ? verdict::right : verdict::weaker,
         again == -EAGAIN ? "refused, as it must be" : text_of(again), follows);
  }

  void try_sync(handle& file) {
    const int r = tree_.fs.sync(file.get());
    if (!is_full(r))
      note("fsync of a file", r == 0 ? verdict::right : verdict::unusable, text_of(r),
           "every save would fail with it: look at the kernel log and the mount");
    const int d = tree_.fs.sync_directory(directory_.get());
    if (is_full(d)) return;
    const bool refused = d == -EINVAL || d == -EBADF;
    note("fsync of a directory",
         d == 0    ? verdict::right
         : refused ? verdict::weaker
                   : verdict::unusable,
         text_of(d),
         refused ? "it is taken to be needless: whether a committed checkpoint survives a power loss is the "
                   "file system's matter"
                 : "every save would fail with it: look at the kernel log and the mount");
  }

  /// How files get their names: `from` is renamed, or linked, to a name that is taken, and to one that is
  /// not.
  void try_names(const std::string& from, const std::string& taken) {
    auto& fs = tree_.fs;
    const auto fresh = part_name(self_test_prefix, fs.unique_number());
    names_.push_back(fresh);
    const auto cannot = [](int r) { return r == -EINVAL || r == -ENOSYS || r == -EOPNOTSUPP; };
    const auto rename = [&](const std::string& to) {
      return uninterrupted([&] { return fs.rename_new_at(directory_.get(), from.c_str(), to.c_str()); });
    };
    const auto link = [&](const std::string& to) {
      return uninterrupted([&] { return fs.link_at(directory_.get(), from.c_str(), to.c_str()); });
    };
    const char* replaces =
        "of two jobs that commit one step both would be told that they did, and the checkpoint of one is "
        "lost: use another file system, or say file_store_options{.single_writer = true} where one job alone "
        "writes";
    const char* fails = "every save would fail with it: use another file system";
    const int over = rename(taken);
    if (over == 0)
      return note("a rename replaces nothing", verdict::single_job, "a file that was there was replaced",
                  replaces);
    const int to_fresh = rename(fresh);
    const auto seen = "over a file: " + text_of(over) + "; else: " + text_of(to_fresh);
    if (to_fresh == 0 && over == -EEXIST) {
      note("a rename replaces nothing", verdict::right, seen);
    } else if (cannot(to_fresh) && (cannot(over) || over == -EEXIST)) {
      const int link_over = link(taken);
      const int link_fresh = link(fresh);
      const auto with_link = "renameat2 " + seen + "; link over a file: " + text_of(link_over) +
                             "; else: " + text_of(link_fresh);
      if (link_over == 0)
        note("a link replaces nothing", verdict::single_job, with_link, replaces);
      else if (link_fresh != 0 || link_over != -EEXIST)
        note("a name is given to one writer alone", verdict::unusable, with_link, fails);
      else
        note("a link replaces nothing", verdict::right, with_link + "; links are used");
    } else if (!is_full(to_fresh)) {
      note("a name is given to one writer alone", verdict::unusable, seen, fails);
    }
    std::vector<directory_entry> entries;
    const int listed = fs.list(directory_.get(), entries);
    const bool found = detail::any_of(entries, [&](const auto& e) { return e.name == fresh; });
    if (report_.points.back().outcome == verdict::right)
      note("a new name is listed", listed == 0 && found ? verdict::right : verdict::unusable,
           listed != 0 ? text_of(listed)
           : found     ? "it is"
                       : "it is not",
           "a run that resumes would not find its newest checkpoint: use another file system");
  }

  file_tree<F>& tree_;
  store_test_report report_;
  handle directory_;
  std::vector<std::string> names_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
