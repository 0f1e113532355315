// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/load_options.hpp>
#include <cairn/model/cast.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/plan/glob.hpp>
#include <cairn/plan/load/load_changes.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/finite.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A floating-point type of 8 bits: bits of its exponent's bias, of its mantissa, and its last codes.
struct small_float {
  int mantissa;
  int bias;
  std::uint8_t largest;   // finite
  std::uint8_t overflow;  // what is larger
  bool has_infinity;
};
inline constexpr small_float e4m3{3, 7, 0x7e, 0x7f, false};
inline constexpr small_float e5m2{2, 15, 0x7b, 0x7c, true};

inline float widen_small(std::uint8_t bits, const small_float& t) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  const auto code = static_cast<std::uint8_t>(bits & 0x7fu);
  if (code > t.largest) {
    const bool infinite = t.has_infinity && code == t.overflow;
    return std::bit_cast<float>(sign | (infinite ? 0x7f800000u : 0x7fc00000u));
  }
  const std::uint32_t exponent = code >> t.mantissa;
  const std::uint32_t mantissa = code & ((1u << t.mantissa) - 1);
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - t.bias - t.mantissa)
                    : std::bit_cast<float>((exponent + 127 - static_cast<std::uint32_t>(t.bias)) << 23 |
                                           mantissa << (23 - t.mantissa));
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}
/// To nearest, ties to even.
inline std::uint8_t narrow_small(float x, const small_float& t) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
  const auto magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  const bool normal = magnitude >= 0x800000u;
  const int own = normal ? static_cast<int>(magnitude >> 23) - 127 : -126;
  const int exponent = std::max(own, 1 - t.bias);
  if (exponent > t.bias + 1) return static_cast<std::uint8_t>(sign | t.overflow);
  // In units of the last place. Integers round in programs that are compiled with -ffast-math, too.
  const auto significand = (magnitude & 0x7fffffu) | (normal ? 0x800000u : 0u);
  const auto shift = static_cast<std::uint32_t>(23 - t.mantissa + exponent - own);
  const auto units =
      shift > 25 ? 0u : (significand + (1u << (shift - 1)) - 1u + (significand >> shift & 1u)) >> shift;
  const auto code = (static_cast<std::uint32_t>(exponent + t.bias - 1) << t.mantissa) + units;
  return static_cast<std::uint8_t>(sign | (code > t.largest ? t.overflow : code));
}

template <dtype From>
void to_float(const std::byte* from, float* to, std::size_t elements) noexcept {
  if constexpr (From == dtype::f8_e4m3 || From == dtype::f8_e5m2) {
    for (std::size_t i = 0; i < elements; ++i)
      to[i] = widen_small(static_cast<std::uint8_t>(from[i]), From == dtype::f8_e4m3 ? e4m3 : e5m2);
  } else if constexpr (From == dtype::f32) {
    std::memcpy(to, from, elements * sizeof(float));
  } else {
    find_cast(From, dtype::f32)(from, reinterpret_cast<std::byte*>(to), elements);
  }
}
template <dtype To>
void from_float(const float* from, std::byte* to, std::size_t elements) noexcept {
  if constexpr (To == dtype::f8_e4m3 || To == dtype::f8_e5m2) {
    for (std::size_t i = 0; i < elements; ++i)
      to[i] = std::byte(narrow_small(from[i], To == dtype::f8_e4m3 ? e4m3 : e5m2));
  } else if constexpr (To == dtype::f32) {
    std::memcpy(to, from, elements * sizeof(float));
  } else {
    find_cast(dtype::f32, To)(reinterpret_cast<const std::byte*>(from), to, elements);
  }
}
[[nodiscard]] constexpr float largest_of(dtype t) noexcept {
  return t == dtype::f16       ? 65504.0f
         : t == dtype::bf16    ? std::bit_cast<float>(0x7f7f0000u)
         : t == dtype::f8_e4m3 ? 448.0f
         : t == dtype::f8_e5m2 ? 57344.0f
                               : std::numeric_limits<float>::max();
}

/// Whether element `i` was stored as an infinity; `value` is what it is as a float.
template <dtype From>
[[nodiscard]] bool was_infinite(const std::byte* from, std::size_t i, const float& value) noexcept {
  if constexpr (From == dtype::f64) {  // what is finite may have become infinite on its way
    double stored;
    std::memcpy(&stored, from + i * sizeof stored, sizeof stored);
    return is_infinite(stored);
  } else {
    return is_infinite(double{value});
  }
}

