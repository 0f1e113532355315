// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// An object that lies in memory until it is finished, for the object writers of stores that put whole objects: it
/// collects what is written, and checks what an ObjectWriter has to check. One thread at a time.
class object_buffer {
 public:
  /// `size_hint`: as create() of a store is given it; that much memory is reserved, but at most 1 GiB.
  explicit object_buffer(std::string_view key, std::uint64_t size_hint = 0);
  object_buffer(object_buffer&& other) noexcept;
  object_buffer& operator=(object_buffer&& other) noexcept;
  /// See ObjectWriter. An error ends the object.
  void write(std::span<const write_range> parts);
  /// Ends the object and returns its bytes. @throws usage_error (usage_incomplete_object) if not every byte was
  /// written once, usage_error (usage_closed) if it has ended.
  [[nodiscard]] std::vector<std::byte> take();
  /// The key under which it will stand.
  [[nodiscard]] const std::string& key() const noexcept { return key_; }

 private:
  void end(const char* call);
  std::string key_;
  std::vector<std::byte> bytes_;
  std::uint64_t written_ = 0;
  bool open_ = true;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/object_buffer.ipp>
#endif
