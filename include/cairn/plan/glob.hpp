// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <span>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

/// True if the whole name matches a pattern in which * stands for any characters, also none, and ? for one
/// byte. Cost O(name x pattern) at worst.
[[nodiscard]] bool glob_matches(std::string_view pattern, std::string_view name) noexcept;

/// True if there are no patterns, or one of them matches.
[[nodiscard]] bool is_wanted(std::span<const std::string> only, std::string_view name) noexcept;

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/glob.ipp>
#endif
