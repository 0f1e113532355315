// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Who reads a checkpoint, and who removes one, so that all processes see it: unfinished objects named
/// "lease-00000300.reads.<host>.<process>" beside the steps' directories, which nobody ever finishes. The
/// store knows whether their writers live, by a lock on files, by a heartbeat in buckets; of a process that
/// has died nothing holds anybody up.
///
/// A reader first shows its lease and then looks for one who removes; who removes shows that first and then
/// looks for readers. So at least one of two sees the other. Who removes gives way at once; a reader waits
/// until the other has given way, or the manifest is gone. Any thread; throws the store's errors.
class step_leases {
 public:
  /// In the store below all that lie over others.
  explicit step_leases(const any_store& store) : store_(store.innermost()) {}

  /// Whether the store can tell who lives. Without that, lease() holds nothing and everything may be removed.
  [[nodiscard]] bool possible() { return store_.tells_writers(); }

  /// A lease on a committed checkpoint; not held() where that is not possible().
  /// @throws storage_error (storage_not_committed) where there is none; timeout_error (timeout_load) where
  /// another process begins to remove it and comes to no end.
  [[nodiscard]] checkpoint_lease lease(std::int64_t step, deadline until) {
    if (!possible()) return {step, nullptr};
    if (!store_.size(manifest_key(step))) fail_not_committed(step);
    auto hold = show(step, reads);
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, longest_pause)) {
      if (!store_.size(manifest_key(step))) fail_not_committed(step);
      const auto others = who(step, removes);
      if (others.empty()) return {step, std::move(hold)};
      if (until.passed())
        fail(error_id::timeout_load,
             "another process has begun to remove this checkpoint and neither ended nor gave it up",
             {.file = step_directory(step), .got = others.front()});
      std::this_thread::sleep_for(pause);
    }
  }

  /// Shows that the caller removes the checkpoint, as long as what this gives lives.
  /// @throws storage_error (storage_leased) naming who reads it; nothing was removed then.
  [[nodiscard]] std::shared_ptr<void> begin_removal(std::int64_t step) {
    if (!possible()) return nullptr;
    auto shown = show(step, removes);
    if (const auto readers = who(step, reads); !readers.empty())
      fail(error_id::storage_leased,
           "the checkpoint is being read and was not removed; try again when its readers have ended",
           {.file = step_directory(step), .got = joined(readers)});
    return shown;
  }

  /// Removes what is left of processes that have died. Without a lease of their own, nobody sees these.
  void clean() {
    if (!possible()) return;
    for (const auto& key : store_.leftovers(beginning)) {
      try {
        store_.discard(key);
      } catch (const storage_error& e) {
        if (e.id() != error_id::storage_exists) throw;  // its process lives after all
      }
    }
  }

 private:
  static constexpr std::string_view beginning = "lease-";
  static constexpr std::string_view reads = ".reads.";
  static constexpr std::string_view removes = ".removes.";
  static constexpr std::chrono::milliseconds longest_pause{250};

  /// "lease-00000300.reads."
  [[nodiscard]] static std::string key_of(std::int64_t step, std::string_view what) {
    return std::string(beginning) + step_directory(step).substr(std::string_view("step-").size()) +
           std::string(what);
  }
  [[nodiscard]] std::shared_ptr<void> show(std::int64_t step, std::string_view what) {
    auto shown =
        std::make_shared<any_store::object_writer>(store_.create(key_of(step, what) + own_name(), 0));
    shown->announce();
    return shown;
  }
  /// The processes that do this with a step, by host and number.
  [[nodiscard]] std::vector<std::string> who(std::int64_t step, std::string_view what) {
    std::vector<std::string> found;
    const auto prefix = key_of(step, what);
    for (const auto& key : store_.live_writers(prefix)) {
      const auto name = std::string_view(key).substr(std::min(prefix.size(), key.size()));
      const auto host = name.substr(0, name.find('.'));
      const auto rest = name.substr(std::min(name.size(), host.size() + 1));
      found.push_back("process " + std::string(rest.substr(0, rest.find('.'))) + " on " + std::string(host));
    }
    return found;
  }
  [[nodiscard]] static std::string own_name() {
    std::array<char, 65> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = 0;
    std::string name;
    for (const char c : std::string_view(host.data())) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      name += plain ? c : '-';
    }
    return (name.empty() ? "host" : name) + "." + std::to_string(::getpid());
  }
  [[nodiscard]] static std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const auto& n : names) text += (text.empty() ? "" : ", ") + n;
    return text;
  }
  [[noreturn]] void fail_not_committed(std::int64_t step) {
    fail(error_id::storage_not_committed,
         "there is no committed checkpoint of step " + std::to_string(step) + " in " +
             std::string(store_.describe()),
         {.file = manifest_key(step)});
  }

  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
