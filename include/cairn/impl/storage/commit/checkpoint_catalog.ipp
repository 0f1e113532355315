// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <array>
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

inline constexpr std::string_view announcement_ending = ".begun";

CAIRN_BODY std::string announcement_key(const save_context& c, const file_placement& place) {
  return object_key(c.step, {object_kind::record, c.rank, c.attempt, 0}, place) +
         std::string(announcement_ending);
}

/// Whether an unfinished object is an announcement: its store may have added something to the key.
[[nodiscard]] inline bool is_announcement(std::string_view unfinished) {
  return unfinished.find(std::string(announcement_ending) + ".") != std::string_view::npos;
}

}  // namespace detail

CAIRN_BODY std::vector<std::int64_t> checkpoint_catalog::list() const {
  return objects_.committed_among(store_.keys("step-", 2));
}

CAIRN_BODY std::vector<std::int64_t> checkpoint_catalog::list_from(std::int64_t step) const {
  constexpr std::int64_t order_ends =
      10'000'000;  // then numbers of nine digits may sort before those of eight
  if (step >= 0 && step < order_ends)
    // '0' comes after '/': no directory is cut.
    if (auto keys = store_.innermost().keys_after("step-", step_directory(step) + "0", 2)) {
      if (auto key = manifest_key(step); store_.size(key)) {
        keys->push_back(std::move(key));
        for (auto& mark : store_.keys(step_directory(step) + "/aborted.", 2))
          keys->push_back(std::move(mark));
      }
      return objects_.committed_among(*keys);
    }
  auto found = list();
  detail::erase_if(found, [&](auto s) { return s < step; });
  return found;
}

CAIRN_BODY void checkpoint_catalog::remove(std::int64_t step) const {
  std::optional<std::uint64_t> removed;  // the attempt whose checkpoint it was
  if (const auto bytes = manifest_bytes(step)) {
    removed = objects_.attempt_in(*bytes, manifest_key(step));
    if (!remove_manifest(step, *bytes)) return;
  }
  const auto objects = objects_.objects_of(step);
  const auto of_removed = [&](const auto& o) { return o.is_file() && o.name.attempt == removed; };
  // Before making marks, which may need the space.
  objects_.remove_those(objects, of_removed);
  auto attempts = detail::attempts_in(objects, removed);
  const auto begun = begun_attempts(unfinished_of(step));
  if (const auto at = begun.find(step); at != begun.end()) add_begun(attempts, at->second, removed);
  for (const auto& a : attempts)
    if (!a.marked) objects_.require_mark(step, a.attempt, detail::removed_meanwhile(step));
  const auto standing = objects_.standing_attempt(step);  // committed before its mark was made
  const auto ended = [&](std::uint64_t attempt) {         // not one that began since then
    return attempt == removed ||
           detail::any_of(attempts, [&](const auto& a) { return a.attempt == attempt; });
  };
  std::vector<std::string> keys;
  for (const auto& o : objects_.objects_of(step)) {
    if (o.own && o.name.kind == object_kind::manifest) continue;
    if (o.is_file() && (o.name.attempt == standing || !ended(o.name.attempt))) continue;
    // Others may rely on a mark, and a manifest that was published twice may come back beside it; clean() removes it
    // when nobody does.
    if (o.is_mark()) continue;
    keys.push_back(o.key);
  }
  objects_.remove_all(keys);
  auto unfinished = unfinished_of(step);
  // Where writers announce themselves, one that has just begun looks like one that died.
  detail::erase_if(unfinished, [&](const listed_unfinished& object) {
    const auto a = attempt_of_unfinished(object.key);
    return a && !ended(a->attempt);
  });
  (void)detail::discard_dead(store_, unfinished, "");
}

CAIRN_BODY bool checkpoint_catalog::remove_attempt(save_attempt attempt) const {
  const auto bytes = manifest_bytes(attempt.step);
  if (!bytes || objects_.attempt_in(*bytes, manifest_key(attempt.step)) != attempt.attempt) return false;
  const auto times_in = [&](const std::vector<std::uint64_t>& all) {
    return std::count(all.begin(), all.end(), attempt.attempt);
  };
  // One that was copied back may still have the manifest by which it was set aside: that one keeps nothing.
  const auto before = times_in(objects_.quarantined_attempts(objects_.objects_of(attempt.step)));
  if (!remove_manifest(attempt.step, *bytes)) return false;
  const auto objects = objects_.objects_of(attempt.step);
  const auto aside = objects_.quarantined_attempts(objects);
  if (times_in(aside) > before) return false;  // moved aside meanwhile: its data stays
  const auto goes = [&](const auto& o) {
    return o.is_quarantined() ||
           (o.is_file() && (o.name.attempt == attempt.attempt || detail::is_among(aside, o.name.attempt)));
  };
  objects_.remove_those(objects, goes);
  return true;
}

