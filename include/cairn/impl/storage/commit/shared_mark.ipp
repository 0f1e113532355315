// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/shared_mark.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>
#include <cairn/system/wire.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::shared_ptr<const void> shared_mark::leave(const run_id& run) {
  wire_writer about;
  about.put(static_cast<std::int64_t>(std::time(nullptr))).put(this_host());
  const auto bytes = about.take();
  auto held = detail::make_shared<vector<any_store::object_writer>>();
  for (const auto& key : {early_key(run), key_of(run)}) {
    if (!has_locks()) {
      store_.put_new(key, bytes);
      continue;
    }
    held->push_back(store_.create(key, bytes.size()));
    const write_range part{0, bytes};
    held->back().write({&part, 1});
    held->back().finish();
  }
  return held;
}

CAIRN_BODY mark_visibility shared_mark::seen(const run_id& run) {
  backoff polling(std::chrono::milliseconds(1), std::chrono::milliseconds(1024));
  for (int polls = 1; !store_.size(key_of(run)); ++polls) {
    if (polls > 11) return mark_visibility::none;
    static_cast<void>(polling.wait(deadline::never()));
  }
  // The early mark was made first: where it is not seen, this client remembers that it was absent.
  return store_.size(early_key(run)) ? mark_visibility::seen : mark_visibility::late;
}

CAIRN_BODY void shared_mark::remove(const run_id& run) noexcept {
  for (const auto& key : {early_key(run), key_of(run)}) try {
      store_.remove(key);
    } catch (...) {  // remove_others() of a later run removes it
    }
}

CAIRN_BODY std::uint64_t shared_mark::remove_others(const run_id& run, const store_look& look) {
  std::uint64_t removed = 0;
  for (const auto& key : look.shared_marks)
    if (!key.starts_with(key_of(run)) && !is_needed(key)) store_.remove(key), ++removed;
  auto others = look.unfinished;
  detail::erase_if(others, [&](const auto& object) { return object.key.starts_with(key_of(run)); });
  for (const auto* begin : {prefix, "cairn-probe"}) removed += discard_dead(store_, others, begin);
  return removed;
}

CAIRN_BODY std::string shared_mark::key_of(const run_id& run) {
  return prefix + to_string(run);
}

CAIRN_BODY std::string shared_mark::early_key(const run_id& run) {
  return key_of(run) + ".early";
}

CAIRN_BODY std::string shared_mark::this_host() {
  return kernel_file("/proc/sys/kernel/random/boot_id").value_or("");
}

CAIRN_BODY bool shared_mark::is_needed(const std::string& key) {
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

}  // namespace detail
}  // namespace v1
}  // namespace cairn
