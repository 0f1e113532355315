// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stage/prefer_node.hpp>
#include <cairn/system/compiler.hpp>

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void prefer_node(std::byte* begin, std::size_t bytes, int node) noexcept {
#ifdef SYS_mbind
  constexpr int preferred = 1;  // MPOL_PREFERRED
  constexpr std::size_t bits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 1024 / bits> nodes{};
  if (node < 0 || static_cast<std::size_t>(node) >= nodes.size() * bits) return;
  nodes[static_cast<std::size_t>(node) / bits] = 1ul << (static_cast<std::size_t>(node) % bits);
  (void)::syscall(SYS_mbind, begin, bytes, preferred, nodes.data(), nodes.size() * bits + 1, 0);
#else
  (void)begin, (void)bytes, (void)node;
#endif
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
