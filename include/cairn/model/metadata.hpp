// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/annotations.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/stored_items.hpp>

#include <cstdint>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// The items of a checkpoint, sorted by name, names unique, without their places in files.
struct metadata {
  /// The number of ranks that saved.
  std::int32_t world_size = 1;
  /// What the checkpoint holds, sorted by name.
  stored_items items;
  /// The version of the user's state; 0: none was given. See state_dict::version.
  std::int64_t state_version = 0;
  /// What was said about the checkpoint when it was saved.
  cairn::annotations annotations = {};
  /// When it was committed, in seconds since 1970, of a checkpoint that was read; 0: not known.
  std::int64_t committed_at = 0;

  /// The item with a name, or nullptr. O(log n); reads nothing else of a manifest. @throws corrupt_error
  [[nodiscard]] const stored_item* find(std::string_view name) const { return items.find(name); }
};

/// Identifies a box of an item within a rank's record: digests of the key in the data file (`name`, or
/// `name@rank00003` for an item that each rank has) and of the box.
struct item_key {
  std::uint64_t name = 0;  ///< digest of the key in the data file
  std::uint64_t box = 0;   ///< digest of the box
  friend bool operator==(const item_key&, const item_key&) = default;
};

/// The key of a box of the item that has `file_key` in its files.
[[nodiscard]] item_key key_of(std::string_view file_key, const cairn::chunk& box);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/metadata.ipp>
#endif
