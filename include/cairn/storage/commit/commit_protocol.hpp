// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/save_job.hpp>
#include <cairn/storage/commit/attempts_under_way.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/record_collection.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/deadline.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// How a checkpoint comes to exist, by objects of a ByteStore alone: for formats other than safetensors too.
/// It knows keys, records and manifests, nothing of what is in data files.
///
/// Every rank writes its data files, then `publish` its record; the coordinator's `commit` collects the
/// records and publishes the manifest, which only one attempt of a step can do; the others `await_commit`. A
/// mark `aborted.<attempt>` ends an attempt for good: whoever wants to remove the files of an attempt first
/// publishes its mark and then makes sure that no manifest names them; whoever publishes a manifest looks for
/// a mark afterwards, and takes the manifest back where there is one. So one of the two always sees the
/// other, and a checkpoint whose commit has returned keeps its files.
///
/// All functions may be called by several threads at once, for different attempts. Copies share the store.
/// Functions throw the store's errors besides those that they name.
class commit_protocol {
 public:
  /// @throws usage_bad_option
  explicit commit_protocol(any_store store, commit_options options = {})
      : store_(store),
        objects_(store),
        options_(options),
        attempts_(std::make_shared<detail::attempts_under_way>(std::move(store), options)) {
    check_options(options, store_.shares(), store_.describe());
  }
  template <ByteStore Store>
  explicit commit_protocol(std::shared_ptr<Store> store, commit_options options = {})
      : commit_protocol(any_store(std::move(store)), options) {}
  [[nodiscard]] file_placement placement(const save_context& c) const noexcept {
    return placement_of(options_, c.world_size);
  }
  /// The objects that the protocol and its formats share.
  [[nodiscard]] const detail::step_objects& objects() const noexcept { return objects_; }

  [[nodiscard]] const any_store& store() const noexcept { return store_; }

  /// Before the first byte is written, and again when all are: throws storage_already_committed if the step
  /// is committed, and the reason of an attempt that was aborted. Two small requests.
  void check_open(const save_context& c) const { objects_.check_open(c); }

  /// Before anything of a rank's part is written, by the process that writes all of it: what that knows of
  /// the attempt, abort() relies on. Without it, abort() removes no file that it could not tell others of.
  void begin(const save_context& c) const { attempts_->begin(c); }

  /// True if no manifest can name this rank's files, since its record was not sent, and this process alone
  /// would have.
  [[nodiscard]] bool unsent(const save_context& c) const noexcept {
    const auto known = attempts_->known(c);
    return known.here && !known.record;
  }

  /// The same, after files got their names: the step may be committed by this very attempt already.
  void check_not_ended(const save_context& c) const {
    objects_.throw_if_aborted(c.step, c.attempt);
    if (store_.size(manifest_key(c.step)) && !objects_.committed_by(c.step, c.attempt))
      detail::fail_already_committed(c.step);
  }

  /// Before the first object is created, in a world of more than one block of ranks, or whose ranks share
  /// files, over a store with directories: the coordinator makes the step's directory, the first rank of each
  /// directory of ranks that one, the others wait for them, for some seconds at most; then whoever creates
  /// the first object makes it. Who only joins the file of another rank does nothing: where that file is, its
  /// directory is. That the directory itself lasts is the coordinator's matter, before it publishes the
  /// manifest.
  void enter(const save_context& c, deadline until) const {
    const auto place = placement(c);
    if ((!large(c) && !place.shared()) || place.first_of(c.rank) != c.rank) return;
    const auto timeout = deadline::in(options_.directory_timeout).earlier(until);
    const auto take = [&](const std::string& directory, bool make) {
      if (make) return store_.make_directory(directory);
      for (detail::backoff pause(c.attempt, c.rank, c.world_size); !store_.adopt_directory(directory);)
        if (!pause.wait(timeout)) return;
    };
    take(step_directory(c.step), c.coordinator());
    if (place.ranks_per_directory != 0)
      take(rank_directory(c.step, c.rank, place), c.rank % place.ranks_per_directory == 0);
  }

