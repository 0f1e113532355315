// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A StorageWriter that writes images as safetensors files, over a store of any type. Copies share the
/// store and the buffers, which are kept between saves. Large ranges of the image go to the store without
/// another copy; an image that stays in training memory goes through 24 MiB of buffers for each
/// concurrent save. safetensors_writer<Store> does the same and knows the store's type.
class safetensors_writer_base {
 public:
  /// @throws usage_bad_option
  explicit safetensors_writer_base(any_store store, commit_options options = {});

  safetensors_writer_base(const safetensors_writer_base& other);
  safetensors_writer_base(safetensors_writer_base&& other) noexcept;
  safetensors_writer_base& operator=(const safetensors_writer_base& other);
  safetensors_writer_base& operator=(safetensors_writer_base&& other) noexcept;
  ~safetensors_writer_base();

  [[nodiscard]] image_layout layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                                    int rank) const;
  [[nodiscard]] std::uint64_t fingerprint() const noexcept;

  /// See StorageWriter. After the data files have their final names and before the record is published,
  /// it checks the attempt once more: if the attempt was aborted, or another one has committed, it
  /// removes the files and throws the reason.
  record write(const save_context& c, const staged_image& image, deadline until);
  void commit(const save_context& c, const metadata& stored, deadline until);
  void await_commit(const save_context& c, deadline until);
  void abort(const save_context& c, std::exception_ptr failure) noexcept;
  [[nodiscard]] int other_writing_rank(const save_context& c) noexcept;
  /// See StorageWriter. @throws storage_error (storage_leased) if somebody reads the checkpoint, (storage_pinned)
  void remove(std::int64_t step);
  /// See RemovesAttempts. @throws as remove()
  bool remove_attempt(save_attempt attempt);
  /// See LeasingWriter and LeasesUnchecked.
  [[nodiscard]] checkpoint_lease lease(std::int64_t step, deadline until,
                                       lease_check check = lease_check::at_once);
  /// See ReportsReaders.
  [[nodiscard]] std::vector<std::string> readers(std::int64_t step);
  // See PinsCheckpoints. Where the store has leases, one that is pinned while another process removes it is either
  // pinned and there, or gone and not pinned.
  void pin(std::int64_t step, deadline until);
  void unpin(std::int64_t step);
  [[nodiscard]] std::vector<std::int64_t> pinned();
  bool quarantine(std::int64_t step);
  std::uint64_t clean(run_id run);
  /// See TakesOver: one look at the store tells all where it shows checkpoints alone.
  [[nodiscard]] takeover take_over(run_id run, const takeover_wait& waits);
  /// See AnnouncesSaves; clean() finds the announcement. Announces nothing where the store does not track
  /// writers, and for ranks that only join the file of another rank, without which they cannot write.
  [[nodiscard]] save_announcement announce(const save_context& c);
  /// See AnnouncesSaves: in a store whose objects do not show that their writers live, it shows a run
  /// that resumes that the worker lives after its trainer has ended.
  [[nodiscard]] save_announcement announce_worker(const save_context& c);
  /// Removes the announcement of a process that has ended.
  void retract(const save_context& c) noexcept;
  /// See ReportsLiveSaves.
  [[nodiscard]] std::vector<save_attempt> live_saves(run_id run);
  // See ShowsRuns: by leases, see <cairn/storage/commit/run_signs.hpp>.
  [[nodiscard]] std::shared_ptr<void> show_run(run_id run);
  [[nodiscard]] std::vector<run_id> live_runs(run_id run);
  [[nodiscard]] bool has_died(run_id run);
  // See KnowsRoot.
  [[nodiscard]] std::string root_identity();
  void require_root(const known_root& known);
  /// See LocatesCheckpoints.
  [[nodiscard]] std::string location_of(std::int64_t step) const;
  // See TestsStore.
  [[nodiscard]] store_test_report test_store();
  void look_up_mark(run_id run);
  void leave_mark(run_id run);
  [[nodiscard]] mark_visibility sees_mark(run_id run);
  void remove_mark(run_id run) noexcept;
  // See TracksRestarts.
  void note_restart(run_id run, std::int64_t step);
  [[nodiscard]] std::vector<std::int64_t> restarts();
  void forget_restart(run_id run, std::int64_t step);
  std::size_t forget_restarts(std::int64_t up_to);
  void check_space(space_needed needed);

 protected:
  /// One with the default options, whose files ranks never share: a program that has no other compiles nothing of that.
  struct files_of_own {};
  safetensors_writer_base(any_store store, files_of_own);
  /// Encodes the options for the description of a writer.
  [[nodiscard]] const commit_options& options() const noexcept;
  /// What describes a writer with these options over a store of this description, and the options and the
  /// store's description in that.
  [[nodiscard]] static std::vector<std::byte> describe(const commit_options& options,
                                                       std::span<const std::byte> store);
  [[nodiscard]] static commit_options described(std::span<const std::byte>& description);

 private:
  struct inside;
  detail::owned<inside> inside_;
};

/// A StorageWriter that writes images as safetensors files over a ByteStore: safetensors_writer_base with
/// the store's type, so that another process can construct it if the store is Portable.
template <ByteStore Store>
class safetensors_writer : public safetensors_writer_base {
 public:
  /// @throws usage_bad_option
  explicit safetensors_writer(std::shared_ptr<Store> store, commit_options options = {})
      : safetensors_writer_base(any_store(store), options), store_(std::move(store)) {}

  /// See Portable; only if the store is Portable.
  [[nodiscard]] std::vector<std::byte> description() const
    requires Portable<Store>
  {
    return describe(options(), store_->description());
  }
  [[nodiscard]] static safetensors_writer from_description(std::span<const std::byte> bytes)
    requires Portable<Store>
  {
    const auto options = described(bytes);
    return safetensors_writer(detail::make_shared<Store>(Store::from_description(bytes)), options);
  }

 private:
  std::shared_ptr<Store> store_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/safetensors_writer.ipp>
#endif
