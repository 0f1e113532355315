// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY checkpoint_lease step_leases::lease(std::int64_t step, deadline until, lease_check check) {
  if (!possible()) return {step, nullptr};
  const auto require = [&] {
    if (!store_.size(manifest_key(step))) fail_not_committed(step);
  };
  std::shared_ptr<void> hold;
  try {
    hold = show(step, reads);
  } catch (...) {
    require();
    throw;
  }
  for (backoff polling(std::chrono::milliseconds(1), std::chrono::milliseconds(250));;) {
    const auto all = all_on(step);
    if (!shows_own(all, step, reads)) {
      if (check == lease_check::at_once) require();
      return {step, nullptr};
    }
    const auto others = who(all, step, removes);
    // Only now: a remover that was not seen had ended by then, or gives way.
    if (!others.empty() || check == lease_check::at_once) require();
    if (others.empty())
      return {step, std::move(hold), [](const void* shown) noexcept {
                return static_cast<const any_store::object_writer*>(shown)->announced();
              }};
    if (!polling.wait(until))
      fail(error_id::timeout_load,
           "another process has begun to remove this checkpoint and neither ended nor gave it up",
           {.file = step_directory(step), .got = others.front()});
  }
}

CAIRN_BODY std::shared_ptr<void> step_leases::begin_removal(std::int64_t step) {
  if (!possible()) return nullptr;
  auto shown = show(step, removes);
  const auto all = all_on(step);
  static_cast<void>(shows_own(all, step, removes));
  if (const auto readers = who(all, step, reads); !readers.empty())
    fail(error_id::storage_leased,
         "the checkpoint is being read and was not removed; try again when its readers have ended",
         {.file = step_directory(step), .got = joined(readers)});
  return shown;
}

CAIRN_BODY std::shared_ptr<void> step_leases::show_removal(std::int64_t step) noexcept {
  try {
    if (possible()) return show(step, removes);
  } catch (...) {  // what is left goes all the same
  }
  return nullptr;
}

CAIRN_BODY std::vector<std::string> step_leases::readers(std::int64_t step) {
  return possible() ? who(all_on(step), step, reads) : std::vector<std::string>();
}

CAIRN_BODY std::vector<std::string> step_leases::removers(std::int64_t step) {
  return possible() ? who(all_on(step), step, removes) : std::vector<std::string>();
}

CAIRN_BODY void step_leases::clean(const store_look& look) {
  if (!possible()) return;
  auto leases = look.unfinished;
  detail::erase_if(leases, [](const auto& u) { return u.key.starts_with(live_run_prefix); });
  static_cast<void>(discard_dead(store_, leases, beginning));
}

CAIRN_BODY bool step_leases::was_read(const store_look& look, std::int64_t step, std::string_view name) {
  auto beginning_of_key = key_of(step, reads);
  if (!name.empty()) beginning_of_key.append(name).append(1, '.');
  return detail::any_of(look.unfinished,
                        [&](const auto& u) { return u.lives && u.key.starts_with(beginning_of_key); });
}

CAIRN_BODY std::string step_leases::key_of(std::int64_t step, std::string_view what) {
  return std::string(beginning) + step_directory(step).substr(std::string_view("step-").size()) +
         std::string(what);
}

CAIRN_BODY std::shared_ptr<any_store::object_writer> show_lease(any_store& store, const std::string& key) {
  return detail::make_shared<any_store::object_writer>(store.show(key));
}

CAIRN_BODY std::shared_ptr<void> step_leases::show(std::int64_t step, std::string_view what) {
  return show_lease(store_, key_of(step, what) + own_name());
}

CAIRN_BODY std::vector<std::string> step_leases::all_on(std::int64_t step) {
  return store_.live_writers(key_of(step, "."));
}

CAIRN_BODY bool step_leases::shows_own(const std::vector<std::string>& all, std::int64_t step,
                                       std::string_view what) {
  const auto own = key_of(step, what) + own_name();
  if (detail::any_of(all, [&](const auto& key) { return key.starts_with(own); })) return true;
  static std::atomic<bool> told{false};
  if (!told.exchange(true))
    std::fprintf(
        stderr,
        "cairn: %s does not show a lease that was just begun in it, as MinIO, which lists unfinished "
        "uploads by whole names alone: nobody sees there who reads, who writes, and what dead "
        "processes left. Let one job write there, pin what others read, and have a lifecycle rule "
        "abort unfinished uploads\n",
        std::string(store_.describe()).c_str());
  return false;
}

CAIRN_BODY std::vector<std::string> step_leases::who(const std::vector<std::string>& all, std::int64_t step,
                                                     std::string_view what) {
  std::vector<std::string> found;
  const auto prefix = key_of(step, what);
  for (const auto& key : all) {
    if (!key.starts_with(prefix)) continue;
    const auto name = std::string_view(key).substr(prefix.size());
    const auto host = name.substr(0, name.find('.'));
    const auto rest = name.substr(std::min(name.size(), host.size() + 1));
    found.push_back("process " + std::string(rest.substr(0, rest.find('.'))) + " on " + std::string(host));
  }
  return found;
}

CAIRN_BODY std::string step_leases::own_name() {
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = 0;
  std::string name;
  for (const char c : std::string_view(host.data())) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    name += plain ? c : '-';
  }
  return (name.empty() ? "host" : name) + "." + std::to_string(::getpid());
}

CAIRN_BODY std::string step_leases::joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& n : names) text += (text.empty() ? "" : ", ") + n;
  return text;
}

CAIRN_BODY void step_leases::fail_not_committed(std::int64_t step) {
  fail(error_id::storage_not_committed,
       "there is no committed checkpoint of step " + std::to_string(step) + " in " +
           std::string(store_.describe()),
       {.file = manifest_key(step)});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
