// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/wire.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Two small objects by which the ranks of a run see that they have one store: rank 0 leaves them, the others
/// look for them. For one of them they have looked before: what remembers that a name was not there answers
/// wrongly for that one alone.
class shared_mark {
 public:
  explicit shared_mark(any_store store) noexcept : store_(std::move(store)) {}

  void look_early(const run_id& run) { static_cast<void>(store_.size(early_key(run))); }
  /// What it gives is kept as long as the marks are needed: by it, others see that they are.
  [[nodiscard]] std::shared_ptr<const void> leave(const run_id& run) {
    wire_writer about;
    about.put(static_cast<std::int64_t>(std::time(nullptr))).put(this_host());
    const auto bytes = about.take();
    auto held = std::make_shared<std::vector<any_store::object_writer>>();
    for (const auto& key : {early_key(run), key_of(run)}) {
      if (!has_locks()) {
        store_.put_new(key, bytes);
        continue;
      }
      held->push_back(store_.create(key, bytes.size()));
      const write_part part{0, bytes};
      held->back().write({&part, 1});
      held->back().finish();
    }
    return held;
  }
  /// Waits some seconds where nothing is seen.
  [[nodiscard]] mark_sight seen(const run_id& run) {
    for (int wait = 1; !store_.size(key_of(run)); wait *= 2) {
      if (wait > 1024) return mark_sight::none;
      std::this_thread::sleep_for(std::chrono::milliseconds(wait));
    }
    // Made before the one that is seen.
    return store_.size(early_key(run)) ? mark_sight::seen : mark_sight::late;
  }
  void remove(const run_id& run) noexcept {
    for (const auto& key : {early_key(run), key_of(run)}) try {
        store_.remove(key);
      } catch (...) {  // remove_others() of a later run does
      }
  }
  /// Those that other runs left behind, also unfinished ones; the number removed.
  std::uint64_t remove_others(const run_id& run) {
    std::uint64_t removed = 0;
    for (const auto& key : store_.keys(prefix))
      if (!key.starts_with(key_of(run)) && !is_needed(key)) store_.remove(key), ++removed;
    for (const auto* begin : {prefix, "cairn-probe"})
      for (const auto& key : store_.leftovers(begin)) {
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
  [[nodiscard]] static std::string early_key(const run_id& run) { return key_of(run) + ".early"; }
  [[nodiscard]] static std::string this_host() {
    return kernel_file("/proc/sys/kernel/random/boot_id").value_or("");
  }
  [[nodiscard]] bool has_locks() const { return store_.tells_writers() && !store_.announces_writers(); }
  /// Whether a run may be just looking for it: who left it lives. Of another host that may be hidden, and the
  /// mark is left alone for an hour, by two clocks that may differ by minutes.
  [[nodiscard]] bool is_needed(const std::string& key) {
    if (has_locks() && store_.writer_lives(key)) return true;
    try {
      const auto bytes = store_.read_all(key, 4096).value_or(std::vector<std::byte>());
      wire_reader in(bytes);
      const auto age = static_cast<std::int64_t>(std::time(nullptr)) - in.get<std::int64_t>();
      const auto host = in.get_string();
      return age > -3600 && age < 3600 && (!has_locks() || host.empty() || host != this_host());
    } catch (const wire_error&) {  // of another version
      return false;
    }
  }
  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
