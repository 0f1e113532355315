// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_job.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
/// The unfinished object by which a rank's save can be seen before another process carries it out.
[[nodiscard]] inline std::string announcement_key(const save_context& c, const file_placement& place) {
  return object_key(c.step, {object_kind::record, c.rank, c.attempt, 0}, place) + ".begun";
}
}  // namespace detail

/// The checkpoints of a store beside their commit: which there are, their removal, and the cleaning of what
/// interrupted saves left. For formats other than safetensors too. All functions may be called by several
/// threads at once; they throw the store's errors.
class checkpoint_catalog {
 public:
  explicit checkpoint_catalog(any_store store) : store_(store), objects_(std::move(store)) {}
  template <ByteStore Store>
  explicit checkpoint_catalog(std::shared_ptr<Store> store)
      : checkpoint_catalog(any_store(std::move(store))) {}

  /// Steps with a manifest, ascending; without those whose save was ended before its manifest came to stand.
  /// One listing, without the directories of ranks, and one look at each manifest beside a mark.
  [[nodiscard]] std::vector<std::int64_t> list() const {
    return objects_.committed_among(store_.keys("step-", 2));
  }

  /// Removes a checkpoint or what is left of one: the manifest first, then everything that cairn put beside
  /// it. Saves of the step that are under way are ended first, and fail; their marks stay for those who come
  /// late, until clean() finds them needless. A checkpoint that such a save, or another one, commits
  /// meanwhile stays.
  void remove(std::int64_t step) const {
    std::optional<std::uint64_t> removed;  // the attempt whose checkpoint it was
    if (const auto bytes = manifest_bytes(step)) {
      removed = objects_.attempt_in(*bytes, manifest_key(step));
      if (!remove_manifest(step, *bytes)) return;
    }
    const auto objects = objects_.objects_of(step);
    const auto of_removed = [&](const auto& o) { return o.is_file() && o.name.attempt == removed; };
    // The coordinator's record first, or the file that it is in: who commits it now looks for that last. And
    // all before marks are made, which may need the space.
    for (const auto& o : objects)
      if (of_removed(o) && o.name.rank == 0 && o.name.kind == object_kind::record) store_.remove(o.key);
    for (const auto& o : objects)
      if (of_removed(o)) store_.remove(o.key);
    auto attempts = detail::attempts_in(objects, removed);
    const auto begun = begun_attempts(step_directory(step) + "/");
    if (const auto at = begun.find(step); at != begun.end()) add_begun(attempts, at->second, removed);
    for (const auto& a : attempts)
      if (!a.marked) objects_.require_mark(step, a.attempt, detail::removed_meanwhile(step));
    const auto standing = objects_.standing_attempt(step);  // was committed before its mark came
    const auto ended = [&](const detail::step_object& o) {  // one that began since then is not
      return o.name.attempt == removed || std::any_of(attempts.begin(), attempts.end(), [&](const auto& a) {
               return a.attempt == o.name.attempt;
             });
    };
    for (const auto& o : objects_.objects_of(step)) {
      if (o.own && o.name.kind == object_kind::manifest) continue;
      if (o.is_file() && (o.name.attempt == standing || !ended(o))) continue;
      // Others may rely on a mark; clean() knows when it is needed no more.
      if (o.is_mark() && o.name.attempt != removed) continue;
      store_.remove(o.key);
    }
    (void)discard_leftovers(step_directory(step) + "/", nullptr);
  }

  /// The checkpoint does not exist any more, but nothing is lost: its manifest becomes
  /// `manifest.damaged.<n>`. False if the store does not let it be changed.
  [[nodiscard]] bool quarantine(std::int64_t step) const {
    try {
      const auto bytes = manifest_bytes(step);
      if (!bytes) return true;
      for (int n = 0; !store_.publish_new(detail::set_aside_key(step, n), *bytes);) ++n;
      (void)remove_manifest(step, *bytes);  // another one that was put there is not meant
      return true;
    } catch (const storage_error& e) {
      if (e.id() == error_id::storage_permission) return false;
      throw;
    }
  }

  /// Attempts of other runs, in steps that are not committed, of which a writer lives: as far as the store
  /// can tell.
  [[nodiscard]] std::vector<save_attempt> live_saves(const run_id& run) const {
    std::vector<save_attempt> found;
    if (!store_.tells_writers()) return found;
    const auto known = [&](const save_attempt& a) {
      return std::find(found.begin(), found.end(), a) != found.end();
    };
    for (const auto& key : store_.live_writers("step-"))
      if (const auto a = attempt_of_unfinished(key); a && !known(*a)) found.push_back(*a);
    const auto all = store_.keys("step-");
    std::vector<std::pair<parsed_key, std::string_view>> objects;
    std::vector<std::int64_t> committed;
    for (const auto& key : all) {
      const auto parsed = parse_key(key);
      if (!parsed) continue;
      if (parsed->object.kind == object_kind::manifest) committed.push_back(parsed->step);
      if (parsed->object.kind == object_kind::data) objects.emplace_back(*parsed, key);
    }
    const auto stands = [&](std::int64_t step) {
      return std::find(committed.begin(), committed.end(), step) != committed.end();
    };
    for (const auto& [o, own_key] : objects) {
      const save_attempt a{o.step, o.object.attempt};
      if (stands(o.step) || known(a) || detail::made_by(run, a.step, a.attempt)) continue;
      if (store_.writer_lives(own_key)) found.push_back(a);
    }
    // What is committed needs no writer any more.
    std::erase_if(found, [&](const save_attempt& a) {
      return detail::made_by(run, a.step, a.attempt) || store_.size(manifest_key(a.step));
    });
    return found;
  }

