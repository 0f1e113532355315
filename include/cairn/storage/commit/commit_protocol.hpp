// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/attempts_under_way.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

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
  explicit commit_protocol(any_store store, commit_options options = {});
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
  [[nodiscard]] bool unsent(const save_context& c) const noexcept;

  /// The same, after files got their names: the step may be committed by this very attempt already.
  void check_not_ended(const save_context& c) const;

  /// Before the first object is created, in a world of more than one block of ranks, or whose ranks share
  /// files, over a store with directories: the coordinator makes the step's directory, the first rank of each
  /// directory of ranks that one, the others wait for them, for some seconds at most; then whoever creates
  /// the first object makes it. Who only joins the file of another rank does nothing: where that file is, its
  /// directory is. That the directory itself lasts is the coordinator's matter, before it publishes the
  /// manifest.
  void enter(const save_context& c, deadline until) const;

  /// Publishes this rank's record, whose identity is filled in from the context, after a last check_open.
  /// Where ranks share files, the first of them has put their records into the first of these instead.
  /// @pre all data files of the record are durable under their keys.
  void publish(const save_context& c, record& r) const;

  /// Coordinator: see StorageWriter::commit. Before the manifest is published, other attempts of the step are
  /// aborted and their files removed; afterwards, what appeared meanwhile. @throws what a failing rank
  /// reported, with its rank; plan_error (plan_disagreement); peer_error (peer_lost) naming the ranks that
  /// did not report by the deadline; storage_error (storage_already_committed, storage_aborted).
  void commit(const save_context& c, const metadata& content, deadline until) const;

  /// Publishes the manifest of a checkpoint that was committed elsewhere, byte by byte, once all objects that
  /// it names are durable here under the same keys. As commit(): other attempts of the step are ended and
  /// their files removed, of several attempts one wins, and one that was ended meanwhile takes its manifest
  /// back. @pre make_name_durable() was called for objects that this store did not finish itself. @throws corrupt_error;
  /// storage_error (storage_already_committed, storage_aborted)
  void adopt(std::int64_t step, std::span<const std::byte> manifest_bytes, deadline until) const;

  /// Other ranks: see StorageWriter::await_commit. @throws the reason of an abort, storage_already_committed,
  /// timeout_error (timeout_commit).
  void await_commit(const save_context& c, deadline until) const;

  /// After a failure in this rank's part: tells the others and removes what the attempt wrote: this rank's
  /// files, on the coordinator those of all. Does nothing if the checkpoint was committed. What the store
  /// does not let it do now, as on a full disk, a thread of this protocol tries again until it works or
  /// nobody waits for this save any more; see detail::attempt_ending for what is removed when.
  void abort(const save_context& c, const std::exception_ptr& failure) const noexcept;

  /// A rank but this one of which a file of this attempt is there; -1: none is seen. One listing.
  [[nodiscard]] int other_writing_rank(const save_context& c) const noexcept;

 private:
  /// @throws peer_error (peer_lost); what ended the attempt
  void end_if_coordinator_is_lost(const save_context& c, const std::string& key) const;
  [[nodiscard]] bool large(const save_context& c) const noexcept { return c.world_size > block_ranks(c); }
  [[nodiscard]] std::int32_t block_ranks(const save_context& c) const noexcept {
    return detail::block_ranks_of(options_, c.world_size);
  }
  /// Returns when no manifest of another attempt stands. An attempt that was ended after it published takes
  /// its manifest back: that is waited for, since else both it and the one that ended it would lose.
  /// @throws storage_already_committed if one stands to stay.
  void wait_for_ended_manifest(const save_context& c, const file_placement& place, deadline until) const;
  /// The manifest is seen, but the coordinator may not have come to the fsync that makes its name last. Once
  /// it has, it says so; a rank that waits in vain, as where the coordinator died in between, does it itself.
  void await_durable_name(const save_context& c, const std::string& key, deadline until) const;

  /// That nobody who keeps to no protocol has removed this rank's data, as by hand: one look for each file.
  void check_files(const save_context& c, const file_placement& place, std::uint32_t files) const;
  /// `files`: this rank's that are looked for before.
  void publish_manifest(const save_context& c, std::span<const std::byte> bytes, const file_placement& place,
                        std::uint32_t files, deadline until) const;

  /// Aborts the other attempts of the step and removes their files. Where several attempts do this at once,
  /// the one that puts its claim first goes on.
  void end_other_attempts(const save_context& c, const file_placement& place, deadline until) const;
  void claim(const save_context& c, deadline until) const;
  /// Beside the manifest of this attempt: everything of other attempts.
  void remove_foreign(const save_context& c) const;

  any_store store_;
  detail::step_objects objects_;
  commit_options options_;
  std::shared_ptr<detail::attempts_under_way> attempts_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/commit_protocol.ipp>
#endif
