// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// The kind of an item. The numbers are stored in manifests.
enum class item_kind : std::uint8_t { tensor = 0, value = 1, bytes = 2 };

constexpr std::string_view name_of(item_kind k) noexcept {
  return k == item_kind::tensor ? "tensor" : k == item_kind::value ? "value" : "bytes";
}

/// The flags of an item, which the tags below set.
struct item_flags {
  /// See copy_now_t.
  bool copy_now = false;
  /// See per_rank_t.
  bool per_rank = false;
  /// See optional_t.
  bool optional = false;
  /// See frozen_t.
  bool frozen = false;
  friend bool operator==(const item_flags&, const item_flags&) = default;
};

/// Flags a tensor that forward or backward changes (running statistics): it is copied before save()
/// returns, also in an overlapped save, and whatever its size.
struct copy_now_t {};
/// See copy_now_t.
inline constexpr copy_now_t copy_now{};
/// Flags an item of which each rank has its own: every rank saves it, and rank r loads that of rank r.
struct per_rank_t {};
/// See per_rank_t.
inline constexpr per_rank_t per_rank{};
/// Flags an item that may be missing in a checkpoint: it then keeps its value, and the report names it.
struct optional_t {};
/// See optional_t.
inline constexpr optional_t optional{};
/// Flags an item that never changes, such as the weights under an adapter: a promise. Where the store can link
/// objects, saves write it once, into files of its own, which later saves link: they neither copy nor hash it. See
/// docs/frozen-items.md. checkpointer's checked{} looks whether the promise is kept.
struct frozen_t {};
/// See frozen_t.
inline constexpr frozen_t frozen{};

/// One of the tags above, or item_flags that were made at run time.
template <class F>
concept ItemFlag = std::same_as<F, copy_now_t> || std::same_as<F, per_rank_t> ||
                   std::same_as<F, optional_t> || std::same_as<F, frozen_t> || std::same_as<F, item_flags>;

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
inline void set_flag(item_flags& f, frozen_t) noexcept {
  f.frozen = true;
}
inline void set_flag(item_flags& f, item_flags more) noexcept {
  f.copy_now |= more.copy_now;
  f.per_rank |= more.per_rank;
  f.optional |= more.optional;
  f.frozen |= more.frozen;
}
}  // namespace detail

/// Longest name of an item, in bytes.
inline constexpr std::size_t max_item_name = 4096;

/// The key of a rank's own item in a data file: "rng@rank00003".
[[nodiscard]] std::string per_rank_key(std::string_view name, int rank);

namespace detail {
/// The bytes of the character with which a text in UTF-8 begins; 0 where it begins with none. @pre not empty
[[nodiscard]] std::size_t utf8_bytes(std::string_view text) noexcept;
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;
}  // namespace detail

/// Why a name is not valid, or an empty text. Names are printable UTF-8 of 1 to 4096 bytes, not
/// "__metadata__" (reserved by safetensors), and do not end in "@rank" and digits (used for per-rank items).
[[nodiscard]] std::string_view name_problem(std::string_view name) noexcept;

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/item.ipp>
#endif
