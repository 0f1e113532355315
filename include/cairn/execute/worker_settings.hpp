// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/system/thread_settings.hpp>
#include <cairn/system/wire.hpp>

#include <chrono>
#include <cstdint>

namespace cairn {
inline namespace v1 {

/// Scheduling settings of a worker, for all of its threads, so that it disturbs training little.
using worker_settings = thread_settings;

/// Options of process_executor.
struct process_executor_options {
  worker_settings worker = {};  ///< of the worker, with all of its threads
  /// The limit for writing, in bytes per second; 0: none. A save must be written within the
  /// checkpointer's timeout.
  std::uint64_t bytes_per_second = 0;
  /// The longest time for a worker to start.
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(30);
};

namespace detail {

void encode(wire_writer& out, const worker_settings& s);
[[nodiscard]] worker_settings decode_worker_settings(wire_reader& in);

/// The first message of a trainer to its worker.
struct worker_hello {
  std::uint64_t build = 0;  ///< of the trainer's program; 0 where the worker is another program
  worker_settings settings;
  std::uint64_t bytes_per_second = 0;  ///< limit of writing; 0: none
};
void encode(wire_writer& out, const worker_hello& hello);
[[nodiscard]] worker_hello decode_hello(wire_reader& in);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/execute/worker_settings.ipp>
#endif
