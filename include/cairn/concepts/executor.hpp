// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/save_context.hpp>

#include <concepts>
#include <memory>

namespace cairn {
inline namespace v1 {

/// All that an executor needs to carry out one rank's part of a save. A process executor sends what the writer
/// says of itself to its worker.
struct save_job {
  any_writer writer;
  save_context context;
  staged_image image;
  std::shared_ptr<const cairn::metadata> metadata;  ///< on the coordinator; null elsewhere
  std::shared_ptr<save_progress> progress;
};

/// Who carries out the part of a save that training does not wait for.
///
/// - `submit(job)`: takes the job over and returns without waiting for it, except where the executor is the
///   calling thread (inline_executor). The job's progress always ends in committed or failed. Jobs run in the
///   order of submission. Throws only if the job could not be taken; it then has not begun.
/// - `drain(deadline)`: waits until all jobs have ended; false at the deadline.
///
/// The destructor waits for jobs that have begun, at most until their deadlines. One thread at a time calls
/// submit.
template <class E>
concept Executor = std::movable<E> && requires(E& e, save_job job, deadline until) {
  { e.submit(std::move(job)) } -> std::same_as<void>;
  { e.drain(until) } -> std::same_as<bool>;
};

/// An Executor also says, as `template <class Writer> static constexpr bool accepts`, of which writers it runs
/// jobs. It is asked when a checkpointer is composed.
template <class E, class Writer>
concept ExecutorFor = Executor<E> && E::template accepts<Writer>;

/// What an Executor may offer besides.
///
/// - `prepare()`: begins what the first job would otherwise wait for, and returns at once; before each job is
///   planned for the first time. One thread at a time calls it and submit().
template <class E>
concept PreparesEarly = Executor<E> && requires(E& e) {
  { e.prepare() } -> std::same_as<void>;
};

/// What an Executor may say besides, as `static constexpr bool jobs_end_with_process = true`: a job that has
/// not ended when the process of its rank ends, never will. The other ranks need not wait for it then.
template <class E>
concept EndsWithProcess = requires { requires E::jobs_end_with_process; };

/// What an Executor may say besides, as `static constexpr bool runs_in_caller = true`: submit() runs the job
/// before it returns, so that saves cannot be overlapped.
template <class E>
concept RunsInCaller = requires { requires E::runs_in_caller; };

/// What an Executor may say besides, as `static constexpr bool needs_shared_images = true`: jobs are carried
/// out by another process, which must be able to read their images, and to make their writer again.
template <class E>
concept NeedsSharedImages = requires { requires E::needs_shared_images; };

}  // namespace v1
}  // namespace cairn
