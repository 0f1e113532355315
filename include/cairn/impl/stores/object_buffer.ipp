// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/object_buffer.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY object_buffer::object_buffer(std::string_view key, std::uint64_t size_hint) : key_(key) {
  constexpr auto max_reserved = std::uint64_t{1} << 30;  // a hint is no reason to run out of memory
  bytes_.reserve(static_cast<std::size_t>(std::min(size_hint, max_reserved)));
}
CAIRN_BODY object_buffer::object_buffer(object_buffer&& other) noexcept
    : key_(std::move(other.key_)),
      bytes_(std::move(other.bytes_)),
      written_(other.written_),
      open_(std::exchange(other.open_, false)) {}
CAIRN_BODY object_buffer& object_buffer::operator=(object_buffer&& other) noexcept {
  key_ = std::move(other.key_);
  bytes_ = std::move(other.bytes_);
  written_ = other.written_;
  open_ = std::exchange(other.open_, false);
  return *this;
}

CAIRN_BODY void object_buffer::write(std::span<const write_range> parts) {
  end("write");
  for (const auto& part : parts) {
    std::uint64_t behind = 0;
    if (__builtin_add_overflow(part.offset, std::uint64_t{part.bytes.size()}, &behind) ||
        behind > bytes_.max_size())
      fail(error_id::usage_overflow, "a range ends beyond the largest possible object", {.file = key_});
    if (behind > bytes_.size()) bytes_.resize(static_cast<std::size_t>(behind));
    if (!part.bytes.empty()) std::memcpy(bytes_.data() + part.offset, part.bytes.data(), part.bytes.size());
    written_ += part.bytes.size();
  }
  open_ = true;
}

CAIRN_BODY std::vector<std::byte> object_buffer::take() {
  end("finish");
  if (written_ != bytes_.size())
    fail(error_id::usage_incomplete_object,
         "each byte of an object must be written once before it is finished",
         {.file = key_,
          .expected = std::to_string(bytes_.size()) + " bytes",
          .got = std::to_string(written_) + " bytes"});
  return std::move(bytes_);
}

CAIRN_BODY void object_buffer::end(const char* call) {
  if (!open_)
    fail(error_id::usage_closed,
         std::string(call) + "() after finish() or after an error: begin a new object", {.file = key_});
  open_ = false;
}

}  // namespace v1
}  // namespace cairn
