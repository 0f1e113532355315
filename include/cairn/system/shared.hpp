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

template <class T>
void delete_object(void* object) noexcept {
  delete static_cast<T*>(object);
}

/// std::make_shared in two allocations: that one makes 60 functions for each type, and this one three.
template <class T, class... Arguments>
[[nodiscard]] std::shared_ptr<T> make_shared(Arguments&&... arguments) {
  if constexpr (KnowsItsOwner<T>) {
    return std::shared_ptr<T>(new std::remove_const_t<T>(static_cast<Arguments&&>(arguments)...));
  } else {
    using object = std::remove_const_t<T>;
    auto* const made = new object(static_cast<Arguments&&>(arguments)...);
    return std::shared_ptr<T>(owner_of(made, delete_object<object>), made);
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/shared.ipp>
#endif
