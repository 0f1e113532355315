// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/thread_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void look_together(const any_store& store, std::initializer_list<function_ref<void()>> looks) {
  if (store.reads_at_once() < 2) {
    for (const auto& look : looks) look();
    return;
  }
  thread_pool().run(looks.size(), looks.size(), [&](std::size_t i) { looks.begin()[i](); });
}

CAIRN_BODY store_look look_at(const any_store& store) {
  static constexpr std::string_view made[] = {"step-",        "lease-",      "pin.",
                                              "shared-mark.", "cairn-probe", "restart."};
  store_look found;
  const auto restarts = [&] {
    try {
      found.restarts = store.keys("restart.");
    } catch (const error&) {  // nothing else relies on them
    }
  };
  look_together(store, {[&] { found.unfinished = store.unfinished(made); },
                        [&] { found.shared_marks = store.keys("shared-mark."); }, restarts});
  found.steps = store.keys("step-");
  return found;
}

CAIRN_BODY store_look look_at_steps(const any_store& store, std::string_view prefix) {
  store_look found;
  found.unfinished = store.unfinished({&prefix, 1});
  found.steps = store.keys(prefix);
  return found;
}

CAIRN_BODY std::uint64_t discard_if_dead(const any_store& store, const std::string& unfinished) {
  try {
    store.discard(unfinished);
    return 1;
  } catch (const storage_error& e) {
    // Among files, that of another user may be his alone to remove.
    const bool of_another = e.id() == error_id::storage_permission && !store.announces_writers();
    if (e.id() != error_id::storage_exists && !of_another) throw;
    return 0;
  }
}

CAIRN_BODY std::uint64_t discard_dead(const any_store& store,
                                      const std::vector<listed_unfinished>& unfinished,
                                      std::string_view prefix) {
  std::uint64_t discarded = 0;
  for (const auto& object : unfinished)
    if (!object.lives && object.key.starts_with(prefix)) discarded += discard_if_dead(store, object.key);
  return discarded;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
