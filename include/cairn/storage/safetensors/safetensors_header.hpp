// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/model/json_text.hpp>
#include <cairn/storage/safetensors/safetensors_entry.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {

/// Appends a JSON array.
void append_json(std::string& out, const extents& numbers);

}  // namespace detail

/// The header of a file whose data holds `entries` back to back, padded so that the data begins at a multiple
/// of `alignment`. If any entry is sharded, `__metadata__` tells PyTorch's reader the place of every entry
/// (one that is not sharded is a whole tensor), with "DCP_VERSION" and "format" unless `metadata` gives them.
/// Keys and metadata must be UTF-8. About 1 us for each entry.
/// @throws usage_error if the entries leave a hole or have a size that is not that of their shape, or if a
/// key is used twice; storage_error (storage_limit) if the text is longer than the format allows.
[[nodiscard]] std::vector<std::byte> encode_safetensors_header(const safetensors_header& header,
                                                               std::uint64_t alignment = 4096);

/// Bytes of the header of a file of `file_bytes`, from its first eight. @throws corrupt_error if the file is
/// too short for it or the length is above 100,000,000.
[[nodiscard]] std::uint64_t safetensors_header_bytes(std::span<const std::byte> first_8_bytes,
                                                     std::uint64_t file_bytes, std::string_view file);

/// Reads the header of a safetensors file of `file_bytes`; `first_bytes` holds at least the whole header
/// (safetensors_header_bytes). Strict: see docs/format.md. What it gives is consistent: entries lie back to
/// back from 0 to the end of the file, each with the size of its shape. Allocates at most about ten times the
/// header.
/// @throws corrupt_error naming the file and the offset.
[[nodiscard]] safetensors_header decode_safetensors_header(std::span<const std::byte> first_bytes,
                                                           std::uint64_t file_bytes, std::string_view file);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/safetensors/safetensors_header.ipp>
#endif
