// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

// The names of everything that a checkpoint consists of. They are made from numbers alone, and the parsers
// accept exactly what the makers make: no name in a file is ever used as a path.

/// What an object in a step's directory is.
enum class object_kind : std::uint8_t { data, record, manifest, aborted, records };

/// The numbers in an object's name. Those that its kind does not have are zero.
struct object_name {
  object_kind kind = object_kind::data;
  std::int32_t rank = 0;      ///< of data and a record; of records the first
  std::uint64_t attempt = 0;  ///< of all but manifests
  std::uint32_t index = 0;    ///< of data: which of its rank's files
  bool compressed = false;    ///< of data: its items are; ".cairnz" in place of ".safetensors"
  friend bool operator==(const object_name&, const object_name&) = default;
};

/// How the files of a world are put together, and into directories. Of a committed checkpoint, its manifest
/// says it.
struct file_placement {
  std::int32_t ranks_per_file = 1;  ///< so many consecutive ranks share their files, named by the first
  /// How many ranks share a directory within the step's; 0: all files lie in the step's directory.
  std::int32_t ranks_per_directory = 0;
  /// True if several ranks write into one file.
  [[nodiscard]] bool shared() const noexcept { return ranks_per_file > 1; }
  /// The first of the ranks that share files with this one.
  [[nodiscard]] std::int32_t first_of(std::int32_t rank) const noexcept {
    return rank - rank % ranks_per_file;
  }
  friend bool operator==(const file_placement&, const file_placement&) = default;
};

/// "step-00001200": eight digits, more where the step needs them. @throws usage_error if it is negative.
[[nodiscard]] std::string step_directory(std::int64_t step);

/// The name of an object within its step's directory. @throws usage_error if the rank is negative.
[[nodiscard]] std::string to_string(const object_name& name);

/// Where the objects of a rank lie: the step's directory, or "step-00001200/ranks-00256" in it.
[[nodiscard]] std::string rank_directory(std::int64_t step, std::int32_t rank, const file_placement& place);
/// The key of any object of a step.
[[nodiscard]] std::string object_key(std::int64_t step, const object_name& name,
                                     const file_placement& place = {});
/// "step-00001200/rank-00003.0123456789abcdef.0.safetensors"; of the first rank where several share it.
[[nodiscard]] std::string data_key(std::int64_t step, std::int32_t rank, std::uint64_t attempt,
                                   std::uint32_t index, const file_placement& place = {});
/// The key of a file with compressed items in place of the data file of this key.
[[nodiscard]] std::string compressed_key(std::string_view data_key);
/// "step-00001200/rank-00003.0123456789abcdef.record"; where several ranks share files, their first file,
/// which ends with their records.
[[nodiscard]] std::string record_key(std::int64_t step, std::int32_t rank, std::uint64_t attempt,
                                     const file_placement& place = {});
/// "step-00001200/rank-00128.0123456789abcdef.records": the headers of the records of ranks from `first` on.
[[nodiscard]] inline std::string records_key(std::int64_t step, std::int32_t first, std::uint64_t attempt,
                                             const file_placement& place = {}) {
  return object_key(step, {object_kind::records, first, attempt, 0}, place);
}
/// "step-00001200/manifest.cairn"
[[nodiscard]] inline std::string manifest_key(std::int64_t step) {
  return object_key(step, {object_kind::manifest, 0, 0, 0});
}
/// "step-00001200/aborted.0123456789abcdef"
[[nodiscard]] inline std::string aborted_key(std::int64_t step, std::uint64_t attempt) {
  return object_key(step, {object_kind::aborted, 0, attempt, 0});
}

namespace detail {
/// A decimal number as printf's %0<least>d writes it, up to `last`.
[[nodiscard]] std::optional<std::uint64_t> parse_padded(std::string_view digits, std::size_t least,
                                                        std::uint64_t last) noexcept;
[[nodiscard]] std::optional<std::uint64_t> parse_hex16(std::string_view digits) noexcept;
}  // namespace detail

/// The reverse of step_directory; nothing for any other text.
[[nodiscard]] std::optional<std::int64_t> parse_step(std::string_view directory) noexcept;

/// The reverse of to_string(object_name), without the directory; nothing for any other text.
[[nodiscard]] std::optional<object_name> parse_object(std::string_view name) noexcept;

/// The name of an object, from its key without the step's directory: with or without a directory of ranks.
[[nodiscard]] std::optional<object_name> parse_placed_object(std::string_view name) noexcept;

/// A complete key taken apart.
struct parsed_key {
  std::int64_t step = 0;  ///< whose directory the object lies in
  object_name object;     ///< the numbers in its name
};
/// The reverse of object_key with some placement; nothing for any other text.
[[nodiscard]] std::optional<parsed_key> parse_key(std::string_view key) noexcept;

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/manifest/names.ipp>
#endif
