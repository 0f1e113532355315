// SPDX-License-Identifier: Apache-2.0
#pragma once
// A checkpoint of four ranks, and a job of one rank with two devices that loads it.
#include "device_double.hpp"
#include "saved_world.hpp"

#include <cairn/checkpointer.hpp>
#include <cairn/cuda/basic_device_loads.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/memory_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test::loads_of_devices {

using cairn::error_id;
using cairn::memory_space;
using gpu = device_double;
using device_loads = cairn::cuda::basic_device_loads<gpu>;
using loads_options = cairn::cuda::basic_device_loads_options<gpu>;
using storage = cairn::safetensors_storage<cairn::memory_store>;

/// The value of element k of a tensor, in every job.
inline float value_of(int tensor, std::int64_t k) {
  return static_cast<float>((k * 2654435761 + tensor * 40503) % 8388593);
}

inline constexpr std::int64_t rows = 120;
inline constexpr std::int64_t columns = 400;
inline constexpr std::int64_t large = 700'000;  // elements of the replicated tensor: three blocks
inline constexpr int ranks = 4;
inline constexpr int small_tensors = 40;
inline constexpr std::int64_t small_size = 37;

/// For states that hold f64 of what is stored as f32.
struct narrow_planner : cairn::basic_planner<narrow_planner> {
  [[nodiscard]] cairn::dtype stored_dtype(const cairn::state_entry& e) const {
    return e.type == cairn::dtype::f64 && e.kind == cairn::item_kind::tensor ? cairn::dtype::f32 : e.type;
  }
};

/// The part of a job that one of four ranks holds, in memory of the host.
struct saved_rank {
  explicit saved_rank(int r) {
    constexpr auto part = rows * columns / ranks;
    for (std::int64_t k = 0; k < part; ++k) by_rows.push_back(value_of(1, r * part + k));
    constexpr auto width = columns / ranks;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t k = 0; k < width; ++k) by_columns.push_back(value_of(2, i * columns + r * width + k));
    const std::int64_t begin = r * part - (r != 0 ? 77 : 0);
    const std::int64_t end = r + 1 == ranks ? rows * columns : (r + 1) * part - 77;
    for (auto k = begin; k < end; ++k) flat.push_back(value_of(3, k));
    for (std::int64_t k = 0; k < large; ++k) replicated.push_back(value_of(4, k));
    for (int t = 0; t < small_tensors; ++t)
      for (std::int64_t k = 0; k < small_size; ++k) small.push_back(value_of(100 + t, k));
    state.tensor("rows", by_rows, cairn::shard{{rows, columns}, {r * rows / ranks, 0}});
    state.tensor("columns", by_columns.data(), cairn::shard{{rows, columns}, {0, r * width}, {rows, width}});
    state.tensor("flat", flat, cairn::flat_shard{{rows, columns}, begin});
    state.tensor("replicated", replicated, {large});
    for (int t = 0; t < small_tensors; ++t)
      state.tensor("small." + std::to_string(t), small.data() + t * small_size, {small_size});
    state.value("rate", rate);
  }
  std::vector<float> by_rows, by_columns, flat, replicated, small;
  double rate = 0.25;
  cairn::state_dict state;
};

/// A checkpoint that four ranks wrote.
inline cairn::memory_store four_ranks_saved() {
  cairn::memory_store store;
  storage over(store);
  auto writer = over.writer();
  std::vector<std::unique_ptr<saved_rank>> all;
  std::vector<const cairn::state_dict*> states;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(std::make_unique<saved_rank>(r));
    states.push_back(&all.back()->state);
  }
  world_save(writer, states, 7).run();
  return store;
}
inline const cairn::memory_store& saved() {
  static const cairn::memory_store store = four_ranks_saved();
  return store;
}

