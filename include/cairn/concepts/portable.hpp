// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {

/// An object that another process of the same program can construct again, such as a ByteStore or a
/// StorageWriter for the worker of a process_executor.
///
/// - `description()`: returns bytes that describe this object completely. They hold no pointer,
///   descriptor or secret, and paths in them are absolute.
/// - `from_description(bytes)`: returns an object that does the same with the same store. The bytes come from
///   description() of the same build, but it checks them: throws wire_error or usage_error on other bytes.
template <class T>
concept Portable = requires(const T& object, std::span<const std::byte> bytes) {
  { object.description() } -> std::same_as<std::vector<std::byte>>;
  { T::from_description(bytes) } -> std::same_as<T>;
};

}  // namespace v1
}  // namespace cairn
