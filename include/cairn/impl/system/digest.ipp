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

#if defined(__x86_64__)
// The same functions for the widest vectors that the processor has. libxxhash as a shared library has them, a static
// one mostly not: weak, so that they are null there. A state is the same for both.
extern "C" {
[[gnu::weak]] XXH64_hash_t XXH3_64bits_dispatch(const void* input, std::size_t bytes);
[[gnu::weak]] XXH_errorcode XXH3_64bits_update_dispatch(XXH3_state_t* state, const void* input,
                                                        std::size_t bytes);
}
#endif

namespace cairn {
inline namespace v1 {
namespace detail {

#if defined(__x86_64__)
/// Whether this many bytes are digested sooner by wider vectors.
[[nodiscard]] CAIRN_BODY bool takes_wide_vectors(std::size_t bytes) noexcept {
  return bytes >= 1024 && XXH3_64bits_dispatch != nullptr && XXH3_64bits_update_dispatch != nullptr &&
         __builtin_cpu_supports("avx2") != 0;
}
/// libxxhash 0.8.1 leaves the upper halves of vectors in use, with which all code for SSE that follows, such as
/// streaming_copy(), takes 2 to 4 times as long.
CAIRN_BODY void leave_wide_vectors() noexcept {
  __asm__ volatile("vzeroupper" ::
                       : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                         "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
#endif

CAIRN_BODY std::uint64_t digest_of(const void* bytes, std::size_t count) noexcept {
#if defined(__x86_64__)
  if (takes_wide_vectors(count)) {
    const auto value = XXH3_64bits_dispatch(bytes, count);
    leave_wide_vectors();
    return value;
  }
#endif
  return XXH3_64bits(bytes, count);
}

}  // namespace detail

CAIRN_BODY std::uint64_t digest(std::span<const std::byte> bytes) noexcept {
  return detail::digest_of(bytes.data(), bytes.size());
}

CAIRN_BODY std::uint64_t digest(std::string_view text) noexcept {
  return detail::digest_of(text.data(), text.size());
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
#if defined(__x86_64__)
  if (takes_wide_vectors(count)) {
    XXH3_64bits_update_dispatch(state_.get(), bytes, count);
    leave_wide_vectors();
    return;
  }
#endif
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
