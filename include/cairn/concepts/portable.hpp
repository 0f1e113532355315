// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {

/// What can be made again in another process of the same program: a ByteStore or a StorageWriter that a
/// process_executor's worker is to use.
///
/// - `description()`: bytes that say all about this object. It holds no pointer, descriptor or secret, and
///   paths in it are absolute.
/// - `from_description(bytes)`: an object that does the same to the same store. The bytes come from
///   description() of the same build, but are checked all the same: throws wire_error or usage_error on
///   others.
template <class T>
concept Portable = requires(const T& object, std::span<const std::byte> bytes) {
  { object.description() } -> std::same_as<std::vector<std::byte>>;
  { T::from_description(bytes) } -> std::same_as<T>;
};

}  // namespace v1
}  // namespace cairn
