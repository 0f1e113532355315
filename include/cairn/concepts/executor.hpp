// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>

#include <concepts>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

class save_progress;

/// Everything that an executor needs to carry out a save on one rank. A process executor sends the
/// description of the writer (see Portable) to its worker.
struct save_job {
  any_writer writer;
  /// Which save it is, and which rank of it.
  save_context context;
  /// The bytes to write. The job keeps their memory until it has ended.
  staged_image image;
  std::shared_ptr<const cairn::metadata> metadata;  ///< on the coordinator; null elsewhere
  /// The executor says here how far the job is; the handle of the save reads it.
  std::shared_ptr<save_progress> progress;
};

/// Carries out what training does not wait for: writing and committing.
///
/// - `submit(job)`: takes the job over and returns without waiting for it, except for executors that run
///   it in the calling thread (inline_executor). The job's progress always ends as committed or failed.
///   Jobs run in the order of submission. Throws only if it cannot take the job, which then has not
///   begun.
/// - `drain(deadline)`: waits until all jobs have ended; false at the deadline.
///
/// The destructor waits for jobs that have begun, at most until their deadlines. One thread at a time calls
/// submit.
template <class E>
concept Executor = std::movable<E> && requires(E& e, save_job job, deadline until) {
  { e.submit(std::move(job)) } -> std::same_as<void>;
  { e.drain(until) } -> std::same_as<bool>;
};

/// An Executor that runs jobs of this writer: its `template <class Writer> static constexpr bool accepts`
/// is true. Checked when a checkpointer is composed.
template <class E, class Writer>
concept ExecutorFor = Executor<E> && E::template accepts<Writer>;

/// An Executor that can start before its first job.
///
/// - `prepare()`: begins what the first job would otherwise wait for, and returns at once. Called before
///   a plan is made for the first time. One thread at a time calls it and submit().
template <class E>
concept PreparesEarly = Executor<E> && requires(E& e) {
  { e.prepare() } -> std::same_as<void>;
};

/// An Executor whose jobs end with the process of their rank, declared by `static constexpr bool
/// jobs_end_with_process = true`. The other ranks do not wait for the jobs of a process that has ended.
template <class E>
concept EndsWithProcess = requires { requires E::jobs_end_with_process; };

/// An Executor whose submit() runs the job before it returns, so that saves cannot be overlapped. Declared by
/// `static constexpr bool runs_in_caller = true`.
template <class E>
concept RunsInCaller = requires { requires E::runs_in_caller; };

/// An Executor that carries out jobs in another process, which must be able to map their images and to
/// construct their writer. Declared by `static constexpr bool needs_shared_images = true`.
template <class E>
concept NeedsSharedImages = requires { requires E::needs_shared_images; };

}  // namespace v1
}  // namespace cairn