/// By way of floats, a few at a time. Saturating where `Largest`: infinities that were stored stay where `To` has them.
template <dtype From, dtype To, bool Largest>
void convert_elements(const std::byte* from, std::byte* to, std::size_t elements) noexcept {
  constexpr std::size_t most = 512;
  constexpr auto from_bytes = bits_of(From) / 8;
  constexpr auto to_bytes = bits_of(To) / 8;
  std::array<float, most> values;
  while (elements != 0) {
    const auto n = std::min(elements, most);
    to_float<From>(from, values.data(), n);
    if constexpr (Largest)
      for (std::size_t i = 0; i < n; ++i)
        if ((values[i] > largest_of(To) || values[i] < -largest_of(To)) &&  // a NaN is neither
            (To == dtype::f8_e4m3 || !was_infinite<From>(from, i, values[i])))
          values[i] = std::copysign(largest_of(To), values[i]);
    from_float<To>(values.data(), to, n);
    from += n * from_bytes, to += n * to_bytes;
    elements -= n;
  }
}
template <dtype From, bool Largest>
[[nodiscard]] cast_function conversion_from(dtype to) noexcept {
  switch (to) {
    case dtype::f32:
      return convert_elements<From, dtype::f32, Largest>;
    case dtype::f16:
      return convert_elements<From, dtype::f16, Largest>;
    case dtype::bf16:
      return convert_elements<From, dtype::bf16, Largest>;
    case dtype::f8_e4m3:
      return convert_elements<From, dtype::f8_e4m3, Largest>;
    case dtype::f8_e5m2:
      return convert_elements<From, dtype::f8_e5m2, Largest>;
    case dtype::f64:
      return convert_elements<From, dtype::f64, false>;
    default:
      return nullptr;
  }
}
template <bool Largest>
[[nodiscard]] cast_function conversion_between(dtype from, dtype to) noexcept {
  if constexpr (!Largest)
    if (const auto cast = find_cast(from, to); cast != nullptr) return cast;
  switch (from) {
    case dtype::f64:
      return conversion_from<dtype::f64, Largest>(to);
    case dtype::f32:
      return conversion_from<dtype::f32, Largest>(to);
    case dtype::f16:
      return conversion_from<dtype::f16, Largest>(to);
    case dtype::bf16:
      return conversion_from<dtype::bf16, Largest>(to);
    case dtype::f8_e4m3:
      return conversion_from<dtype::f8_e4m3, Largest>(to);
    case dtype::f8_e5m2:
      return conversion_from<dtype::f8_e5m2, Largest>(to);
    default:
      return nullptr;
  }
}

[[nodiscard]] inline std::size_t stars_in(std::string_view pattern) noexcept {
  return static_cast<std::size_t>(std::count(pattern.begin(), pattern.end(), '*'));
}
/// What each `*` of a pattern stands for in a name, as short as can be; nothing where it does not match.
[[nodiscard]] inline std::optional<std::vector<std::string_view>> match_stars(std::string_view pattern,
                                                                              std::string_view name) {
  std::vector<std::string_view> texts;
  auto star = pattern.find('*');
  if (star == pattern.npos) {
    if (pattern != name) return std::nullopt;
    return texts;
  }
  if (!name.starts_with(pattern.substr(0, star))) return std::nullopt;
  name.remove_prefix(star);
  for (;;) {
    pattern.remove_prefix(star + 1);
    star = pattern.find('*');
    const auto literal = pattern.substr(0, star);
    if (star == pattern.npos) {  // the last one: what follows is the end of the name
      if (name.size() < literal.size() || !name.ends_with(literal)) return std::nullopt;
      texts.push_back(name.substr(0, name.size() - literal.size()));
      return texts;
    }
    const auto at = name.find(literal);
    if (at == name.npos) return std::nullopt;
    texts.push_back(name.substr(0, at));
    name.remove_prefix(at + literal.size());
  }
}
[[nodiscard]] inline std::string put_stars(std::string_view pattern,
                                           const std::vector<std::string_view>& texts) {
  std::string name;
  std::size_t next = 0;
  for (const char c : pattern)
    if (c == '*')
      name += texts[next++];
    else
      name += c;
  return name;
}