  /// Ends the attempts of other runs in steps that are not committed, those too that have nothing but
  /// unfinished objects, and removes their files; removes beside committed checkpoints what their manifests
  /// do not name; discards unfinished objects of writers that died. Leaves alone: damaged and set-aside
  /// checkpoints, and objects whose names cairn does not make. The number of objects removed. @pre no attempt
  /// of `run` is being saved by another process that could not be told apart: attempts count as of `run` if
  /// attempt_of() made them or a record says so.
  std::uint64_t clean(const run_id& run) const {
    std::uint64_t removed = 0;
    auto begun = begun_attempts();
    const auto all = store_.keys("step-");
    std::int64_t newest = -1;
    for (const auto& key : all)
      if (const auto k = parse_key(key); k && k->object.kind == object_kind::manifest)
        newest = std::max(newest, k->step);
    for (std::size_t i = 0; i < all.size();) {
      const auto directory = all[i].substr(0, all[i].find('/'));
      const auto step = parse_step(directory);
      while (i < all.size() && all[i].starts_with(directory) &&
             (all[i].size() == directory.size() || all[i][directory.size()] == '/'))
        ++i;
      if (step) removed += clean_step(*step, run, begun[*step], newest);
      if (step) begun.erase(*step);
    }
    for (const auto& [step, attempts] : begun) removed += clean_step(step, run, attempts, newest);
    return removed + discard_leftovers("step-", &run);
  }

  /// Throws storage_no_space naming needed and free, where the store can tell.
  void check_space(std::uint64_t bytes, std::uint64_t objects) const {
    const auto left = store_.free_space();
    if (!left) return;
    if (left->bytes < bytes)
      fail(error_id::storage_no_space, "the store has too little space for this checkpoint; remove old ones",
           {.file = std::string(store_.describe()),
            .expected = std::to_string(bytes) + " bytes",
            .got = std::to_string(left->bytes) + " bytes free"});
    if (left->objects < objects)
      fail(error_id::storage_no_space, "the store has too few inodes left for this checkpoint; remove files",
           {.file = std::string(store_.describe()),
            .expected = std::to_string(objects) + " files",
            .got = std::to_string(left->objects) + " inodes free"});
  }

