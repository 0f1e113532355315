// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/manifest_reader.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/thread_pool.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY vector<step_object> step_objects::objects_of(std::int64_t step) const {
  const auto directory = step_directory(step) + "/";
  vector<step_object> found;
  for (const auto& key : store_.keys(directory))
    if (auto known = parse_object(key, directory.size())) found.push_back(std::move(*known));
  return found;
}

CAIRN_BODY bool step_objects::is_late_manifest(std::int64_t step, std::span<const std::byte> bytes) const {
  const auto key = manifest_key(step);
  try {
    manifest m;
    (void)decode_manifest_header(bytes, key, m);
    if (m.step != step || !store_.size(aborted_key(step, m.attempt))) return false;
    m = decode_manifest(bytes, key);
    return !is_whole(m, objects_of(step));
  } catch (const corrupt_error&) {
  }
  return false;
}

CAIRN_BODY vector<object_name> step_objects::missing_in(const manifest& m,
                                                        const vector<step_object>& objects) {
  const auto of = [](const object_name& o) { return std::tuple(o.rank, o.kind, o.index); };
  vector<std::tuple<std::int32_t, object_kind, std::uint32_t>> files;
  for (const auto& o : objects)
    if (o.is_file() && o.name.attempt == m.attempt) files.push_back(of(o.name));
  detail::sort(files);
  vector<object_name> missing;
  const auto look = [&](const object_name& wanted) {
    if (!std::binary_search(files.begin(), files.end(), of(wanted))) missing.push_back(wanted);
  };
  for (const auto& r : m.records) {
    if (r.step != m.step || r.attempt != m.attempt) continue;
    if (!m.placement.shared()) look({object_kind::record, r.rank, r.attempt, 0});
    if (r.rank != m.placement.first_of(r.rank)) continue;
    for (std::uint32_t k = 0; k < r.files; ++k) look({object_kind::data, r.rank, r.attempt, k});
  }
  return missing;
}

CAIRN_BODY bool step_objects::is_there(std::int64_t step, const object_name& file,
                                       const file_placement& place) const {
  const auto stored = store_.innermost();
  const auto key = object_key(step, file, place);
  return stored.size(key) || (file.kind == object_kind::data && stored.size(compressed_key(key)));
}

CAIRN_BODY bool step_objects::is_whole(const manifest& m, const vector<step_object>& objects) const {
  // A listing may be old (network file systems), a look at an object is not.
  for (const auto& missing : missing_in(m, objects))
    if (!is_there(m.step, missing, m.placement)) return false;
  return true;
}

CAIRN_BODY std::optional<std::vector<std::byte>> step_objects::read_manifest(const std::string& key) const {
  auto bytes = store_.read_all(key, max_manifest_bytes);
  return bytes && !attempt_in(*bytes, key) ? store_.read_all(key, max_manifest_bytes) : std::move(bytes);
}

CAIRN_BODY bool step_objects::remove_late_manifest(std::int64_t step) const {
  const auto key = manifest_key(step);
  const auto bytes = read_manifest(key);
  return bytes && is_late_manifest(step, *bytes) && store_.remove_if(key, *bytes);
}

CAIRN_BODY std::vector<std::int64_t> step_objects::committed_among(
    const std::vector<std::string>& keys) const {
  std::vector<std::int64_t> steps;
  std::vector<std::int64_t> marked;
  for (const auto& key : keys) {
    const auto k = parse_key(key);
    if (k && k->object.kind == object_kind::manifest) steps.push_back(k->step);
    if (k && k->object.kind == object_kind::aborted) marked.push_back(k->step);
  }
  detail::sort(steps);
  detail::sort(marked);
  detail::erase_if(steps, [&](std::int64_t step) {
    if (!std::binary_search(marked.begin(), marked.end(), step)) return false;
    const auto bytes = read_manifest(manifest_key(step));
    return !bytes || is_late_manifest(step, *bytes);
  });
  return steps;
}

CAIRN_BODY void step_objects::remove_all(const std::vector<std::string>& keys) const {
  constexpr std::size_t few = 64, at_once = 16;
  if (keys.size() <= few) {
    for (const auto& key : keys) store_.remove(key);
    return;
  }
  if (store_.remove_all(keys)) return;
  thread_pool().run(keys.size(), at_once, [&](std::size_t i) { store_.remove(keys[i]); });
}

CAIRN_BODY void step_objects::remove_those(const vector<step_object>& objects,
                                           function_ref<bool(const step_object&)> goes) const {
  std::vector<std::string> others;
  for (const auto& o : objects) {
    if (!goes(o)) continue;
    if (o.name.rank == 0 && o.name.kind == object_kind::record)
      store_.remove(o.key);
    else
      others.push_back(o.key);
  }
  remove_all(others);
}