CAIRN_BODY bool checkpoint_catalog::quarantine(std::int64_t step) const {
  try {
    const auto bytes = manifest_bytes(step);
    if (!bytes) return true;
    for (int n = 0; !store_.publish_new(detail::quarantined_key(step, n), *bytes);) ++n;
    (void)remove_manifest(step, *bytes);  // only if it is still the same manifest
    return true;
  } catch (const storage_error& e) {
    if (e.id() == error_id::storage_permission) return false;
    throw;
  }
}

CAIRN_BODY std::vector<save_attempt> checkpoint_catalog::live_saves(const run_id& run,
                                                                    const detail::store_look& look) const {
  std::vector<save_attempt> found;
  if (!store_.tracks_writers()) return found;
  const auto known = [&](const save_attempt& a) { return detail::contains(found, a); };
  for (const auto& object : look.unfinished)
    if (object.lives)
      if (const auto a = attempt_of_unfinished(object.key); a && !known(*a)) found.push_back(*a);
  detail::vector<std::pair<parsed_key, std::string_view>> objects;
  std::vector<std::int64_t> committed;
  std::vector<save_attempt> ended;  // for good, by a mark: what their writers do no longer counts
  for (const auto& key : look.steps) {
    const auto parsed = parse_key(key);
    if (!parsed) continue;
    if (parsed->object.kind == object_kind::manifest) committed.push_back(parsed->step);
    if (parsed->object.kind == object_kind::aborted) ended.push_back({parsed->step, parsed->object.attempt});
    if (parsed->object.kind == object_kind::data) objects.push_back({*parsed, key});
  }
  const auto stands = [&](std::int64_t step) { return detail::contains(committed, step); };
  for (const auto& [o, own_key] : objects) {
    const save_attempt a{o.step, o.object.attempt};
    if (stands(o.step) || known(a) || detail::contains(ended, a) || detail::made_by(run, a.step, a.attempt))
      continue;
    if (store_.writer_lives(own_key)) found.push_back(a);
  }
  // A committed attempt needs no writer any more.
  detail::erase_if(found, [&](const save_attempt& a) {
    return detail::contains(ended, a) || detail::made_by(run, a.step, a.attempt) ||
           store_.size(manifest_key(a.step));
  });
  return found;
}

CAIRN_BODY bool checkpoint_catalog::is_whole(const detail::vector<detail::step_object>& objects) {
  const auto is_manifest = [](const auto& o) { return o.own && o.name.kind == object_kind::manifest; };
  std::optional<std::uint64_t> attempt;
  for (const auto& o : objects) {
    if (is_manifest(o)) continue;
    if (!o.is_file() || o.name.attempt != attempt.value_or(o.name.attempt)) return false;
    attempt = o.name.attempt;
  }
  return detail::any_of(objects, is_manifest);
}

CAIRN_BODY checkpoint_catalog::cleaning checkpoint_catalog::clean(const run_id& run,
                                                                  const detail::store_look& look) const {
  cleaning done;
  auto begun = begun_attempts(look.unfinished);
  const auto& all = look.steps;
  std::int64_t newest = -1;
  for (const auto& key : all)
    if (const auto k = parse_key(key); k && k->object.kind == object_kind::manifest)
      newest = std::max(newest, k->step);
  const auto clean_one = [&](std::int64_t step, const std::vector<std::uint64_t>& attempts) {
    done.confirmed = false;
    done.removed += clean_step(step, run, attempts, newest);
  };
  for (std::size_t i = 0; i < all.size();) {
    const auto directory = all[i].substr(0, all[i].find('/'));
    const auto step = parse_step(directory);
    detail::vector<detail::step_object> objects;
    for (; i < all.size() && all[i].starts_with(directory) &&
           (all[i].size() == directory.size() || all[i][directory.size()] == '/');
         ++i)
      if (step && all[i].size() > directory.size())
        if (auto known = detail::parse_object(all[i], directory.size() + 1))
          objects.push_back(std::move(*known));
    if (!step) continue;
    const auto attempts = begun[*step];
    begun.erase(*step);
    if (!attempts.empty() || !is_whole(objects)) clean_one(*step, attempts);
  }
  for (const auto& [step, attempts] : begun) clean_one(step, attempts);
  done.removed += discard_leftovers(look.unfinished, run);
  return done;
}

