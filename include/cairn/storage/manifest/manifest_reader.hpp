// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

/// One section of a manifest that is being read: takes columns off its front, each checked against what is
/// left.
class section_reader {
 public:
  section_reader(std::span<const std::byte> bytes, std::uint64_t begin, std::string_view file) noexcept
      : bytes_(bytes), begin_(begin), file_(file) {}

  /// `count` numbers, later read by column_at(column, i).
  template <class T>
  [[nodiscard]] const std::byte* column(std::uint64_t count) {
    if (count > left() / sizeof(T)) bad("a section of a manifest is too short for its columns");
    return take(count * sizeof(T));
  }
  [[nodiscard]] std::string_view text(std::uint64_t size);
  void finish() const;
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t begin() const noexcept { return begin_; }
  [[nodiscard]] std::uint64_t left() const noexcept { return bytes_.size() - at_; }
  [[noreturn]] void unsupported(std::string_view what, std::uint64_t number) const;
  [[noreturn]] void bad(std::string_view what, std::string_view item = {}) const;

 private:
  const std::byte* take(std::uint64_t size) noexcept;
  std::span<const std::byte> bytes_;
  std::uint64_t begin_;
  std::string_view file_;
  std::size_t at_ = 0;
};

template <class T>
[[nodiscard]] T column_at(const std::byte* column, std::uint64_t i) noexcept {
  T value;
  std::memcpy(&value, column + i * sizeof(T), sizeof(T));
  return value;
}

/// The header's numbers that the decoder needs beside those of `manifest`.
struct manifest_counts {
  std::uint32_t sections = 0;
  std::uint32_t items = 0;
};

[[nodiscard]] manifest_counts decode_manifest_header(std::span<const std::byte> bytes, std::string_view file,
                                                     manifest& m);

/// The known sections, by id - first_section; empty ones for those that are not required and not there. They lie one after another, so that no byte is without meaning.
[[nodiscard]] vector<section_reader> find_sections(std::span<const std::byte> bytes, std::string_view file,
                                                   std::uint32_t count);

}  // namespace detail

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/manifest/manifest_reader.ipp>
#endif
