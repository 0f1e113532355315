// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/observer.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/owned.hpp>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {

/// An Observer whose type is chosen at run time. Each observation costs a virtual call. Movable; one that was
/// moved from is only destroyed or assigned to.
class any_observer {
  struct face {
    virtual ~face() = default;
    virtual void observe(const observation& what) noexcept = 0;
  };
  template <class O>
  struct face_of final : face {
    explicit face_of(O made) : observer(std::move(made)) {}
    void observe(const observation& what) noexcept override { observer.observe(what); }
    O observer;
  };

 public:
  using cairn_role = role::observer;

  template <class O>
    requires(!std::same_as<O, any_observer>)
  explicit any_observer(O observer)
      : face_(new face_of<O>(std::move(observer))),
        wants_spans_(cairn::wants_spans<O>),
        wants_began_(cairn::wants_began<O>) {
    static_assert(Observer<O>);
  }

  /// See Observer.
  void observe(const observation& what) noexcept { face_->observe(what); }
  /// Whether the observer asks for the parts of each save.
  [[nodiscard]] bool asks_for_spans() const noexcept { return wants_spans_; }
  /// Whether the observer asks to be told that a save began.
  [[nodiscard]] bool asks_for_began() const noexcept { return wants_began_; }

 private:
  detail::owned<face> face_;
  bool wants_spans_;
  bool wants_began_;
};

static_assert(Observer<any_observer>);

}  // namespace v1
}  // namespace cairn
