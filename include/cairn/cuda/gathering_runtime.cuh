// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::cuda
#pragma once
#include <cairn/cuda/gather.hpp>
#include <cairn/cuda/runtime.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// What one launch gathers: a parameter of the kernel, so that no memory has to live until the launch is
/// over.
struct gather_table {
  // Parameters may have 32,764 bytes from CUDA 12.1 and compute capability 7.0 on, 4096 before.
#if CUDART_VERSION >= 12010
  static constexpr std::uint32_t max_parts = 900;
  static constexpr std::uint32_t max_boxes = 24;
#else
  static constexpr std::uint32_t max_parts = 96;
  static constexpr std::uint32_t max_boxes = 4;
#endif
  std::byte* staging;
  gather_box boxes[max_boxes];
  gather_range parts[max_parts];
};
static_assert(sizeof(gather_table) <= (CUDART_VERSION >= 12010 ? 32764 : 4096));

inline constexpr std::uint32_t gather_threads = 256;

template <class Unit>
__device__ inline void gather_units(const gather_range& part, const gather_table& table, std::byte* to) {
  const auto count = part.bytes / static_cast<std::uint32_t>(sizeof(Unit));
  auto* const out = reinterpret_cast<Unit*>(to);
  // Loads of one round are under way together.
  constexpr std::uint32_t together = 4;
  for (std::uint32_t begin = threadIdx.x; begin < count; begin += together * gather_threads) {
    Unit units[together];
#pragma unroll
    for (std::uint32_t k = 0; k < together; ++k) {
      const auto i = begin + k * gather_threads;
      if (i >= count) break;
      if (part.from == nullptr)
        units[k] = Unit{};
      else if (part.box == gather_range::no_box)
        units[k] = reinterpret_cast<const Unit*>(part.from)[i];
      else
        units[k] = *reinterpret_cast<const Unit*>(
            gather_source(table.boxes[part.box], part.from, part.first + std::uint64_t{i} * sizeof(Unit)));
    }
#pragma unroll
    for (std::uint32_t k = 0; k < together; ++k)
      if (begin + k * gather_threads < count) out[begin + k * gather_threads] = units[k];
  }
}

/// A block for each part.
template <class Table>
__global__ void __launch_bounds__(gather_threads) gather_kernel(const __grid_constant__ Table table) {
  const gather_range& part = table.parts[blockIdx.x];
  std::byte* const to = table.staging + part.to;
  switch (part.width) {
    case 16:
      gather_units<uint4>(part, table, to);
      break;
    case 8:
      gather_units<uint2>(part, table, to);
      break;
    case 4:
      gather_units<std::uint32_t>(part, table, to);
      break;
    case 2:
      gather_units<std::uint16_t>(part, table, to);
      break;
    default:
      gather_units<std::uint8_t>(part, table, to);
  }
  // What is left of the last unit.
  for (std::uint32_t i = part.bytes / part.width * part.width + threadIdx.x; i < part.bytes;
       i += gather_threads)
    to[i] = part.from == nullptr ? std::byte{}
            : part.box == gather_range::no_box
                ? part.from[i]
                : *gather_source(table.boxes[part.box], part.from, part.first + i);
}

}  // namespace detail

/// CUDA's runtime with a kernel that gathers; for programs that nvcc compiles. See GatheringRuntime: one
/// launch for about 900 parts of at most 16 KiB, or 24 strided tensors.
struct gathering_runtime : runtime {
  static int load_kernels() noexcept {
    cudaFuncAttributes about{};
    return told(cudaFuncGetAttributes(&about, detail::gather_kernel<detail::gather_table>));
  }
  static int gather(std::span<const gather_range> parts, std::span<const gather_box> boxes,
                    std::byte* staging, cudaStream_t stream) noexcept {
    detail::gather_table table;
    table.staging = staging;
    for (std::size_t next = 0; next < parts.size();) {
      std::uint32_t count = 0;
      std::uint32_t boxed = 0;
      std::uint32_t last = gather_range::no_box;
      for (; next < parts.size() && count < detail::gather_table::max_parts; ++next) {
        gather_range part = parts[next];
        if (part.box != gather_range::no_box) {
          if (part.box != last) {
            if (boxed == detail::gather_table::max_boxes) break;
            last = part.box;
            table.boxes[boxed++] = boxes[part.box];
          }
          part.box = boxed - 1;
        }
        table.parts[count++] = part;
      }
      cudaLaunchConfig_t launch{};
      launch.gridDim = count;
      launch.blockDim = detail::gather_threads;
      launch.stream = stream;
      // Not <<<>>>, whose error cudaGetLastError() tells: it may hold an earlier one of the program.
      if (const int status =
              told(cudaLaunchKernelEx(&launch, detail::gather_kernel<detail::gather_table>, table));
          status != success)
        return status;
    }
    return success;
  }
};
static_assert(GatheringRuntime<gathering_runtime>, "cuda::gathering_runtime must model GatheringRuntime");

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
