// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>
#include <cairn/system/sort_few.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <utility>

// Some of <algorithm>, for whole containers. What std has is made to be fast everywhere and instantiates much for
// each call: std::sort 30 functions, std::any_of 6 with a loop that is unrolled four times. These are one function each.

namespace cairn {
inline namespace v1 {
namespace detail {

struct less {
  template <class T>
  bool operator()(const T& a, const T& b) const {
    return a < b;
  }
};

template <class T, class Before>
void merge_sort(T* items, std::size_t count, vector<T>& room, Before& before) {
  if (count <= 12) return sort_few(items, items + count, before);
  const std::size_t half = count / 2;
  merge_sort(items, half, room, before);
  merge_sort(items + half, count - half, room, before);
  if (!before(items[half], items[half - 1])) return;
  room.clear();
  for (std::size_t i = 0; i < half; ++i) room.push_back(static_cast<T&&>(items[i]));
  std::size_t left = 0, right = half, to = 0;
  while (left < half)
    if (right < count && before(items[right], room[left]))
      items[to++] = static_cast<T&&>(items[right++]);
    else
      items[to++] = static_cast<T&&>(room[left++]);
}

/// Sorts items in memory. Equal ones keep their order. Allocates room for half of them where they are more than 12 and
/// not in order already. `before(a, b)`: a comes before b.
template <class T, class Before>
void sort(T* items, std::size_t count, Before before) {
  std::size_t in_order = 1;
  while (in_order < count && !before(items[in_order], items[in_order - 1])) ++in_order;
  if (in_order >= count) return;
  vector<T> room;
  if (count > 12) room.reserve(count / 2);
  merge_sort(items, count, room, before);
}
template <class Items, class Before = less>
void sort(Items& items, Before before = {}) {
  detail::sort(items.data(), items.size(), before);
}

/// The first of the items for which `test(item)` holds, or end().
template <class Items, class Test>
[[nodiscard]] auto find_if(Items& items, Test test) {
  auto at = items.begin();
  const auto end = items.end();
  while (at != end && !test(*at)) ++at;
  return at;
}
template <class Items, class Test>
[[nodiscard]] bool any_of(const Items& items, Test test) {
  for (const auto& item : items)
    if (test(item)) return true;
  return false;
}
template <class Items, class Test>
[[nodiscard]] bool all_of(const Items& items, Test test) {
  for (const auto& item : items)
    if (!test(item)) return false;
  return true;
}
template <class Items, class T>
[[nodiscard]] bool contains(const Items& items, const T& wanted) {
  for (const auto& item : items)
    if (item == wanted) return true;
  return false;
}

/// Removes the items for which `test(item)` holds, and counts them; the others keep their order.
template <class Items, class Test>
std::size_t erase_if(Items& items, Test test) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (!test(items[i])) {
      if (kept != i) items[kept] = std::move(items[i]);
      ++kept;
    }
  const std::size_t removed = items.size() - kept;
  while (items.size() > kept) items.pop_back();
  return removed;
}

/// Removes all but the first of equal items that lie side by side.
template <class Items>
void erase_repeated(Items& items) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (kept == 0 || !(items[kept - 1] == items[i])) {
      if (kept != i) items[kept] = std::move(items[i]);
      ++kept;
    }
  while (items.size() > kept) items.pop_back();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
