// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error_ids.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Says that a file's bytes are not what cairn writes, and where. @throws corrupt_error always.
[[noreturn, gnu::cold]] void corrupt(error_id id, std::string_view what, std::string_view file,
                                     std::uint64_t offset, std::string expected = {}, std::string got = {});

/// A digest as messages show it.
[[nodiscard]] std::string digest_text(std::uint64_t value);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/manifest/corrupt.ipp>
#endif
