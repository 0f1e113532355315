// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/device_runtime.hpp>
#include <cairn/model/tensor_view.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// A tensor with any strides, as bytes: runs of `run` bytes, in row-major order of up to 8 dimensions.
struct gather_box {
  std::uint64_t run = 0;  ///< consecutive bytes in memory, at least 1
  std::uint64_t sizes[extents::max_rank] = {};
  std::int64_t strides[extents::max_rank] = {};  ///< in bytes; may be zero or negative
  std::uint32_t rank = 0;
};

/// Bytes that go to one place. At most gather_tile_bytes.
struct gather_range {
  /// As `box`: the bytes lie together in memory.
  static constexpr std::uint32_t no_box = 0xffffffff;

  const std::byte* from = nullptr;  ///< the first byte; of a box that of element [0, 0, ...]; null: zeros
  std::uint64_t first = 0;          ///< of a box: where the bytes begin in the packed tensor
  std::uint32_t to = 0;             ///< offset in the staging memory
  std::uint32_t bytes = 0;
  std::uint32_t box = no_box;  ///< index of the box
  std::uint32_t width = 1;     ///< 1, 2, 4, 8 or 16: divides all that addresses of whole units depend on
};
/// The most bytes of one tile.
inline constexpr std::uint32_t gather_tile_bytes = 16 * 1024;

/// Where byte `position` of a packed box lies.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline const std::byte*
    gather_source(const gather_box& box, const std::byte* from, std::uint64_t position) noexcept {
  std::uint64_t row = position / box.run;
  from += position - row * box.run;
  for (std::uint32_t d = box.rank; d-- > 0;) {
    const std::uint64_t next = d == 0 ? 0 : row / box.sizes[d];
    from += static_cast<std::int64_t>(row - next * box.sizes[d]) * box.strides[d];
    row = next;
  }
  return from;
}

/// A DeviceRuntime with a kernel that gathers: `gather(parts, boxes, staging, s)`: in the order of s, the
/// bytes of each part are brought to staging + to, all in memory of the device in use. Parts and boxes are
/// the caller's again when it returns. Few launches, however many parts there are. `load_kernels()`: whatever
/// the first launch on the device in use would wait for.
template <class R>
concept GatheringRuntime =
    DeviceRuntime<R> && requires(std::span<const gather_range> parts, std::span<const gather_box> boxes,
                                 std::byte* staging, typename R::stream_type s) {
      { R::gather(parts, boxes, staging, s) } noexcept -> std::same_as<int>;
      { R::load_kernels() } noexcept -> std::same_as<int>;
    };

namespace detail {

/// The box of a view whose elements are whole bytes.
[[nodiscard]] inline gather_box box_of(const tensor_view& view) noexcept {
  const auto element = static_cast<std::int64_t>(bits_of(view.type)) / 8;
  gather_box box;
  int outer = view.shape.rank();
  std::int64_t together = 1;
  for (; outer > 0; --outer) {
    const int d = outer - 1;
    if (view.shape[d] != 1 && view.strides[static_cast<std::size_t>(d)] != together) break;
    together *= view.shape[d];
  }
  box.run = static_cast<std::uint64_t>(together * element);
  for (int d = 0; d < outer; ++d) {
    if (view.shape[d] == 1) continue;
    const auto size = static_cast<std::uint64_t>(view.shape[d]);
    const std::int64_t stride = view.strides[static_cast<std::size_t>(d)] * element;
    const auto last = box.rank - 1;
    if (box.rank > 0 && box.strides[last] == stride * view.shape[d]) {
      box.sizes[last] *= size,
          box.strides[last] = stride;  // divisions are what a kernel spends its time with
      continue;
    }
    box.sizes[box.rank] = size, box.strides[box.rank] = stride;
    ++box.rank;
  }
  return box;
}
/// The largest width that a part may have.
[[nodiscard]] inline std::uint32_t width_of(const gather_range& part, const gather_box* box) noexcept {
  std::uint64_t bits = 16 | part.to | reinterpret_cast<std::uintptr_t>(part.from) | part.first;
  if (box != nullptr) {
    bits |= box->run;
    for (std::uint32_t d = 0; d < box->rank; ++d) bits |= static_cast<std::uint64_t>(box->strides[d]);
  }
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