/// A tensor in the memory of a device, with the strides it has there.
struct placed {
  placed(int device, const cairn::extents& shape, std::int64_t row_stride, std::int64_t element_stride)
      : memory(device, bytes_for(shape, row_stride, element_stride)),
        view(cairn::contiguous_view(memory.bytes().data(), cairn::dtype::f32, shape)) {
    if (shape.rank() == 2) view.strides = {row_stride, element_stride};
    view.space = memory_space::device;
    view.device = device;
    fill(std::byte{0xee});
  }
  static std::uint64_t bytes_for(const cairn::extents& shape, std::int64_t row_stride,
                                 std::int64_t element_stride) {
    const auto last = shape.rank() == 2 ? (shape[0] - 1) * row_stride + (shape[1] - 1) * element_stride
                                        : shape.volume() - 1;
    return static_cast<std::uint64_t>(last + 1) * sizeof(float);
  }
  void fill(std::byte with) {
    const auto bytes = memory.bytes();
    std::fill(bytes.begin(), bytes.end(), with);
  }
  /// Kernels of training that were launched before a load and run late write to the memory, too.
  void launch_fill(std::byte with) {
    const cairn::cuda::device_in_use<gpu> use(view.device);
    const auto bytes = memory.bytes();
    gpu::launch(nullptr, [bytes, with] { std::fill(bytes.begin(), bytes.end(), with); });
  }
  /// The first element that is not that of the tensor, or -1; what lies between rows must be as it was.
  std::int64_t first_wrong(int tensor, std::byte between) {
    std::vector<std::byte> wanted(memory.bytes().size(), between);
    for (std::int64_t k = 0; k < view.shape.volume(); ++k) {
      const auto value = value_of(tensor, k);
      const auto at = view.shape.rank() == 2
                          ? k / view.shape[1] * view.strides[0] + k % view.shape[1] * view.strides[1]
                          : k;
      std::memcpy(wanted.data() + static_cast<std::size_t>(at) * sizeof value, &value, sizeof value);
    }
    const auto bytes = memory.bytes();
    if (std::memcmp(bytes.data(), wanted.data(), wanted.size()) == 0) return -1;  // quick under a sanitizer
    const auto [a, b] = std::mismatch(bytes.begin(), bytes.end(), wanted.begin());
    return a == bytes.end() ? -1 : a - bytes.begin();
  }
  gpu::memory memory;
  cairn::tensor_view view;
};

/// The same job on one rank with two devices.
struct on_devices {
  explicit on_devices(std::uint32_t seed)
      : by_rows(0, {rows, columns}, columns, 1),
        by_columns(static_cast<int>(seed % 2), {rows, columns}, columns + 24, 1),
        flat(1, {rows, columns}, 1, rows),  // transposed
        replicated(static_cast<int>(seed / 2 % 2), {large}, 1, 1),
        host(seed % 3 == 0) {
    for (int t = 0; t < small_tensors; ++t)
      small.push_back(std::make_unique<placed>(t % 2, cairn::extents{small_size}, 1, 1));
    state.tensor("rows", by_rows.view);
    state.tensor("columns", by_columns.view);
    state.tensor("flat", flat.view);
    if (host)
      state.tensor("replicated", on_host, {large});
    else
      state.tensor("replicated", replicated.view);
    for (int t = 0; t < small_tensors; ++t)
      state.tensor("small." + std::to_string(t), small[static_cast<std::size_t>(t)]->view);
    state.value("rate", rate);
  }
  ~on_devices() {
    gpu::hold_copies(false);
    gpu::hold_kernels(false);
    gpu::synchronize();
  }
  template <class Visit>
  void each(Visit&& visit) {
    visit(by_rows, 1), visit(by_columns, 2), visit(flat, 3);
    if (!host) visit(replicated, 4);
    for (int t = 0; t < small_tensors; ++t) visit(*small[static_cast<std::size_t>(t)], 100 + t);
  }
  void check_loaded(std::byte between = std::byte{0xee}) {
    each([&](placed& p, int tensor) {
      CAPTURE(tensor);
      CHECK(p.first_wrong(tensor, between) == -1);
    });
    for (std::size_t k = 0; host && k < on_host.size(); ++k)
      if (on_host[k] != value_of(4, static_cast<std::int64_t>(k))) FAIL_CHECK("replicated at " << k);
    CHECK(rate == 0.25);
  }
  placed by_rows, by_columns, flat, replicated;
  bool host;
  std::vector<float> on_host = std::vector<float>(static_cast<std::size_t>(large));
  std::vector<std::unique_ptr<placed>> small;
  double rate = 0;
  cairn::state_dict state;
};

inline auto make_reader(cairn::memory_store store, loads_options options = {},
                        std::uint64_t memory = std::uint64_t{256} << 20,
                        std::chrono::nanoseconds timeout = std::chrono::minutes(1)) {
  return cairn::checkpointer{
      std::move(store), device_loads(std::move(options)),
      cairn::checkpointer_options{.timeout = timeout, .load_memory = memory, .quiet = true}};
}

inline void check_nothing_left() {
  CHECK(gpu::copies_waiting() == 0);
  CHECK(gpu::pinned_ranges() == 0);
  CHECK(gpu::live_events() == 0);
}

}  // namespace cairn_test::loads_of_devices
