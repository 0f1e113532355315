// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/block_hasher.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/vector.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Buffers through which an image without memory of its own is written; aligned to image_alignment.
class write_ring {
 public:
  static constexpr std::size_t slot_bytes = std::size_t{4} << 20;
  static constexpr std::size_t slots = 6;
  write_ring() : bytes_(slot_bytes * slots) {}
  [[nodiscard]] std::span<std::byte> slot(std::uint64_t n) const noexcept {
    return {bytes_.data() + n % slots * slot_bytes, slot_bytes};
  }

 private:
  large_buffer bytes_;
};

/// Keeps rings between saves, so that a save does not touch new memory. Any thread.
class ring_pool {
 public:
  [[nodiscard]] detail::owned<write_ring> take();
  void give_back(detail::owned<write_ring> ring) noexcept;
  ring_pool();

 private:
  std::mutex mutex_;
  vector<detail::owned<write_ring>> free_;
};

/// The bytes of an image from front to back, for one thread that writes them: as they become available,
/// digested before they are handed out. A second thread digests ahead, and gathers ahead where the bytes lie
/// in training memory. Where none can be started, the thread that writes digests, if the image is resident.
class write_source {
 public:
  /// `image` outlives the source.
  write_source(const staged_image& image, ring_pool& rings, deadline until);
  write_source(const write_source&) = delete;
  write_source& operator=(const write_source&) = delete;
  ~write_source();

  /// The next bytes of the image from `begin` on, not beyond `end`: at least one span, in order, without
  /// holes; all but the last end at multiples of image_alignment. The spans stay valid until done(). Waits
  /// until at least 8 MiB or all up to `end` are there. @throws what failed in the stager, timeout_error.
  [[nodiscard]] list_view<const std::span<const std::byte>> next(std::uint64_t begin, std::uint64_t end);
  /// Says that the bytes below `end` are no longer needed.
  void done(std::uint64_t end) noexcept;
  /// Called when all bytes were handed out: ends the second thread. Digests are complete afterwards.
  void finish();

 private:
  static constexpr std::uint64_t first_request = std::uint64_t{1} << 20;
  static constexpr std::uint64_t least = std::uint64_t{8} << 20;
  static constexpr std::uint64_t max_span_bytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t unit = std::uint64_t{1} << 20;

  /// The end of what may be written next, when it may be written.
  [[nodiscard]] std::uint64_t limited(rate_limiter& limit, std::uint64_t begin, std::uint64_t end);
  void add(std::span<const std::byte> s) noexcept;
  /// How far the image can be handed out, at least to `end`.
  [[nodiscard]] std::uint64_t wait_ready(std::uint64_t end);
  void run() noexcept;
  void hash_all() noexcept;
  void hash_here(std::uint64_t end);
  /// Waits until image bytes below `end` are there, and the slot for the last of them is free. False if
  /// stopped.
  [[nodiscard]] bool wait_filled(std::uint64_t end);

  const staged_image& image_;
  ring_pool& rings_;
  deadline until_;
  std::uint64_t total_;
  detail::owned<write_ring> ring_;
  shared_event event_;
  std::atomic<std::uint64_t> ready_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::array<std::span<const std::byte>, 4> spans_;
  std::size_t count_ = 0;
  background_thread worker_;
  detail::owned<block_hasher> own_;  ///< of the thread that writes, where there is no second one
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/write_source.ipp>
#endif
