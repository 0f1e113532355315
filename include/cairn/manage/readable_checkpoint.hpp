// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/storage.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/storage/foreign/foreign_reader.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/safetensors_reader.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace cairn {
inline namespace v1 {

/// One checkpoint that is open for reading, whoever wrote it: of cairn, with digests, or safetensors files of others,
/// without. What compare_checkpoints() and measure_checkpoint() look at. One thread at a time. One of cairn has a lease as
/// long as this object lives, where the store has leases and this process may write there, so that retention keeps it. What
/// reads throws storage_error (storage_not_committed), too, where the checkpoint was removed since it was opened.
class readable_checkpoint {
 public:
  /// A checkpoint of cairn. @throws storage_error: storage_not_committed where there is none; corrupt_error
  readable_checkpoint(safetensors_reader reader, std::int64_t step);
  /// What something else wrote; its step is 0. A file that is replaced or written again from now on ends what reads it with
  /// corrupt_error (corrupt_identity), where the store tells that. @throws storage_error, corrupt_error
  explicit readable_checkpoint(foreign_reader files);

  /// What it holds, as long as this object lives.
  [[nodiscard]] const cairn::metadata& metadata() const noexcept;
  /// Its number.
  [[nodiscard]] std::int64_t step() const noexcept { return step_; }
  /// Its records, which have the digests; null where something else than cairn wrote it. Reads those that were not
  /// read yet. @throws corrupt_error, storage_error
  [[nodiscard]] const stored_checkpoint* with_records();
  /// Reads parts of tensors. What has digests is verified before it is delivered. Returns the bytes read.
  /// @throws corrupt_error, storage_error
  std::uint64_t read(const load_plan& plan, const target_resolver& resolver, std::uint64_t memory_bytes);
  /// The bytes of one chunk of an item as they are stored, of an item of bytes, too, verified. @pre the checkpoint is of
  /// cairn. @throws corrupt_error, storage_error
  [[nodiscard]] std::vector<std::byte> read_stored(std::uint32_t item, const stored_chunk& chunk);
  /// Looks whether files that something else wrote are those that were opened: nothing else shows that they are of one model.
  /// Nothing for a checkpoint of cairn. @throws corrupt_error (corrupt_identity), storage_error
  void require_unchanged();

 private:
  std::int64_t step_ = 0;
  std::uint64_t manifest_digest_ = 0;  ///< where cairn wrote it
  checkpoint_lease lease_;             ///< where cairn wrote it
  std::optional<safetensors_reader> reader_;
  std::optional<stored_checkpoint> stored_;
  std::optional<foreign_reader> files_;
  std::optional<foreign_checkpoint> foreign_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/readable_checkpoint.ipp>
#endif
