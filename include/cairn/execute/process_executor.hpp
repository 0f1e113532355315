// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/execute/thread_executor.hpp>
#include <cairn/execute/worker_process.hpp>
#include <cairn/model/trainer_question.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The path of a program whose main() is worker_program_main<Writers...>.
struct worker_program {
  std::string path;
};

struct process_executor_options {
  worker_settings worker = {};
  /// Limit of writing, in bytes; 0: none. A save must be written within the checkpointer's patience.
  std::uint64_t bytes_per_second = 0;
  /// How long a worker may take to start.
  std::chrono::nanoseconds start_patience = std::chrono::seconds(30);
};

namespace detail {

/// The worker of one executor and what it was told already. Used by one thread.
class worker_client {
 public:
  worker_client(process_executor_options options, std::string program, bool same_program)
      : options_(std::move(options)), program_(std::move(program)), same_program_(same_program) {}

  /// A worker that runs. One that died between two saves costs none of them.
  worker_process& worker() {
    if (process_.running() && process_.link().lost()) static_cast<void>(process_.kill_and_describe());
    if (!process_.running()) {
      known_.clear();
      layout_ = nullptr;
      metadata_ = nullptr;
      const auto begin = std::chrono::steady_clock::now();
      process_.start(program_,
                     {same_program_ ? this_program().build : 0, options_.worker, options_.bytes_per_second},
                     deadline::in(options_.start_patience));
      start_ = std::chrono::steady_clock::now() - begin;
    }
    return process_;
  }
  [[nodiscard]] worker_process& process() noexcept { return process_; }

  /// @throws usage_error where the job cannot cross, and what worker() and the socket throw.
  template <class Writer>
  void send(const save_job<Writer>& job, deadline until) {
    const auto where = job.image.shared();
    if (!where)
      fail(error_id::usage_bad_option, "process_executor needs images in shared memory: take shared_stager");
    auto& process = worker();
    wire_writer out;
    std::int64_t offset = 0;
    if (same_program_) {
      const auto entry = reinterpret_cast<std::uintptr_t>(&serve_request<Writer>);
      if (!this_program().contains(entry))
        fail(error_id::usage_no_worker,
             "the code of this writer is not in the main program, so that program is no worker for it; build "
             "a worker_program");
      offset = static_cast<std::int64_t>(entry) - static_cast<std::int64_t>(anchor_address());
    }
    out.put(offset).put(writer_type_name<Writer>());
    const auto writer = job.writer->description();
    out.put(static_cast<std::uint64_t>(writer.size())).raw(writer);
    encode(out, job.context);
    out.put(static_cast<std::uint8_t>(job.image.digested()));
    out.put(static_cast<std::uint8_t>(job.progress->journal() != nullptr));
    // What planning cached is the same object at the next save: it crosses once.
    const auto& layout = job.image.shared_layout();
    const bool new_layout = layout != layout_;
    out.put(static_cast<std::uint8_t>(new_layout));
    if (new_layout) encode(out, *layout);
    const bool new_metadata = job.metadata != nullptr && job.metadata != metadata_;
    out.put(static_cast<std::uint8_t>(job.metadata == nullptr ? 0 : new_metadata ? 2 : 1));
    if (new_metadata) encode(out, *job.metadata);
    encode(out, where->image);
    out.put(where->digests_offset);
    encode(out, where->control);
    std::vector<int> descriptors;
    const auto attach = [&](const shared_place& place) {
      auto& known = known_[place.id];
      if (known.lock() == place.segment) return false;
      known = place.segment;
      descriptors.push_back(place.file);
      return true;
    };
    const bool new_image = attach(where->image);
    const bool new_control = attach(where->control);
    out.put(static_cast<std::uint8_t>((new_image ? 1 : 0) | (new_control ? 2 : 0)));
    std::vector<std::uint64_t> gone;
    for (const auto& [id, segment] : known_)
      if (segment.expired()) gone.push_back(id);
    out.put(static_cast<std::uint64_t>(gone.size()));
    for (const auto id : gone) out.put(id), known_.erase(id);
    process.link().send(frame_kind::job, out.view(), until, descriptors);
    job.progress->note([&](save_report& r) { r.worker_start_seconds = start_.count(); });
    start_ = {};
    layout_ = layout;
    if (job.metadata != nullptr) metadata_ = job.metadata;
  }

