// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/attempt_ending.hpp>
#include <cairn/storage/commit/attempts_under_way.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/commit/record_collection.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY commit_protocol::commit_protocol(any_store store, commit_options options)
    : store_(store),
      objects_(store),
      options_(options),
      attempts_(detail::make_shared<detail::attempts_under_way>(std::move(store), options)) {
  check_options(options, store_.shares(), store_.describe());
}

CAIRN_BODY bool commit_protocol::unsent(const save_context& c) const noexcept {
  const auto known = attempts_->known(c);
  return known.here && !known.record;
}

CAIRN_BODY void commit_protocol::enter(const save_context& c, deadline until) const {
  const auto place = placement(c);
  if ((!large(c) && !place.shared()) || place.first_of(c.rank) != c.rank) return;
  const auto timeout = deadline::in(options_.directory_timeout).earlier(until);
  const auto take = [&](const std::string& directory, bool make) {
    if (make) return store_.make_directory(directory);
    for (detail::poll_backoff pause(c.attempt, c.rank, c.world_size); !store_.adopt_directory(directory);)
      if (!pause.wait(timeout)) return;
  };
  take(step_directory(c.step), c.coordinator());
  if (place.ranks_per_directory != 0)
    take(rank_directory(c.step, c.rank, place), c.rank % place.ranks_per_directory == 0);
}

CAIRN_BODY void commit_protocol::publish(const save_context& c, record& r) const {
  detail::identify(r, c);
  check_open(c);
  const auto bytes = encode_record(r);
  attempts_->sending(c, &detail::attempt_knowledge::record,
                     [&] { store_.put_new(record_key(c.step, c.rank, c.attempt, placement(c)), bytes); });
}

CAIRN_BODY void commit_protocol::commit(const save_context& c, const metadata& content,
                                        deadline until) const {
  detail::vector<detail::step_object> objects;
  try {
    manifest m;
    m.run = c.run;
    m.step = c.step;
    m.attempt = c.attempt;
    m.plan_digest = c.plan_digest;
    m.content = content;
    if (c.annotations != nullptr) m.content.annotations.merge(*c.annotations);
    m.placement = placement(c);
    m.unix_time = static_cast<decltype(m.unix_time)>(std::time(nullptr));
    detail::record_collection records(store_, objects_, c, placement(c), block_ranks(c));
    for (const auto& h : records.collect(until))
      m.records.push_back({h.step, h.attempt, h.rank, h.files, h.header_digest, h.data_bytes});
    make_records_durable(c, m.placement);
    end_other_attempts(c, m.placement, until);
    objects = publish_manifest(c, m, encode_manifest(m), m.records.front().files, until);
    if (c.world_size > 1) store_.note_durable(manifest_key(c.step));
  } catch (...) {
    // Where another attempt's manifest stands, this attempt can never be committed and needs no mark.
    if (!objects_.stands(c.step)) (void)objects_.mark(c.step, c.attempt, std::current_exception());
    throw;
  }
  attempts_->end(c);
  try {
    remove_foreign(c, std::move(objects));
  } catch (...) {  // the checkpoint exists; clean() removes what is left
  }
}

CAIRN_BODY void commit_protocol::adopt(std::int64_t step, std::span<const std::byte> manifest_bytes,
                                       deadline until) const {
  const auto m = open_manifest({manifest_bytes.begin(), manifest_bytes.end()}, manifest_key(step));
  const save_context c{.run = m.run,
                       .step = m.step,
                       .attempt = m.attempt,
                       .plan_digest = m.plan_digest,
                       .world_size = m.content.world_size};
  objects_.throw_if_aborted(c.step, c.attempt);
  end_other_attempts(c, m.placement, until);
  // Before: one that is set aside again, once it is published, keeps its new name.
  auto was_aside = objects_.objects_of(step);
  detail::erase_if(was_aside, [](const auto& o) { return !o.is_quarantined(); });
  auto objects = publish_manifest(c, m, manifest_bytes, 0, until);
  try {
    for (const auto& o : was_aside) (void)store_.remove_if(o.key, manifest_bytes);
    remove_foreign(c, std::move(objects));
  } catch (...) {  // as in commit()
  }
}

template <class Look>
auto commit_protocol::see(const save_context& c, deadline until, const Look& look) const {
  const auto timeout = deadline::in(options_.rival_timeout).earlier(until);
  for (detail::poll_backoff pause(c.attempt, c.rank);;) try {
      return look();
    } catch (const storage_error& e) {
      if (!pause.wait(timeout)) fail_unseen(c, e);
    }
}

CAIRN_BODY void commit_protocol::fail_unseen(const save_context& c, const storage_error& e) const {
  auto fields = e.fields();
  fields.rank = c.rank;
  fail(e.id(),
       "the store does not tell this rank what became of its save of step " + std::to_string(c.step) +
           ", which may be committed: " + e.message(),
       std::move(fields));
}

