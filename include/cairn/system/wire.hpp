// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

static_assert(
    std::endian::native == std::endian::little,
    "cairn's files and messages are little-endian and this version supports little-endian machines only");

/// Appends little-endian numbers and length-prefixed strings to a byte vector: messages, records, manifests.
class wire_writer {
 public:
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  wire_writer& put(T value) {
    std::array<std::byte, sizeof(T)> raw;
    std::memcpy(raw.data(), &value, sizeof(T));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    return *this;
  }
  wire_writer& put(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    return raw(std::as_bytes(std::span{text.data(), text.size()}));
  }
  /// Bytes as they are, without a length.
  wire_writer& raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  /// Makes room for so many bytes in all, so that putting them does not allocate.
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  /// What was put so far; valid until the next call that puts.
  [[nodiscard]] std::span<const std::byte> view() const noexcept { return bytes_; }
  /// Moves out what was put; the writer is empty then.
  [[nodiscard]] std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// What wire_reader throws inside a decoder; whoever knows the file or the peer turns it into a cairn::error.
struct wire_error : std::runtime_error {
  wire_error(const char* what, std::size_t at);
  std::size_t offset;  ///< where in the input it was found, in bytes
};

/// Reads what wire_writer wrote from hostile bytes: every length is checked before it is used.
/// @throws wire_error from every function when the input ends early or a length does not fit.
class wire_reader {
 public:
  explicit wire_reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  /// The next number.
  template <class T>
    requires(std::is_arithmetic_v<T>)
  [[nodiscard]] T get() {
    T value;
    const auto from = take(sizeof(T));
    std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  /// An enumerator's number, refused above `last`.
  template <class E>
    requires(std::is_enum_v<E>)
  [[nodiscard]] E get_enum(E last) {
    const auto number = get<std::underlying_type_t<E>>();
    if (number > static_cast<std::underlying_type_t<E>>(last))
      fail_here("a number is outside of its enumeration");
    return static_cast<E>(number);
  }
  /// The next string with its length before it. @throws wire_error also where it is longer than `cap` bytes
  [[nodiscard]] std::string get_string(std::size_t cap = 64 * 1024);
  /// A count of things that each take at least `least_bytes_each` of what is left: safe to reserve.
  [[nodiscard]] std::size_t get_count(std::size_t least_bytes_each) {
    const auto count = get<std::uint64_t>();
    if (least_bytes_each == 0 || count > left() / least_bytes_each)
      fail_here("a count does not fit the bytes that follow");
    return static_cast<std::size_t>(count);
  }
  /// The next `size` bytes, as a view of the input.
  [[nodiscard]] std::span<const std::byte> take(std::size_t size) {
    if (size > left()) fail_here("the input ends early");
    const auto part = bytes_.subspan(at_, size);
    at_ += size;
    return part;
  }
  /// How many bytes of the input were not read.
  [[nodiscard]] std::size_t left() const noexcept { return bytes_.size() - at_; }
  /// How many bytes of the input were read.
  [[nodiscard]] std::size_t offset() const noexcept { return at_; }
  /// @throws wire_error if bytes are left over.
  void finish() const {
    if (left() != 0) fail_here("bytes follow the end");
  }
  /// Throws wire_error with this reason and offset().
  [[noreturn, gnu::cold]] void fail_here(const char* why) const;

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/wire.ipp>
#endif
