// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/storage.hpp>
#include <cairn/model/save_job.hpp>

#include <exception>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Carries out one rank's part of a save, in the calling thread, from the image to the commit. Its progress
/// ends in committed or failed; a failure is told to the other ranks. The image's buffers are given back as
/// soon as the bytes are durable. Every executor ends here.
template <StorageWriter Writer>
void run_save_job(save_job<Writer> job) noexcept {
  auto& writer = *job.writer;
  try {
    writer.check_space({job.image.layout().bytes, job.image.layout().segments.size() + 2});
    static_cast<void>(writer.write(job.context, job.image, deadline::in(job.context.patience)));
    job.image = staged_image();
    job.progress->set_written();
    if (job.context.coordinator())
      writer.commit(job.context, *job.metadata, deadline::in(job.context.patience));
    else
      writer.await_commit(job.context, deadline::in(job.context.outcome_patience()));
    job.progress->set_committed();
  } catch (...) {
    // A save that was given up has its reason already, which is what the others should hear.
    auto why = job.progress->failure();
    if (why == nullptr) why = std::current_exception();
    // Nobody reads training memory through this image any more; a stager that still copies says so itself.
    if (job.image.control() != nullptr) job.image.read_completely();
    writer.abort(job.context, why);
    job.progress->set_failed(why);
  }
}

}  // namespace v1
}  // namespace cairn