CAIRN_BODY std::uint64_t checkpoint_catalog::clean_abandoned(std::int64_t step, const run_id& run) const {
  if (!store_.tracks_writers()) return 0;
  const auto prefix = step_directory(step) + "/";
  const auto unfinished = store_.leftovers(prefix);
  std::vector<std::uint64_t> ended;
  const auto add = [&](std::uint64_t attempt) {
    if (!detail::contains(ended, attempt)) ended.push_back(attempt);
  };
  // Where writers announce themselves, one that has not done so may live.
  const bool by_announcements = store_.announces_writers();
  for (const auto& key : unfinished)
    if (const auto a = attempt_of_unfinished(key); a && (!by_announcements || detail::is_announcement(key)))
      add(a->attempt);
  const auto objects = objects_.objects_of(step);
  if (detail::any_of(objects, [](const auto& o) { return o.is_quarantined(); })) return 0;
  const auto attempts = detail::attempts_in(objects, std::nullopt);
  if (!by_announcements)
    for (const auto& a : attempts) add(a.attempt);
  // Asked after the listings: an attempt that begins from now on is not among them. One that is committed counts as
  // dead there, and must get no mark; while its manifest is not there, its writers live.
  const auto live = live_saves(run, detail::look_at_steps(store_, prefix));
  if (store_.size(manifest_key(step))) return 0;
  detail::erase_if(ended, [&](auto attempt) { return detail::contains(live, save_attempt{step, attempt}); });
  const auto is_marked = [&](auto attempt) {
    return detail::any_of(attempts, [&](const auto& a) { return a.attempt == attempt && a.marked; });
  };
  // As in clean_step().
  const auto shown = ended.empty() ? nullptr : detail::step_leases(store_).show_removal(step);
  detail::erase_if(ended, [&](auto attempt) { return !end_attempt(step, attempt, is_marked(attempt), run); });
  if (store_.size(manifest_key(step))) return 0;
  auto removed = objects_.remove_files(step, ended);
  const auto discard = [&](bool announcements) {
    for (const auto& key : unfinished) {
      if (detail::is_announcement(key) != announcements) continue;
      const auto a = attempt_of_unfinished(key);
      if (!by_announcements || (a && detail::contains(ended, a->attempt)))
        removed += detail::discard_if_dead(store_, key);
    }
  };
  discard(false);
  discard(true);  // last: by them the next one finds what is left
  return removed;
}

