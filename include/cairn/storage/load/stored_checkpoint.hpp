// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/system/owned.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {
/// The most bytes of a record that are read.
inline constexpr std::uint64_t max_record_bytes = std::uint64_t{4} << 30;
}  // namespace detail

/// A rank's record with an index of its items.
class stored_record {
 public:
  /// @throws corrupt_error if the bytes are not the record that the manifest names.
  stored_record(const manifest_record& named, std::span<const std::byte> bytes, const std::string& key);
  /// The record as the rank wrote it.
  [[nodiscard]] const record& content() const noexcept { return record_; }
  /// The item of a key, or nullptr. O(log items).
  [[nodiscard]] const record_item* find(const item_key& key) const noexcept;

 private:
  static bool less(const item_key& a, const item_key& b) noexcept {
    return std::tie(a.name, a.box) < std::tie(b.name, b.box);
  }
  record record_;
  std::vector<std::uint32_t> order_;
};

/// A checkpoint that was opened: its manifest, and the records that were needed so far. One thread at a time.
class stored_checkpoint {
 public:
  explicit stored_checkpoint(cairn::manifest m)
      : manifest_(std::move(m)), records_(manifest_.records.size()) {}

  /// What the checkpoint holds.
  [[nodiscard]] const cairn::metadata& metadata() const noexcept { return manifest_.content; }
  /// The manifest by which the checkpoint was opened.
  [[nodiscard]] const cairn::manifest& manifest() const noexcept { return manifest_; }

  /// True if the record of this rank was added. @pre the manifest has the rank
  [[nodiscard]] bool has_record(std::int32_t rank) const noexcept {
    return records_[static_cast<std::size_t>(rank)] != nullptr;
  }
  /// Keeps a record for record_of() and find(), in place of one of the same rank. @pre the manifest has the
  /// rank.
  void add_record(std::int32_t rank, detail::owned<stored_record> r) noexcept {
    records_[static_cast<std::size_t>(rank)] = std::move(r);
  }
  /// @pre has_record(rank)
  [[nodiscard]] const stored_record& record_of(std::int32_t rank) const noexcept {
    return *records_[static_cast<std::size_t>(rank)];
  }

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
  cairn::manifest manifest_;
  std::vector<detail::owned<stored_record>> records_;
};

namespace detail {

/// A planned read with the place of its bytes.
struct planned_want {
  std::int32_t rank = 0;
  const record_item* stored = nullptr;
  std::uint64_t bytes = 0;  ///< of the stored item
  byte_box box{0};
  load_want want;
  const stored_item* item = nullptr;
  chunk stored_box;
};

[[nodiscard]] planned_want place_want(const stored_checkpoint& checkpoint, const read_item& item);

/// Gives the destination of a bytes item the stored size. @throws usage_error where it has a fixed, other
/// size.
void resize_for(const state_dict& state, const read_item& item, std::uint64_t bytes);

[[nodiscard]] load_file file_of(const stored_checkpoint& checkpoint, std::int32_t rank, std::uint32_t file);
[[nodiscard]] load_item item_of(const stored_checkpoint& checkpoint, std::int32_t rank,
                                const record_item& stored, std::size_t file);

/// Sorts planned reads by file and offset, and joins those of the same stored item.
[[nodiscard]] load_work gather_work(const stored_checkpoint& checkpoint, std::vector<planned_want>& wants);

/// Every block of every file. @pre all records are there.
[[nodiscard]] load_work all_work(const stored_checkpoint& checkpoint);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/load/stored_checkpoint.ipp>
#endif
