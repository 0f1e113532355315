// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/callback.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>

namespace cairn {
inline namespace v1 {

/// A range of memory that another process can map through a file descriptor; see shared_segment.
struct shared_place {
  std::shared_ptr<const void> segment;  ///< keeps the descriptor open
  int file = -1;                        ///< descriptor of the segment; -1: there is none
  std::uint64_t id = 0;                 ///< of the segment: different for all that live
  std::uint64_t bytes = 0;              ///< of the segment
  std::uint64_t offset = 0;             ///< in the segment
};
/// The place of an image, its digests and its control for another process.
struct shared_image {
  shared_place image;                ///< the bytes of the image, from `offset` on
  std::uint64_t digests_offset = 0;  ///< in the image's segment
  shared_place control;              ///< of the image_control
};

/// The memory behind an image, which a stager provides. It is destroyed with the last copy of the image
/// and then gives the buffers back to the pool.
class image_backing {
 public:
  virtual ~image_backing() = default;
  /// Images without memory of their own: copies image bytes [begin, begin + out.size()) from training memory,
  /// headers included. Any thread.
  virtual void gather(std::uint64_t begin, std::span<std::byte> out) const { (void)begin, (void)out; }
  /// Copies image bytes [begin, end), which are no early items, from training memory now, out of turn; false
  /// where that is not possible: then the watermark tells. Any thread. @throws timeout_error
  [[nodiscard]] virtual bool copy_part(std::uint64_t begin, std::uint64_t end, deadline until) {
    return (void)begin, (void)end, (void)until, false;
  }
  /// See staged_image::when_begun.
  [[nodiscard]] virtual bool when_begun(detail::callback<void()> call) { return (void)call, false; }
  /// Why the image failed.
  [[nodiscard]] virtual std::exception_ptr failure() const noexcept = 0;
  /// Where another process finds the image; nothing where it is not in shared memory.
  [[nodiscard]] virtual std::optional<shared_image> shared() const { return std::nullopt; }
};

}  // namespace v1
}  // namespace cairn
