// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_handle.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/state_entry.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What memory was saved last, and by which save. One thread at a time.
class saved_memory {
 public:
  /// Before a save of the memory of this state begins: what was known goes.
  void begin(const state_dict& state) noexcept {
    clear();
    try {
      for (const auto& e : state.entries())
        if (e.memory.data != nullptr)
          containers_.push_back({e.memory.data(e.memory.object), e.memory.count(e.memory.object)});
      version_ = state.version();
      bindings_ = state.bindings();
    } catch (...) {
      clear();  // then it is read again
    }
    begun_ = true;
  }
  /// The save that carries it out.
  void set(save_handle save) noexcept { save_ = std::move(save); }
  /// Forgets it.
  void clear() noexcept {
    begun_ = false;
    save_ = {};
    bindings_ = nullptr;
    containers_.clear();
  }

  /// Whether begin() was called since clear(): the same on all ranks.
  [[nodiscard]] bool begun() const noexcept { return begun_; }
  /// Whether that very save is committed, as far as this rank knows.
  [[nodiscard]] bool committed() const noexcept { return save_.valid() && save_.committed(); }
  /// Of the save. @pre committed()
  [[nodiscard]] std::int64_t step() const { return save_.step(); }
  /// Whether it is the memory of this state, or of a copy of it, and where it was.
  [[nodiscard]] bool is_of(const state_dict& state) const {
    if (bindings_ == nullptr || bindings_ != state.bindings() || version_ != state.version()) return false;
    std::size_t next = 0;
    for (const auto& e : state.entries()) {
      if (e.memory.data == nullptr) continue;
      const container now{e.memory.data(e.memory.object), e.memory.count(e.memory.object)};
      if (next == containers_.size() || containers_[next++] != now) return false;
    }
    return next == containers_.size();
  }

 private:
  struct container {
    const void* address = nullptr;
    std::uint64_t elements = 0;
    bool operator==(const container&) const = default;
  };
  bool begun_ = false;
  save_handle save_;
  std::int64_t version_ = 0;
  std::shared_ptr<const void> bindings_;  // held, so that no other state gets this address
  vector<container> containers_;          // in the order of their entries
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
