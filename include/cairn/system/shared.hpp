// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <memory>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// An object that asks who owns it, as std::enable_shared_from_this lets it.
template <class T>
concept KnowsItsOwner = requires(T& object) { object.weak_from_this(); };

/// The owner of an object of any type. @throws std::bad_alloc, and then the object is destroyed.
[[nodiscard]] std::shared_ptr<void> owner_of(void* object, void (*destroy)(void*));

/// std::make_shared in two allocations: that one makes 60 functions for each type, and this one four.
template <class T, class... Arguments>
[[nodiscard]] std::shared_ptr<T> make_shared(Arguments&&... arguments) {
  if constexpr (KnowsItsOwner<T>) {
    return std::shared_ptr<T>(new std::remove_const_t<T>(std::forward<Arguments>(arguments)...));
  } else {
    using object = std::remove_const_t<T>;
    auto* const made = new object(std::forward<Arguments>(arguments)...);
    return std::shared_ptr<T>(owner_of(made, [](void* o) { delete static_cast<object*>(o); }), made);
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/shared.ipp>
#endif