CAIRN_BODY std::uint64_t step_objects::remove_files(std::int64_t step,
                                                    const std::vector<std::uint64_t>& attempts) const {
  if (attempts.empty()) return 0;
  std::vector<std::string> keys;
  for (auto& o : objects_of(step))
    if (o.is_file() && detail::contains(attempts, o.name.attempt)) keys.push_back(std::move(o.key));
  remove_all(keys);
  return keys.size();
}

CAIRN_BODY bool step_objects::stands(std::int64_t step) const noexcept {
  try {
    return store_.size(manifest_key(step)).has_value();
  } catch (...) {
    return false;
  }
}

CAIRN_BODY std::optional<std::uint64_t> step_objects::attempt_in(std::span<const std::byte> bytes,
                                                                 const std::string& key) {
  try {
    manifest m;
    (void)decode_manifest_header(bytes, key, m);
    return m.attempt;
  } catch (const corrupt_error&) {
    return std::nullopt;
  }
}

CAIRN_BODY std::optional<std::uint64_t> step_objects::standing_attempt(std::int64_t step) const {
  const auto key = manifest_key(step);
  const auto bytes = read_manifest(key);
  return bytes ? attempt_in(*bytes, key) : std::nullopt;
}

CAIRN_BODY std::vector<std::uint64_t> step_objects::quarantined_attempts(
    const vector<step_object>& objects) const {
  std::vector<std::uint64_t> found;
  for (const auto& o : objects) {
    if (!o.is_quarantined()) continue;
    // What a damaged one named cannot be known any more.
    if (const auto bytes = read_manifest(o.key))
      if (const auto attempt = attempt_in(*bytes, o.key)) found.push_back(*attempt);
  }
  return found;
}

CAIRN_BODY std::exception_ptr step_objects::why_aborted(std::int64_t step, std::uint64_t attempt) const {
  const auto key = aborted_key(step, attempt);
  const auto bytes = store_.read_all(key, max_mark_bytes);
  return bytes ? why_marked(*bytes, step, key) : nullptr;
}

CAIRN_BODY void step_objects::throw_if_aborted(std::int64_t step, std::uint64_t attempt) const {
  if (const auto why = why_aborted(step, attempt)) std::rethrow_exception(why);
}

CAIRN_BODY void step_objects::check_open(const save_context& c) const {
  throw_if_aborted(c.step, c.attempt);
  if (store_.size(manifest_key(c.step)) && !remove_late_manifest(c.step)) fail_already_committed(c.step);
}

CAIRN_BODY std::exception_ptr step_objects::why_record_is_gone(const save_context& c,
                                                               const std::string& record) const {
  if (store_.size(record)) return nullptr;
  if (auto why = why_aborted(c.step, c.attempt)) return why;
  return make_failure(
      error_id::storage_aborted,
      "the files of this save were removed before it was committed: another rank failed and could not say "
      "why, or somebody removed the checkpoint; look for the errors of the other ranks",
      {.rank = c.rank, .file = record});
}

CAIRN_BODY void step_objects::check_record(const save_context& c, const file_placement& place) const {
  if (const auto why = why_record_is_gone(c, record_key(c.step, c.rank, c.attempt, place)))
    std::rethrow_exception(why);
}

CAIRN_BODY attempt_outcome step_objects::outcome_of(const save_context& c,
                                                    const std::string& own_record) const {
  if (auto why = why_aborted(c.step, c.attempt)) return {.why = std::move(why)};
  if (store_.size(manifest_key(c.step))) {
    // A mark may have come before the manifest.
    if (committed_by(c.step, c.attempt)) return {.committed = true, .why = why_aborted(c.step, c.attempt)};
    if (!remove_late_manifest(c.step) && store_.size(manifest_key(c.step)))
      return {.why = already_committed(c.step)};
  }
  if (own_record.empty()) return {};
  return {.why = why_record_is_gone(c, own_record)};
}

CAIRN_BODY void step_objects::throw_failure_in(const std::string& record_key) const {
  const auto bytes = store_.read_all(record_key, max_mark_bytes);
  if (!bytes)
    fail(error_id::storage_not_found, "the record of a rank that failed is gone", {.file = record_key});
  std::rethrow_exception(decode_failure_record(*bytes, record_key));
}

CAIRN_BODY void step_objects::require_mark(std::int64_t step, std::uint64_t attempt,
                                           const std::exception_ptr& why) const {
  static_cast<void>(store_.publish_new(aborted_key(step, attempt), encode_failure(why)));
}

CAIRN_BODY bool step_objects::mark(std::int64_t step, std::uint64_t attempt,
                                   const std::exception_ptr& why) const noexcept {
  try {
    require_mark(step, attempt, why);
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
