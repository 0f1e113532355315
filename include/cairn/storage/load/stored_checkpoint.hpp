// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/system/owned.hpp>

#include <cstdint>
#include <string>

namespace cairn {
inline namespace v1 {

class stored_record;
struct manifest;
struct read_item;
struct record_item;
struct stored_item;

/// A checkpoint that was opened: its manifest, and the records that were needed so far. One thread at a time.
/// One that was moved from may only be assigned to or destroyed.
class stored_checkpoint {
 public:
  explicit stored_checkpoint(cairn::manifest m);
  stored_checkpoint(stored_checkpoint&& other) noexcept;
  stored_checkpoint& operator=(stored_checkpoint&& other) noexcept;
  ~stored_checkpoint();

  /// What the checkpoint holds.
  [[nodiscard]] const cairn::metadata& metadata() const noexcept;
  /// The manifest by which the checkpoint was opened.
  [[nodiscard]] const cairn::manifest& manifest() const noexcept;

  /// True if the record of this rank was added. @pre the manifest has the rank
  [[nodiscard]] bool has_record(std::int32_t rank) const noexcept;
  /// Keeps a record for record_of() and find(), in place of one of the same rank. @pre the manifest has the
  /// rank.
  void add_record(std::int32_t rank, detail::owned<stored_record> r) noexcept;
  /// @pre has_record(rank)
  [[nodiscard]] const stored_record& record_of(std::int32_t rank) const noexcept;

  /// The stored chunk that a planned read is about. @throws plan_error if the plan is not of this checkpoint.
  [[nodiscard]] stored_chunk chunk_of(const read_item& item) const;
  /// What the record of a chunk's rank says of it. @pre has_record(c.rank)
  /// @throws corrupt_error if nothing, or another size.
  [[nodiscard]] const record_item& find(const stored_item& item, const stored_chunk& c) const;
  /// Looks up every chunk. @pre all records are there. @throws corrupt_error
  void check_complete() const;
  /// The key under which the record of a rank lies in the store. @pre the manifest has the rank
  [[nodiscard]] std::string record_key_of(std::int32_t rank) const;
  /// The key of a data file of a rank. @pre the manifest has the rank
  [[nodiscard]] std::string file_key_of(std::int32_t rank, std::uint32_t file) const;

 private:
  struct contents;
  detail::owned<contents> contents_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/load/stored_checkpoint.ipp>
#endif