  /// Publishes this rank's record, whose identity is filled in from the context, after a last check_open.
  /// Where ranks share files, the first of them has put their records into the first of these instead.
  /// @pre all data files of the record are durable under their keys.
  void publish(const save_context& c, record& r) const {
    detail::identify(r, c);
    check_open(c);
    const auto bytes = encode_record(r);
    attempts_->sending(c, &detail::attempt_knowledge::record,
                       [&] { store_.put_new(record_key(c.step, c.rank, c.attempt, placement(c)), bytes); });
  }

  /// Coordinator: see StorageWriter::commit. Before the manifest is published, other attempts of the step are
  /// aborted and their files removed; afterwards, what appeared meanwhile. @throws what a failing rank
  /// reported, with its rank; plan_error (plan_disagreement); peer_error (peer_lost) naming the ranks that
  /// did not report by the deadline; storage_error (storage_already_committed, storage_aborted).
  void commit(const save_context& c, const metadata& content, deadline until) const {
    try {
      manifest m;
      m.run = c.run;
      m.step = c.step;
      m.attempt = c.attempt;
      m.plan_digest = c.plan_digest;
      m.content = content;
      m.placement = placement(c);
      m.unix_time = static_cast<decltype(m.unix_time)>(std::time(nullptr));
      detail::record_collection records(store_, objects_, c, placement(c), block_ranks(c));
      for (const auto& h : records.collect(until))
        m.records.push_back({h.step, h.attempt, h.rank, h.files, h.header_digest, h.data_bytes});
      end_other_attempts(c, m.placement, until);
      publish_manifest(c, encode_manifest(m), m.placement, m.records.front().files, until);
      if (c.world_size > 1) store_.note_durable(manifest_key(c.step));
    } catch (...) {
      // Beside another attempt's manifest no mark is needed.
      if (!objects_.stands(c.step)) (void)objects_.mark(c.step, c.attempt, std::current_exception());
      throw;
    }
    attempts_->end(c);
    try {
      remove_foreign(c);
    } catch (...) {  // the checkpoint exists; clean() removes what is left
    }
  }

  /// Publishes the manifest of a checkpoint that was committed elsewhere, byte by byte, once all objects that
  /// it names are durable here under the same keys. As commit(): other attempts of the step are ended and
  /// their files removed, of several attempts one wins, and one that was ended meanwhile takes its manifest
  /// back. @pre make_name_durable() was called for objects that this store did not finish itself. @throws corrupt_error;
  /// storage_error (storage_already_committed, storage_aborted)
  void adopt(std::int64_t step, std::span<const std::byte> manifest_bytes, deadline until) const {
    const auto m = open_manifest({manifest_bytes.begin(), manifest_bytes.end()}, manifest_key(step));
    const save_context c{.run = m.run,
                         .step = m.step,
                         .attempt = m.attempt,
                         .plan_digest = m.plan_digest,
                         .world_size = m.content.world_size};
    objects_.throw_if_aborted(c.step, c.attempt);
    end_other_attempts(c, m.placement, until);
    publish_manifest(c, manifest_bytes, m.placement, 0, until);
    try {
      remove_foreign(c);
    } catch (...) {  // as in commit()
    }
  }

  /// Other ranks: see StorageWriter::await_commit. @throws the reason of an abort, storage_already_committed,
  /// timeout_error (timeout_commit).
  void await_commit(const save_context& c, deadline until) const {
    const auto key = manifest_key(c.step);
    detail::block_merge merge(store_, c, placement(c), block_ranks(c));
    // Those who merge are few, and waited for.
    const auto pollers = merge.done() ? c.world_size : 1;
    detail::backoff pause(c.attempt, c.rank, pollers);
    bool stood = !placement(c).shared();
    for (std::uint64_t poll = 1;; ++poll) {
      objects_.throw_if_aborted(c.step, c.attempt);
      merge.advance();
      if (store_.size(key)) {
        if (objects_.committed_by(c.step, c.attempt)) {
          objects_.throw_if_aborted(c.step, c.attempt);  // it may have been published too late
          await_durable_name(c, key, until);
          return attempts_->end(c);
        }
        if (!objects_.remove_ghost(c.step) && store_.size(key)) detail::fail_already_committed(c.step);
      }
      if (poll % detail::polls_for_own_record == 0) {
        // A file that ranks share comes to stand when the last of them has written.
        if (!stood) stood = store_.size(record_key(c.step, c.rank, c.attempt, placement(c))).has_value();
        if (stood) objects_.check_record(c, placement(c));
      }
      end_if_coordinator_is_lost(c, key);
      if (!pause.wait(until))
        fail(error_id::timeout_commit,
             "the coordinator neither committed nor aborted the checkpoint in time; look for its errors",
             {.rank = c.rank, .file = key});
    }
  }