CAIRN_BODY void commit_protocol::await_commit(const save_context& c, deadline until) const {
  const auto key = manifest_key(c.step);
  const auto place = placement(c);
  const auto record = record_key(c.step, c.rank, c.attempt, place);
  detail::block_merge merge(store_, c, place, block_ranks(c));
  // Ranks that merge are few, and others wait for them: they poll often.
  const auto pollers = merge.done() ? c.world_size : 1;
  detail::poll_backoff pause(c.attempt, c.rank, pollers);
  bool stood = !place.shared();
  detail::lost_parts lost(store_, c, place);
  // Other ranks may take for committed what a look that fails does not show: each is tried again.
  const auto committed = [&](bool look_for_record) {
    const auto found =
        see(c, until, [&] { return objects_.outcome_of(c, look_for_record ? record : std::string()); });
    if (found.why != nullptr) std::rethrow_exception(found.why);
    return found.committed;
  };
  for (std::uint64_t poll = 1;; ++poll) {
    merge.advance();
    const bool look_for_record = poll % detail::polls_for_own_record == 0;
    // A file that ranks share appears when the last of them has written.
    if (look_for_record && !stood) stood = see(c, until, [&] { return store_.size(record).has_value(); });
    if (committed(look_for_record && stood)) {
      if (!see(c, until, [&] { return is_noted_durable(c, key, until); })) {
        try {
          store_.make_name_durable(key);
        } catch (const storage_error& e) {
          fail_unseen(c, e);
        }
        static_cast<void>(committed(false));
      }
      return attempts_->end(c);
    }
    // What it did before it was gone is visible to requests that begin now.
    if (see(c, until, [&] { return lost.has(0); }) && !committed(false))
      detail::fail_lost(c, std::vector<std::int32_t>{0});
    if (!pause.wait(until))
      fail(error_id::timeout_commit,
           "the coordinator neither committed nor aborted the checkpoint in time; look for its errors",
           {.rank = c.rank, .file = key});
  }
}

CAIRN_BODY void commit_protocol::abort(const save_context& c,
                                       const std::exception_ptr& failure) const noexcept {
  attempts_->fail(c, failure);
}

CAIRN_BODY int commit_protocol::other_writing_rank(const save_context& c) const noexcept {
  try {
    for (const auto& o : objects_.objects_of(c.step))
      if (o.is_file() && o.name.attempt == c.attempt && o.name.rank != c.rank) return o.name.rank;
  } catch (...) {  // a later call may see it
  }
  return -1;
}

CAIRN_BODY void commit_protocol::wait_for_ended_manifest(const save_context& c, const file_placement& place,
                                                         deadline until) const {
  const auto timeout = deadline::in(options_.rival_timeout).earlier(until);
  for (detail::poll_backoff pause(c.attempt, c.rank); store_.size(manifest_key(c.step));) {
    const auto standing = objects_.standing_attempt(c.step);
    if (objects_.remove_late_manifest(c.step)) return;
    if (!standing) {
      if (!store_.size(manifest_key(c.step))) return;
      detail::fail_already_committed(c.step);
    }
    // An attempt that stays committed removes the records of others.
    if (!store_.size(aborted_key(c.step, *standing)) ||
        !store_.size(record_key(c.step, c.rank, c.attempt, place)) || !pause.wait(timeout)) {
      // Checked in this order, a manifest that was just withdrawn is not mistaken for one that stays.
      if (objects_.standing_attempt(c.step) == standing) detail::fail_already_committed(c.step);
    }
  }
}

CAIRN_BODY bool commit_protocol::is_noted_durable(const save_context& c, const std::string& key,
                                                  deadline until) const {
  const auto timeout = deadline::in(options_.durability_timeout).earlier(until);
  for (detail::poll_backoff pause(c.attempt, c.rank, c.world_size); !store_.is_noted_durable(key);)
    if (!pause.wait(timeout)) return false;
  return true;
}

CAIRN_BODY void commit_protocol::make_records_durable(const save_context& c,
                                                      const file_placement& place) const {
  // In the directory of the step, the fsync behind the manifest does it.
  if (place.ranks_per_directory == 0) return;
  for (std::int32_t rank = 0; rank < c.world_size; rank += place.ranks_per_directory)
    store_.make_name_durable(record_key(c.step, rank, c.attempt, place));
}

CAIRN_BODY void commit_protocol::check_files(const save_context& c, const file_placement& place,
                                             std::uint32_t files) const {
  for (std::uint32_t k = 0; k < files; ++k)
    if (!objects_.is_there(c.step, {object_kind::data, c.rank, c.attempt, k}, place))
      fail(error_id::storage_aborted, "the files of this save were removed before it was committed",
           {.rank = c.rank, .file = data_key(c.step, c.rank, c.attempt, k, place)});
}

