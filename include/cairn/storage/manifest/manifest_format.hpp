// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/manifest/manifest.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
/// The most bytes of a manifest that are written and read.
inline constexpr std::uint64_t max_manifest_bytes = std::uint64_t{1} << 30;
}  // namespace detail

/// The bytes of a manifest. O(items + progressions + ranks): a name and a number for each item, each
/// definition once, and about eight bytes for each rank.
/// @throws plan_error (plan_bad_message) naming the item if the content is not that of a checkpoint;
/// storage_error (storage_limit) where they are more than `max_bytes`, which no reader would take.
[[nodiscard]] std::vector<std::byte> encode_manifest(const manifest& m,
                                                     std::uint64_t max_bytes = detail::max_manifest_bytes);

namespace detail {
/// `owned`: the bytes, where items are to be made later; else all are made now.
manifest read_manifest(std::span<const std::byte> bytes, std::string_view file,
                       std::vector<std::byte>* owned);
}  // namespace detail

/// Reads and checks a manifest: digests, structure, and that its content is that of a
/// checkpoint (names sorted and unique, ranks in their world, chunks inside their tensors and together of
/// their volume; not that they do not overlap, which planners check before they write). Allocates about a
/// hundred times the input at most, apart from the progressions that items share (max_shared_progressions).
/// @throws corrupt_error naming the file and the offset.
[[nodiscard]] inline manifest decode_manifest(std::span<const std::byte> bytes, std::string_view file) {
  return detail::read_manifest(bytes, file, nullptr);
}

/// The same for who wants a few items: digests and records are checked, and each item when it is asked for.
/// Opening is O(bytes) for the digests alone. @throws corrupt_error, also from m.content.items later on.
[[nodiscard]] manifest open_manifest(std::vector<std::byte> bytes, std::string_view file);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/manifest/manifest_format.ipp>
#endif
