// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>
#include <cairn/system/vector.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {

class compact_reader;
class compact_writer;

/// What an annotation holds. The numbers are those of the format.
enum class annotation_kind : std::uint8_t { text = 0, integer = 1, real = 2, boolean = 3 };

/// A text in UTF-8, an integer of 64 bits, a double, or a truth value.
class annotation_value {
 public:
  annotation_value(std::string text) noexcept : text_(std::move(text)) {}
  annotation_value(std::string_view text) : text_(text) {}
  annotation_value(const char* text) : text_(text) {}
  /// @throws usage_error (usage_bad_option) for a number above 2^63 - 1
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  annotation_value(T value)
      : kind_(annotation_kind::integer), integer_(fit(value < 0, static_cast<std::uint64_t>(value))) {}
  template <std::floating_point T>
  annotation_value(T value) noexcept : kind_(annotation_kind::real), real_(static_cast<double>(value)) {}
  annotation_value(std::same_as<bool> auto value) noexcept
      : kind_(annotation_kind::boolean), integer_(value ? 1 : 0) {}

  [[nodiscard]] annotation_kind kind() const noexcept { return kind_; }
  /// Of a text; else empty.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  /// Of an integer; 1 or 0 of a truth value; else 0.
  [[nodiscard]] std::int64_t integer() const noexcept { return integer_; }
  /// Of an integer or a double; nothing of the others.
  [[nodiscard]] std::optional<double> number() const noexcept;

  /// Of the same kind and value; doubles with the same bits.
  friend bool operator==(const annotation_value& a, const annotation_value& b) noexcept {
    return a.equals(b);
  }

 private:
  static std::int64_t fit(bool negative, std::uint64_t value);
  [[nodiscard]] bool equals(const annotation_value& other) const noexcept;

  annotation_kind kind_ = annotation_kind::text;
  std::int64_t integer_ = 0;
  double real_ = 0;
  std::string text_;
};

/// A name and what it stands for.
struct annotation {
  std::string name;        ///< as that of an item, at most 256 bytes
  annotation_value value;  ///< a text, a number, or whether something is so
  friend bool operator==(const annotation&, const annotation&) = default;
};

/// How many annotations a checkpoint has at most.
inline constexpr std::size_t max_annotations = 64;
/// How many bytes the names and values of a checkpoint's annotations have together at most.
inline constexpr std::size_t max_annotation_bytes = std::size_t{64} << 10;

/// What is said about a checkpoint, beside its items: a commit hash, a loss, how many samples were seen. Small: at most
/// max_annotations and max_annotation_bytes. Sorted by name, names unique.
/// `cairn::annotations{{"commit", "abc"}, {"loss", 2.31}}`
class annotations {
 public:
  annotations() noexcept = default;
  /// @throws usage_error as set(), and usage_duplicate_name
  annotations(std::initializer_list<annotation> list);

  /// Adds an annotation, or gives the one of this name another value.
  /// @throws usage_error: usage_bad_name for the name, usage_bad_option for a text that is not UTF-8, or where they
  /// are too many or too long then; nothing has changed in this case
  void set(std::string_view name, annotation_value value);
  /// Takes over all of another list, as set().
  void merge(const annotations& others);

  /// The value of a name, or nullptr.
  [[nodiscard]] const annotation_value* find(std::string_view name) const noexcept;
  /// True if nothing is said.
  [[nodiscard]] bool empty() const noexcept { return list_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return list_.size(); }
  /// The first one; they are sorted by name.
  [[nodiscard]] const annotation* begin() const noexcept { return list_.begin(); }
  /// One past the last one.
  [[nodiscard]] const annotation* end() const noexcept { return list_.end(); }
  friend bool operator==(const annotations&, const annotations&) = default;

 private:
  detail::vector<annotation> list_;
};

/// As docs/format.md says.
void encode(compact_writer& out, const annotations& list);
/// What encode() wrote. @throws wire_error, also for names out of order and for more than the limits.
[[nodiscard]] annotations decode_annotations(compact_reader& in);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/annotations.ipp>
#endif