 private:
  process_executor_options options_;
  std::string program_;
  bool same_program_;
  worker_process process_;
  std::chrono::duration<double> start_{};  ///< what the start of the worker took, until a save has told it
  std::map<std::uint64_t, std::weak_ptr<const void>> known_;
  std::shared_ptr<const image_layout> layout_;
  std::shared_ptr<const cairn::metadata> metadata_;
};

/// What of a save can be seen in the store before the worker has it; nothing where the writer has no such
/// thing. Must have ended before the save's end is told.
template <class Writer>
class announcement {
 public:
  void make([[maybe_unused]] const save_job<Writer>& job) {
    if constexpr (requires { job.writer->announce(job.context); })
      held_ =
          std::make_shared<decltype(job.writer->announce(job.context))>(job.writer->announce(job.context));
  }
  void end() noexcept { held_.reset(); }

 private:
  std::shared_ptr<void> held_;
};

/// The worker is gone: where its rank's bytes were durable before, the rest is done here; else the save has
/// failed.
template <class Writer>
void outlive_worker(save_job<Writer>& job, bool written, std::exception_ptr why,
                    announcement<Writer>& announced) noexcept {
  auto& writer = *job.writer;
  try {
    if (!written) std::rethrow_exception(why);
    try {
      writer.await_commit(job.context,
                          deadline::in(job.context.coordinator() ? std::chrono::nanoseconds(0)
                                                                 : job.context.outcome_patience()));
    } catch (const timeout_error&) {
      if (!job.context.coordinator()) throw;
      writer.commit(job.context, *job.metadata, deadline::in(job.context.patience));
    }
    announced.end();
    job.progress->set_committed();
  } catch (...) {
    auto reason = written ? std::current_exception() : why;
    if (const auto earlier = job.progress->failure()) reason = earlier;
    writer.abort(job.context, reason);
    job.image = staged_image();
    announced.end();
    job.progress->set_failed(reason);
  }
}

/// Puts what a worker says of its costs into the report.
inline void note_worker(save_progress& progress, wire_reader& in, ::pid_t worker) {
  std::vector<save_span> spans;
  const auto share = decode_share(in, worker, spans);
  in.finish();
  progress.note([&](save_report& r) { r.writing = share; });
  if (const auto journal = progress.journal()) journal->append(spans);
}

/// Answers what a worker asks: the number of the question, and the answer or why there is none.
inline void answer_worker(worker_link& link, worker_frame& frame, deadline until) {
  wire_reader in(frame.bytes);
  const auto question = in.get<std::uint64_t>();
  const auto whom = in.get<std::uint64_t>();
  const auto asked = in.take(in.left());
  std::vector<std::byte> out;
  const auto put = [&](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  try {
    const auto who = answering_desk::here().find(whom);
    if (who == nullptr)
      fail(error_id::peer_bad_message, "a worker asked for the credentials of a store that is gone");
    const auto answer = who->answer(asked);
    out.reserve(sizeof question + 1 + answer.view().size());  // one piece of memory, which is wiped
    put(std::as_bytes(std::span(&question, 1)));
    out.push_back(std::byte{1});
    put(answer.view());
  } catch (...) {
    out.clear();
    put(std::as_bytes(std::span(&question, 1)));
    out.push_back(std::byte{0});
    put(encode_failure(std::current_exception()));
  }
  const secret_bytes all(std::move(out));
  link.send(frame_kind::answer, all.view(), until);
}

/// Has the worker carry out a job, and follows it to its end.
template <class Writer>
void carry_out(worker_client& client, save_job<Writer> job) noexcept {
  bool written = false;
  const auto until = deadline::in(job.context.longest());
  announcement<Writer> announced;
  try {
    // First: a worker that outlives this process must not have a save that nobody can see.
    announced.make(job);
    if (job.image.failed()) job.image.wait_for(UINT64_MAX, until);  // throws why
    client.send(job, deadline::in(job.context.patience));
    const auto control = job.image.control();
    for (bool told = false;;) {
      auto frame =
          client.process().link().receive(deadline::in(std::chrono::milliseconds(100)).earlier(until));
      if (!frame) {
        if (until.passed()) {
          static_cast<void>(client.process().kill_and_describe());
          fail(error_id::timeout_write, "the worker did not end a save in time, and was killed",
               {.rank = job.context.rank});
        }
        if (!told && control->failed()) {
          told = true;
          auto why = job.progress->failure();
          if (why == nullptr) why = job.image.failure();
          if (why != nullptr) client.process().link().send(frame_kind::failure, encode_failure(why), until);
        }
        continue;
      }
      wire_reader in(frame->bytes);
      switch (frame->kind) {
        case frame_kind::written:
          note_worker(*job.progress, in, client.process().id());
          written = true;
          job.image = staged_image();
          job.progress->set_written();
          continue;
        case frame_kind::committed:
          note_worker(*job.progress, in, client.process().id());
          announced.end();
          job.progress->set_committed();
          return;
        case frame_kind::failed: {
          auto why = decode_failure(in, job.context.rank);
          note_worker(*job.progress, in, client.process().id());
          if (const auto earlier = job.progress->failure()) why = earlier;
          job.image = staged_image();
          announced.end();
          job.progress->set_failed(why);
          return;
        }
        case frame_kind::question:
          answer_worker(client.process().link(), *frame, until);
          continue;
        case frame_kind::refused: {
          std::rethrow_exception(decode_failure(in, job.context.rank));
        }
        default:
          fail(error_id::peer_bad_message, "a worker sent what is not for trainers");
      }
    }
  } catch (const peer_error& e) {
    if (e.id() != error_id::peer_lost)
      return outlive_worker(
          job, written, (static_cast<void>(client.process().kill_and_describe()), std::current_exception()),
          announced);
    const auto how = client.process().kill_and_describe();
    outlive_worker(job, written,
                   make_failure(error_id::peer_lost,
                                "the worker that wrote this save is gone; the next save starts another one",
                                {.rank = job.context.rank, .got = how}),
                   announced);
  } catch (const wire_error& e) {
    static_cast<void>(client.process().kill_and_describe());
    outlive_worker(job, written,
                   make_failure(error_id::peer_bad_message,
                                std::string("a worker sent a message that is none: ") + e.what()),
                   announced);
  } catch (...) {
    outlive_worker(job, written, std::current_exception(), announced);
  }
}

}  // namespace detail

/// A process of its own writes and commits while training goes on: this program, started again (see
/// worker_main), with nothing but the job's description sent to it; it reads the image in shared memory. It
/// starts with prepare() or the first save and serves all of them; a worker that died is replaced at the next
/// save. It has its own memory and CPU accounts, and can be given its own cores and priorities.
///
/// A trainer that dies after its image was released does not take the checkpoint with it: the worker
/// finishes, commits and goes. It is in a process group of its own, and ignores the signals that end batch
/// jobs; what kills a whole control group kills it too (docs/worker-process.md).
///
/// Needs a Portable writer and a stager whose images are shareable (shared_stager). A program with several
/// executors has several workers. The destructor waits as thread_executor's does, then lets the worker go.
class process_executor {
 public:
  using cairn_role = role::executor;
  template <class Writer>
  static constexpr bool accepts = Portable<Writer>;
  static constexpr bool runs_in_caller = false;
  static constexpr bool needs_shared_images = true;

