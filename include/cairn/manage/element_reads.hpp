// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/storage.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/system/callback.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Reads elements of stored tensors in the order of their boxes, however ranks cut them, into memory of the caller. What
/// is wanted is collected, and read together, in parallel. One thread at a time.
class element_reads {
 public:
  /// How plans are read: by a StorageReader of the checkpoint that `stored` is of.
  using read_plan = callback<std::uint64_t(const load_plan&, const target_resolver&)>;

  /// `stored` outlives it.
  element_reads(const metadata& stored, read_plan read) : stored_(stored), read_(std::move(read)) {}

  /// Wants `count` elements of a box of an item from `begin` on, both multiples of granule_of() of its dtype, at `to`,
  /// which has room for them. `chunk`: the number of the stored chunk that has them, where only one may: of an item
  /// that each rank has. @throws corrupt_error where chunks do not cover what is wanted
  void want(std::uint32_t item, const cairn::chunk& box, std::uint64_t begin, std::uint64_t count,
            std::byte* to, std::optional<std::uint32_t> chunk = {});
  /// Reads all that was wanted since the last call. Returns the bytes that were read for it.
  std::uint64_t read();

 private:
  struct slab {
    std::byte* at;
    std::vector<cairn::chunk> boxes;
    std::vector<std::uint64_t> begins;  ///< of the boxes, in bytes from `at`
    // Where rows fill no whole bytes, as many as do so together are read, and what is wanted of them is copied.
    std::vector<std::byte> wide = {};
    std::byte* out = nullptr;
    std::uint64_t skipped = 0, bytes = 0;
  };
  const metadata& stored_;
  read_plan read_;
  std::vector<slab> slabs_;
  load_plan plan_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/element_reads.ipp>
#endif
