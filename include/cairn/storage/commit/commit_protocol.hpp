// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/attempts_under_way.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/lost_parts.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

/// The commit protocol of checkpoints, which uses only objects of a ByteStore. It knows keys, records and
/// manifests, but not the contents of data files, so that formats other than safetensors can use it.
///
/// Every rank writes its data files, then its record by `publish`. The coordinator's `commit` collects
/// the records and publishes the manifest, which only one attempt of a step can do; the other ranks call
/// `await_commit`. A mark `aborted.<attempt>` ends (fences) an attempt for good: to remove the files of
/// an attempt, a process first publishes its mark and then checks that no manifest names them; a
/// coordinator that publishes a manifest looks for a mark afterwards, and withdraws the manifest if there
/// is one. So one of the two always sees the other, and a checkpoint whose commit has returned keeps its
/// files.
///
/// Several threads may call all functions at once, for different attempts. Copies share the store.
/// Besides the errors that they name, functions throw those of the store.
class commit_protocol {
 public:
  /// @throws usage_bad_option
  explicit commit_protocol(any_store store, commit_options options = {});
  template <ByteStore Store>
  explicit commit_protocol(std::shared_ptr<Store> store, commit_options options = {})
      : commit_protocol(any_store(std::move(store)), options) {}
  /// How the ranks of a save share files and directories, by the options and the number of ranks.
  [[nodiscard]] file_placement placement(const save_context& c) const noexcept {
    return placement_of(options_, c.world_size);
  }
  /// The objects of steps, which the protocol and formats share.
  [[nodiscard]] const detail::step_objects& objects() const noexcept { return objects_; }

  /// The store of all objects; copies of the protocol share it.
  [[nodiscard]] const any_store& store() const noexcept { return store_; }

  /// Called before the first byte is written, and again when all are written. Throws
  /// storage_already_committed if the step is committed, and the reason of an attempt that was aborted.
  /// Costs two small requests.
  void check_open(const save_context& c) const { objects_.check_open(c); }

  /// Called before a rank writes, by the process that writes all of its files. abort() relies on what
  /// this process knows of the attempt; without this call, abort() removes no file whose removal it could
  /// not tell to others.
  void begin(const save_context& c) const { attempts_->begin(c); }

  /// True if no manifest can name this rank's files, since only this process sends its record and has not
  /// sent it.
  [[nodiscard]] bool unsent(const save_context& c) const noexcept;

  /// Makes the directories before the first object is created, in a world of more than one block of
  /// ranks, or whose ranks share files, over a store with directories. The coordinator makes the step's
  /// directory, and the first rank of each directory of ranks makes that directory. The others wait for
  /// them, at most for some seconds; after that, whoever creates the first object makes it. A rank that
  /// only joins the file of another rank does nothing, since the directory exists. The coordinator makes
  /// the step's directory durable before it publishes the manifest.
  void enter(const save_context& c, deadline until) const;

  /// Publishes this rank's record, with the identity of the context, after a last check_open().
  /// Ranks that share files have put their records into the first of these files instead.
  /// @pre all data files of the record are durable under their keys.
  void publish(const save_context& c, record& r) const;

  /// For the coordinator: see StorageWriter::commit. Before it publishes the manifest, it aborts other
  /// attempts of the step and removes their files; afterwards it removes what appeared in between.
  /// @throws what a failing rank reported, with its rank; plan_error (plan_disagreement); peer_error
  /// (peer_lost) naming the ranks that did not report by the deadline; storage_error
  /// (storage_already_committed, storage_aborted).
  void commit(const save_context& c, const metadata& content, deadline until) const;

  /// Publishes the manifest of a checkpoint that was committed elsewhere, byte by byte, once all objects
  /// that it names are durable here under the same keys. As commit(): other attempts of the step are
  /// ended and their files removed, of several attempts one wins, and one that was ended meanwhile takes
  /// its manifest back. If it was set aside here before, it is so no more. @pre make_name_durable() was called for objects that this store did not finish
  /// itself. @throws corrupt_error; storage_error (storage_already_committed, storage_aborted)
  void adopt(std::int64_t step, std::span<const std::byte> manifest_bytes, deadline until) const;

  /// For other ranks: see StorageWriter::await_commit. @throws the reason of an abort,
  /// storage_already_committed, timeout_error (timeout_commit).
  void await_commit(const save_context& c, deadline until) const;

  /// After a failure on this rank: tells the other ranks, and removes what the attempt wrote: this rank's
  /// files, and on the coordinator those of all ranks. Does nothing if the checkpoint was committed. If
  /// the store refuses, for example because the disk is full, a thread of this protocol tries again until
  /// it succeeds or nobody waits for this save any more; see detail::attempt_ending.
  void abort(const save_context& c, const std::exception_ptr& failure) const noexcept;

  /// Another rank of which a file of this attempt exists; -1: none. Costs one listing.
  [[nodiscard]] int other_writing_rank(const save_context& c) const noexcept;

 private:
  /// What a look at the store returns, which is tried again for options_.rival_timeout where the store fails. @throws what
  /// the look throws besides storage_error; storage_error: see fail_unseen
  template <class Look>
  [[nodiscard]] auto see(const save_context& c, deadline until, const Look& look) const;
  /// Throws an error of the store that leaves open whether the save is committed.
  [[noreturn]] void fail_unseen(const save_context& c, const storage_error& e) const;
  [[nodiscard]] bool large(const save_context& c) const noexcept { return c.world_size > block_ranks(c); }
  [[nodiscard]] std::int32_t block_ranks(const save_context& c) const noexcept {
    return detail::block_ranks_of(options_, c.world_size);
  }
  /// Makes the names of all records last that lie in directories of their own: a record that is seen may
  /// still wait for the fsync of its rank, while the manifest that names it lasts already.
  void make_records_durable(const save_context& c, const file_placement& place) const;
  /// Returns when there is no manifest of another attempt. An attempt that was ended after it had
  /// published withdraws its manifest; this waits for that, since otherwise both that attempt and the one
  /// that ended it would fail.
  /// @throws storage_already_committed if a manifest is not withdrawn.
  void wait_for_ended_manifest(const save_context& c, const file_placement& place, deadline until) const;
  /// Waits until the coordinator notes that the name of a visible manifest is durable, as it does after its fsync. False
  /// where the note does not come, for example because the coordinator died: this rank makes the name durable itself then.
  [[nodiscard]] bool is_noted_durable(const save_context& c, const std::string& key, deadline until) const;

  /// Checks that nobody has removed this rank's data outside of the protocol, for example by hand. One
  /// request for each file.
  void check_files(const save_context& c, const file_placement& place, std::uint32_t files) const;
  /// `bytes`: of `m`. `files`: this rank's files, whose existence is checked before. Withdraws the manifest where the
  /// attempt was ended, or a file that it names is gone. Returns the objects of the step, listed after that.
  detail::vector<detail::step_object> publish_manifest(const save_context& c, const manifest& m,
                                                       std::span<const std::byte> bytes, std::uint32_t files,
                                                       deadline until) const;

  /// Aborts the other attempts of the step and removes their files. If several attempts do this at once,
  /// the one whose claim is first goes on.
  void end_other_attempts(const save_context& c, const file_placement& place, deadline until) const;
  void claim(const save_context& c, deadline until) const;
  /// Removes everything of other attempts, of these objects, beside the manifest of this attempt.
  void remove_foreign(const save_context& c, detail::vector<detail::step_object> objects) const;

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
