// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/system/error.hpp>

#include <expat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// An element of a small XML document: its name without namespace, its text, its children.
struct xml_element {
  std::string name;
  std::string text;
  std::vector<xml_element> children;

  /// The first child of this name, or nothing.
  [[nodiscard]] const xml_element* child(std::string_view wanted) const noexcept;
  /// The text of the first child of this name, or "".
  [[nodiscard]] std::string_view text_of(std::string_view wanted) const noexcept;
};

/// Reads answers of an object store, which are hostile until proven otherwise: white space before the
/// document is skipped, document types (and with them entities) are refused, depth, elements and text are
/// bounded.
class xml_reader {
 public:
  static constexpr std::size_t max_bytes = std::size_t{16} << 20;
  static constexpr std::size_t max_elements = 100'000;
  static constexpr std::size_t max_depth = 16;

  /// @throws corrupt_error (corrupt_bad_value) for what is no such document. `what`: for the message.
  [[nodiscard]] static xml_element read(std::string_view text, std::string_view what);

 private:
  void parse(std::string_view text);
  void refuse(const char* why) noexcept;
  // No exception may cross expat's frames.
  template <class Work>
  static void guarded(void* self, Work work) noexcept {
    auto& reader = *static_cast<xml_reader*>(self);
    if (reader.refused_ != nullptr) return;
    try {
      work(reader);
    } catch (...) {
      reader.out_of_memory_ = true;
      reader.refuse("memory ran out");
    }
  }
  static void on_start(void* self, const char* name, const char**);
  static void on_end(void* self, const char*);
  static void on_text(void* self, const char* text, int bytes);
  static void on_doctype(void* self, const char*, const char*, const char*, int);
  /// The element that is open at a depth: always the last child of the one above.
  xml_element& open(std::size_t depth) noexcept;

  XML_Parser parser_ = nullptr;
  xml_element root_;
  std::size_t depth_ = 0;
  std::size_t elements_ = 0;
  const char* refused_ = nullptr;
  bool out_of_memory_ = false;
};

/// Text as it stands between the tags of a document.
[[nodiscard]] std::string xml_text(std::string_view text);

/// Reverses percent-encoding, as listings of encoding-type=url need it; '+' is a space there. False if
/// malformed.
[[nodiscard]] bool percent_decoded(std::string_view text, std::string& out);

/// A decimal number without sign; false for anything else.
[[nodiscard]] bool parse_decimal(std::string_view text, std::uint64_t& out) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/xml.ipp>
#endif
