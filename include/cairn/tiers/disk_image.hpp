// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Writes an image into a file of a disk, in place of what is there, while it is still being copied; past the cache of
/// the kernel where the file system does that. Returns when it is released and would survive a loss of power.
/// @throws storage_error, timeout_error (timeout_staging), what failed in the stager
void write_disk_image(tier_files& files, const std::string& path, const staged_image& image, deadline until);

/// The first bytes of such a file. @throws corrupt_error, storage_error
[[nodiscard]] std::vector<std::byte> read_disk_image(const std::string& path, std::uint64_t bytes);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/tiers/disk_image.ipp>
#endif
