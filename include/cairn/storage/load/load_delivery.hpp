// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/system/streaming_copy.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Gives each run of the target, where bytes [first, last) of the wanted part go: give(to, from, bytes),
/// where `from` counts the bytes of the wanted part that lie before.
template <class Give>
void for_each_target(const load_want& w, std::uint64_t first, std::uint64_t last, Give&& give) {
  for_each_run(w.target, first / w.from * w.to, last / w.from * w.to,
               [&](std::byte* to, std::uint64_t bytes, std::uint64_t at) {
                 give(to, at / w.to * w.from, bytes / w.to * w.from);
               });
}
inline void put(const load_want& w, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (w.cast != nullptr)
    w.cast(from, to, static_cast<std::size_t>(bytes / w.from));
  else
    streaming_copy(to, from, bytes);
}

/// Gives what is wanted of a verified block, which begins at `begin` of the stored item, to its destination:
/// put(to, from, bytes), bytes of the stored item.
template <class Put>
void deliver(const load_want& w, std::uint64_t begin, std::span<const std::byte> block, Put&& put_run) {
  const auto first = w.box.before(begin);
  const auto last = w.box.before(begin + block.size());
  const auto run = w.box.run();
  for_each_target(w, first, last, [&](std::byte* to, std::uint64_t packed, std::uint64_t left) {
    while (left != 0) {
      const auto length = std::min(left, run - packed % run);
      put_run(to, block.data() + (w.box.position(packed) - begin), length);
      to += length / w.from * w.to;
      packed += length;
      left -= length;
    }
  });
}

/// Gives bytes [first, first + bytes.size()) of a wanted part, which lie one after another, to their
/// destination.
template <class Put>
void deliver_packed(const load_want& w, std::uint64_t first, std::span<const std::byte> bytes,
                    Put&& put_run) {
  for_each_target(w, first, first + bytes.size(),
                  [&](std::byte* to, std::uint64_t packed, std::uint64_t length) {
                    put_run(to, bytes.data() + (packed - first), length);
                  });
}
/// For deliver() where the CPU writes the destination.
[[nodiscard]] inline auto put_by_cpu(const load_want& w) noexcept {
  return [&w](std::byte* to, const std::byte* from, std::uint64_t bytes) { put(w, to, from, bytes); };
}

/// What a cast needs of a device_load's buffer for so many bytes of the stored item.
[[nodiscard]] inline std::uint64_t scratch_for(const load_want& w, std::uint64_t bytes) noexcept {
  return w.on_device() && w.cast != nullptr && bytes != 0 ? bytes / w.from * w.to + 64 : 0;
}
/// For deliver() where a device holds the destination; what is given lies in `held`, and so does `scratch`,
/// which has room for the casts. flush() comes last.
class put_by_device {
 public:
  put_by_device(held_buffer& held, const load_want& w, std::string_view item, std::byte* scratch)
      : held_(held), want_(w), item_(item), scratch_(scratch) {
    scratch_ += bytes_to_line(scratch_);
  }
  void operator()(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    if (want_.cast != nullptr) {
      const auto elements = bytes / want_.from;
      want_.cast(from, scratch_, static_cast<std::size_t>(elements));
      from = scratch_;
      bytes = elements * want_.to;
      scratch_ += bytes;
    }
    runs_.push_back({to, from, bytes});
    if (runs_.size() == max_runs) flush();
  }
  void flush() {
    if (!runs_.empty()) held_.put(want_.target.device, item_, runs_);
    runs_.clear();
  }

 private:
  static constexpr std::size_t max_runs = 4096;
  held_buffer& held_;
  const load_want& want_;
  std::string_view item_;
  std::byte* scratch_;
  std::vector<device_run> runs_;
};

/// Copies the bytes of a box that a block holds, which begins at `begin` of the stored item, one after
/// another. How many: box.before(its end) - box.before(begin).
inline void pack(const byte_box& box, std::uint64_t begin, std::span<const std::byte> block, std::byte* to) {
  const auto last = box.before(begin + block.size());
  const auto run = box.run();
  for (auto packed = box.before(begin); packed < last;) {
    const auto length = std::min(last - packed, run - packed % run);
    std::memcpy(to, block.data() + (box.position(packed) - begin), static_cast<std::size_t>(length));
    to += length;
    packed += length;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
