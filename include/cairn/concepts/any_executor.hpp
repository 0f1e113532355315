// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/system/owned.hpp>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {

/// An Executor of any type, which this object owns. Each call costs a virtual one.
class any_executor {
 public:
  /// A job whose writer the executor does not take fails.
  template <class Writer>
  static constexpr bool accepts = true;

  template <class Inner>
    requires(!std::same_as<std::remove_cvref_t<Inner>, any_executor> && Executor<std::remove_cvref_t<Inner>>)
  explicit any_executor(Inner&& executor)
      : face_(new face_of<std::remove_cvref_t<Inner>>(std::forward<Inner>(executor))) {}

  // See Executor.
  void submit(save_job job);
  [[nodiscard]] bool drain(deadline until);
  /// See PreparesEarly; nothing where the executor has nothing to prepare.
  void prepare();
  /// See EndsWithProcess.
  [[nodiscard]] bool ends_with_process() const noexcept;
  /// See RunsInCaller.
  [[nodiscard]] bool runs_in_caller() const noexcept;

 private:
  struct face {
    virtual ~face() = default;
    virtual void submit(save_job job) = 0;
    virtual bool drain(deadline until) = 0;
    virtual void prepare() = 0;
    virtual bool ends_with_process() const noexcept = 0;
    virtual bool runs_in_caller() const noexcept = 0;
  };
  template <class E>
  struct face_of final : face {
    template <class From>
    explicit face_of(From&& made) : executor(std::forward<From>(made)) {}
    void submit(save_job job) override { executor.submit(std::move(job)); }
    bool drain(deadline until) override { return executor.drain(until); }
    void prepare() override {
      if constexpr (PreparesEarly<E>) executor.prepare();
    }
    bool ends_with_process() const noexcept override { return EndsWithProcess<E>; }
    bool runs_in_caller() const noexcept override { return RunsInCaller<E>; }
    E executor;
  };

  detail::owned<face> face_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/any_executor.ipp>
#endif
