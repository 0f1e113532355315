// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/lost_parts.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

// The records of a world reach the coordinator by their headers alone. In a world of more ranks than a block
// has, the first rank of every block but the coordinator's puts the headers of its block into one object, and
// the coordinator reads these; it looks for single records only now and then, for the case that such a rank
// is gone, and at the deadline.

/// The number of ranks that share the files of this rank.
[[nodiscard]] inline std::int32_t sharers_of(const file_placement& place, std::int32_t rank,
                                             std::int32_t world_size) noexcept {
  return std::min(place.ranks_per_file, world_size - place.first_of(rank));
}
/// The offset of the header of a rank's record in a file of `file_bytes`: a shared file ends with the
/// headers of all its ranks. @throws corrupt_error
[[nodiscard]] std::uint64_t record_header_offset(const file_placement& place, std::int32_t rank,
                                                 std::int32_t world_size, std::uint64_t file_bytes,
                                                 const std::string& key);

void take_away(std::vector<std::int32_t>& from, list_view<const std::int32_t> sorted);

/// Collects the headers of the records of a block of ranks into one object. The first rank of the block
/// does this while it waits for the commit; other ranks do nothing. One thread.
class block_merge {
 public:
  block_merge(const any_store& store, const save_context& c, const file_placement& place,
              std::int32_t block_ranks);
  /// True if this rank has nothing left to do.
  [[nodiscard]] bool done() const noexcept { return missing_.empty(); }
  /// Reads the headers that have appeared, without waiting. Ignores errors: the coordinator does not need
  /// the object.
  void advance() noexcept;

 private:
  any_store store_;
  const save_context& c_;
  file_placement place_;
  std::vector<std::int32_t> missing_;
  std::vector<std::byte> headers_;
};

/// Collects the headers of all records, on the coordinator. One use, one thread.
class record_collection {
 public:
  record_collection(const any_store& store, const step_objects& objects, const save_context& c,
                    const file_placement& place, std::int32_t block_ranks);

  /// The headers in rank order. @pre this rank's record was published. @throws what a rank that failed
  /// reported, plan_error, peer_error.
  [[nodiscard]] vector<record_header> collect(deadline until);

 private:
  /// @throws peer_error (peer_lost) if the record of a rank will never come.
  void end_if_lost();
  /// At the deadline. @throws peer_error (peer_lost) if ranks that are missing have written this step as another
  /// save of this run: not all ranks made each of the calls before.
  void fail_if_counts_differ() const;
  [[nodiscard]] std::vector<std::int32_t> probe_small_world(std::uint64_t poll) const;
  /// Reads the records of missing ranks that a listing shows.
  [[nodiscard]] std::vector<std::int32_t> listed() const;
  void take(const std::vector<std::int32_t>& there);
  /// Reads the objects of blocks that have appeared.
  void take_blocks();
  [[nodiscard]] std::size_t size_of(std::int32_t first) const noexcept;

  any_store store_;
  const step_objects& objects_;
  const save_context& c_;
  file_placement place_;
  std::int32_t block_ranks_ = 0;       ///< 0: a small world, where every record is read by itself
  std::vector<std::int32_t> missing_;  ///< ascending
  std::vector<std::int32_t> blocks_;   ///< first ranks of those that did not appear yet, ascending
  vector<record_header> headers_;
  lost_parts lost_;
  deadline ask_for_peers_ = deadline::in(std::chrono::nanoseconds(0));
  bool damaged_ = false;  ///< an object of a block was of no use
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/record_collection.ipp>
#endif
