// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/wire.hpp>

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "group.hpp"

namespace gpt {

/// When a run is to be killed in a save.
enum class kill_moment {
  before_release,  ///< the memory of training is still being copied: it could not be a checkpoint yet
  after_release,   ///< training has its memory back and has gone on; the checkpoint is not committed
};

/// Ends all ranks with SIGKILL inside the save of one step, at the same moment of it each time: after
/// release, the writer of each rank has written a data file that it has not finished. A writer that is a
/// thread dies with its rank, so the save is lost. A writer in a process of its own lives on: it goes on as
/// soon as the rank is dead. Each rank has one; its functions may be called by several threads at once.
class kill_switch {
 public:
  kill_switch(std::uint64_t step, kill_moment moment, bool writer_is_process)
      : step_(step), moment_(moment), writer_is_process_(writer_is_process) {}
  /// In the process of a writer: that of the rank it works for.
  kill_switch(std::uint64_t step, pid_t rank)
      : step_(step), moment_(kill_moment::after_release), writer_is_process_(true), rank_(rank) {}

  /// Ends the ranks of one host alone, with the processes that write for them. `mine`: whether this rank is there.
  void only_host(bool mine) { of_host_ = mine; }

  std::uint64_t step() const { return step_; }
  kill_moment moment() const { return moment_; }

  /// This rank's writer wants to finish an object. For a data file of the step: returns when the rank is
  /// dead, or, where it dies with it, never.
  /// @throws std::runtime_error if nothing has ended the rank in two minutes
  void finishing(std::string_view key) {
    const std::string directory = "step-";
    if (moment_ != kill_moment::after_release || !key.starts_with(directory) ||
        !key.ends_with(".safetensors"))
      return;
    if (std::strtoull(std::string(key.substr(directory.size())).c_str(), nullptr, 10) != step_) return;
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    if (rank_ != 0) {
      for (; std::chrono::steady_clock::now() < end;
           std::this_thread::sleep_for(std::chrono::milliseconds(1)))
        if (::getppid() != rank_) return;
    } else {
      std::unique_lock lock(mutex_);
      written_ = true;
      changed_.notify_all();
      changed_.wait_until(lock, end, [] { return false; });
    }
    throw std::runtime_error("not all ranks reached the point where this run was to be killed");
  }

  /// Collective, when the moment has come: does not return, but on hosts that live on.
  /// @throws std::runtime_error if this rank's writer does not come to its end in a minute, and what the
  /// group throws
  void kill(group& others) {
    if (moment_ == kill_moment::after_release && !writer_is_process_) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, std::chrono::minutes(1), [&] { return written_; }))
        throw std::runtime_error("the writer did not reach the point where this run was to be killed");
    }
    others.barrier();  // behind it all ranks are at that point
    if (of_host_ == false) return;
    if (of_host_) kill_children();
    std::raise(SIGKILL);
  }

 private:
  static void kill_children() {
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream list(thread.path() / "children");
      for (pid_t child = 0; list >> child;) ::kill(child, SIGKILL);
    }
  }

  const std::uint64_t step_;
  const kill_moment moment_;
  const bool writer_is_process_;
  const pid_t rank_ = 0;         ///< 0: this process is the rank
  std::optional<bool> of_host_;  ///< nothing: all hosts are ended
  std::mutex mutex_;
  std::condition_variable changed_;
  bool written_ = false;
};

/// A byte store whose data files pass a kill_switch just before they are finished. Portable if the store is.
template <cairn::ByteStore Store>
class killing_store : public Store {
 public:
  using cairn_role = cairn::role::store;

  /// @param kill null: never
  killing_store(Store store, std::shared_ptr<kill_switch> kill)
      : Store(std::move(store)), kill_(std::move(kill)) {}

  /// See cairn::Portable: the step and this process stand before what describes the store.
  std::vector<std::byte> description() const
    requires cairn::Portable<Store>
  {
    const bool holds = kill_ && kill_->moment() == kill_moment::after_release;
    cairn::wire_writer out;
    out.put(holds ? kill_->step() : std::uint64_t{0}).put(static_cast<std::int32_t>(::getpid()));
    out.raw(Store::description());
    return out.take();
  }
  static killing_store from_description(std::span<const std::byte> bytes)
    requires cairn::Portable<Store>
  {
    cairn::wire_reader in(bytes);
    const auto step = in.get<std::uint64_t>();
    const auto rank = static_cast<pid_t>(in.get<std::int32_t>());
    return killing_store(Store::from_description(in.take(in.left())),
                         step == 0 ? nullptr : std::make_shared<kill_switch>(step, rank));
  }

  class object {
   public:
    object(decltype(std::declval<Store&>().create("", 0)) inner, std::shared_ptr<kill_switch> kill,
           std::string key)
        : inner_(std::move(inner)), kill_(std::move(kill)), key_(std::move(key)) {}
    void write(std::span<const cairn::write_range> parts) { inner_.write(parts); }
    /// See cairn::ZeroCopyObjectWriter.
    void write_stable(std::span<const cairn::write_range> parts)
      requires cairn::ZeroCopyObjectWriter<decltype(std::declval<Store&>().create("", 0))>
    {
      inner_.write_stable(parts);
    }
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