CAIRN_BODY void checkpoint_catalog::check_space(std::uint64_t bytes, std::uint64_t objects) const {
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

CAIRN_BODY std::optional<std::vector<std::byte>> checkpoint_catalog::manifest_bytes(std::int64_t step) const {
  try {
    return objects_.read_manifest(manifest_key(step));
  } catch (const corrupt_error&) {
    return std::vector<std::byte>();
  }
}

CAIRN_BODY bool checkpoint_catalog::remove_manifest(std::int64_t step,
                                                    const std::vector<std::byte>& bytes) const {
  if (!bytes.empty()) return store_.remove_if(manifest_key(step), bytes);
  store_.remove(manifest_key(step));
  return true;
}

CAIRN_BODY void checkpoint_catalog::add_begun(detail::vector<detail::found_attempt>& attempts,
                                              const std::vector<std::uint64_t>& begun,
                                              std::optional<std::uint64_t> but) {
  for (const auto attempt : begun) {
    if (attempt == but) continue;
    const auto at = detail::find_if(attempts, [&](const auto& a) { return a.attempt == attempt; });
    if (at == attempts.end())
      attempts.push_back({attempt, false, 1});
    else
      ++at->files;
  }
}

CAIRN_BODY std::optional<save_attempt> checkpoint_catalog::attempt_of_unfinished(const std::string& key) {
  const auto about = detail::unfinished_object(key);
  if (!about || (about->object.kind != object_kind::data && about->object.kind != object_kind::record))
    return {};
  return save_attempt{about->step, about->object.attempt};
}

CAIRN_BODY detail::sorted_map<std::int64_t, std::vector<std::uint64_t>> checkpoint_catalog::begun_attempts(
    const std::vector<listed_unfinished>& unfinished) {
  detail::sorted_map<std::int64_t, std::vector<std::uint64_t>> found;
  for (const auto& object : unfinished)
    if (const auto a = attempt_of_unfinished(object.key))
      if (auto& in = found[a->step]; !detail::contains(in, a->attempt)) in.push_back(a->attempt);
  return found;
}

CAIRN_BODY std::vector<listed_unfinished> checkpoint_catalog::unfinished_of(std::int64_t step) const {
  const auto directory = step_directory(step) + "/";
  const std::string_view prefix = directory;
  return store_.unfinished({&prefix, 1});
}

CAIRN_BODY std::uint64_t checkpoint_catalog::clean_step(std::int64_t step, const run_id& run,
                                                        const std::vector<std::uint64_t>& begun,
                                                        std::int64_t newest) const {
  const auto key = manifest_key(step);
  auto bytes = objects_.read_manifest(key);
  if (bytes && objects_.is_late_manifest(step, *bytes) && store_.remove_if(key, *bytes)) bytes.reset();
  if (bytes) {
    try {
      const auto m = decode_manifest(*bytes, key);
      // A manifest of another step names no file here.
      return m.step == step ? remove_unnamed(step, m, run) : 0;
    } catch (const corrupt_error&) {
      return 0;
    }
  }
  const auto objects = objects_.objects_of(step);
  if (detail::any_of(objects, [](const auto& o) { return o.is_quarantined(); })) return 0;
  std::uint64_t removed = 0;
  auto attempts = detail::attempts_in(objects, std::nullopt);
  const auto is_begun = [&](std::uint64_t attempt) { return detail::contains(begun, attempt); };
  add_begun(attempts, begun, std::nullopt);
  const auto own =
      detail::erase_if(attempts, [&](const auto& a) { return is_of(run, step, a.attempt, objects); });
  const auto has_files = [](const auto& a) { return a.files != 0; };
  if (detail::any_of(attempts, has_files)) {
    // Shown before the marks are looked for again: see earlier_mark.
    const auto shown = detail::step_leases(store_).show_removal(step);
    std::vector<std::uint64_t> ended;  // without those whose mark may appear after the check below
    for (const auto& a : attempts)
      if (has_files(a) && end_attempt(step, a.attempt, a.marked, run)) ended.push_back(a.attempt);
    if (store_.size(key)) return 0;
    removed += objects_.remove_files(step, ended);
  } else if (store_.size(key)) {
    return 0;
  }
  // A mark of another run stays until the run after that one, and until there is a newer checkpoint: late
  // writers of its attempt must find it, and nothing older may become the newest checkpoint.
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

CAIRN_BODY bool checkpoint_catalog::end_attempt(std::int64_t step, std::uint64_t attempt, bool marked,
                                                const run_id& run) const {
  return (marked && store_.size(aborted_key(step, attempt))) ||
         objects_.mark(step, attempt, detail::superseded(step, run));
}

CAIRN_BODY std::uint64_t checkpoint_catalog::remove_unnamed(std::int64_t step, const manifest& m,
                                                            const run_id& run) const {
  detail::sorted_map<std::pair<std::uint64_t, std::int32_t>, std::uint32_t> files;  // of an attempt's ranks
  for (const auto& r : m.records)
    if (r.step == step) files[{r.attempt, r.rank}] = r.files;
  return objects_.remove_beside(step, m.attempt, detail::superseded(step, run), [&](const auto& o) {
    if ((o.own && o.name.kind == object_kind::manifest) || o.is_quarantined()) return false;
    const auto named = files.find({o.name.attempt, o.name.rank});
    return !o.is_file() || named == files.end() ||
           (o.name.kind == object_kind::data && o.name.index >= named->second);
  });
}

CAIRN_BODY bool checkpoint_catalog::is_of(const run_id& run, std::int64_t step, std::uint64_t attempt,
                                          const detail::vector<detail::step_object>& objects) const {
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

CAIRN_BODY std::optional<std::string> checkpoint_catalog::marked_by(std::int64_t step,
                                                                    std::uint64_t attempt) const {
  try {
    objects_.throw_if_aborted(step, attempt);
  } catch (const error& e) {
    if (e.id() == error_id::storage_aborted && !e.fields().got.empty()) return e.fields().got;
  }
  return std::nullopt;
}

CAIRN_BODY std::uint64_t checkpoint_catalog::discard_leftovers(std::vector<listed_unfinished> unfinished,
                                                               const run_id& run) const {
  detail::sorted_map<std::pair<std::int64_t, std::uint64_t>, bool> ours;  // attempts of `run`
  detail::erase_if(unfinished, [&](const listed_unfinished& object) {
    const auto about = detail::unfinished_object(object.key);
    if (!about) return false;
    const auto [at, first] = ours.try_emplace({about->step, about->object.attempt}, false);
    if (first) at->second = detail::made_by(run, about->step, about->object.attempt);
    return at->second;
  });
  return detail::discard_dead(store_, unfinished, "step-");
}

}  // namespace v1
}  // namespace cairn
