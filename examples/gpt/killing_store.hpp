// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/roles.hpp>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "group.hpp"

namespace gpt {

/// Ends all ranks with SIGKILL inside the save of one step: each has been told that training may change its
/// memory, and has gone on; the writer of each has written a data file that it has not finished. So the save
/// is released on every rank and committed on none, each time. Each rank has one; its functions may be called
/// by several threads at once.
class kill_switch {
 public:
  explicit kill_switch(std::uint64_t step) : step_(step) {}

  std::uint64_t step() const { return step_; }

  /// This rank's writer wants to finish an object. Does not return for a data file of the step.
  /// @throws std::runtime_error if nothing has ended this process in two minutes
  void finishing(std::string_view key) {
    const std::string directory = "step-";
    if (!key.starts_with(directory) || !key.ends_with(".safetensors")) return;
    if (std::strtoull(std::string(key.substr(directory.size())).c_str(), nullptr, 10) != step_) return;
    std::unique_lock lock(mutex_);
    written_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::minutes(2), [] { return false; });
    throw std::runtime_error("not all ranks reached the point where this run was to be killed");
  }

  /// Collective, when the save of the step is released: does not return.
  /// @throws std::runtime_error if this rank's writer does not come to its end in a minute, and what the
  /// group throws
  void kill(group& others) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, std::chrono::minutes(1), [&] { return written_; }))
        throw std::runtime_error("the writer did not reach the point where this run was to be killed");
    }
    others.barrier();  // behind it the writers of all ranks stand still
    std::raise(SIGKILL);
  }

 private:
  const std::uint64_t step_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool written_ = false;
};

/// A byte store whose data files pass a kill_switch just before they are finished.
template <cairn::ByteStore Store>
class killing_store : public Store {
 public:
  using cairn_role = cairn::role::store;

  /// @param kill null: never
  killing_store(Store store, std::shared_ptr<kill_switch> kill)
      : Store(std::move(store)), kill_(std::move(kill)) {}

  class object {
   public:
    object(decltype(std::declval<Store&>().create("", 0)) inner, std::shared_ptr<kill_switch> kill,
           std::string key)
        : inner_(std::move(inner)), kill_(std::move(kill)), key_(std::move(key)) {}
    void write(std::span<const cairn::write_part> parts) { inner_.write(parts); }
    void finish() {
      if (kill_) kill_->finishing(key_);
      inner_.finish();
    }

   private:
    decltype(std::declval<Store&>().create("", 0)) inner_;
    std::shared_ptr<kill_switch> kill_;
    std::string key_;
  };

  object create(std::string_view key, std::uint64_t size_hint) {
    return object(Store::create(key, size_hint), kill_, std::string(key));
  }

 private:
  std::shared_ptr<kill_switch> kill_;
};

}  // namespace gpt
