// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

// The header of a safetensors file: eight bytes with the length N of the JSON text (little-endian), N bytes
// of JSON padded with spaces, then the data. docs/format.md says what cairn adds.

/// One tensor of a safetensors file.
struct safetensors_entry {
  std::string key;         ///< its name in the header
  dtype type = dtype::u8;  ///< of its elements
  extents shape;
  std::uint64_t begin = 0;  ///< of its bytes in the data, which follows the header
  std::uint64_t end = 0;    ///< one past its last byte in the data
  // Its place in the global tensor, where DCP_SHARDING_INFO says it.
  extents saved_offsets;  ///< of its first element in the global tensor
  extents global_shape;   ///< of the global tensor
  bool sharded = false;   ///< the header says the place: the two above are meant
  friend bool operator==(const safetensors_entry&, const safetensors_entry&) = default;
};

/// What the header of a safetensors file says.
struct safetensors_header {
  std::vector<safetensors_entry> entries;  ///< in the order of their bytes
  /// Further pairs of `__metadata__`; not DCP_SHARDING_INFO, which the entries hold.
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// The most bytes of JSON that readers of the format accept.
inline constexpr std::uint64_t max_safetensors_json = 100'000'000;

}  // namespace v1
}  // namespace cairn
