// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::uint64_t digest(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

CAIRN_BODY std::uint64_t digest(std::string_view text) noexcept {
  return XXH3_64bits(text.data(), text.size());
}

namespace detail {

CAIRN_BODY hash_state::hash_state() : state_(XXH3_createState()) {
  if (state_ == nullptr)
    fail(error_id::storage_out_of_memory, "there is no memory for the state of a digest");
  reset();
}

CAIRN_BODY void hash_state::reset() noexcept {
  XXH3_64bits_reset(state_.get());
}

CAIRN_BODY void hash_state::put(const void* bytes, std::size_t count) noexcept {
  XXH3_64bits_update(state_.get(), bytes, count);
}

CAIRN_BODY std::uint64_t hash_state::value() const noexcept {
  return XXH3_64bits_digest(state_.get());
}

CAIRN_BODY void hash_state::free_state::operator()(XXH3_state_s* state) const noexcept {
  XXH3_freeState(state);
}

}  // namespace detail

CAIRN_BODY std::uint64_t digest_stream::value() noexcept {
  if (!state_) return digest(std::string_view(waiting_.data(), used_));
  state_->put(waiting_.data(), used_);
  used_ = 0;
  return state_->value();
}

CAIRN_BODY void digest_stream::make_room() {
  if (!state_) state_.emplace();
  state_->put(waiting_.data(), used_);
  used_ = 0;
}

}  // namespace v1
}  // namespace cairn
