// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// What an item of a state or checkpoint is. The numbers are stored in manifests.
enum class item_kind : std::uint8_t { tensor = 0, value = 1, bytes = 2 };

constexpr std::string_view name_of(item_kind k) noexcept {
  return k == item_kind::tensor ? "tensor" : k == item_kind::value ? "value" : "bytes";
}

/// How an item wants to be treated; set by the tags below.
struct item_flags {
  bool copy_now = false;
  bool per_rank = false;
  bool optional = false;
  friend bool operator==(const item_flags&, const item_flags&) = default;
};

/// A tensor that forward or backward changes (running statistics): copied before save() returns, also when
/// overlapped, and whatever its size.
struct copy_now_t {};
/// See copy_now_t.
inline constexpr copy_now_t copy_now{};
/// One for each rank: saved by every rank, never deduplicated; rank r reads back item r.
struct per_rank_t {};
/// See per_rank_t.
inline constexpr per_rank_t per_rank{};
/// May be missing from a checkpoint that is loaded: then it keeps its value and the report says so.
struct optional_t {};
/// See optional_t.
inline constexpr optional_t optional{};

/// One of the tags above, or item_flags that were made at run time.
template <class F>
concept ItemFlag = std::same_as<F, copy_now_t> || std::same_as<F, per_rank_t> ||
                   std::same_as<F, optional_t> || std::same_as<F, item_flags>;

namespace detail {
inline void set_flag(item_flags& f, copy_now_t) noexcept {
  f.copy_now = true;
}
inline void set_flag(item_flags& f, per_rank_t) noexcept {
  f.per_rank = true;
}
inline void set_flag(item_flags& f, optional_t) noexcept {
  f.optional = true;
}
inline void set_flag(item_flags& f, item_flags more) noexcept {
  f.copy_now |= more.copy_now;
  f.per_rank |= more.per_rank;
  f.optional |= more.optional;
}
}  // namespace detail

/// Longest name of an item, in bytes.
inline constexpr std::size_t max_item_name = 4096;

/// The key of a rank's own item in a data file: "rng@rank00003".
[[nodiscard]] inline std::string per_rank_key(std::string_view name, int rank) {
  char suffix[24];
  std::snprintf(suffix, sizeof suffix, "@rank%05d", rank);
  return std::string(name) + suffix;
}

/// Why a name cannot be used, or an empty text. Names are printable UTF-8 of 1 to 4096 bytes, not
/// "__metadata__" (reserved by safetensors), and do not end in "@rank" and digits (used for per-rank items).
[[nodiscard]] inline std::string_view name_problem(std::string_view name) noexcept {
  if (name.empty()) return "is empty";
  if (name.size() > max_item_name) return "is longer than 4096 bytes";
  if (name == "__metadata__") return "is reserved by the safetensors format";
  for (std::size_t i = 0; i < name.size();) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (c < 0x20 || c == 0x7f) return "has a control character";
    std::size_t more = c < 0x80                ? 0
                       : c >= 0xc2 && c < 0xe0 ? 1
                       : c >= 0xe0 && c < 0xf0 ? 2
                       : c >= 0xf0 && c < 0xf5 ? 3
                                               : 9;
    if (more == 9 || i + more >= name.size()) return "is not UTF-8";
    for (std::size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(name[i + k]);
      const unsigned char low = k > 1 ? 0x80 : c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
      const unsigned char high = k > 1 ? 0xbf : c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
      if (next < low || next > high) return "is not UTF-8";
    }
    i += more + 1;
  }
  const auto digits = name.find_last_not_of("0123456789");
  if (digits != std::string_view::npos && digits + 1 < name.size() &&
      name.substr(0, digits + 1).ends_with("@rank"))
    return "ends like the key of a per-rank item";
  return {};
}

}  // namespace v1
}  // namespace cairn