/// What the options of one load say together.
class chosen_changes final : public load_changes {
 public:
  struct convert_rule {
    std::vector<std::string> items;  ///< empty: all
    bool largest = false;
  };
  struct resize_rule {
    std::string items;
    int dimension = 0;
    bool longer = false;         ///< the state's
    std::optional<double> fill;  ///< nothing: stays
  };
  std::vector<rename_rule> renames;
  std::vector<convert_rule> converting;
  std::vector<resize_rule> resizing;

  [[nodiscard]] std::optional<std::size_t> find(const stored_items& items,
                                                std::string_view name) const override {
    for (const auto& rule : renames)
      if (const auto texts = match_stars(rule.to, name))
        for (const auto& from : rule.from)
          if (const auto found = items.index_of(put_stars(from, *texts))) return found;
    return std::nullopt;
  }
  [[nodiscard]] bool converts(std::string_view name) const override { return rule_of(name) != nullptr; }
  [[nodiscard]] cast_function conversion(std::string_view name, dtype from, dtype to) const override {
    const auto* rule = rule_of(name);
    if (rule == nullptr || from == to) return nullptr;
    return rule->largest ? conversion_between<true>(from, to) : conversion_between<false>(from, to);
  }
  [[nodiscard]] bool resizes(std::string_view name, const extents& stored,
                             const extents& wanted) const override {
    if (stored.rank() != wanted.rank()) return false;
    for (int d = 0; d < stored.rank(); ++d)
      if (stored[d] != wanted[d] && resize_of(name, d, wanted[d] > stored[d]) == nullptr) return false;
    return true;
  }
  void fill(std::string_view name, int dimension, const tensor_view& rest) const override {
    const auto* rule = resize_of(name, dimension, true);
    if (rule == nullptr || !rule->fill) return;
    if (rest.space == memory_space::device)
      fail(error_id::usage_bad_option,
           "the CPU does not write device memory: pad this item with cairn::keep_rest, and fill the rest on "
           "the device",
           {.item = std::string(name)});
    std::array<std::byte, 8> element{};
    if (!encode_element(*rule->fill, rest.type, element))
      fail(error_id::usage_bad_option,
           "an item of this dtype is not padded with this number: use another one, or cairn::keep_rest",
           {.item = std::string(name), .got = std::string(name_of(rest.type))});
    const auto width = static_cast<std::size_t>(bits_of(rest.type) / 8);
    for_each_run(rest, 0, rest.bytes(), [&](std::byte* to, std::uint64_t bytes, std::uint64_t) {
      for (std::uint64_t at = 0; at < bytes; at += width) std::memcpy(to + at, element.data(), width);
    });
  }

 private:
  [[nodiscard]] const convert_rule* rule_of(std::string_view name) const {
    for (const auto& rule : converting)
      if (is_wanted(rule.items, name)) return &rule;
    return nullptr;
  }
  [[nodiscard]] const resize_rule* resize_of(std::string_view name, int dimension, bool longer) const {
    for (const auto& rule : resizing)
      if (rule.dimension == dimension && rule.longer == longer && glob_matches(rule.items, name))
        return &rule;
    return nullptr;
  }
  template <class Integer>
  static bool put_integer(double value, std::array<std::byte, 8>& out) noexcept {
    if (value != std::trunc(value) || value < static_cast<double>(std::numeric_limits<Integer>::min()) ||
        value >= std::ldexp(1.0, std::numeric_limits<Integer>::digits))
      return false;
    const auto made = static_cast<Integer>(value);
    std::memcpy(out.data(), &made, sizeof made);
    return true;
  }
  /// False where the type cannot hold the number.
  static bool encode_element(double value, dtype type, std::array<std::byte, 8>& out) noexcept {
    switch (type) {
      case dtype::boolean:
        return (value == 0 || value == 1) && put_integer<std::uint8_t>(value, out);
      case dtype::u8:
        return put_integer<std::uint8_t>(value, out);
      case dtype::i8:
        return put_integer<std::int8_t>(value, out);
      case dtype::u16:
        return put_integer<std::uint16_t>(value, out);
      case dtype::i16:
        return put_integer<std::int16_t>(value, out);
      case dtype::u32:
        return put_integer<std::uint32_t>(value, out);
      case dtype::i32:
        return put_integer<std::int32_t>(value, out);
      case dtype::u64:
        return put_integer<std::uint64_t>(value, out);
      case dtype::i64:
        return put_integer<std::int64_t>(value, out);
      case dtype::f64:
        std::memcpy(out.data(), &value, sizeof value);
        return true;
      default:
        break;
    }
    const auto cast = conversion_between<false>(dtype::f64, type);
    const auto back = conversion_between<false>(type, dtype::f64);
    if (cast == nullptr || back == nullptr)  // zeros are zeros in all but this one, which has none
      return value == 0 && granule_of(type) == 1 && type != dtype::f8_e8m0;
    cast(reinterpret_cast<const std::byte*>(&value), out.data(), 1);
    double made = 0;
    back(out.data(), reinterpret_cast<std::byte*>(&made), 1);
    return detail::is_nan(made) == detail::is_nan(value) &&
           detail::is_infinite(made) == detail::is_infinite(value);
  }
};

