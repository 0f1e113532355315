// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/safetensors/safetensors_entry.hpp>
#include <cairn/system/list_view.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What one of the ranks that share files would write alone: the headers of its files, and so where its items
/// are.
struct shared_member {
  std::vector<safetensors_header> files;
  std::uint64_t blocks = 0;  ///< of all its items
};
/// Where an item of a member comes to lie.
struct place_in_shared_file {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;  ///< in the file
};
struct shared_file {
  std::vector<std::byte> header;
  std::uint64_t bytes = 0;  ///< of the whole file
};
/// The files of several ranks. The first one ends with their records: the bodies, then the headers.
struct shared_file_plan {
  std::vector<shared_file> files;  ///< at least one
  std::vector<std::vector<place_in_shared_file>>
      places;                         ///< of each member's items: file after file, in order
  std::vector<std::uint64_t> bodies;  ///< where the body of each member's record begins in the first file
  std::uint64_t headers = 0;          ///< where the headers of the records begin there
};

/// The key of the records of the ranks from `first` on in the file that they share.
[[nodiscard]] std::string shared_records_name(std::int32_t first);
/// A header with more spaces, so that it has at least `bytes`. @pre its end is a multiple of 4096
void widen_safetensors_header(std::vector<std::byte>& header, std::uint64_t bytes);

/// Items of one key that lie one after another in a file, and are one tensor there.
struct shared_run {
  safetensors_entry entry;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> parts;  ///< member and item
  std::vector<std::uint64_t> begins;                           ///< of the parts, in the run
  std::uint32_t file = 0;
};
/// Adds a part to a run if it continues the rows of the tensor.
[[nodiscard]] bool joins(shared_run& run, const safetensors_entry& e);

/// The files that ranks from `first` on share: a pure function of what each would write alone, so that every
/// one of them makes the same plan. Row shards of consecutive ranks become one tensor; what does not continue
/// so goes to further files, so that a file holds one box of a tensor at most. `least_header`: of the first
/// file. O(items x log items). @throws storage_error (storage_limit), usage_error where items have the
/// records' key.
[[nodiscard]] shared_file_plan plan_shared_files(list_view<const shared_member> members, std::int32_t first,
                                                 std::uint64_t least_header);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/safetensors/shared_file_plan.ipp>
#endif
