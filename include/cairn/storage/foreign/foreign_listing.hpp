// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A file and where it lies in a store.
struct foreign_name {
  std::string name;  ///< without the directory
  std::string key;
};

/// Which files make up a checkpoint.
struct foreign_listing {
  std::vector<foreign_name> files;  ///< sorted by name
  foreign_name index;               ///< which of them are meant; without a name: all
};

/// Chooses among the names of a directory: all safetensors files, and the index, if there is one.
/// `place`: of the directory, for messages. @throws storage_error (storage_not_found) where there is none,
/// usage_error where there are several indices
[[nodiscard]] foreign_listing choose_files(std::vector<foreign_name> names, const std::string& place);

/// Without an index, names alone tell that an export did not end: where one is NAME-00001-of-00002.safetensors, all that
/// it counts must be there. Names of another form say nothing. @throws corrupt_error (corrupt_missing_file) naming those
/// that are not there
void require_all_parts(const foreign_listing& listing, const std::string& place);

/// Which names choose_files() looks at.
[[nodiscard]] bool is_foreign_name(std::string_view name) noexcept;

/// Drops the files that the text of an index does not name. `name`: of the index, for messages. @throws corrupt_error
void keep_named(std::vector<foreign_name>& files, std::string_view index, std::string_view name);

struct foreign_header;

/// Reads the header of one file. @throws corrupt_error naming the file, the store's errors
[[nodiscard]] foreign_header read_header(const any_store& store, const foreign_name& file);

/// Reads the header of each file, and the index, for foreign_checkpoint. A header costs one or two requests, several
/// at once. @throws corrupt_error, the store's errors
[[nodiscard]] std::vector<std::byte> read_headers(const any_store& store, const foreign_listing& listing);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/foreign/foreign_listing.ipp>
#endif