 private:
  /// What stands as a step's manifest; empty for what is too long to be one.
  [[nodiscard]] std::optional<std::vector<std::byte>> manifest_bytes(std::int64_t step) const {
    try {
      return store_.read_all(manifest_key(step), detail::max_manifest_bytes);
    } catch (const corrupt_error&) {
      return std::vector<std::byte>();
    }
  }
  /// Removes what manifest_bytes() gave. False if another manifest was put there since.
  [[nodiscard]] bool remove_manifest(std::int64_t step, const std::vector<std::byte>& bytes) const {
    if (!bytes.empty()) return store_.remove_if(manifest_key(step), bytes);
    store_.remove(manifest_key(step));
    return true;
  }
  static void add_begun(std::vector<detail::seen_attempt>& attempts, const std::vector<std::uint64_t>& begun,
                        std::optional<std::uint64_t> but) {
    for (const auto attempt : begun) {
      if (attempt == but) continue;
      const auto at =
          std::find_if(attempts.begin(), attempts.end(), [&](const auto& a) { return a.attempt == attempt; });
      if (at == attempts.end())
        attempts.push_back({attempt, false, 1});
      else
        ++at->files;
    }
  }
  /// What an unfinished object that names its attempt, one of data or a record, belongs to.
  [[nodiscard]] static std::optional<save_attempt> attempt_of_unfinished(const std::string& key) {
    const auto about = detail::unfinished_object(key);
    if (!about || (about->object.kind != object_kind::data && about->object.kind != object_kind::record))
      return {};
    return save_attempt{about->step, about->object.attempt};
  }
  /// By step, the attempts of unfinished objects, whether their writers live or not.
  [[nodiscard]] std::map<std::int64_t, std::vector<std::uint64_t>> begun_attempts(
      const std::string& prefix = "step-") const {
    std::map<std::int64_t, std::vector<std::uint64_t>> found;
    const auto add = [&](const std::vector<std::string>& keys) {
      for (const auto& key : keys)
        if (const auto a = attempt_of_unfinished(key))
          if (auto& in = found[a->step]; std::find(in.begin(), in.end(), a->attempt) == in.end())
            in.push_back(a->attempt);
    };
    add(store_.leftovers(prefix));
    add(store_.live_writers(prefix));
    return found;
  }
  std::uint64_t clean_step(std::int64_t step, const run_id& run, const std::vector<std::uint64_t>& begun,
                           std::int64_t newest) const {
    const auto key = manifest_key(step);
    auto bytes = store_.read_all(key, detail::max_manifest_bytes);
    if (bytes && objects_.is_ghost(step, *bytes) && store_.remove_if(key, *bytes)) bytes.reset();
    if (bytes) {
      try {
        const auto m = decode_manifest(*bytes, key);
        return m.step == step ? remove_unnamed(step, m, run) : 0;  // another's names nothing here
      } catch (const corrupt_error&) {
        return 0;
      }
    }
    const auto objects = objects_.objects_of(step);
    if (std::any_of(objects.begin(), objects.end(), [](const auto& o) { return o.is_set_aside(); })) return 0;
    std::uint64_t removed = 0;
    auto attempts = detail::attempts_in(objects, std::nullopt);
    const auto is_begun = [&](std::uint64_t attempt) {
      return std::find(begun.begin(), begun.end(), attempt) != begun.end();
    };
    add_begun(attempts, begun, std::nullopt);
    const auto own =
        std::erase_if(attempts, [&](const auto& a) { return is_of(run, step, a.attempt, objects); });
    std::vector<std::uint64_t>
        ended;  // what was told as not marked may come to be later: too late for the look
    for (const auto& a : attempts)
      if (a.marked || objects_.mark(step, a.attempt, detail::superseded(step, run)))
        ended.push_back(a.attempt);
    if (store_.size(key)) return 0;
    removed += objects_.remove_files(step, ended);
    // For writers that are late, a mark that another run made stays until the run after that one, and until
    // there is a newer checkpoint: nothing older is ever taken for the newest.
    const auto is_needed = [&](const auto& a) {
      const auto by = marked_by(step, a.attempt);
      return by && (step > newest || *by == to_string(run));
    };
    for (const auto& a : attempts)
      if (a.marked && a.files == 0 && !is_begun(a.attempt) && !is_needed(a))
        store_.remove(aborted_key(step, a.attempt)), ++removed;
    for (const auto& o : objects)
      if (o.is_claim() && own == 0) store_.remove(o.key), ++removed;
    return removed;
  }
  std::uint64_t remove_unnamed(std::int64_t step, const manifest& m, const run_id& run) const {
    std::map<std::pair<std::uint64_t, std::int32_t>, std::uint32_t> files;  // of an attempt's ranks
    for (const auto& r : m.records)
      if (r.step == step) files[{r.attempt, r.rank}] = r.files;
    return objects_.remove_beside(step, m.attempt, detail::superseded(step, run), [&](const auto& o) {
      if ((o.own && o.name.kind == object_kind::manifest) || o.is_set_aside()) return false;
      const auto named = files.find({o.name.attempt, o.name.rank});
      return !o.is_file() || named == files.end() ||
             (o.name.kind == object_kind::data && o.name.index >= named->second);
    });
  }
  /// True if an attempt belongs to a run.
  [[nodiscard]] bool is_of(const run_id& run, std::int64_t step, std::uint64_t attempt,
                           const std::vector<detail::step_object>& objects) const {
    if (detail::made_by(run, step, attempt)) return true;
    for (const auto& o : objects) {
      if (!o.own || o.name.kind != object_kind::record || o.name.attempt != attempt) continue;
      try {
        std::array<std::byte, record_header_bytes> bytes;
        const read_range range{o.key, 0, bytes};
        store_.read({&range, 1});
        return decode_record_header(bytes, o.key).run == run;
      } catch (const error&) {  // damaged or gone: another record may tell
      }
    }
    return false;
  }
  /// The run that ended an attempt of another one; nothing where an attempt ended itself.
  [[nodiscard]] std::optional<std::string> marked_by(std::int64_t step, std::uint64_t attempt) const {
    try {
      objects_.throw_if_aborted(step, attempt);
    } catch (const error& e) {
      if (e.id() == error_id::storage_aborted && !e.fields().got.empty()) return e.fields().got;
    }
    return std::nullopt;
  }
  /// Unfinished objects of writers that died; those of `run` are left alone.
  std::uint64_t discard_leftovers(const std::string& prefix, const run_id* run) const {
    std::uint64_t removed = 0;
    std::map<std::pair<std::int64_t, std::uint64_t>, bool> ours;  // attempts of `run`
    for (const auto& key : store_.leftovers(prefix)) {
      const auto about = run != nullptr ? detail::unfinished_object(key) : std::nullopt;
      if (about) {
        const auto [at, first] = ours.try_emplace({about->step, about->object.attempt}, false);
        if (first) at->second = detail::made_by(*run, about->step, about->object.attempt);
        if (at->second) continue;
      }
      try {
        store_.discard(key), ++removed;
      } catch (const storage_error& e) {
        if (e.id() != error_id::storage_exists) throw;  // its writer lives after all
      }
    }
    return removed;
  }

  any_store store_;
  detail::step_objects objects_;
};

}  // namespace v1
}  // namespace cairn
