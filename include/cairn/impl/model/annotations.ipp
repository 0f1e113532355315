// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/annotations.hpp>
#include <cairn/model/chunk_codec.hpp>
#include <cairn/model/item.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {

namespace detail {
inline constexpr std::size_t max_annotation_name = 256;

[[nodiscard]] inline std::string_view annotation_name_problem(std::string_view name) noexcept {
  return name.size() > max_annotation_name ? "is longer than 256 bytes" : name_problem(name);
}
[[nodiscard]] inline std::size_t annotation_bytes(const annotation& a) noexcept {
  return a.name.size() + (a.value.kind() == annotation_kind::text ? a.value.text().size() : 8);
}
[[nodiscard]] inline auto annotation_before(const annotation& a, std::string_view name) noexcept {
  return std::string_view(a.name) < name;
}
}  // namespace detail

CAIRN_BODY std::int64_t annotation_value::fit(bool negative, std::uint64_t value) {
  if (!negative && value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    fail(error_id::usage_bad_option, "an annotation holds integers up to 2^63 - 1; give it as a double",
         {.got = std::to_string(value)});
  return static_cast<std::int64_t>(value);
}

CAIRN_BODY std::optional<double> annotation_value::number() const noexcept {
  if (kind_ == annotation_kind::integer) return static_cast<double>(integer_);
  if (kind_ == annotation_kind::real) return real_;
  return std::nullopt;
}

CAIRN_BODY bool annotation_value::equals(const annotation_value& other) const noexcept {
  return kind_ == other.kind_ && integer_ == other.integer_ && text_ == other.text_ &&
         std::bit_cast<std::uint64_t>(real_) == std::bit_cast<std::uint64_t>(other.real_);
}

CAIRN_BODY annotations::annotations(std::initializer_list<annotation> list) {
  for (const auto& a : list) {
    if (find(a.name) != nullptr)
      fail(error_id::usage_duplicate_name, "an annotation is given twice", {.item = a.name});
    set(a.name, a.value);
  }
}

CAIRN_BODY void annotations::set(std::string_view name, annotation_value value) {
  if (const auto problem = detail::annotation_name_problem(name); !problem.empty())
    fail(error_id::usage_bad_name, "the name of an annotation " + std::string(problem),
         {.item = std::string(name.substr(0, detail::max_annotation_name))});
  if (!detail::is_utf8(value.text()))
    fail(error_id::usage_bad_option, "the text of an annotation is not UTF-8", {.item = std::string(name)});
  const auto at = std::lower_bound(list_.begin(), list_.end(), name, detail::annotation_before);
  const bool there = at != list_.end() && at->name == name;
  annotation added{std::string(name), std::move(value)};
  std::size_t bytes = detail::annotation_bytes(added);
  for (const auto& a : list_)
    if (a.name != name) bytes += detail::annotation_bytes(a);
  if ((!there && list_.size() == max_annotations) || bytes > max_annotation_bytes)
    fail(error_id::usage_bad_option,
         "a checkpoint has small annotations; put more than that into the state, as an item of bytes",
         {.item = std::string(name),
          .expected = "at most " + std::to_string(max_annotations) + " annotations of " +
                      std::to_string(max_annotation_bytes) + " bytes together",
          .got = std::to_string(list_.size() + (there ? 0 : 1)) + " of " + std::to_string(bytes) + " bytes"});
  if (there)
    *at = std::move(added);
  else
    list_.insert(at, std::move(added));
}

CAIRN_BODY void annotations::merge(const annotations& others) {
  auto merged = *this;
  for (const auto& a : others) merged.set(a.name, a.value);
  *this = std::move(merged);
}

CAIRN_BODY const annotation_value* annotations::find(std::string_view name) const noexcept {
  const auto at = std::lower_bound(list_.begin(), list_.end(), name, detail::annotation_before);
  return at != list_.end() && at->name == name ? &at->value : nullptr;
}

CAIRN_BODY void encode(compact_writer& out, const annotations& list) {
  out.number(static_cast<std::uint64_t>(list.size()));
  for (const auto& a : list) {
    out.number(static_cast<std::uint64_t>(a.name.size())).raw(a.name);
    out.byte(static_cast<std::uint8_t>(a.value.kind()));
    const auto put = [&](std::uint64_t word) {
      for (int i = 0; i < 8; ++i) out.byte(static_cast<std::uint8_t>(word >> (8 * i) & 255));
    };
    switch (a.value.kind()) {
      case annotation_kind::text:
        out.number(static_cast<std::uint64_t>(a.value.text().size())).raw(a.value.text());
        break;
      case annotation_kind::integer:
        put(static_cast<std::uint64_t>(a.value.integer()));
        break;
      case annotation_kind::real:
        put(std::bit_cast<std::uint64_t>(*a.value.number()));
        break;
      case annotation_kind::boolean:
        out.byte(static_cast<std::uint8_t>(a.value.integer()));
        break;
    }
  }
}

CAIRN_BODY annotations decode_annotations(compact_reader& in) {
  annotations list;
  const auto count = in.number(max_annotations);
  std::string before;
  std::size_t bytes = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string name(in.text(static_cast<std::size_t>(in.number(detail::max_annotation_name))));
    if (!detail::annotation_name_problem(name).empty()) in.fail_here("an annotation has an impossible name");
    if (i > 0 && name <= before) in.fail_here("annotations are not in order");
    const auto word = [&] {
      std::uint64_t value = 0;
      for (int k = 0; k < 8; ++k) value |= static_cast<std::uint64_t>(in.byte()) << (8 * k);
      return value;
    };
    annotation_value value(false);
    switch (static_cast<annotation_kind>(in.byte())) {
      case annotation_kind::text:
        value = annotation_value(in.text(static_cast<std::size_t>(in.number(max_annotation_bytes))));
        break;
      case annotation_kind::integer:
        value = annotation_value(static_cast<std::int64_t>(word()));
        break;
      case annotation_kind::real:
        value = annotation_value(std::bit_cast<double>(word()));
        break;
      case annotation_kind::boolean:
        value = annotation_value(in.number(1) != 0);
        break;
      default:
        in.fail_here("an annotation is of an unknown kind");
    }
    if (!detail::is_utf8(value.text())) in.fail_here("the text of an annotation is not UTF-8");
    bytes += detail::annotation_bytes({name, value});
    if (bytes > max_annotation_bytes) in.fail_here("the annotations are longer than allowed");
    list.set(name, std::move(value));
    before = name;
  }
  return list;
}

}  // namespace v1
}  // namespace cairn
