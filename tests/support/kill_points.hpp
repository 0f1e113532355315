// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a run can be killed: at steps of resume and save that have a name, at the n-th call that changes the
// disk; and what must not be there after the next run has cleaned up.
#include "watched_file_system.hpp"

#include <cairn/cairn.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/storage/commit/restart_notes.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

enum class moment : std::uint8_t { before, after, torn, mark };

/// An event: a call about a path that contains `path` (and `also`), or a mark of that name.
struct event {
  moment when = moment::before;
  file_call call = file_call::sync;
  std::string path = {};
  std::string also = {};
};

/// Where to kill: at an event, once `gate` has happened; or at the n-th call that changes the disk.
struct kill_plan {
  std::optional<event> at;
  std::optional<event> gate;
  std::uint64_t change = 0;
};

/// Watches the calls of one process for the moment of a plan. Ranks of several processes share the gate.
class kill_watch : public file_watch {
 public:
  /// `gate_open` outlives the watch; it becomes true when the plan's gate has happened.
  kill_watch(kill_plan plan, std::atomic<bool>& gate_open) : plan_(std::move(plan)), open_(gate_open) {
    if (!plan_.gate) open_ = true;
  }

  file_decision before(file_call call, const std::string& path) override {
    if (changes_disk(call, path)) {
      const auto n = count();
      if (plan_.change != 0 && n == plan_.change) {
        if (call == file_call::pwrite && n % 2 != 0) {
          tearing_ = true;
          return file_decision::tear;
        }
        strike(name_of(call, path));
      }
    }
    if (happens(moment::torn, call, path)) {
      tearing_ = true;
      return file_decision::tear;
    }
    if (happens(moment::before, call, path)) strike(name_of(call, path));
    return file_decision::carry_out;
  }
  void after(file_call call, const std::string& path) override {
    if (call == file_call::pwrite && tearing_.exchange(false)) strike("torn " + name_of(call, path));
    if (happens(moment::after, call, path)) strike(name_of(call, path));
  }
  void mark(const std::string& name) {
    if (happens(moment::mark, file_call::sync, name)) strike(name);
  }

  /// Where a mark is set without a watch at hand: the watch of this process.
  static inline kill_watch* of_this_process = nullptr;
  static void mark_here(const std::string& name) {
    if (of_this_process != nullptr) of_this_process->mark(name);
  }

 protected:
  /// Counts a call that changes the disk.
  virtual std::uint64_t count() = 0;
  /// Called when the moment has come; returns if this process is to live on.
  virtual void strike(const std::string& where) = 0;

 private:
  static bool changes_disk(file_call call, const std::string& path) {
    switch (call) {
      case file_call::pwrite:
      case file_call::truncate:
      case file_call::allocate:
      case file_call::sync:
      case file_call::sync_directory:
      case file_call::make_directory:
      case file_call::rename:
      case file_call::link:
      case file_call::unlink:
      case file_call::remove_directory:
        return true;
      case file_call::open:
      case file_call::lock:
      case file_call::close:
        return path.ends_with(".part");
      default:
        return false;
    }
  }
  static bool same(const event& e, moment when, file_call call, const std::string& path) {
    return e.when == when && (when == moment::mark || e.call == call) &&
           path.find(e.path) != std::string::npos && path.find(e.also) != std::string::npos;
  }
  bool happens(moment when, file_call call, const std::string& path) {
    if (open_ && plan_.at && same(*plan_.at, when, call, path)) return true;
    if (!open_ && plan_.gate && same(*plan_.gate, when, call, path)) open_ = true;
    return false;
  }
  static std::string name_of(file_call call, const std::string& path) {
    auto name = path;  // without the numbers that differ from run to run
    for (std::size_t i = 0; i + 16 <= name.size(); ++i)
      if (std::all_of(name.begin() + static_cast<std::ptrdiff_t>(i),
                      name.begin() + static_cast<std::ptrdiff_t>(i) + 16,
                      [](char c) { return std::strchr("0123456789abcdef", c) != nullptr; }))
        name.replace(i, 16, "*");
    const auto step = name.find("/step-");
    return std::to_string(static_cast<int>(call)) + (step == std::string::npos ? "" : name.substr(step));
  }

