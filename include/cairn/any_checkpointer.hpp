// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/state_dict.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Any checkpointer behind one type, so that a single .cpp of a trainer includes <cairn/checkpointer.hpp> and
/// pays for its templates:
///
/// `cairn::any_checkpointer make_checkpointer();  // in a header; defined where cairn::checkpointer{...} is
/// made`
///
/// Movable, not copyable; holds a checkpointer by value. The functions are those of cairn::checkpointer, at
/// the cost of a virtual call. One that was moved from holds nothing: has_value() is false and every other
/// call is undefined.
class any_checkpointer {
 public:
  any_checkpointer() = default;
  template <class Checkpointer>
    requires(!std::same_as<std::remove_cvref_t<Checkpointer>, any_checkpointer> &&
             !std::is_lvalue_reference_v<Checkpointer>)
  any_checkpointer(Checkpointer&& held) : held_(std::make_unique<holder<Checkpointer>>(std::move(held))) {}

  [[nodiscard]] bool has_value() const noexcept { return held_ != nullptr; }

  void prepare(const state_dict& state) { held_->prepare(state); }
  save_handle save(const state_dict& state, std::int64_t step) { return held_->save(state, step); }
  void before_update() { held_->before_update(); }
  void before_update(std::string_view name) { held_->before_update(name); }
  /// `patterns`: as cairn::only; empty for everything. `strict` false: as cairn::partial.
  load_report load(const state_dict& state, std::int64_t step, std::vector<std::string> patterns = {},
                   bool strict = true) {
    return held_->load(state, step, std::move(patterns), strict);
  }
  std::optional<std::int64_t> resume(const state_dict& state) { return held_->resume(state, nullptr); }
  std::optional<std::int64_t> resume(const state_dict& state, const std::vector<std::int64_t>& among) {
    return held_->resume(state, &among);
  }
  [[nodiscard]] std::vector<std::int64_t> list() { return held_->list(); }
  [[nodiscard]] checkpoint_lease lease(std::int64_t step) { return held_->lease(step); }
  void remove(std::int64_t step) { held_->remove(step); }
  bool quarantine(std::int64_t step) { return held_->quarantine(step); }
  [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() { return held_->time_to_save(); }
  [[nodiscard]] bool any_rank(bool here) { return held_->any_rank(here); }
  void close() { held_->close(); }
  [[nodiscard]] int rank() const { return held_->rank(); }
  [[nodiscard]] int world_size() const { return held_->world_size(); }

 private:
  struct erased {
    virtual ~erased() = default;
    virtual void prepare(const state_dict&) = 0;
    virtual save_handle save(const state_dict&, std::int64_t) = 0;
    virtual void before_update() = 0;
    virtual void before_update(std::string_view) = 0;
    virtual load_report load(const state_dict&, std::int64_t, std::vector<std::string>, bool) = 0;
    virtual std::optional<std::int64_t> resume(const state_dict&, const std::vector<std::int64_t>*) = 0;
    virtual std::vector<std::int64_t> list() = 0;
    [[nodiscard]] virtual checkpoint_lease lease(std::int64_t) = 0;
    virtual void remove(std::int64_t) = 0;
    virtual bool quarantine(std::int64_t) = 0;
    [[nodiscard]] virtual std::optional<std::chrono::duration<double>> time_to_save() = 0;
    [[nodiscard]] virtual bool any_rank(bool) = 0;
    virtual void close() = 0;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int world_size() const = 0;
  };
  template <class Checkpointer>
  struct holder final : erased {
    explicit holder(Checkpointer c) : held(std::move(c)) {}
    void prepare(const state_dict& s) override { held.prepare(s); }
    save_handle save(const state_dict& s, std::int64_t step) override { return held.save(s, step); }
    void before_update() override { held.before_update(); }
    void before_update(std::string_view name) override { held.before_update(name); }
    load_report load(const state_dict& s, std::int64_t step, std::vector<std::string> patterns,
                     bool strict) override {
      return held.load_matching(s, step, std::move(patterns), strict);
    }
    std::optional<std::int64_t> resume(const state_dict& s, const std::vector<std::int64_t>* among) override {
      return among == nullptr ? held.resume(s) : held.resume(s, *among);
    }
    std::vector<std::int64_t> list() override { return held.list(); }
    [[nodiscard]] checkpoint_lease lease(std::int64_t step) override { return held.lease(step); }
    void remove(std::int64_t step) override { held.remove(step); }
    bool quarantine(std::int64_t step) override { return held.quarantine(step); }
    [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() override {
      return held.time_to_save();
    }
    [[nodiscard]] bool any_rank(bool here) override { return held.any_rank(here); }
    void close() override { held.close(); }
    [[nodiscard]] int rank() const override { return held.rank(); }
    [[nodiscard]] int world_size() const override { return held.world_size(); }
    Checkpointer held;
  };
  std::unique_ptr<erased> held_;
};

}  // namespace v1
}  // namespace cairn
