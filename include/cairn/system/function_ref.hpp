// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

template <class Signature>
class function_ref;

/// A function that is called only while the call lasts that it is given to. Refers to a callable object, owns
/// nothing and allocates nothing: one indirect call. A page that takes a callable of any type hands it on so
/// to a body that is compiled once.
template <class Result, class... Arguments>
class function_ref<Result(Arguments...)> {
 public:
  /// Refers to `callable`, an object (for a function give a pointer to it), which outlives this.
  template <class Callable>
    requires(!std::same_as<std::remove_cvref_t<Callable>, function_ref> &&
             std::is_object_v<std::remove_reference_t<Callable>> &&
             std::is_invocable_r_v<Result, std::remove_reference_t<Callable>&, Arguments...>)
  function_ref(Callable&& callable) noexcept
      : object_(const_cast<void*>(static_cast<const volatile void*>(std::addressof(callable)))),
        call_(call<std::remove_reference_t<Callable>>) {}

  Result operator()(Arguments... arguments) const {
    return call_(object_, static_cast<Arguments&&>(arguments)...);
  }

 private:
  // A closure would be three functions for each callable.
  template <class Callable>
  static Result call(void* object, Arguments... arguments) {
    return (*static_cast<Callable*>(object))(static_cast<Arguments&&>(arguments)...);
  }

  void* object_;
  Result (*call_)(void*, Arguments...);
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
