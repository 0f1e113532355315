// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// cost: 20
//
// A local tier on a disk: power is lost at any moment of several saves. In every state that may be left of the disk,
// the newest save that was told to be held, or a newer one, is there and has all its bytes.
#include <doctest/doctest.h>

#include <cairn/cairn.hpp>
#include <cairn/tiers/local_tier.hpp>
#include <support/scratch_directory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {
using cairn_test::scratch_directory;
namespace fs = std::filesystem;
using content = std::vector<std::byte>;

struct change {
  enum class what { put, write, sync, sync_names, rename, remove };
  what kind = what::put;
  std::string name = {};  // in the directory
  std::string to = {};
  std::uint64_t offset = 0;
  content bytes = {};
};

/// Does what it is told, and keeps a list of it.
class recorded_files final : public cairn::tier_files {
 public:
  explicit recorded_files(std::string directory) : directory_(std::move(directory)) {}
  void put(const std::string& path, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    tier_files::put(path, bytes);
    changes_.push_back(
        {.kind = change::what::put, .name = name_of(path), .bytes = content(bytes.begin(), bytes.end())});
  }
  void rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    tier_files::rename(from, to);
    changes_.push_back({.kind = change::what::rename, .name = name_of(from), .to = name_of(to)});
  }
  void remove(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    tier_files::remove(path);
    changes_.push_back({.kind = change::what::remove, .name = name_of(path)});
  }
  void write(const std::string& path, int file, std::uint64_t offset,
             std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    tier_files::write(path, file, offset, bytes);
    changes_.push_back({.kind = change::what::write,
                        .name = name_of(path),
                        .offset = offset,
                        .bytes = content(bytes.begin(), bytes.end())});
  }
  void sync(const std::string& path, int file) override {
    const std::lock_guard lock(mutex_);
    tier_files::sync(path, file);
    if (path == directory_)
      changes_.push_back({.kind = change::what::sync_names});
    else if (path.starts_with(directory_ + "/"))
      changes_.push_back({.kind = change::what::sync, .name = name_of(path)});
  }
  [[nodiscard]] std::vector<change> changes() {
    const std::lock_guard lock(mutex_);
    return changes_;
  }

 private:
  [[nodiscard]] std::string name_of(const std::string& path) const {
    return path.substr(directory_.size() + 1);
  }
  const std::string directory_;
  std::mutex mutex_;
  std::vector<change> changes_;
};

/// What a disk may have when the power is lost.
class disk {
 public:
  void apply(const change& c) {
    switch (c.kind) {
      case change::what::put:
        file(c.name).now = c.bytes;
        break;
      case change::what::write: {
        auto& bytes = file(c.name).now;
        bytes.resize(std::max<std::size_t>(bytes.size(), c.offset + c.bytes.size()));
        std::copy(c.bytes.begin(), c.bytes.end(), bytes.begin() + static_cast<std::ptrdiff_t>(c.offset));
        break;
      }
      case change::what::sync:
        file(c.name).durable = file(c.name).now;
        break;
      case change::what::sync_names:
        durable_ = now_;
        pending_.clear();
        break;
      case change::what::rename:
      case change::what::remove:
        pending_.push_back({c, 0});
        apply_name(now_, pending_.back());
        break;
    }
  }
  /// Writes each state that may be left into a directory of its own below `place`, and calls `check(path)`.
  template <class Check>
  void each_state(const std::string& place, Check&& check) const {
    const auto varied = std::min<std::size_t>(pending_.size(), 5);  // the newest of them
    const auto first = pending_.size() - varied;
    const auto ways = std::size_t{1} << varied;
    for (std::size_t subset = 0; subset < ways; ++subset) {
      auto names = durable_;
      for (std::size_t i = 0; i < pending_.size(); ++i)
        if (i < first || (subset >> (i - first) & 1) != 0) apply_name(names, pending_[i]);
      for (const int data : {0, 1, 2}) {
        const auto path = place + "/state";
        fs::remove_all(path);
        fs::create_directory(path);
        fs::permissions(path, fs::perms::owner_all);
        for (const auto& [name, at] : names) write_file(path + "/" + name, files_[at], data);
        check(path);
      }
    }
  }

 private:
  struct file_state {
    content durable;
    content now;
  };
  struct name_change {
    change made;
    std::size_t file = 0;  // that a new name is of
  };
  using name_table = std::map<std::string, std::size_t>;

  file_state& file(const std::string& name) {
    if (!now_.contains(name)) {
      files_.emplace_back();
      now_[name] = files_.size() - 1;
      pending_.push_back({{.kind = change::what::put, .name = name}, files_.size() - 1});
    }
    return files_[now_[name]];
  }
  static void apply_name(name_table& names, const name_change& c) {
    if (c.made.kind == change::what::put) {
      names[c.made.name] = c.file;
    } else if (c.made.kind == change::what::remove) {
      names.erase(c.made.name);
    } else if (const auto from = names.find(c.made.name); from != names.end()) {
      names[c.made.to] = from->second;
      names.erase(c.made.name);
    }
  }
  /// `data`: 0: what is durable; 1: all that was written; 2: the first half of that.
  static void write_file(const std::string& path, const file_state& state, int data) {
    content bytes = data == 1 ? state.now : state.durable;
    if (data == 2) {
      bytes.resize(std::max(bytes.size(), state.now.size() / 2));
      std::copy_n(state.now.begin(), state.now.size() / 2, bytes.begin());
    }
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  }

