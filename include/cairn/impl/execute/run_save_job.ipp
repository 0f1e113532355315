// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/execute/run_save_job.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/clocks.hpp>

#include <unistd.h>

#include <exception>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

namespace detail {
/// What the calling thread, and those that help it, spend on writing an image, from here on.
class writing_costs {
 public:
  explicit writing_costs(const staged_image& image) noexcept
      : control_(image.control()), bytes_(image.layout().bytes) {}
  /// The bytes are durable.
  void durable() noexcept { durable_ = seconds_since(begun_); }
  void note_in(save_progress& progress) const noexcept {
    const auto cpu = thread_cpu_now() - cpu_ + control_->costs().write_cpu.load(std::memory_order_relaxed);
    progress.note([&](save_report& r) {
      r.writing = {::getpid(), durable_ > 0 ? bytes_ : 0, durable_, 1e-9 * static_cast<double>(cpu)};
    });
  }

 private:
  std::shared_ptr<image_control> control_;
  std::uint64_t bytes_;
  deadline::clock::time_point begun_ = deadline::clock::now();
  std::int64_t cpu_ = thread_cpu_now();
  double durable_ = 0;
};
}  // namespace detail

CAIRN_BODY void run_save_job(save_job job) noexcept {
  auto& writer = job.writer;
  auto* const journal = job.progress->notes().journal.get();
  detail::writing_costs costs(job.image);
  const auto begin = journal != nullptr ? steady_now() : 0;
  const auto note = [&] {
    costs.note_in(*job.progress);
    if (journal != nullptr) journal->add(span_kind::save, begin, steady_now());
  };
  try {
    const auto& layout = job.image.layout();
    writer.check_space({layout.bytes, layout.segments.size() + layout.linked.size() + 2});
    static_cast<void>(writer.write(job.context, job.image, deadline::in(job.context.timeout)));
    job.image = staged_image();
    costs.durable();
    costs.note_in(*job.progress);
    job.progress->set_written();
    {
      const span_note span(journal, span_kind::commit);
      if (job.context.coordinator())
        writer.commit(job.context, *job.metadata, deadline::in(job.context.timeout));
      else
        writer.await_commit(job.context, deadline::in(job.context.outcome_timeout()));
    }
    note();
    job.progress->set_committed();
  } catch (...) {
    // A save that was given up has its reason already: report that one to the other ranks.
    auto why = job.progress->failure();
    if (why == nullptr) why = std::current_exception();
    // An image that is read from training memory is read no more, and was not read to its end. A stager that
    // still copies ends its image itself.
    if (job.image.control() != nullptr && !job.image.resident()) job.image.control()->fail();
    writer.abort(job.context, why);
    note();
    job.progress->set_failed(why);
  }
}

}  // namespace v1
}  // namespace cairn
