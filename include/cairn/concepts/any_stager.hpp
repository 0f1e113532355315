// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/owned.hpp>

#include <concepts>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

/// A Stager whose type is chosen at run time. Each call costs a virtual one. Movable; one that was moved from
/// is only destroyed or assigned to.
class any_stager {
  struct face {
    virtual ~face() = default;
    virtual staged_image stage(std::shared_ptr<const image_layout> layout, const source_table& sources,
                               stage_options options, deadline until) = 0;
    virtual void prepare(const image_layout& layout, deadline until) = 0;
    virtual void prepare(const source_table& sources) = 0;
    [[nodiscard]] virtual int depth() const = 0;
    [[nodiscard]] virtual std::shared_ptr<device_access> device_memory() const = 0;
    [[nodiscard]] virtual const void* type() const noexcept = 0;
  };
  /// Its address stands for the type: there may be no RTTI.
  template <class S>
  struct type_of {
    static inline char mark = 0;
  };
  template <class S>
  struct face_of final : face {
    explicit face_of(S made) : stager(std::move(made)) {}
    staged_image stage(std::shared_ptr<const image_layout> layout, const source_table& sources,
                       stage_options options, deadline until) override {
      return stager.stage(std::move(layout), sources, options, until);
    }
    void prepare(const image_layout& layout, deadline until) override { stager.prepare(layout, until); }
    void prepare([[maybe_unused]] const source_table& sources) override {
      if constexpr (PreparesSources<S>) stager.prepare(sources);
    }
    [[nodiscard]] int depth() const override { return static_cast<int>(stager.depth()); }
    [[nodiscard]] std::shared_ptr<device_access> device_memory() const override {
      if constexpr (BringsDeviceAccess<S>)
        return stager.device_memory();
      else
        return nullptr;
    }
    [[nodiscard]] const void* type() const noexcept override { return &type_of<S>::mark; }
    S stager;
  };

 public:
  using cairn_role = role::stager;

  template <class S>
    requires(!std::same_as<S, any_stager>)
  explicit any_stager(S stager) : face_(new face_of<S>(std::move(stager))) {
    static_assert(Stager<S>);
  }

  // See Stager.
  [[nodiscard]] staged_image stage(std::shared_ptr<const image_layout> layout, const source_table& sources,
                                   stage_options options, deadline until);
  void prepare(const image_layout& layout, deadline until);
  [[nodiscard]] int depth() const;
  /// See PreparesSources; nothing where the stager has none.
  void prepare(const source_table& sources);
  /// See BringsDeviceAccess; null where the stager brings none.
  [[nodiscard]] std::shared_ptr<device_access> device_memory() const;

  /// The stager itself, or null where it is of another type. At one address as long as this lives, also when
  /// this is moved.
  template <class S>
  [[nodiscard]] S* get_if() noexcept {
    return face_->type() == &type_of<S>::mark ? &static_cast<face_of<S>&>(*face_).stager : nullptr;
  }

 private:
  detail::owned<face> face_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/any_stager.ipp>
#endif
