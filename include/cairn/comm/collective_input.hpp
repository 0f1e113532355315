// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>
#include <exception>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// What a rank brings to a collective: bytes, or the exception that kept it from having any. A rank that
/// failed brings its failure instead of staying away, so that the others learn it at once.
class collective_input {
 public:
  collective_input() = default;
  collective_input(std::vector<std::byte> bytes) noexcept : bytes_(std::move(bytes)) {}
  collective_input(std::exception_ptr failure) noexcept : failure_(std::move(failure)) {}

  /// What `make()` returns, or what it throws.
  template <class Make>
    requires std::is_invocable_r_v<std::vector<std::byte>, Make&>
  [[nodiscard]] static collective_input from(Make&& make) noexcept {
    try {
      return collective_input(make());
    } catch (...) {
      return collective_input(std::current_exception());
    }
  }

  /// Why this rank brings no bytes; null where it brings some.
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return failure_; }
  [[nodiscard]] std::vector<std::byte>& bytes() noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::exception_ptr failure_;
};

}  // namespace v1
}  // namespace cairn
