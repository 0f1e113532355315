// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/file/posix_file_system.hpp>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Throws the typed error for `code` (a positive errno) of `call` on `path`.
[[noreturn, gnu::cold]] void fail_io(int code, std::string_view call, std::string_view path,
                                     std::int64_t offset = -1, std::optional<std::uint64_t> needed = {},
                                     std::optional<space_left> left = {},
                                     const std::vector<quota_use>& quotas = {});

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file/io_error.ipp>
#endif
