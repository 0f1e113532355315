// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/system/compiler.hpp>

#include <array>
#include <cstddef>

namespace cairn {
inline namespace v1 {

/// The secret that the links of one job share: who has it is a peer. Wiped where it ends. It is for memory and for
/// the job's own communicator, never for a command line, an environment or a file that others read.
class link_key {
 public:
  /// A key of 32 bytes from elsewhere.
  explicit link_key(const std::array<std::byte, 32>& bytes) noexcept : bytes_(bytes) {}
  link_key(const link_key&) noexcept = default;
  link_key& operator=(const link_key&) noexcept = default;
  ~link_key();
  /// A new one, from OpenSSL's generator. @throws storage_error (storage_io) where that has no entropy
  [[nodiscard]] static link_key random();

  [[nodiscard]] const std::array<std::byte, 32>& bytes() const noexcept { return bytes_; }

 private:
  std::array<std::byte, 32> bytes_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/links/link_key.ipp>
#endif
