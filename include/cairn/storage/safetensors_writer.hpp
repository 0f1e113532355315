// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_announcement.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_options.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/commit/restart_notes.hpp>
#include <cairn/storage/commit/shared_mark.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/storage/write_source.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Writes images as safetensors files over a store of any type; a StorageWriter. Copies share the store and the
/// buffers, which are kept between saves. Large pieces of the image go to the store as they are, without
/// another copy; an image that stays in training memory goes through 24 MiB of buffers, for each save that
/// runs at once. safetensors_writer<Store> is the same and knows the store's type.
class safetensors_writer_base {
 public:
  /// @throws usage_bad_option
  explicit safetensors_writer_base(any_store store, commit_options options = {});

  [[nodiscard]] image_layout layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                                    int rank) const {
    return safetensors_layout(plan, item_bytes, rank);
  }
  [[nodiscard]] std::uint64_t fingerprint() const noexcept;

  /// See StorageWriter. After the data files stand under their names and before the record, the attempt is
  /// checked once more: if it was aborted or another one committed, its files are removed and this throws
  /// why.
  record write(const save_context& c, const staged_image& image, deadline until);
  void commit(const save_context& c, const metadata& stored, deadline until);
  void await_commit(const save_context& c, deadline until);
  void abort(const save_context& c, std::exception_ptr failure) noexcept;
  [[nodiscard]] int other_writing_rank(const save_context& c) noexcept {
    return protocol_.other_writing_rank(c);
  }
  /// See StorageWriter. @throws storage_error (storage_leased) where somebody reads it
  void remove(std::int64_t step);
  /// See LeasingWriter.
  [[nodiscard]] checkpoint_lease lease(std::int64_t step, deadline until) {
    return leases().lease(step, until);
  }
  bool quarantine(std::int64_t step) { return catalog_.quarantine(step); }
  std::uint64_t clean(run_id run);
  /// See AnnouncesSaves; clean() finds it. Nothing where a store cannot tell whose writers live, and for ranks
  /// that only join the file of another one, without which they can do nothing.
  [[nodiscard]] save_announcement announce(const save_context& c);
  /// The same by the process that carries the save out: where a store does not show who writes by the objects
  /// themselves, a run that resumes must see that it lives when its trainer is gone.
  [[nodiscard]] save_announcement announce_worker(const save_context& c);
  /// Removes the announcement of a process that is gone.
  void retract(const save_context& c) noexcept;
  /// See ReportsLiveSaves.
  [[nodiscard]] std::vector<save_attempt> live_saves(run_id run) { return catalog_.live_saves(run); }
  /// See LocatesCheckpoints.
  [[nodiscard]] std::string location_of(std::int64_t step) const { return manifest_key(step); }
  // See ProvesStore.
  [[nodiscard]] store_proof prove_store() { return protocol_.store().prove(); }
  void look_early(run_id run) { mark().look_early(run); }
  void leave_mark(run_id run) { marks_ = mark().leave(run); }
  [[nodiscard]] mark_visibility sees_mark(run_id run) { return mark().seen(run); }
  void remove_mark(run_id run) noexcept;
  // See TracksRestarts.
  void note_restart(run_id run, std::int64_t step) { restart_notes().leave(run, step); }
  [[nodiscard]] std::vector<std::int64_t> restarts() { return restart_notes().steps(); }
  void forget_restart(run_id run, std::int64_t step) { restart_notes().remove(run, step); }
  std::size_t forget_restarts(std::int64_t up_to) { return restart_notes().remove_up_to(up_to); }
  void check_space(space_needed needed) { catalog_.check_space(needed.bytes, needed.objects); }

 protected:
  /// The options, for the description of a writer.
  [[nodiscard]] const commit_options& options() const noexcept { return options_; }

 private:
  [[nodiscard]] detail::step_leases leases() const { return detail::step_leases(protocol_.store()); }
  [[nodiscard]] detail::shared_mark mark() const noexcept { return detail::shared_mark(protocol_.store()); }
  [[nodiscard]] detail::restart_notes restart_notes() const noexcept {
    return detail::restart_notes(protocol_.store());
  }
  using object = any_store::object_writer;

  /// The writers of a save's finished objects, until the save has ended: a store that can tells by them that
  /// the save goes on. Any thread.
  class held_objects {
   public:
    void keep(const save_context& c, std::shared_ptr<const void> files);
    void release(const save_context& c) noexcept;

   private:
    std::mutex mutex_;
    std::map<std::pair<std::uint64_t, std::int32_t>, std::shared_ptr<const void>> of_;
  };
  record write_shared(const save_context& c, const staged_image& image, deadline until);

  record write_files(const save_context& c, const staged_image& image, deadline until, std::size_t& finished);

  /// Makes the files durable, several at once: each waits for the device. `finished`: how many may stand.
  void finish(const save_context& c, const staged_image& image, std::vector<object>& files,
              std::size_t& finished) const;
  [[nodiscard]] bool record_stands(const save_context& c) const noexcept;
  void remove_files(const save_context& c, std::size_t count) const noexcept;

  commit_options options_;
  commit_protocol protocol_;
  checkpoint_catalog catalog_;
  std::shared_ptr<held_objects> held_;
  std::shared_ptr<const void> marks_;  ///< those that stand for the moment
  std::shared_ptr<detail::ring_pool> rings_;
};

/// Writes images as safetensors files over a ByteStore; a StorageWriter, which another process can make again
/// where the store is Portable: safetensors_writer_base, which does everything, with the store's type.
template <ByteStore Store>
class safetensors_writer : public safetensors_writer_base {
 public:
  /// @throws usage_bad_option
  explicit safetensors_writer(std::shared_ptr<Store> store, commit_options options = {})
      : safetensors_writer_base(any_store(store), options), store_(std::move(store)) {}

  /// See Portable; where the store is.
  [[nodiscard]] std::vector<std::byte> description() const
    requires Portable<Store>
  {
    wire_writer out;
    detail::encode_options(out, options());
    return out.raw(store_->description()).take();
  }
  [[nodiscard]] static safetensors_writer from_description(std::span<const std::byte> bytes)
    requires Portable<Store>
  {
    wire_reader in(bytes);
    const auto options = detail::decode_options(in);
    return safetensors_writer(std::make_shared<Store>(Store::from_description(in.take(in.left()))), options);
  }

 private:
  std::shared_ptr<Store> store_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/safetensors_writer.ipp>
#endif
