// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// The key of an item in data files and, digested, in records: its name, or "name@rank00003" of a per-rank
/// item.
[[nodiscard]] std::string file_key(std::string_view name, bool is_per_rank, int rank);

namespace detail {
/// Items stand by falling size of their elements, so that each is aligned to its own without holes.
[[nodiscard]] constexpr unsigned alignment_class(dtype t) noexcept {
  const auto bits = bits_of(t);
  return bits == 64 ? 0U : bits == 32 ? 1U : bits == 16 ? 2U : bits == 8 ? 3U : 4U;
}

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t n, std::uint64_t to) noexcept {
  return (n + to - 1) / to * to;
}
}  // namespace detail

/// The image of what one rank writes, as safetensors files: segment k of the image is file k. The j-th box of
/// a tensor goes to file j, so that a file holds at most one box of a tensor. Data begins at a multiple of
/// 4096 bytes of its file. A plan without items gives no file. `item_bytes[i]` is the stored size of item i
/// now. `frozen_apart`: frozen items are in files of their own, behind the others, by the same rule. Pure; cost a few microseconds for each item.
/// @throws usage_error on sizes that do not fit the items' shapes, storage_error (storage_limit) where a
/// header exceeds what the format allows.
[[nodiscard]] image_layout safetensors_layout(const save_plan& plan,
                                              std::span<const std::uint64_t> item_bytes, int rank,
                                              bool frozen_apart = false);

/// The record of an image whose digests are complete: what is where in this rank's files.
[[nodiscard]] record record_of(const image_layout& image, std::span<const std::uint64_t> digests);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/safetensors/safetensors_layout.ipp>
#endif