  kill_plan plan_;
  std::atomic<bool>& open_;
  std::atomic<bool> tearing_ = false;
};

/// A planner whose source of `weights` marks when that is being copied.
struct telling_planner : cairn::basic_planner<telling_planner> {
  using base = cairn::basic_planner<telling_planner>;
  using base::resolve;
  [[nodiscard]] cairn::item_source resolve(const cairn::state_dict& state, const cairn::write_item& item) {
    auto source = base::resolve(state, item);
    if (item.name == "weights" && kill_watch::of_this_process != nullptr)
      source.cast = [](const std::byte* from, std::byte* to, std::size_t elements) noexcept {
        std::memcpy(to, from, elements / 2 * sizeof(float));
        kill_watch::mark_here("copying");
        std::memcpy(to + elements / 2 * sizeof(float), from + elements / 2 * sizeof(float),
                    (elements - elements / 2) * sizeof(float));
      };
    return source;
  }
};

/// host_copy, and tells when an image is begun, and when its early items are copied.
class telling_engine {
 public:
  template <class M>
  static constexpr bool accepts = cairn::host_copy::accepts<M>;
  static constexpr bool digests = true;
  void check(const cairn::item_source& source) const { inner_.check(source); }
  void copy(std::shared_ptr<cairn::image_fill> fill, cairn::deadline until) {
    kill_watch::mark_here("staging begins");
    inner_.copy(std::move(fill), until);
    kill_watch::mark_here("early items are copied");
  }

 private:
  cairn::host_copy inner_{cairn::host_copy_options{.threads = 2}};
};
using telling_stager = cairn::buffered_stager<cairn::heap_memory, telling_engine>;

/// An object that should not exist after a resume, or nothing. Notes of restarts may exist. `marks`: whether
/// marks of ended attempts may, too.
inline std::string litter(const std::string& root, bool marks) {
  using notes = cairn::detail::restart_notes;
  cairn::file_store s{root};
  std::set<std::string> named;
  std::set<std::string> quarantine;
  for (const auto& o : s.list("")) {
    const auto directory = o.key.substr(0, o.key.find('/'));
    if (o.key.find("/manifest.damaged.") != std::string::npos) quarantine.insert(directory);
    const auto known = cairn::parse_key(o.key);
    if (!known || known->object.kind != cairn::object_kind::manifest) continue;
    named.insert(o.key);
    const auto m = cairn::decode_manifest(*s.read_all(o.key, 1u << 20), o.key);
    for (const auto& r : m.records) {
      named.insert(cairn::record_key(r.step, r.rank, r.attempt, m.placement));
      for (std::uint32_t k = 0; k < r.files; ++k)
        named.insert(cairn::data_key(r.step, r.rank, r.attempt, k, m.placement));
    }
  }
  std::string found;
  for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
    if (!file.is_regular_file()) continue;
    const auto key = std::filesystem::relative(file.path(), root).string();
    if (named.count(key) != 0 || quarantine.count(key.substr(0, key.find('/'))) != 0) continue;
    if (marks && key.find("/aborted.") != std::string::npos) continue;
    if (key.find('/') == std::string::npos && notes::step_of(key))
      continue;  // belongs to a run that goes on or was killed
    if (key.starts_with("lease-") && key.find("." + std::to_string(::getpid()) + ".") != std::string::npos)
      continue;  // of a run of this process, on what it resumed from
    found += key + " ";
  }
  return found;
}

struct named_point {
  const char* name;
  event at;
  std::optional<event> gate = {};
  bool staged = false;  ///< only where images are staged
};

