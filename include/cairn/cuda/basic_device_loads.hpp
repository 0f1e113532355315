// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/cuda/device_runtime.hpp>
#include <cairn/cuda/load_session.hpp>
#include <cairn/cuda/read_session.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// Options of basic_device_loads.
template <DeviceRuntime R>
struct basic_device_loads_options {
  /// The compute streams: copies begin after the work that was enqueued on them before the load. Devices
  /// that are not in this list compute on their default stream.
  std::vector<compute_stream<R>> compute = {};
  /// The pinned memory that a load uses at most, in bytes, within checkpointer_options::load_memory. It
  /// is pinned when the first load needs it, and kept for later loads until this is destroyed.
  std::uint64_t pinned_bytes = std::uint64_t{64} << 20;
  /// What to do if the device refuses to pin it.
  pinned_options pinning = {};
  /// How long a failed load, or a check by checked{}, waits at its end for copies that are still under
  /// way. If they do not end, their buffers are never freed.
  std::chrono::nanoseconds drain_limit = std::chrono::minutes(1);
};

/// Loads into device memory; a policy of a checkpointer. A stager that copies from devices provides one, with
/// its compute streams. Without such a stager, for example in a program that evaluates:
///
///     cairn::checkpointer ckpt{cairn::file_store{"checkpoints"}, cairn::cuda::device_loads{}};
///     state.tensor("weights", cairn::cuda::device_view(weights, cairn::dtype::bf16, {rows, columns}));
///     ckpt.resume(state);
///
/// Blocks are read into a ring of pinned buffers, verified there, and copied on one stream of lowest
/// priority for each device while the next blocks are read. Ranges that are not contiguous on either side
/// are copied by two-dimensional copies; single elements are slow. The CPU casts in the ring. When load()
/// or resume() returns, all bytes are there, for every stream. When it throws, the contents of the
/// targets are undefined, and no copy to them is under way.
template <DeviceRuntime R>
class basic_device_loads final : public device_access {
 public:
  using cairn_role = role::devices;
  using options_type = basic_device_loads_options<R>;

  basic_device_loads() : basic_device_loads(options_type{}) {}
  /// @throws usage_error (usage_bad_option) if pinned_bytes is 0, or a device is named twice.
  explicit basic_device_loads(options_type options) : options_(std::move(options)) {
    if (options_.pinned_bytes == 0)
      fail(error_id::usage_bad_option, "pinned_bytes of loads to devices is at least 1", {.got = "0"});
    for (std::size_t i = 0; i < options_.compute.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        if (options_.compute[i].device == options_.compute[k].device)
          fail(error_id::usage_bad_option, "a device has one compute stream",
               {.got = "device " + std::to_string(options_.compute[i].device) + " twice"});
  }

  [[nodiscard]] std::unique_ptr<device_load> begin_load(std::uint64_t budget) override {
    return std::make_unique<detail::load_session<R>>(options_.compute,
                                                     std::min(budget, options_.pinned_bytes),
                                                     options_.pinning, options_.drain_limit, ring_);
  }
  [[nodiscard]] std::unique_ptr<device_read> begin_read() override {
    return std::make_unique<detail::read_session<R>>(options_.compute, options_.pinning, options_.drain_limit,
                                                     looks_);
  }

 private:
  options_type options_;
  std::shared_ptr<detail::load_ring<R>> looks_ = std::make_shared<detail::load_ring<R>>();  // of checked{}
  std::shared_ptr<detail::load_ring<R>> ring_ = std::make_shared<detail::load_ring<R>>();
};

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