  std::vector<file_state> files_;
  name_table now_;
  name_table durable_;
  std::vector<name_change> pending_;  // of names, since they were durable
};

/// The newest save that is held there with all its bytes; 0: none.
std::int64_t newest_whole(const std::string& path, const std::string& job) {
  cairn::local_tier tier{path, {.keep = 1}};
  tier.open({cairn::run_id{1, 2}, 0, 1, job});
  std::vector<std::string> damaged;
  const auto held = tier.held(damaged);
  for (auto each = held.rbegin(); each != held.rend(); ++each) try {
      auto reader = tier.reader(*each);
      auto opened = reader.open(each->step, reader.fetch(each->step));
      static_cast<void>(reader.verify(opened, cairn::deadline::in(std::chrono::minutes(1))));
      return each->step;
    } catch (const cairn::corrupt_error&) {  // refused: the one before it
    }
  return 0;
}

struct recording {
  std::vector<change> changes;
  std::vector<std::pair<std::size_t, std::int64_t>>
      held;  // after so many changes this step was told to be held
  std::string job;
};
/// Saves five steps, in a tier on a disk where the machine has one here.
recording record_saves() {
  scratch_directory place;
  const auto directory = place.path() + "/tier";
  const auto files = std::make_shared<recorded_files>(directory);
  recording made;
  std::vector<float> w(30'000);
  std::vector<float> v(40'000);
  cairn::state_dict state;
  state.tensor("w", w, {30'000});
  state.tensor("v", v, {40'000});
  try {
    cairn::local_tier tier{directory};
    tier.open({cairn::run_id{1, 1}, 0, 1, "a test"});
    tier.end();
  } catch (const cairn::usage_error&) {  // no tier can lie here
    return made;
  }
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::local_tier{directory, {.keep = 1, .files = files}},
                           cairn::persist{.every = 1000}, cairn::checkpointer_options{.quiet = true}};
  for (std::int64_t step = 1; step <= 5; ++step) {
    std::fill(w.begin(), w.end(), static_cast<float>(step));
    std::fill(v.begin(), v.end(), static_cast<float>(-step));
    ckpt.save(state, step).wait();
    made.held.emplace_back(files->changes().size(), step);
  }
  made.changes = files->changes();
  for (const auto& c : made.changes)
    if (c.name == "new-job" && c.kind == change::what::put) {
      const std::string text(reinterpret_cast<const char*>(c.bytes.data()), c.bytes.size());
      const auto begin = text.find('\n') + 1;
      made.job = text.substr(begin, text.size() - begin - 1);
    }
  ckpt.close();
  return made;
}
/// Whether in some state the newest save that was told to be held is lost; `states`: of so many, until then. Changes
/// count where `counts` says so.
template <class Counts>
bool loses(const recording& made, Counts&& counts, std::size_t& states) {
  scratch_directory place("/dev/shm");  // what is read there needs no disk
  disk d;
  bool lost = false;
  std::int64_t told = 0;
  for (std::size_t k = 0; k < made.changes.size() && !lost; ++k) {
    if (counts(made.changes[k])) d.apply(made.changes[k]);
    for (const auto& [after, step] : made.held)
      if (after == k + 1) told = step;
    d.each_state(place.path(), [&](const std::string& path) {
      if (lost) return;
      ++states;
      lost = newest_whole(path, made.job) < told;
    });
  }
  return lost;
}

// survives: power-lost
TEST_CASE("whenever the power is lost, a tier on a disk has the newest save that was told to be held") {
  const auto made = record_saves();
  const auto is_sync = [](const change& c) { return c.kind == change::what::sync; };
  if (std::none_of(made.changes.begin(), made.changes.end(), is_sync)) {
    MESSAGE("skipped: the directory of tests is no disk");
    return;
  }
  REQUIRE(!made.job.empty());
  REQUIRE(made.held.size() == 5);
  std::size_t states = 0;
  CHECK_FALSE(loses(
      made, [](const change&) { return true; }, states));
  CHECK(states > 200);
  // Each kind of sync is needed.
  for (const std::string of : {"slot-", "new-00000", "new-plan"}) {
    CAPTURE(of);
    CHECK(loses(
        made, [&](const change& c) { return !is_sync(c) || !c.name.starts_with(of); }, states));
  }
  CHECK(loses(
      made, [](const change& c) { return c.kind != change::what::sync_names; }, states));
}

}  // namespace
