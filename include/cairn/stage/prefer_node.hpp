// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Asks for pages of one NUMA node, where it has any left, for a mapping that nobody has touched as yet.
/// Where the kernel refuses, or the node is negative, the pages are those of whoever touches them first.
void prefer_node(std::byte* begin, std::size_t bytes, int node) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/prefer_node.ipp>
#endif
