// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// An any_store that holds one of these Portable types, and is Portable itself, so that the worker of a
/// process_executor can construct the same store:
///
///   cairn::any_store_of<cairn::file_store, cairn::s3_store> store = cairn::open_store(url);
template <class... Stores>
  requires(sizeof...(Stores) > 0 && (ByteStore<Stores> && ...) && (Portable<Stores> && ...))
class any_store_of : public any_store {
 public:
  using cairn_role = role::store;
  using handle_type = any_store_of;

  template <class Store>
    requires(std::same_as<std::remove_cvref_t<Store>, Stores> || ...)
  explicit any_store_of(Store&& store)
      : any_store(std::forward<Store>(store)), type_(index_of<std::remove_cvref_t<Store>>()) {}

  /// See Portable: the index of the type, and its description.
  [[nodiscard]] std::vector<std::byte> description() const {
    wire_writer out;
    out.put(type_).raw(inner_description());
    return out.take();
  }
  [[nodiscard]] static any_store_of from_description(std::span<const std::byte> bytes) {
    wire_reader in(bytes);
    const auto type = in.get<std::uint8_t>();
    const auto rest = in.take(in.left());
    std::optional<any_store_of> made;
    (void)((type == index_of<Stores>() && (made.emplace(Stores::from_description(rest)), true)) || ...);
    if (!made)
      fail(error_id::usage_bad_option, "a description is of a store that this program does not know",
           {.got = std::to_string(type)});
    return std::move(*made);
  }

 private:
  template <class Store>
  [[nodiscard]] static constexpr std::uint8_t index_of() noexcept {
    std::uint8_t index = 0;
    (void)((std::same_as<Store, Stores> || (++index, false)) || ...);
    return index;
  }
  std::uint8_t type_;
};

namespace detail {
/// The scheme of a URL, in lower case; empty for a path: "checkpoints", "./a:b".
[[nodiscard]] constexpr std::string_view scheme_of(std::string_view url) noexcept {
  const auto colon = url.find(':');
  if (colon == std::string_view::npos || colon < 2) return {};
  for (std::size_t i = 0; i < colon; ++i) {
    const bool letter = url[i] >= 'a' && url[i] <= 'z';
    if (!letter && (i == 0 || url[i] < '0' || url[i] > '9')) return {};
  }
  return url.substr(0, colon);
}
}  // namespace detail

namespace detail {
/// The directory that a URL names. @throws usage_error (usage_bad_option)
[[nodiscard]] inline std::string path_of_url(std::string_view url) {
  auto path = url;
  if (const auto scheme = scheme_of(url); scheme == "file") {
    path.remove_prefix(5);
    if (path.starts_with("//")) {
      path.remove_prefix(2);
      if (!path.starts_with('/'))
        fail(error_id::usage_bad_option,
             "a URL of a directory has three slashes or none: file:///data/run, file:run",
             {.got = std::string(url)});
    }
  } else if (!scheme.empty()) {
    fail(error_id::usage_bad_option,
         "a store is a path, file:PATH, or, where the program is built with cairn::s3, s3://BUCKET/PREFIX",
         {.got = std::string(scheme)});
  }
  if (path.empty()) fail(error_id::usage_bad_option, "the URL of a store names no directory");
  return std::string(path);
}
}  // namespace detail

/// Returns the store that a URL names: a path, or file:PATH (file:checkpoints, file:///data/run).
/// <cairn/stores/s3_url.hpp> also has s3:// URLs. @throws usage_error (usage_bad_option)
[[nodiscard]] inline any_store_of<file_store> open_file_url(std::string_view url) {
  return any_store_of<file_store>(file_store(detail::path_of_url(url)));
}

static_assert(Portable<any_store_of<file_store>>);

}  // namespace v1
}  // namespace cairn