  /// @throws usage_error (usage_no_worker) if main() of this program does not call cairn::worker_main, or
  /// this code is not part of the main program; usage_bad_option.
  explicit process_executor(process_executor_options options = {}) {
    detail::check(options.worker);
    if (!detail::this_program().contains(detail::anchor_address()))
      fail(error_id::usage_no_worker,
           "process_executor starts the main program again, and this code is in a library: build a small "
           "program with worker_program_main<...> and pass worker_program{path}");
    if (!detail::worker_main_called.load())
      fail(error_id::usage_no_worker,
           "process_executor starts this program again as a worker: begin main() with "
           "cairn::worker_main(argc, argv); or pass worker_program{path}");
    client_ = std::make_shared<detail::worker_client>(std::move(options), "/proc/self/exe", true);
    thread_ = std::make_unique<detail::job_thread>();
  }
  /// The worker is another program. @throws usage_error if it is not there.
  explicit process_executor(worker_program program, process_executor_options options = {}) {
    detail::check(options.worker);
    if (::access(program.path.c_str(), X_OK) != 0)
      fail(error_id::usage_no_worker, "there is no worker program that can be started",
           {.file = program.path, .got = std::generic_category().message(errno)});
    client_ = std::make_shared<detail::worker_client>(std::move(options), std::move(program.path), false);
    thread_ = std::make_unique<detail::job_thread>();
  }

  /// Starts the worker in the background.
  void prepare() {
    thread_->run(
        [client = client_]() noexcept {
          try {
            static_cast<void>(client->worker());
          } catch (...) {
            // The first save says why.
          }
        },
        deadline::in(std::chrono::minutes(1)));
  }
  template <class Writer>
  void submit(save_job<Writer> job) {
    const auto until = deadline::in(job.context.longest());
    auto shared = std::make_shared<save_job<Writer>>(std::move(job));
    thread_->run([client = client_, shared] { detail::carry_out(*client, std::move(*shared)); }, until);
  }
  [[nodiscard]] bool drain(deadline until) { return thread_->drain(until); }

 private:
  std::shared_ptr<detail::worker_client> client_;
  std::unique_ptr<detail::job_thread> thread_;  // last: its destructor waits for jobs, which use the client
};

}  // namespace v1
}  // namespace cairn
