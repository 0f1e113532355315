// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The first bytes of a file as memory, where the kernel can map huge pages as such: at a multiple of their size.
class huge_mapping {
 public:
  static constexpr std::size_t unit = std::size_t{2} << 20;
  huge_mapping() = default;
  /// `protection`: PROT_READ and such. Empty where it cannot be mapped.
  huge_mapping(int file, std::size_t bytes, int protection) noexcept {
    if (bytes == 0) return;
    void* const room =
        ::mmap(nullptr, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return;
    room_ = {static_cast<std::byte*>(room), bytes + unit};
    auto* const at = room_.data() + (unit - reinterpret_cast<std::uintptr_t>(room) % unit) % unit;
    if (::mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED) bytes_ = {at, bytes};
  }
  huge_mapping(const huge_mapping&) = delete;
  huge_mapping& operator=(const huge_mapping&) = delete;
  ~huge_mapping() {
    if (room_.data() != nullptr) ::munmap(room_.data(), room_.size());
  }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<std::byte> room_;
  std::span<std::byte> bytes_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
