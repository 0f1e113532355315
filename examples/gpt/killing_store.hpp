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
#include <vector>

namespace gpt {

/// Ends this process with SIGKILL inside the save of one step: when all ranks were told that training may
/// change its memory, and the writers of all ranks have written a data file that they have not finished. So
/// the save is released on every rank and committed on none, each time. All functions may be called by
/// several threads at once.
class kill_switch {
 public:
  kill_switch(std::uint64_t step, std::size_t ranks) : step_(step), released_(ranks), written_(ranks) {}

  std::uint64_t step() const { return step_; }

  /// This rank's save of the step has released its memory.
  void released(std::size_t rank) { arrive(released_, rank); }

  /// This rank's writer wants to finish an object. Does not return for a data file of the step.
  /// @throws std::runtime_error if the other ranks are not there within a minute
  void finishing(std::size_t rank, std::string_view key) {
    const std::string directory = "step-";
    if (!key.starts_with(directory) || !key.ends_with(".safetensors")) return;
    if (std::strtoull(std::string(key.substr(directory.size())).c_str(), nullptr, 10) != step_) return;
    arrive(written_, rank);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::minutes(1), [] { return false; });
    throw std::runtime_error("not all ranks reached the point where this run was to be killed");
  }

 private:
  void arrive(std::vector<bool>& who, std::size_t rank) {
    const std::lock_guard lock(mutex_);
    who[rank] = true;
    for (const std::vector<bool>* all : {&released_, &written_})
      for (const bool there : *all)
        if (!there) return;
    std::raise(SIGKILL);
  }

  const std::uint64_t step_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> released_, written_;
};

/// A byte store whose data files pass a kill_switch just before they are finished.
template <cairn::ByteStore Store>
class killing_store : public Store {
 public:
  using cairn_role = cairn::role::store;

  /// @param kill null: never
  killing_store(Store store, std::shared_ptr<kill_switch> kill, std::size_t rank)
      : Store(std::move(store)), kill_(std::move(kill)), rank_(rank) {}

  class object {
   public:
    object(decltype(std::declval<Store&>().create("", 0)) inner, std::shared_ptr<kill_switch> kill,
           std::size_t rank, std::string key)
        : inner_(std::move(inner)), kill_(std::move(kill)), rank_(rank), key_(std::move(key)) {}
    void write(std::span<const cairn::write_part> parts) { inner_.write(parts); }
    void finish() {
      if (kill_) kill_->finishing(rank_, key_);
      inner_.finish();
    }

   private:
    decltype(std::declval<Store&>().create("", 0)) inner_;
    std::shared_ptr<kill_switch> kill_;
    std::size_t rank_;
    std::string key_;
  };

  object create(std::string_view key, std::uint64_t size_hint) {
    return object(Store::create(key, size_hint), kill_, rank_, std::string(key));
  }

 private:
  std::shared_ptr<kill_switch> kill_;
  std::size_t rank_;
};

}  // namespace gpt
