// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/change_watch.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Watches the entries of a directory that begin with the prefix, and what appears in the newest directories among them
/// (inotify(7)). Null where the directory is not there, or the system gives no more watches. What other hosts write into a
/// network file system goes unnoticed.
[[nodiscard]] std::unique_ptr<change_watch> watch_directory(const std::string& root, std::string_view prefix);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file/directory_watch.ipp>
#endif
