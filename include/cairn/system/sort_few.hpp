// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

namespace cairn {
inline namespace v1 {
namespace detail {
/// Sorts a handful of elements; equal ones keep their order.
template <class Iterator, class Less>
constexpr void sort_few(Iterator begin, Iterator end, Less less) {
  for (auto next = begin; next != end; ++next) {
    const auto moved = *next;
    auto at = next;
    for (; at != begin && less(moved, *(at - 1)); --at) *at = *(at - 1);
    *at = moved;
  }
}
}  // namespace detail

}  // namespace v1
}  // namespace cairn
