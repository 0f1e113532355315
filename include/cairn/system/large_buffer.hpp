// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Memory that requests to a device go through: large pages where the kernel has them, since a request over
/// many small pages is cut into many (reading takes up to three times as long). Zero at first, touched when
/// used.
class large_buffer {
 public:
  large_buffer() = default;
  /// @throws std::bad_alloc
  explicit large_buffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
    const auto mapped = bytes + (bytes >= page ? page : 0);
    void* at =
        ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    mapped_ = {static_cast<std::byte*>(at), mapped};
    data_ = mapped_.data();
    if (bytes < page) return;
    data_ += (page - reinterpret_cast<std::uintptr_t>(data_) % page) % page;
    ::madvise(data_, bytes, MADV_HUGEPAGE);
  }
  large_buffer(large_buffer&& other) noexcept
      : mapped_(std::exchange(other.mapped_, {})),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  large_buffer& operator=(large_buffer&& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~large_buffer() {
    if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
  }
  /// Aligned to a page at least.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

 private:
  static constexpr std::size_t page = std::size_t{2} << 20;
  std::span<std::byte> mapped_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
