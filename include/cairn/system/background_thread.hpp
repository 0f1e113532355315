// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/owned.hpp>

#include <pthread.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {

class deadline;

namespace detail {

/// A thread of the library. It takes no signals, which are for the threads of the program, and is joined when this
/// object ends, at the latest. In a child of fork(), which has no such thread, nothing is waited for.
/// One thread at a time uses the object.
class background_thread {
 public:
  background_thread() noexcept = default;
  background_thread(background_thread&&) noexcept = default;
  background_thread& operator=(background_thread&& other) noexcept;
  ~background_thread() { join(); }

  /// Begins body() on a thread with this name, of at most 15 characters, which tools show. What it throws ends the
  /// program. False where the system gives no thread. @pre !joinable() @throws std::bad_alloc
  template <class Body>
  [[nodiscard]] bool start(const char* name, Body&& body) {
    using stored = std::remove_cvref_t<Body>;
    return start(name, {new stored(std::forward<Body>(body)), [](void* made, bool call) {
                          const detail::owned<stored> owned(static_cast<stored*>(made));
                          if (call) (*owned)();
                        }});
  }
  /// Whether there is a thread that was not joined.
  [[nodiscard]] bool joinable() const noexcept { return run_ != nullptr; }
  /// Whether this process is a child of fork(), which has a copy of the object that started the thread, perhaps with
  /// locked mutexes, but not the thread.
  [[nodiscard]] bool in_child() const noexcept { return process_.in_child(); }
  /// Waits until the thread has ended, if there is one.
  void join() noexcept;
  /// The same, at most until the deadline; then false: the thread goes on alone, and what it uses outlives it.
  bool join(deadline until) noexcept;
  /// Leaves the thread, if there is one, to itself.
  void detach() noexcept;

 private:
  struct run;
  /// A callable object on the heap. `use` destroys it, and calls it before where it is told to.
  struct owned_body {
    void* made;
    void (*use)(void* made, bool call);
  };
  [[nodiscard]] bool start(const char* name, owned_body body);

  std::shared_ptr<run> run_;
  ::pthread_t id_{};
  fork_guard process_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/background_thread.ipp>
#endif
