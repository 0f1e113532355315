// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/execute/remote_save.hpp>
#include <cairn/execute/save_thread.hpp>
#include <cairn/execute/worker_client.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/system/credential_broker.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>

#include <sys/eventfd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Puts what a worker says of its costs into the report.
inline void note_worker(save_progress& progress, wire_reader& in, ::pid_t worker) {
  vector<save_span> spans;
  const auto share = decode_share(in, worker, spans);
  in.finish();
  progress.note([&](save_report& r) { r.writing = share; });
  if (const auto& journal = progress.notes().journal) journal->append(spans);
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
    const auto who = credential_broker::here().find(whom);
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

/// The saves of one executor, in their order: hands each to the worker as soon as it is there, also while the
/// worker is busy with those before it, so that the end of this process takes none of them along, and follows
/// the first one to its end. One thread.
class worker_queue {
 public:
  worker_queue(std::shared_ptr<worker_client> client, int interrupt)
      : client_(std::move(client)), interrupt_(interrupt) {}

  [[nodiscard]] bool empty() const noexcept { return saves_.empty(); }
  void add(std::list<std::shared_ptr<remote_save>>& saves) noexcept { saves_.splice(saves_.end(), saves); }
  /// Hands over what can be, and waits for one message of the worker, for a moment at most, or until the
  /// interrupt can be read. @pre not empty
  void advance() noexcept {
    auto& first = *saves_.front();
    try {
      // Another worker only when nobody waits for the words of the one before.
      if (!first.number()) {
        static_cast<void>(client_->worker());
        first.hand_over(*client_);
      }
    } catch (...) {
      return end_first(std::current_exception());
    }
    hand_over_others();
    try {
      follow(first);
    } catch (...) {
      end_first(std::current_exception());
    }
  }

 private:
  void hand_over_others() noexcept {
    for (auto save = std::next(saves_.begin()); save != saves_.end() && client_->process().running();) {
      try {
        if (!(*save)->number()) (*save)->hand_over(*client_);
        ++save;
      } catch (const peer_error&) {
        return;  // the worker is gone: the first save tells, and this one gets the next worker
      } catch (...) {
        if (!client_->process().running()) return;
        (*save)->finish_alone(std::current_exception());
        save = saves_.erase(save);
      }
    }
  }
  void follow(remote_save& first) {
    if (!client_->process().running())
      fail(error_id::peer_lost, "the worker did not take what was sent to it, and was ended");
    auto& link = client_->process().link();
    const auto until = first.end();
    auto frame = link.receive(deadline::in(std::chrono::milliseconds(100)).earlier(until), interrupt_);
    if (!frame) {
      if (until.passed()) {
        static_cast<void>(client_->process().kill_and_describe());
        fail(error_id::timeout_write, "the worker did not end a save in time, and was killed",
             {.rank = first.context().rank});
      }
      try {
        to_worker([&] {
          for (const auto& save : saves_)
            if (const auto why = save->unreported_failure())
              link.send(frame_kind::failure,
                        wire_writer().put(*save->number()).raw(encode_failure(why)).view(), until);
          client_->tell_gone(first.context(), until);
        });
      } catch (const peer_error& e) {
        // What it said before it ended is read first: it may have committed.
        if (e.id() != error_id::peer_lost) throw;
      }
      return;
    }
    wire_reader in(frame->bytes);
    switch (frame->kind) {
      case frame_kind::written:
        note_worker(first.progress(), in, client_->process().id());
        return first.written();
      case frame_kind::committed:
        note_worker(first.progress(), in, client_->process().id());
        first.committed();
        return saves_.pop_front();
      case frame_kind::failed: {
        const auto why = decode_failure(in, first.context().rank);
        note_worker(first.progress(), in, client_->process().id());
        first.failed(why);
        return saves_.pop_front();
      }
      case frame_kind::question:
        return to_worker([&] { answer_worker(link, *frame, until); });
      case frame_kind::refused:
        std::rethrow_exception(decode_failure(in, first.context().rank));
      default:
        fail(error_id::peer_bad_message, "a worker sent a message that is not for trainers");
    }
  }
  /// Calls send(). A worker that does not take all of a message in time is killed: what it has got is none.
  template <class Send>
  void to_worker(Send&& send) {
    try {
      send();
    } catch (const timeout_error&) {
      static_cast<void>(client_->process().kill_and_describe());
      throw;
    }
  }
  /// Something went wrong with the worker, or it refused the first save.
  void end_first(std::exception_ptr why) noexcept {
    const auto first = std::move(saves_.front());
    saves_.pop_front();
    auto& process = client_->process();
    try {
      std::rethrow_exception(why);
    } catch (const peer_error& e) {
      const auto how = process.kill_and_describe();
      if (e.id() == error_id::peer_lost)
        why = make_failure(error_id::peer_lost,
                           "the worker that wrote this save is gone; the next save starts another one",
                           {.rank = first->context().rank, .got = how});
    } catch (const wire_error& e) {
      static_cast<void>(process.kill_and_describe());
      why = make_failure(error_id::peer_bad_message,
                         std::string("a worker sent a message that is none: ") + e.what());
    } catch (...) {
    }
    if (!process.running())
      for (const auto& save : saves_) save->take_back();
    first->finish_alone(why);
  }

  std::shared_ptr<worker_client> client_;
  int interrupt_;
  std::list<std::shared_ptr<remote_save>> saves_;
};

/// Sees saves through a worker.
class worker_work final : public thread_work {
 public:
  /// @throws storage_error if there are no descriptors.
  explicit worker_work(std::shared_ptr<worker_client> client)
      : client_(std::move(client)), interrupt_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!interrupt_.open()) fail_system(errno, "a thread for a worker could not be prepared");
  }

  [[nodiscard]] bool busy() const noexcept override { return running_ || start_worker_ || !added_.empty(); }
  /// Starts the worker; a failure is told by the first save.
  void prepare() noexcept override { start_worker_ = true; }
  void add(save_job job) override { added_.push_back(detail::make_shared<remote_save>(std::move(job))); }
  /// Wakes the thread also where it waits for a message of the worker.
  void wake() noexcept override {
    static_cast<void>(::eventfd_write(interrupt_.get(), 1));
    changed.notify_all();
  }
  void run() noexcept override {
    apply_granted(thread_settings{});
    worker_queue queue(client_, interrupt_.get());
    for (;;) {
      bool start = false;
      {
        std::unique_lock lock(mutex);
        running_ = !queue.empty();
        if (!running_) changed.notify_all();
        changed.wait(lock, [&] { return stopping || busy(); });  // idle
        if (!busy()) return;
        running_ = true;
        eventfd_t count = 0;
        static_cast<void>(::eventfd_read(interrupt_.get(), &count));
        start = std::exchange(start_worker_, false);
        queue.add(added_);
      }
      if (start && queue.empty()) {
        try {
          static_cast<void>(client_->worker());
        } catch (...) {
          // The first save says why.
        }
      }
      if (!queue.empty()) queue.advance();
    }
  }

 private:
  const std::shared_ptr<worker_client> client_;
  const file_descriptor interrupt_;  // can be read while the thread has something to look at
  std::list<std::shared_ptr<remote_save>> added_;
  bool start_worker_ = false;
  bool running_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