/// The changes of a request, which this option may add to: requests are made anew for each load.
[[nodiscard]] inline chosen_changes changed(const load_request& request) {
  const auto* before = static_cast<const chosen_changes*>(request.changes.get());
  return before == nullptr ? chosen_changes() : *before;
}
inline void give(load_request& request, chosen_changes changes) {
  request.changes = detail::make_shared<chosen_changes>(std::move(changes));
}

inline void check_rule(const rename_rule& rule) {
  for (const auto& from : rule.from)
    if (stars_in(from) != stars_in(rule.to))
      fail(error_id::usage_bad_option,
           "a rule of cairn::rename has `*` on one side that the other lacks: they stand for the same texts",
           {.expected = rule.to, .got = from});
  if (rule.from.empty() || rule.to.empty())
    fail(error_id::usage_bad_option, "a rule of cairn::rename has a name on each side");
}
inline void check_dimension(int dimension, const std::string& items) {
  if (dimension < 0 || dimension >= extents::max_rank)
    fail(error_id::usage_bad_option, "cairn::pad and cairn::cut take dimensions 0 to 7, the first is 0",
         {.item = items, .got = std::to_string(dimension)});
}

}  // namespace detail

CAIRN_BODY rename_rule::rename_rule(std::vector<std::string> stored, std::string name)
    : from(std::move(stored)), to(std::move(name)) {}

CAIRN_BODY rename::rename(std::initializer_list<rename_rule> rules)
    : rename(std::vector<rename_rule>(rules)) {}

CAIRN_BODY rename::rename(std::vector<rename_rule> rules) : rules_(std::move(rules)) {
  for (const auto& rule : rules_) detail::check_rule(rule);
}

CAIRN_BODY void rename::add_to(load_request& request) const {
  auto changes = detail::changed(request);
  changes.renames.insert(changes.renames.end(), rules_.begin(), rules_.end());
  detail::give(request, std::move(changes));
}

CAIRN_BODY convert::convert(std::vector<std::string> items, overflow out_of_range)
    : items_(std::move(items)), out_of_range_(out_of_range) {}

CAIRN_BODY void convert::add_to(load_request& request) const {
  auto changes = detail::changed(request);
  changes.converting.push_back({items_, out_of_range_ == overflow::largest});
  detail::give(request, std::move(changes));
}

CAIRN_BODY pad::pad(std::string items, int dimension, double fill)
    : items_(std::move(items)), dimension_(dimension), fill_(fill) {
  detail::check_dimension(dimension, items_);
}
CAIRN_BODY pad::pad(std::string items, int dimension, keep_rest_t)
    : items_(std::move(items)), dimension_(dimension) {
  detail::check_dimension(dimension, items_);
}

CAIRN_BODY void pad::add_to(load_request& request) const {
  auto changes = detail::changed(request);
  changes.resizing.push_back({items_, dimension_, true, fill_});
  detail::give(request, std::move(changes));
}

CAIRN_BODY cut::cut(std::string items, int dimension) : items_(std::move(items)), dimension_(dimension) {
  detail::check_dimension(dimension, items_);
}

CAIRN_BODY void cut::add_to(load_request& request) const {
  auto changes = detail::changed(request);
  changes.resizing.push_back({items_, dimension_, false, std::nullopt});
  detail::give(request, std::move(changes));
}

}  // namespace v1
}  // namespace cairn
