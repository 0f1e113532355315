// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file system in memory that records each operation and can say what may be left of it after a power loss.
//
// The rules are the weakest that a Linux file system may have:
//   - data: each write and truncation since the last fsync of the file is there or not, independently of the
//     others, and may be torn at 512 B; a directory's fsync says nothing about the data of the files in it;
//   - names: each name of a directory is as it was at the directory's last fsync or at any moment since,
//     independently of the others: a rename may have done only one half; a file's fsync says nothing about
// its
//     name;
//   - what was fsynced before stays.
//
//   recording_file_system fs;
//   cairn::basic_file_store<recording_file_system> store{"root", {}, fs};
//   store.put_new("a", bytes);
//   for (const auto& cut : fs.cuts(fs.operations(), 20, seed)) {
//     cairn::basic_file_store<recording_file_system> after{"root", {}, fs.after(cut)};
//     ... after.read_all("a", 100) must be bytes
//   }
//
// ignore_syncs(which) takes out fsyncs, for mutation tests: they return success and do nothing.
#include <cairn/stores/file/posix_file_system.hpp>

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn_test {

class recording_file_system {
 public:
  /// One fsync, as ignore_syncs() sees it and sync_calls() lists it.
  struct sync_call {
    std::size_t number = 0;  ///< counted from 0 over files and directories
    bool directory = false;
    std::string path;  ///< where the file or directory stands at that moment
    std::uint64_t inode = 0;
    bool ignored = false;
  };

  /// One legal state: what is kept of that which was not fsynced when the power went.
  struct cut {
    enum class rule : std::uint8_t { drop_all, keep_all, drop_one, keep_one, random };
    std::size_t at = 0;  ///< operations that were begun before the cut
    rule how = rule::drop_all;
    std::size_t unit = 0;  ///< which, for drop_one and keep_one
    std::uint64_t seed = 0;

    [[nodiscard]] std::string text() const {
      constexpr const char* names[] = {"drop_all", "keep_all", "drop_one", "keep_one", "random"};
      return "cut after operation " + std::to_string(at) + ", " + names[static_cast<int>(how)] + ", unit " +
             std::to_string(unit) + ", seed " + std::to_string(seed);
    }
  };

  recording_file_system() : model_(std::make_shared<model>()) { model_->nodes[1].directory = true; }

  // --- what tests ask ---

  /// How many operations that change something, and fsyncs, there were so far.
  [[nodiscard]] std::size_t operations() const {
    const std::lock_guard lock(model_->mutex);
    return model_->log.size();
  }
  [[nodiscard]] std::size_t open_handles() const {
    const std::lock_guard lock(model_->mutex);
    return model_->handles.size();
  }
  [[nodiscard]] std::vector<sync_call> sync_calls() const {
    const std::lock_guard lock(model_->mutex);
    return model_->syncs;
  }
  /// From now on the fsyncs for which `which` is true do nothing.
  void ignore_syncs(std::function<bool(const sync_call&)> which) {
    const std::lock_guard lock(model_->mutex);
    model_->ignore = std::move(which);
  }
  /// The paths of all files, sorted.
  [[nodiscard]] std::vector<std::string> files() const {
    const std::lock_guard lock(model_->mutex);
    std::vector<std::string> found;
    collect(1, "", found);
    return found;
  }

  /// Legal states after the first `at` operations: everything dropped, everything kept, each single thing
  /// dropped, each single thing kept, and `random` others.
  [[nodiscard]] std::vector<cut> cuts(std::size_t at, std::size_t random, std::uint64_t seed) const {
    const std::lock_guard lock(model_->mutex);
    const auto units = replay(at).units.size();
    std::vector<cut> all{{at, cut::rule::drop_all, 0, 0}};
    if (units == 0) return all;
    all.push_back({at, cut::rule::keep_all, 0, 0});
    if (units > 1)
      for (std::size_t u = 0; u < units; ++u) {
        all.push_back({at, cut::rule::drop_one, u, seed + u});
        all.push_back({at, cut::rule::keep_one, u, seed + u});
      }
    for (std::size_t r = 0; r < random; ++r)
      all.push_back({at, cut::rule::random, 0, seed * 1'000'003 + at * 101 + r});
    return all;
  }

  /// The contents of the disk after the cut, as a file system of its own with nothing open and nothing
  /// recorded.
  [[nodiscard]] recording_file_system after(const cut& how) const {
    const std::lock_guard lock(model_->mutex);
    auto past = replay(how.at);
    std::uint64_t state = how.seed * 2 + 1;
    const auto random = [&state] {
      state += 0x9E3779B97F4A7C15u;
      auto z = state;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
      return z ^ (z >> 31);
    };
    for (std::size_t u = 0; u < past.units.size(); ++u) {
      const auto& unit = past.units[u];
      auto& node = past.nodes[unit.inode];
      // A drop_one may leave some sectors, a keep_one may miss some.
      enum { none, some, all } keep = none;
      switch (how.how) {
        case cut::rule::drop_all:
          keep = none;
          break;
        case cut::rule::keep_all:
          keep = all;
          break;
        case cut::rule::drop_one:
          keep = u != how.unit ? all : random() % 2 == 0 ? none : some;
          break;
        case cut::rule::keep_one:
          keep = u != how.unit ? none : random() % 2 == 0 ? all : some;
          break;
        case cut::rule::random:
          keep = std::array{none, some, all}[random() % 3];
          break;
      }
      if (unit.change != nullptr) {
        apply(*unit.change, node.bytes, [&] { return keep == all || (keep == some && random() % 2 == 0); });
      } else {
        auto& values = node.names.at(unit.name);
        const auto chosen = keep == none ? 0 : keep == all ? values.size() - 1 : random() % values.size();
        values = {values[chosen]};
      }
    }
    recording_file_system result;
    auto& fresh = *result.model_;
    fresh.next_inode = model_->next_inode;
    fresh.unique = model_->unique + 1'000;
    build(past, 1, fresh);
    return result;
  }

  // --- the FileSystem ---

  [[nodiscard]] std::string absolute(const std::string& path) const {
    return !path.empty() && path.front() == '/' ? path : "/" + path;
  }
  [[nodiscard]] std::uint64_t unique_number() const {
    const std::lock_guard lock(model_->mutex);
    return ++model_->unique * 0x9E3779B97F4A7C15u;
  }
  [[nodiscard]] int open_directory(const char* path) const {
    const std::lock_guard lock(model_->mutex);
    std::uint64_t here = 1;
    std::string_view rest(path);
    while (!rest.empty()) {
      const auto slash = rest.find('/');
      const std::string part(rest.substr(0, slash));
      rest = slash == std::string_view::npos ? std::string_view{} : rest.substr(slash + 1);
      if (part.empty() || part == ".") continue;
      const auto next = model_->find(here, part);
      if (next == 0) return -ENOENT;
      if (!model_->nodes[next].directory) return -ENOTDIR;
      here = next;
    }
    return model_->open(here, 0);
  }
  [[nodiscard]] int open_directory_at(int directory, const char* name) const {
    const std::lock_guard lock(model_->mutex);
    const auto in = model_->at(directory);
    if (in == 0) return -EBADF;
    const auto inode = std::string_view(name) == ".." ? model_->nodes[in].parent : model_->find(in, name);
    if (inode == 0) return -ENOENT;
    if (!model_->nodes[inode].directory) return -ENOTDIR;
    return model_->open(inode, 0);
  }
  [[nodiscard]] int open_at(int directory, const char* name, int flags, unsigned) const {
    const std::lock_guard lock(model_->mutex);
    const auto in = model_->at(directory);
    if (in == 0) return -EBADF;
    auto inode = model_->find(in, name);
    if (inode != 0 && (flags & O_EXCL) != 0) return -EEXIST;
    if (inode == 0) {
      if ((flags & O_CREAT) == 0 || model_->nodes[in].links == 0) return -ENOENT;
      inode = model_->next_inode++;
      model_->nodes[inode].parent = in;
      model_->nodes[in].names[name] = inode;
      model_->log.push_back({.kind = what::name, .inode = in, .name = name, .child = inode});
    }
    if (model_->nodes[inode].directory && (flags & (O_WRONLY | O_RDWR)) != 0) return -EISDIR;
    return model_->open(inode, flags);
  }
  [[nodiscard]] int duplicate(int file) const {
    const std::lock_guard lock(model_->mutex);
    if (model_->at(file) == 0) return -EBADF;
    const auto copy = model_->next_handle++;
    model_->handles[copy] = model_->handles[file];
    return copy;
  }
  [[nodiscard]] int close(int file) const {
    const std::lock_guard lock(model_->mutex);
    const auto at = model_->handles.find(file);
    if (at == model_->handles.end()) return -EBADF;
    const auto closed = at->second;
    model_->handles.erase(at);
    for (const auto& [number, open] : model_->handles)
      if (open.description == closed.description) return 0;
    auto& node = model_->nodes[closed.inode];
    if (node.lock == closed.description) node.lock = 0;
    return 0;
  }
  [[nodiscard]] std::int64_t pwrite(int file, const void* from, std::size_t bytes,
                                    std::uint64_t offset) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->at(file);
    if (inode == 0) return -EBADF;
    const auto flags = model_->handles[file].flags;
    if ((flags & (O_WRONLY | O_RDWR)) == 0) return -EBADF;
    if ((flags & O_DIRECT) != 0 &&
        (offset % 512 != 0 || bytes % 512 != 0 || reinterpret_cast<std::uintptr_t>(from) % 512 != 0))
      return -EINVAL;
    const auto* begin = static_cast<const std::byte*>(from);
    return model_->change(
        {.kind = what::write, .inode = inode, .offset = offset, .bytes = {begin, begin + bytes}},
        static_cast<std::int64_t>(bytes));
  }
  [[nodiscard]] std::int64_t pread(int file, void* to, std::size_t bytes, std::uint64_t offset) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->at(file);
    if (inode == 0) return -EBADF;
    const auto& data = model_->nodes[inode].bytes;
    if (offset >= data.size()) return 0;
    const auto n = std::min<std::size_t>(bytes, data.size() - static_cast<std::size_t>(offset));
    if (n > 0) std::memcpy(to, data.data() + offset, n);
    return static_cast<std::int64_t>(n);
  }
  [[nodiscard]] int truncate(int file, std::uint64_t bytes) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->at(file);
    if (inode == 0) return -EBADF;
    return static_cast<int>(model_->change({.kind = what::truncate, .inode = inode, .offset = bytes}, 0));
  }
  [[nodiscard]] int allocate(int file, std::uint64_t bytes) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->at(file);
    if (inode == 0) return -EBADF;
    if (bytes > (std::uint64_t{1} << 32)) return -ENOSPC;
    if (bytes <= model_->nodes[inode].bytes.size()) return 0;
    return static_cast<int>(model_->change({.kind = what::truncate, .inode = inode, .offset = bytes}, 0));
  }
  [[nodiscard]] int sync(int file) const { return sync_any(file, false); }
  [[nodiscard]] int sync_directory(int directory) const { return sync_any(directory, true); }
  [[nodiscard]] int make_directory_at(int directory, const char* name, unsigned) const {
    const std::lock_guard lock(model_->mutex);
    const auto in = model_->at(directory);
    if (in == 0) return -EBADF;
    if (model_->nodes[in].links == 0) return -ENOENT;
    if (model_->find(in, name) != 0) return -EEXIST;
    const auto inode = model_->next_inode++;
    model_->nodes[inode].directory = true;
    model_->nodes[inode].parent = in;
    model_->nodes[in].names[name] = inode;
    model_->log.push_back(
        {.kind = what::name, .inode = in, .name = name, .child = inode, .child_is_directory = true});
    return 0;
  }
  [[nodiscard]] int rename_new_at(int directory, const char* from, const char* to) const {
    const std::lock_guard lock(model_->mutex);
    const auto in = model_->at(directory);
    const auto inode = model_->find(in, from);
    if (inode == 0) return -ENOENT;
    if (model_->find(in, to) != 0) return -EEXIST;
    model_->nodes[in].names.erase(from);
    model_->nodes[in].names[to] = inode;
    model_->log.push_back({.kind = what::rename, .inode = in, .name = to, .child = inode, .old_name = from});
    return 0;
  }
  [[nodiscard]] int link_at(int directory, const char* from, const char* to) const {
    return link_across(directory, from, directory, to);
  }
  [[nodiscard]] int clone(int, int) const { return -EOPNOTSUPP; }
  [[nodiscard]] int link_across(int old_directory, const char* from, int directory, const char* to) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->find(model_->at(old_directory), from);
    const auto in = model_->at(directory);
    if (in == 0) return -EBADF;
    if (inode == 0 || model_->nodes[in].links == 0) return -ENOENT;
    if (model_->find(in, to) != 0) return -EEXIST;
    ++model_->nodes[inode].links;
    model_->nodes[in].names[to] = inode;
    model_->log.push_back({.kind = what::name, .inode = in, .name = to, .child = inode});
    return 0;
  }
  [[nodiscard]] int unlink_at(int directory, const char* name) const {
    return take_away(directory, name, false);
  }
  [[nodiscard]] int remove_directory_at(int directory, const char* name) const {
    return take_away(directory, name, true);
  }
  [[nodiscard]] int try_lock(int file) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->at(file);
    if (inode == 0) return -EBADF;
    auto& holder = model_->nodes[inode].lock;
    const auto mine = model_->handles[file].description;
    if (holder != 0 && holder != mine) return -EAGAIN;
    holder = mine;
    return 0;
  }
  [[nodiscard]] int status(int file, cairn::file_status& out) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->at(file);
    return inode == 0 ? -EBADF : fill(inode, out);
  }
  [[nodiscard]] int status_at(int directory, const char* name, cairn::file_status& out) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->find(model_->at(directory), name);
    return inode == 0 ? -ENOENT : fill(inode, out);
  }
  [[nodiscard]] int direct(int, cairn::direct_alignment& out) const {
    out = {512, 512};
    return 0;
  }
  [[nodiscard]] int list(int directory, std::vector<cairn::directory_entry>& entries) const {
    const std::lock_guard lock(model_->mutex);
    const auto in = model_->at(directory);
    if (in == 0) return -EBADF;
    for (const auto& [name, inode] : model_->nodes[in].names) entries.push_back({name});
    return 0;
  }
  [[nodiscard]] int free_space(int, cairn::space_left& out) const {
    out = {std::uint64_t{1} << 32, 1'000'000};
    return 0;
  }
  [[nodiscard]] int kind(int, cairn::file_system_kind& out) const {
    out.name = "ext4";
    return 0;
  }
  void quotas(int, std::vector<cairn::quota_use>&) const {}
  [[nodiscard]] int change_mode(int file, unsigned mode) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->at(file);
    if (inode == 0) return -EBADF;
    model_->nodes[inode].mode = mode;
    return 0;
  }

 private:
  enum class what : std::uint8_t { name, rename, write, truncate, sync, sync_directory };
  struct operation {
    what kind = what::name;
    std::uint64_t inode = 0;  // of the file, or of the directory whose names change
    std::string name = {};
    std::uint64_t child = 0;  // what the name stands for from now on; 0: nothing
    bool child_is_directory = false;
    std::string old_name = {};
    std::uint64_t offset = 0;  // or the new length
    std::vector<std::byte> bytes = {};
  };
  struct file_node {
    bool directory = false;
    std::uint64_t links = 1;
    std::uint64_t parent = 1;
    std::uint64_t lock = 0;
    unsigned mode = 0;
    std::vector<std::byte> bytes = {};
    std::map<std::string, std::uint64_t> names = {};
  };
  struct open_file {
    std::uint64_t inode;
    std::uint64_t description;
    int flags;
  };
  struct model {
    std::mutex mutex;
    std::map<std::uint64_t, file_node> nodes;
    std::map<std::uint64_t, file_node>
        base;  // as it was when the recording began; only where that was not empty
    std::map<int, open_file> handles;
    std::vector<operation> log;
    std::vector<sync_call> syncs;
    std::function<bool(const sync_call&)> ignore;
    std::uint64_t next_inode = 2;
    std::uint64_t next_description = 1;
    std::uint64_t unique = 0;
    int next_handle = 3;

    [[nodiscard]] std::uint64_t at(int handle) const {
      const auto found = handles.find(handle);
      return found == handles.end() ? 0 : found->second.inode;
    }
    [[nodiscard]] std::uint64_t find(std::uint64_t in, const std::string& name) {
      if (in == 0) return 0;
      const auto& names = nodes[in].names;
      const auto found = names.find(name);
      return found == names.end() ? 0 : found->second;
    }
    [[nodiscard]] int open(std::uint64_t inode, int flags) {
      const int handle = next_handle++;
      handles[handle] = {inode, next_description++, flags};
      return handle;
    }
    std::int64_t change(operation op, std::int64_t result) {
      apply(op, nodes[op.inode].bytes, [] { return true; });
      log.push_back(std::move(op));
      return result;
    }
  };

  /// A node at a cut: durable bytes, and the values that each name may have (0: none), the durable one first.
  struct past_node {
    bool directory = false;
    std::vector<std::byte> bytes = {};
    std::vector<const operation*> changes = {};
    std::map<std::string, std::vector<std::uint64_t>> names = {};
  };
  struct lossy_unit {
    std::uint64_t inode;
    const operation* change;  // or a name
    std::string name;
  };
  struct past_tree {
    std::map<std::uint64_t, past_node> nodes;
    std::vector<lossy_unit> units;
  };

  /// Does a change of data, each sector of a write and each truncation only if `keep()` says so.
  template <class Keep>
  static void apply(const operation& op, std::vector<std::byte>& bytes, Keep keep) {
    if (op.kind == what::truncate) {
      if (keep()) bytes.resize(static_cast<std::size_t>(op.offset));
      return;
    }
    for (std::size_t done = 0; done < op.bytes.size();) {
      const auto at = static_cast<std::size_t>(op.offset) + done;
      const auto n = std::min(op.bytes.size() - done, 512 - at % 512);
      if (keep()) {
        if (bytes.size() < at + n) bytes.resize(at + n);
        std::memcpy(bytes.data() + at, op.bytes.data() + done, n);
      }
      done += n;
    }
  }

  [[nodiscard]] past_tree replay(std::size_t at) const {
    past_tree p;
    p.nodes[1].directory = true;
    for (const auto& [inode, from] : model_->base) {
      auto& to = p.nodes[inode];
      to.directory = from.directory;
      to.bytes = from.bytes;
      for (const auto& [name, child] : from.names) to.names[name] = {child};
    }
    const auto set = [&p](std::uint64_t in, const std::string& name, std::uint64_t child) {
      auto& values = p.nodes[in].names[name];
      if (values.empty()) values.push_back(0);
      values.push_back(child);
    };
    for (std::size_t i = 0; i < std::min(at, model_->log.size()); ++i) {
      const auto& op = model_->log[i];
      switch (op.kind) {
        case what::name:
          if (op.child != 0) p.nodes[op.child].directory = op.child_is_directory;
          set(op.inode, op.name, op.child);
          break;
        case what::rename:
          set(op.inode, op.old_name, 0);
          set(op.inode, op.name, op.child);
          break;
        case what::write:
        case what::truncate:
          p.nodes[op.inode].changes.push_back(&op);
          break;
        case what::sync: {
          auto& n = p.nodes[op.inode];
          for (const auto* change : n.changes) apply(*change, n.bytes, [] { return true; });
          n.changes.clear();
          break;
        }
        case what::sync_directory:
          for (auto& [name, values] : p.nodes[op.inode].names) values = {values.back()};
          break;
      }
    }
    for (const auto& [inode, n] : p.nodes) {
      for (const auto* change : n.changes) p.units.push_back({inode, change, {}});
      for (const auto& [name, values] : n.names)
        if (values.size() > 1) p.units.push_back({inode, nullptr, name});
    }
    return p;
  }

  /// Copies what can be reached by the names that were chosen.
  static void build(const past_tree& from, std::uint64_t inode, model& to) {
    const auto& old = from.nodes.at(inode);
    file_node fresh;
    fresh.directory = old.directory;
    fresh.bytes = old.bytes;
    fresh.links = 0;
    for (const auto& [name, values] : old.names)
      if (values.front() != 0) fresh.names[name] = values.front();
    const auto names = fresh.names;
    to.nodes[inode] = fresh;
    to.nodes[inode].links = 1;
    for (const auto& [name, child] : names) {
      if (to.nodes.count(child) != 0) {
        ++to.nodes[child].links;
        continue;
      }
      build(from, child, to);
      to.nodes[child].parent = inode;
    }
    if (inode == 1) to.base = to.nodes;
  }

  [[nodiscard]] int sync_any(int handle, bool directory) const {
    const std::lock_guard lock(model_->mutex);
    const auto inode = model_->at(handle);
    if (inode == 0) return -EBADF;
    sync_call call{model_->syncs.size(), directory, path_of(inode), inode, false};
    call.ignored = model_->ignore && model_->ignore(call);
    model_->syncs.push_back(call);
    if (!call.ignored)
      model_->log.push_back({.kind = directory ? what::sync_directory : what::sync, .inode = inode});
    return 0;
  }
  [[nodiscard]] int take_away(int directory, const char* name, bool is_directory) const {
    const std::lock_guard lock(model_->mutex);
    const auto in = model_->at(directory);
    const auto inode = model_->find(in, name);
    if (inode == 0) return -ENOENT;
    auto& n = model_->nodes[inode];
    if (n.directory != is_directory) return is_directory ? -ENOTDIR : -EISDIR;
    if (is_directory && !n.names.empty()) return -ENOTEMPTY;
    --n.links;
    model_->nodes[in].names.erase(name);
    model_->log.push_back({.kind = what::name, .inode = in, .name = name});
    return 0;
  }
  int fill(std::uint64_t inode, cairn::file_status& out) const {
    const auto& n = model_->nodes[inode];
    out.kind = n.directory ? cairn::file_kind::directory : cairn::file_kind::regular;
    out.bytes = n.bytes.size();
    out.links = n.links;
    out.mode = n.mode;
    out.identity = {1, inode, static_cast<std::int64_t>(inode)};
    return 0;
  }
  [[nodiscard]] std::string path_of(std::uint64_t inode) const {
    std::string path;
    while (inode != 1) {
      const auto parent = model_->nodes[inode].parent;
      std::string own = "(unlinked)";
      for (const auto& [name, child] : model_->nodes[parent].names)
        if (child == inode) own = name;
      path = "/" + own + path;
      inode = parent;
    }
    return path.empty() ? "/" : path;
  }
  void collect(std::uint64_t inode, const std::string& path, std::vector<std::string>& found) const {
    for (const auto& [name, child] : model_->nodes[inode].names) {
      if (model_->nodes[child].directory)
        collect(child, path + "/" + name, found);
      else
        found.push_back(path + "/" + name);
    }
  }

  std::shared_ptr<model> model_;
};

static_assert(cairn::FileSystem<recording_file_system>);

}  // namespace cairn_test