  /// After a failure in this rank's part: tells the others and removes what the attempt wrote: this rank's
  /// files, on the coordinator those of all. Does nothing if the checkpoint was committed. What the store
  /// does not let it do now, as on a full disk, a thread of this protocol tries again until it works or
  /// nobody waits for this save any more; see detail::attempt_ending for what is removed when.
  void abort(const save_context& c, const std::exception_ptr& failure) const noexcept {
    attempts_->fail(c, failure);
  }

  /// A rank but this one of which a file of this attempt is there; -1: none is seen. One listing.
  [[nodiscard]] int other_rank_that_wrote(const save_context& c) const noexcept {
    try {
      for (const auto& o : objects_.objects_of(c.step))
        if (o.is_file() && o.name.attempt == c.attempt && o.name.rank != c.rank) return o.name.rank;
    } catch (...) {  // seen another time
    }
    return -1;
  }

 private:
  /// @throws peer_error (peer_lost); what ended the attempt
  void end_if_coordinator_is_lost(const save_context& c, const std::string& key) const {
    if (c.peers == nullptr || !c.peers->is_gone(0)) return;
    // What it did before it was gone, a look that begins now sees.
    objects_.throw_if_aborted(c.step, c.attempt);
    if (!store_.size(key)) detail::fail_gone(c, std::vector<std::int32_t>{0});
  }
  [[nodiscard]] bool large(const save_context& c) const noexcept { return c.world_size > block_ranks(c); }
  [[nodiscard]] std::int32_t block_ranks(const save_context& c) const noexcept {
    return detail::block_ranks_of(options_, c.world_size);
  }
  /// Returns when no manifest of another attempt stands. An attempt that was ended after it published takes
  /// its manifest back: that is waited for, since else both it and the one that ended it would lose.
  /// @throws storage_already_committed if one stands to stay.
  void outlast_ended_manifest(const save_context& c, const file_placement& place, deadline until) const {
    const auto timeout = deadline::in(options_.rival_timeout).earlier(until);
    for (detail::backoff pause(c.attempt, c.rank); store_.size(manifest_key(c.step));) {
      const auto standing = objects_.standing_attempt(c.step);
      if (objects_.remove_ghost(c.step)) return;
      if (!standing) {
        if (!store_.size(manifest_key(c.step))) return;
        detail::fail_already_committed(c.step);
      }
      // Who keeps its manifest removes the records of others.
      if (!store_.size(aborted_key(c.step, *standing)) ||
          !store_.size(record_key(c.step, c.rank, c.attempt, place)) || !pause.wait(timeout)) {
        // Looked at in this order, a manifest that was just taken back is not mistaken for one that stays.
        if (objects_.standing_attempt(c.step) == standing) detail::fail_already_committed(c.step);
      }
    }
  }
  /// The manifest is seen, but the coordinator may not have come to the fsync that makes its name last. Once
  /// it has, it says so; a rank that waits in vain, as where the coordinator died in between, does it itself.
  void await_durable_name(const save_context& c, const std::string& key, deadline until) const {
    const auto timeout = deadline::in(options_.durability_timeout).earlier(until);
    for (detail::backoff pause(c.attempt, c.rank, c.world_size); !store_.is_noted_durable(key);) {
      if (pause.wait(timeout)) continue;
      store_.make_name_durable(key);
      return objects_.throw_if_aborted(c.step, c.attempt);
    }
  }

