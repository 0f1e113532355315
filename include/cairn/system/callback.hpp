// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

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
  /// Holds a copy of `callable`. Allocates once.
  template <class Callable>
    requires(!std::same_as<std::remove_cvref_t<Callable>, callback> &&
             std::is_invocable_r_v<Result, std::decay_t<Callable>&, Arguments...>)
  callback(Callable&& callable)
      : held_(std::make_shared<std::decay_t<Callable>>(std::forward<Callable>(callable))),
        call_([](void* held, Arguments... arguments) -> Result {
          return (*static_cast<std::decay_t<Callable>*>(held))(std::forward<Arguments>(arguments)...);
        }) {}

  /// True if it holds a callable.
  [[nodiscard]] explicit operator bool() const noexcept { return held_ != nullptr; }

  /// @pre it holds a callable.
  Result operator()(Arguments... arguments) const {
    return call_(held_.get(), std::forward<Arguments>(arguments)...);
  }

 private:
  std::shared_ptr<void> held_;
  Result (*call_)(void*, Arguments...) = nullptr;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
