// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {
/// Sorts a handful of elements, which are moved; equal ones keep their order.
template <class Iterator, class Less>
constexpr void sort_few(Iterator begin, Iterator end, Less&& less) {
  for (auto next = begin; next != end; ++next) {
    if (next == begin || !less(*next, *(next - 1))) continue;
    auto moved = std::move(*next);
    auto at = next;
    do *at = std::move(*(at - 1));
    while (--at != begin && less(moved, *(at - 1)));
    *at = std::move(moved);
  }
}
}  // namespace detail

}  // namespace v1
}  // namespace cairn
