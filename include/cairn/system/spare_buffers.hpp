// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Buffers for long messages that follow one another: memory that was touched before is filled several times as fast as new
/// memory, which the kernel gives and clears page by page. Any thread.
class spare_buffers {
 public:
  spare_buffers();
  /// Whether buffers of so many bytes are kept; those that are shorter the allocator keeps by itself.
  [[nodiscard]] static constexpr bool is_worth_it(std::size_t bytes) noexcept {
    return bytes >= std::size_t{256} << 10;
  }

  /// A buffer of so many bytes, which hold anything, that was shared before; empty where there is none.
  [[nodiscard]] std::vector<std::byte> take(std::size_t bytes) noexcept;
  /// The bytes of a buffer. When nobody has them any more it is kept for take(), if it is worth it and this still lives.
  [[nodiscard]] std::shared_ptr<std::byte[]> share(std::vector<std::byte> buffer) const;
  /// Frees what nobody has taken since the last call.
  void drop_unused() noexcept;

 private:
  struct inside;
  std::shared_ptr<inside> in_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/spare_buffers.ipp>
#endif
