// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {

/// The kind of memory. Copy engines declare which kinds they read and write.
enum class memory_space : std::uint8_t { host = 0, pinned, device };

/// A view of a tensor: address, element type, shape, strides. Owns nothing; trivially copyable.
struct tensor_view {
  std::byte* data = nullptr;  ///< of element [0, 0, ...]
  /// The type of its elements.
  dtype type = dtype::u8;
  extents shape;
  std::array<std::int64_t, extents::max_rank>
      strides{};  ///< in elements; may be zero or negative for views of the user
  memory_space space = memory_space::host;
  int device = -1;  ///< index of the device where space is device

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_of(type, shape.volume()); }
  /// True if the elements lie one after another in row-major order.
  [[nodiscard]] bool contiguous() const noexcept {
    if (shape.volume() == 0) return true;  // the other sizes may multiply to anything
    std::int64_t expected = 1;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      if (shape[d] != 1 && strides[static_cast<std::size_t>(d)] != expected) return false;
      expected *= shape[d];
    }
    return true;
  }
};

/// Returns the row-major view of contiguous memory.
[[nodiscard]] inline tensor_view contiguous_view(void* data, dtype type, const extents& shape) noexcept {
  tensor_view v{static_cast<std::byte*>(data), type, shape, {}, memory_space::host, -1};
  if (shape.volume() == 0) return v;  // the other sizes may multiply to anything
  std::int64_t stride = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    v.strides[static_cast<std::size_t>(d)] = stride;
    stride *= shape[d];
  }
  return v;
}

/// Returns the view of a box; its offsets count from the beginning of the view. @pre inside(box, view.shape);
/// boxes of packed types are cut at multiples of granule_of.
[[nodiscard]] inline tensor_view subview(tensor_view view, const chunk& box) noexcept {
  std::int64_t first = 0;
  for (int d = 0; d < view.shape.rank(); ++d)
    first += box.offsets[d] * view.strides[static_cast<std::size_t>(d)];
  view.shape = box.sizes;
  if (view.data != nullptr && box.volume() != 0)
    view.data += first * static_cast<std::int64_t>(bits_of(view.type)) / 8;
  return view;
}

/// A view as contiguous runs: calls `run(std::byte* first, std::uint64_t bytes, std::uint64_t at)` for each
/// longest run of contiguous elements in row-major order; `at` is the position in the packed tensor, in
/// bytes. Elements [begin, end) of the packed tensor, in bytes (multiples of the element size, of the granule
/// for packed types), bound the walk. No allocation; cost O(runs).
template <class Run>
void for_each_run(const tensor_view& view, std::uint64_t begin, std::uint64_t end, Run&& run) {
  if (begin >= end) return;
  // The innermost dimensions that are contiguous together make one run.
  int outer = view.shape.rank();
  std::int64_t run_elements = 1;
  while (outer > 0) {
    const int d = outer - 1;
    if (view.shape[d] != 1 && view.strides[static_cast<std::size_t>(d)] != run_elements) break;
    run_elements *= view.shape[d];
    --outer;
  }
  if (run_elements == 0) return;
  const bool packed = granule_of(view.type) != 1;
  const std::uint64_t run_bytes = packed && outer > 0 && run_elements % granule_of(view.type) != 0
                                      ? 0
                                      : bytes_of(view.type, run_elements);
  if (run_bytes == 0) return;  // refused where views enter
  std::uint64_t at = begin - begin % run_bytes;
  std::array<std::int64_t, extents::max_rank> index{};
  std::uint64_t row = at / run_bytes;
  std::int64_t element = 0;
  for (int d = outer - 1; d >= 0; --d) {
    const auto size = static_cast<std::uint64_t>(view.shape[d]);
    index[static_cast<std::size_t>(d)] = static_cast<std::int64_t>(row % size);
    row /= size;
    element += index[static_cast<std::size_t>(d)] * view.strides[static_cast<std::size_t>(d)];
  }
  while (at < end) {
    std::byte* first = view.data + element * static_cast<std::int64_t>(bits_of(view.type)) / 8;
    const std::uint64_t skip = at < begin ? begin - at : 0;
    const std::uint64_t stop = at + run_bytes < end ? run_bytes : end - at;
    run(first + skip, stop - skip, at + skip);
    at += run_bytes;
    for (int d = outer - 1; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      element += view.strides[i];
      if (++index[i] < view.shape[d]) break;
      element -= index[i] * view.strides[i];
      index[i] = 0;
    }
  }
}

}  // namespace v1
}  // namespace cairn
