// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/copy_queue.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// Adds a copy, which continues the one before where both of its sides do. `first`: the parts from there on are of
/// the same tensor. CUDA refuses a copy that goes on from one allocation into the next, and tensors that touch may
/// lie in two.
inline void add_copy(std::vector<range_copy>& parts, const range_copy& next, std::size_t first) {
  if (parts.size() > first && parts.back().to + parts.back().bytes == next.to &&
      parts.back().from + parts.back().bytes == next.from)
    parts.back().bytes += next.bytes;
  else
    parts.push_back(next);
}

/// Puts the runs of a strided view together into as few calls as they allow.
template <DeviceRuntime R>
class run_collector {
 public:
  /// `item`: for errors.
  run_collector(const copy_queue<R>& on, std::vector<range_copy>& parts, std::string_view item = {}) noexcept
      : queue_(on), parts_(parts), first_(parts.size()), item_(item) {}
  void add(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    if (rows_ != 0 && bytes == width_ && to == to_ + rows_ * width_ && follows(from)) {
      if (rows_ == 1) pitch_ = static_cast<std::uint64_t>(from - from_);
      ++rows_;
      return;
    }
    flush();
    to_ = to, from_ = from, width_ = bytes, rows_ = 1;
  }
  void flush() {
    if (rows_ == 1)
      add_copy(parts_, {to_, from_, width_}, first_);
    else if (rows_ > 1)
      check_call<R>(R::copy_rows_to_host(to_, from_, pitch_, width_, rows_, queue_.side()),
                    "cudaMemcpy2DAsync (copying rows from device memory)", queue_.device(), item_);
    rows_ = 0;
  }

 private:
  static constexpr std::ptrdiff_t max_pitch = (std::ptrdiff_t{1} << 31) - 1;
  [[nodiscard]] bool follows(const std::byte* from) const noexcept {
    if (rows_ > 1) return from == from_ + rows_ * pitch_;
    const auto pitch = from - from_;
    return pitch >= static_cast<std::ptrdiff_t>(width_) && pitch <= max_pitch;
  }
  const copy_queue<R>& queue_;
  std::vector<range_copy>& parts_;
  std::size_t first_;
  std::string_view item_;
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  std::uint64_t width_ = 0;
  std::uint64_t pitch_ = 0;
  std::uint64_t rows_ = 0;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
