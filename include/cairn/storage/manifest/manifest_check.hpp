// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/manifest/manifest.hpp>

#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Why a list of items is not a valid content of a checkpoint; `what` is nullptr if it is valid.
struct content_problem {
  const char* what = nullptr;
  std::size_t item = 0;
};

/// Why the chunks of one item are none; nullptr if they are fine. Boxes are not compared with each other:
/// that they cover the tensor is checked by their volume. O(progressions), of per-rank items O(ranks).
[[nodiscard]] const char* chunks_problem(const stored_item& item, std::int32_t world_size);

/// Why an item, apart from its chunks, is not valid.
[[nodiscard]] const char* item_problem(const stored_item& item) noexcept;

/// The first problem of all items: names sorted and unique, and the checks above.
[[nodiscard]] content_problem find_problem(const metadata& content);

/// Why the table of records is not valid.
[[nodiscard]] const char* records_problem(const manifest& m) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/manifest/manifest_check.ipp>
#endif
