// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>
#include <cairn/system/shared.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

template <class Signature>
class callback;

/// A function that is kept, as std::function is; copies share the callable. <functional> costs each file that includes
/// a page a tenth of a second; this costs next to nothing.
template <class Result, class... Arguments>
class callback<Result(Arguments...)> {
 public:
  /// Holds nothing, and must not be called.
  callback() noexcept = default;
  callback(std::nullptr_t) noexcept {}
  /// Holds a copy of `callable`; nothing of a null pointer or an empty std::function. Allocates twice.
  template <class Callable>
    requires(!std::same_as<std::remove_cvref_t<Callable>, callback> &&
             std::is_invocable_r_v<Result, std::decay_t<Callable>&, Arguments...>)
  callback(Callable&& callable) {
    using stored = std::decay_t<Callable>;
    if constexpr (may_be_empty<std::remove_reference_t<Callable>>)
      if (!static_cast<bool>(callable)) return;
    held_ = detail::make_shared<stored>(std::forward<Callable>(callable));
    call_ = call<stored>;
  }

  /// True if it holds a callable.
  [[nodiscard]] explicit operator bool() const noexcept { return held_ != nullptr; }

  /// @pre it holds a callable.
  Result operator()(Arguments... arguments) const {
    return call_(held_.get(), static_cast<Arguments&&>(arguments)...);
  }

 private:
  template <class Stored>
  static Result call(void* held, Arguments... arguments) {
    if constexpr (std::is_void_v<Result>)
      static_cast<void>((*static_cast<Stored*>(held))(static_cast<Arguments&&>(arguments)...));
    else
      return (*static_cast<Stored*>(held))(static_cast<Arguments&&>(arguments)...);
  }

  /// Pointers, and what can be emptied by nullptr and asked whether it is: a closure cannot.
  template <class Callable>
  static constexpr bool may_be_empty =
      std::is_pointer_v<Callable> || requires(std::remove_const_t<Callable>& c) {
        c = nullptr;
        static_cast<bool>(c);
      };

  std::shared_ptr<void> held_;
  Result (*call_)(void*, Arguments...) = nullptr;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
