// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/model/error.hpp>
#include <cairn/model/record.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A small object by which the ranks of a run see that they have one store: rank 0 leaves it, the others look
/// for it.
template <ByteStore Store>
class shared_mark {
 public:
  explicit shared_mark(Store& store) noexcept : store_(store) {}

  void leave(const run_id& run) { store_.put_new(key_of(run), {}); }
  /// Looks for some seconds: clients of network file systems may remember for a while that a name was not
  /// there.
  [[nodiscard]] bool seen(const run_id& run) {
    const auto key = key_of(run);
    for (int wait = 1; wait <= 1024; wait *= 2) {
      if (store_.size(key)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(wait));
    }
    return store_.size(key).has_value();
  }
  void remove(const run_id& run) { store_.remove(key_of(run)); }
  /// Those that other runs left behind, also unfinished ones; the number removed.
  std::uint64_t remove_others(const run_id& run) {
    std::uint64_t removed = 0;
    for (const auto& key : list_keys(store_, prefix))
      if (key != key_of(run)) store_.remove(key), ++removed;
    for (const auto& key : store_.leftovers(prefix)) {
      if (key.starts_with(key_of(run))) continue;
      try {
        store_.discard(key), ++removed;
      } catch (const storage_error& e) {
        if (e.id() != error_id::storage_exists) throw;  // its writer lives after all
      }
    }
    return removed;
  }

 private:
  static constexpr const char* prefix = "shared-mark.";
  [[nodiscard]] static std::string key_of(const run_id& run) { return prefix + to_string(run); }
  Store& store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
