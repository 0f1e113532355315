// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_job.hpp>

#include <concepts>

namespace cairn {
inline namespace v1 {

/// Who carries out the part of a save that training does not wait for.
///
/// - `submit(job)`: takes the job over and returns without waiting for it, except where the executor is the
/// calling thread (inline_executor). The job's
///   progress always ends in committed or failed. Jobs run in the order of submission. Throws only if the job
///   could not be taken; it then has not begun.
/// - `accepts<Writer>`: whether jobs of this writer can be run; a compile-time constant.
/// - `drain(deadline)`: waits until all jobs have ended; false at the deadline.
///
/// The destructor waits for jobs that have begun, at most until their deadlines. One thread at a time calls
/// submit.
template <class E, class Writer>
concept Executor =
    std::movable<E> && E::template accepts<Writer> && requires(E& e, save_job<Writer> job, deadline until) {
      { e.submit(std::move(job)) } -> std::same_as<void>;
      { e.drain(until) } -> std::same_as<bool>;
    };

/// What an Executor may say besides, as `static constexpr bool jobs_end_with_process = true`: a job that has
/// not ended when the process of its rank ends, never will. The other ranks need not wait for it then.
template <class E>
concept EndsWithProcess = requires { requires E::jobs_end_with_process; };

}  // namespace v1
}  // namespace cairn
