// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/signals_blocked.hpp>

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

struct background_thread::run {
  explicit run(const char* name_of_it) noexcept : name(name_of_it) {}
  run(const run&) = delete;
  run& operator=(const run&) = delete;
  ~run() {
    if (body.made != nullptr) body.use(body.made, false);
  }
  static void* go(void* given) noexcept {
    const detail::owned<std::shared_ptr<run>> own(static_cast<std::shared_ptr<run>*>(given));
    auto& r = **own;
    ::pthread_setname_np(::pthread_self(), r.name);
    r.body.use(std::exchange(r.body.made, nullptr), true);
    r.over.store(true, std::memory_order_release);
    r.ended.notify();
    return nullptr;
  }

  const char* name;
  owned_body body{};
  std::atomic<bool> over{false};
  shared_event ended;
};

CAIRN_BODY background_thread& background_thread::operator=(background_thread&& other) noexcept {
  if (this != &other) {
    join();
    run_ = std::move(other.run_);
    id_ = other.id_;
    process_ = other.process_;
  }
  return *this;
}

CAIRN_BODY bool background_thread::start(const char* name, owned_body body) {
  std::shared_ptr<run> made;
  try {
    made = detail::make_shared<run>(name);
  } catch (...) {
    body.use(body.made, false);
    throw;
  }
  made->body = body;  // from here its destructor destroys it
  auto given = detail::make_owned<std::shared_ptr<run>>(made);
  {
    const signals_blocked guard;
    if (::pthread_create(&id_, nullptr, &run::go, given.get()) != 0) return false;
  }
  static_cast<void>(given.release());
  run_ = std::move(made);
  process_ = fork_guard();
  return true;
}

CAIRN_BODY void background_thread::detach() noexcept {
  join(deadline::in(std::chrono::nanoseconds(0)));
}

CAIRN_BODY void background_thread::join() noexcept {
  join(deadline::never());
}

CAIRN_BODY bool background_thread::join(deadline until) noexcept {
  const auto waited = std::exchange(run_, nullptr);
  if (waited == nullptr) return true;
  if (process_.in_child()) {
    // The thread may have been anywhere in its body when the process was copied.
    static_cast<void>(new (std::nothrow) std::shared_ptr<run>(waited));
    return true;
  }
  if (until.time_point() != deadline::clock::time_point::max())
    for (;;) {
      const auto seen = waited->ended.current();
      if (waited->over.load(std::memory_order_acquire)) break;
      if (until.passed()) {
        ::pthread_detach(id_);
        return false;
      }
      waited->ended.wait(seen, until);
    }
  ::pthread_join(id_, nullptr);
  return true;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