/// The points of a run that resumes in a directory with a `past` and saves the steps 20 and 30 with
/// keep_last(2). The past has the checkpoints of 11 and 12, a damaged one of 15, and at 25 what two killed
/// saves have left. `shares`: two ranks share each file, in the past, too; then points that do not exist are
/// left out, and those of the rendezvous in a file are added.
inline std::vector<named_point> named_points(bool shares = false) {
  constexpr auto before = moment::before;
  constexpr auto after = moment::after;
  const char* const s20 = "step-00000020";
  const char* const s11 = "step-00000011";
  const char* const s25 = "step-00000025";
  const char* const s15 = "step-00000015";
  const auto file = [](moment when, file_call call, const char* step, const char* name) {
    return event{when, call, step, name};
  };
  const auto at_mark = [](const char* name) { return event{moment::mark, file_call::sync, name, {}}; };
  std::vector<named_point> all{
      // resume: what the killed run left, and the damaged checkpoint
      {"opened", at_mark("opened on rank 0")},
      {"clean: before the mark of a dead attempt", file(before, file_call::open, s25, "aborted.")},
      {"clean: the mark is torn", file(moment::torn, file_call::pwrite, s25, "aborted.")},
      {"clean: the mark stands", file(after, file_call::rename, s25, "aborted.")},
      {"clean: data of a dead attempt is removed", file(after, file_call::unlink, s25, ".safetensors")},
      {"clean: its record is removed", file(after, file_call::unlink, s25, ".record")},
      {"clean: before an unfinished file is removed", file(before, file_call::unlink, s25, ".part")},
      {"clean: an unfinished file is removed", file(after, file_call::unlink, s25, ".part")},
      {"set aside: before the copy", file(before, file_call::open, s15, "manifest.damaged")},
      {"set aside: the copy is written, not renamed",
       file(before, file_call::rename, s15, "manifest.damaged")},
      {"set aside: both stand", file(before, file_call::unlink, s15, "manifest.cairn")},
      {"set aside: the manifest is gone", file(after, file_call::unlink, s15, "manifest.cairn")},
      {"prepare: the ranks' common mark stands", file(after, file_call::rename, "shared-mark.", "")},
      {"resumed", at_mark("resumed on rank 0")},
      // save: staging
      {"staging begins", at_mark("staging begins"), {}, true},
      {"a tensor is half copied", at_mark("copying")},
      {"early items are copied", at_mark("early items are copied"), {}, true},
      {"save returned", at_mark("save returned 20 on rank 0")},
      {"save returned on the other rank", at_mark("save returned 20 on rank 1")},
      {"training has its memory back", at_mark("memory is free 20 on rank 0")},
      // save: data
      {"before the step's directory", file(before, file_call::make_directory, s20, "")},
      {"the step's directory is made, not fsynced", file(after, file_call::make_directory, s20, "")},
      {"data: an empty file", file(after, file_call::open, s20, ".safetensors")},
      {"data: space is reserved", file(after, file_call::allocate, s20, ".safetensors")},
      {"data: torn", file(moment::torn, file_call::pwrite, s20, "rank-00000")},
      {"data: torn on the other rank", file(moment::torn, file_call::pwrite, s20, "rank-00001")},
      {"data: written, not fsynced", file(before, file_call::sync, s20, ".safetensors")},
      {"data: fsynced, not renamed", file(before, file_call::rename, s20, ".safetensors")},
      {"data: renamed, directory not fsynced", file(after, file_call::rename, s20, "rank-00000")},
      {"data: renamed on the other rank", file(after, file_call::rename, s20, "rank-00001")},
      {"data: directory fsynced", file(after, file_call::sync_directory, s20, ""),
       file(after, file_call::rename, s20, ".safetensors")},
      // save: record
      {"record: an empty file", file(after, file_call::open, s20, ".record")},
      {"record: torn", file(moment::torn, file_call::pwrite, s20, ".record")},
      {"record: written, not fsynced", file(before, file_call::sync, s20, ".record")},
      {"record: fsynced, not renamed", file(before, file_call::rename, s20, ".record")},
      {"record: one rank's stands", file(after, file_call::rename, s20, ".record")},
      {"record: both ranks' stand", file(after, file_call::rename, s20, ".record"),
       file(after, file_call::rename, s20, ".record")},
      {"written", at_mark("written 20 on rank 0")},
      {"written on the other rank", at_mark("written 20 on rank 1")},
      // save: manifest
      {"manifest: an empty file", file(after, file_call::open, s20, "manifest.cairn")},
      {"manifest: torn", file(moment::torn, file_call::pwrite, s20, "manifest.cairn")},
      {"manifest: written, not fsynced", file(before, file_call::sync, s20, "manifest.cairn")},
      {"manifest: fsynced, not renamed", file(before, file_call::rename, s20, "manifest.cairn")},
      {"manifest: renamed, directory not fsynced", file(after, file_call::rename, s20, "manifest.cairn")},
      {"manifest: directory fsynced", file(after, file_call::sync_directory, s20, ""),
       file(after, file_call::rename, s20, "manifest.cairn")},
      // retention
      {"retention: before the old manifest is removed",
       file(before, file_call::unlink, s11, "manifest.cairn")},
      {"retention: the old manifest is removed", file(after, file_call::unlink, s11, "manifest.cairn")},
      {"retention: and its directory fsynced", file(after, file_call::sync_directory, s11, ""),
       file(after, file_call::unlink, s11, "manifest.cairn")},
      {"retention: some old data is removed", file(after, file_call::unlink, s11, ".safetensors")},
      {"retention: an old record is removed", file(after, file_call::unlink, s11, ".record")},
      {"retention: before the old directory is removed", file(before, file_call::remove_directory, s11, "")},
      {"retention: the old directory is removed", file(after, file_call::remove_directory, s11, "")},
      // between saves, and the end
      {"committed", at_mark("committed 20 on rank 0")},
      {"committed on the other rank", at_mark("committed 20 on rank 1")},
      {"the next save returned", at_mark("save returned 30 on rank 0")},
      {"closed", at_mark("closed on rank 0")},
  };
  if (!shares) return all;
  std::erase_if(all, [](const named_point& p) {
    if (p.at.when == moment::mark) return false;
    return p.at.also == ".record" || p.at.also == "rank-00001" || p.at.call == file_call::allocate;
  });
  const auto sync_first = file(after, file_call::sync, s20, ".safetensors");
  all.insert(
      all.end(),
      {{"shared: the other rank has opened the file", file(after, file_call::open, s20, ".safetensors"),
        file(after, file_call::open, s20, ".safetensors")},
       {"shared: what the first rank tells stands, not that it stands",
        file(after, file_call::pwrite, s20, ".safetensors")},
       {"shared: the first rank has told, the other is at it",
        file(moment::torn, file_call::pwrite, s20, ".safetensors"),
        file(after, file_call::pwrite, s20, ".safetensors")},
       {"shared: one rank's part is durable", sync_first},
       {"shared: one rank tears its word that its part is durable",
        file(moment::torn, file_call::pwrite, s20, ".safetensors"), sync_first},
       {"shared: both parts are durable", sync_first, sync_first},
       {"shared: the header is written over the meeting",
        file(before, file_call::truncate, s20, ".safetensors")},
       {"shared: the file has its size, not fsynced", file(after, file_call::truncate, s20, ".safetensors")},
       {"shared: the whole is fsynced, not closed", sync_first,
        file(after, file_call::truncate, s20, ".safetensors")},
       {"shared: it stands, before its directory is fsynced",
        file(before, file_call::sync_directory, s20, ""),
        file(after, file_call::rename, s20, ".safetensors")}});
  return all;
}

}  // namespace cairn_test