  /// That nobody who keeps to no protocol has removed this rank's data, as by hand: one look for each file.
  void check_files(const save_context& c, const file_placement& place, std::uint32_t files) const {
    for (std::uint32_t k = 0; k < files; ++k)
      if (const auto key = data_key(c.step, c.rank, c.attempt, k, place);
          !store_.size(key) && !store_.size(compressed_key(key)))
        fail(error_id::storage_aborted, "the files of this save were removed before it was committed",
             {.rank = c.rank, .file = key});
  }
  /// `files`: this rank's that are looked for before.
  void publish_manifest(const save_context& c, std::span<const std::byte> bytes, const file_placement& place,
                        std::uint32_t files, deadline until) const {
    objects_.throw_if_aborted(c.step, c.attempt);
    check_files(c, place, files);
    const auto key = manifest_key(c.step);
    const auto publish = [&] {
      return attempts_->sending(c, &detail::attempt_knowledge::manifest,
                                [&] { return store_.publish_new(key, bytes); });
    };
    while (!publish() && !objects_.committed_by(c.step, c.attempt)) outlast_ended_manifest(c, place, until);
    // Where these two cannot be read, this rank fails, but the manifest stays: others may have relied on it.
    const auto ended = aborted_key(c.step, c.attempt);
    const auto mark_bytes = store_.read_all(ended, detail::max_mark_bytes);
    const bool whole = store_.size(record_key(c.step, c.rank, c.attempt, place)).has_value();
    if (!mark_bytes && whole) return;
    (void)store_.remove_if(key, bytes);
    if (mark_bytes) detail::throw_mark(*mark_bytes, c.step, ended);
    // Marks do not stay for ever.
    fail(error_id::storage_aborted, "the files of this save were removed before it was committed",
         {.file = key});
  }

  /// Aborts the other attempts of the step and removes their files. Where several attempts do this at once,
  /// the one that puts its claim first goes on.
  void end_other_attempts(const save_context& c, const file_placement& place, deadline until) const {
    const auto objects = objects_.objects_of(c.step);
    auto others = detail::attempts_in(objects, c.attempt);
    const auto aside = objects_.set_aside_attempts(objects);
    std::erase_if(others, [&](const auto& o) { return detail::is_among(aside, o.attempt); });
    if (others.empty()) return;
    if (std::any_of(others.begin(), others.end(), [](const auto& o) { return !o.marked; })) claim(c, until);
    outlast_ended_manifest(c, place, until);  // one that stands already is none to end
    std::vector<std::uint64_t> ended;         // not those whose mark may come to stand after the look below
    for (const auto& o : others)
      if (o.marked || objects_.mark(c.step, o.attempt, detail::superseded(c.step, c.run)))
        ended.push_back(o.attempt);
    outlast_ended_manifest(c, place, until);
    objects_.throw_if_aborted(c.step, c.attempt);
    (void)objects_.remove_files(c.step, ended);
  }
  void claim(const save_context& c, deadline until) const {
    wire_writer own;
    own.put(c.attempt);
    int n = 0;
    const auto timeout = deadline::in(options_.rival_timeout);
    for (detail::backoff pause(c.attempt, c.rank);;) {
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
        fail(error_id::timeout_commit,
             "another attempt wants to commit the same step and did not end in time",
             {.file = manifest_key(c.step)});
    }
  }
  /// Beside the manifest of this attempt: everything of other attempts.
  void remove_foreign(const save_context& c) const {
    (void)objects_.remove_beside(c.step, c.attempt, detail::superseded(c.step, c.run), [&](const auto& o) {
      return !o.own || (o.name.kind != object_kind::manifest && o.name.attempt != c.attempt);
    });
  }

  any_store store_;
  detail::step_objects objects_;
  commit_options options_;
  std::shared_ptr<detail::attempts_under_way> attempts_;
};

}  // namespace v1
}  // namespace cairn