CAIRN_BODY detail::vector<detail::step_object> commit_protocol::publish_manifest(
    const save_context& c, const manifest& m, std::span<const std::byte> bytes, std::uint32_t files,
    deadline until) const {
  const auto& place = m.placement;
  objects_.throw_if_aborted(c.step, c.attempt);
  check_files(c, place, files);
  const auto key = manifest_key(c.step);
  const auto publish = [&] {
    return attempts_->sending(c, &detail::attempt_knowledge::manifest,
                              [&] { return store_.publish_new(key, bytes); });
  };
  while (!publish() && !objects_.committed_by(c.step, c.attempt)) wait_for_ended_manifest(c, place, until);
  const auto ended = aborted_key(c.step, c.attempt);
  std::optional<std::vector<std::byte>> mark_bytes;
  detail::vector<detail::step_object> objects;
  const auto stays = [&] {
    mark_bytes = store_.read_all(ended, detail::max_mark_bytes);
    if (mark_bytes || !store_.size(record_key(c.step, c.rank, c.attempt, place))) return false;
    // Whoever ended this attempt before its record was there may have removed what others had written, and then the
    // mark: looked at after the mark.
    objects = objects_.objects_of(c.step);
    return objects_.is_whole(m, objects);
  };
  // If this fails for longer, this rank fails but leaves the manifest: others may have relied on it.
  int looks = 0;
  if (see(c, until, [&] { return ++looks, stays(); })) return objects;
  const auto why =
      mark_bytes ? detail::why_marked(*mark_bytes, c.step, ended)
                 : make_failure(error_id::storage_aborted,
                                "the files of this save were removed before it was committed", {.file = key});
  // A mark that came since the first look takes nothing away; beside one that came before, the manifest is a late one.
  if (looks > 1 && mark_bytes) std::rethrow_exception(why);
  // Without a mark files are missing: it was there and was removed. Marked first: a manifest that cannot be taken back is a
  // late one then.
  if (!mark_bytes) (void)objects_.mark(c.step, c.attempt, why);
  try {
    (void)store_.remove_if(key, bytes);
  } catch (const storage_error&) {  // who looks at the step next takes it away
  }
  std::rethrow_exception(why);
}

CAIRN_BODY void commit_protocol::end_other_attempts(const save_context& c, const file_placement& place,
                                                    deadline until) const {
  const auto objects = objects_.objects_of(c.step);
  auto others = detail::attempts_in(objects, c.attempt);
  const auto aside = objects_.quarantined_attempts(objects);
  detail::erase_if(others, [&](const auto& o) { return detail::is_among(aside, o.attempt); });
  if (others.empty()) return;
  if (detail::any_of(others, [](const auto& o) { return !o.marked; })) claim(c, until);
  wait_for_ended_manifest(c, place, until);  // a manifest that stands must not be ended
  std::vector<std::uint64_t> ended;          // without those whose mark may appear after the check below
  for (const auto& o : others)
    if (o.marked || objects_.mark(c.step, o.attempt, detail::superseded(c.step, c.run)))
      ended.push_back(o.attempt);
  wait_for_ended_manifest(c, place, until);
  objects_.throw_if_aborted(c.step, c.attempt);
  (void)objects_.remove_files(c.step, ended);
}

CAIRN_BODY void commit_protocol::claim(const save_context& c, deadline until) const {
  wire_writer own;
  own.put(c.attempt);
  int n = 0;
  const auto timeout = deadline::in(options_.rival_timeout);
  for (detail::poll_backoff pause(c.attempt, c.rank);;) {
    const auto key = detail::claim_key(c.step, n);
    if (store_.publish_new(key, own.view())) return;
    const auto bytes = store_.read_all(key, 8);
    const auto holder = bytes && bytes->size() == 8 ? wire_reader(*bytes).get<std::uint64_t>() : 0;
    if (bytes && holder == c.attempt) return;
    if (store_.size(manifest_key(c.step))) detail::fail_already_committed(c.step);
    objects_.throw_if_aborted(c.step, c.attempt);
    if (bytes && store_.size(aborted_key(c.step, holder))) {
      ++n;
      continue;
    }
    if (bytes && detail::has_passed(timeout)) {
      (void)objects_.mark(c.step, holder, detail::superseded(c.step, c.run));
      ++n;
      continue;
    }
    if (!pause.wait(until))
      fail(error_id::timeout_commit, "another attempt wants to commit the same step and did not end in time",
           {.file = manifest_key(c.step)});
  }
}

CAIRN_BODY void commit_protocol::remove_foreign(const save_context& c,
                                                detail::vector<detail::step_object> objects) const {
  (void)objects_.remove_beside(
      std::move(objects), c.step, c.attempt, detail::superseded(c.step, c.run), [&](const auto& o) {
        // An attempt that was ended must learn it though this checkpoint is removed; clean() removes its mark.
        return !o.own ||
               (o.name.kind != object_kind::manifest && !o.is_mark() && o.name.attempt != c.attempt);
      });
}

}  // namespace v1
}  // namespace cairn
