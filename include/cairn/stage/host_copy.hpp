// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/thread_settings.hpp>

#include <cstdint>
#include <memory>

namespace cairn {
inline namespace v1 {

class image_fill;
class rate_clock;
class source_table;
struct item_source;
namespace detail {
class copy_threads;
}

/// Options of host_copy.
struct host_copy_options {
  /// The number of threads that copy, with the caller of stage() while it waits; 0: one for each core, at
  /// most 4.
  int threads = 0;
  /// The limit for copying while training goes on (overlapped), for all threads together, in bytes per
  /// second; 0: none. The limit does not apply while training waits for the copy: in save(), and from
  /// before_update() on.
  std::uint64_t bytes_per_second = 0;
  /// Settings of the threads of the engine; the caller of stage() keeps its own.
  thread_settings thread = {};
  /// For tests: the clock of the limit; null: the steady clock.
  std::shared_ptr<rate_clock> clock = nullptr;
};

/// A CopyEngine that copies with the CPU, from and to memory that it can address. prepare() starts its threads, else the
/// first copy that needs some; they sleep between copies. The destructor waits for images in progress and joins the
/// threads.
class host_copy {
 public:
  template <class M>
  static constexpr bool accepts = M::space != memory_space::device;
  static constexpr bool digests = true;

  host_copy() : host_copy(host_copy_options{}) {}
  /// @throws usage_error (usage_bad_option) if the number of threads is negative or above 1024, and for
  /// settings that are invalid or that the system refuses.
  explicit host_copy(host_copy_options options);
  host_copy(host_copy&& other) noexcept;
  host_copy& operator=(host_copy&& other) noexcept;
  ~host_copy();

  // See CopyEngine.
  void check(const item_source& source) const;
  void copy(std::shared_ptr<image_fill> fill, deadline until);
  // See PreparingCopyEngine.
  void prepare(const source_table& sources);

 private:
  detail::owned<detail::copy_threads> threads_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/host_copy.ipp>
#endif
