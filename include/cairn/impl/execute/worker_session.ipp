// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/any_writer.hpp>
#include <cairn/execute/job_message.hpp>
#include <cairn/execute/run_save_job.hpp>
#include <cairn/execute/worker_link.hpp>
#include <cairn/execute/worker_session.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/save_announcement.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/credential_broker.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/shared_segment.hpp>
#include <cairn/system/vector.hpp>
#include <cairn/system/wire.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the end of the trainer means for a save: an image that was not released never will be, and one that was
/// is written without a limit, since whoever ended the trainer may end this process soon.
inline void go_on_alone(image_control& image) noexcept {
  if (!image.released()) image.fail();
  image.lift_write_limit();
}

/// Who reads what the trainer wrote to its standard error, to the end, must not wait for its worker: Slurm gives a
/// node to nobody else until it has. The trainer's other streams are not the worker's from its start on.
inline void let_go_of_stderr() noexcept {
  const file_descriptor nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (nothing.open()) ::dup2(nothing.get(), STDERR_FILENO);
}

CAIRN_BODY void worker_session::say(frame_kind kind, std::span<const std::byte> bytes) noexcept {
  try {
    const std::lock_guard one_at_a_time(sending_);
    link_.send(kind, bytes, deadline::in(std::chrono::seconds(60)));
  } catch (...) {
    // The trainer has ended or does not read: the worker goes on with its saves all the same.
  }
}

CAIRN_BODY secret_bytes worker_session::ask(std::uint64_t whom, std::span<const std::byte> asked) {
  const std::lock_guard one_at_a_time(asking_);
  const auto until = deadline::in(answer_timeout);
  std::unique_lock lock(mutex_);
  const auto question = ++questions_;
  answer_.reset();
  lock.unlock();
  say(frame_kind::question, wire_writer().put(question).put(whom).raw(asked).view());
  lock.lock();
  const auto there = [&] { return trainer_gone_ || (answer_ && question_of(*answer_) == question); };
  static_cast<void>(changed_.wait_until(lock, until.time_point(), there));
  if (!answer_ || question_of(*answer_) != question) {
    if (trainer_gone_)
      fail(error_id::peer_lost, "the trainer that gives the credentials of the object store is gone");
    fail(error_id::timeout_peer, "the trainer did not give the credentials of the object store in time",
         {.expected = "an answer in 30 s"});
  }
  const auto answer = std::move(*answer_);
  answer_.reset();
  lock.unlock();
  const auto bytes = answer.view();
  constexpr std::size_t head = sizeof question + 1;
  if (bytes[head - 1] == std::byte{0}) {
    wire_reader in(bytes.subspan(head));
    std::rethrow_exception(decode_failure(in));
  }
  return secret_bytes({bytes.begin() + head, bytes.end()});
}

CAIRN_BODY void worker_session::listen() noexcept {
  for (;;) {
    try {
      auto frame = link_.receive(deadline::never());
      if (!frame) continue;
      const std::lock_guard lock(mutex_);
      if (frame->kind == frame_kind::failure) {
        wire_reader in(frame->bytes);
        const auto number = in.get<std::uint64_t>();
        reasons_[number] = decode_failure(in);
      } else if (frame->kind == frame_kind::gone) {
        for (wire_reader in(frame->bytes); in.left() != 0;) peers_->add(in.get<std::int32_t>());
      } else if (frame->kind == frame_kind::answer) {
        secret_bytes answer(std::move(frame->bytes));
        if (answer.view().size() > sizeof(std::uint64_t)) answer_ = std::move(answer);
      } else {
        frames_.push_back(std::move(*frame));
      }
    } catch (...) {
      // One of another version is told: what it gets has this version on it.
      try {
        throw;
      } catch (const peer_error& e) {
        if (e.id() == error_id::peer_bad_message)
          say(frame_kind::refused, encode_failure(std::current_exception()));
      } catch (...) {
      }
      const std::lock_guard lock(mutex_);
      trainer_gone_ = true;
      if (control_ != nullptr) go_on_alone(*control_);
      changed_.notify_all();
      let_go_of_stderr();
      return;
    }
    changed_.notify_all();
  }
}

CAIRN_BODY std::optional<worker_frame> worker_session::next() {
  std::unique_lock lock(mutex_);
  // Without a deadline: a worker lives as long as its trainer, and the kernel tells when that has ended.
  changed_.wait(lock, [&] { return !frames_.empty() || trainer_gone_; });
  if (frames_.empty()) return {};
  auto frame = std::move(frames_.front());
  frames_.pop_front();
  return frame;
}

CAIRN_BODY std::exception_ptr worker_session::reason(std::uint64_t number) noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(5),
                    [&] { return reasons_.contains(number) || trainer_gone_; });
  if (const auto found = reasons_.find(number); found != reasons_.end()) return found->second;
  return make_failure(error_id::peer_lost,
                      "the trainer ended before the image of this save was complete and released");
}

CAIRN_BODY worker_request worker_session::decode(wire_reader& in, std::vector<file_descriptor> descriptors) {
  worker_request request;
  request.number = in.get<std::uint64_t>();
  const auto writer = in.take(in.get_count(1));
  request.writer.assign(writer.begin(), writer.end());
  request.context = decode_save_context(in);
  request.context.peers = peers_;
  const bool digested = in.get<std::uint8_t>() != 0;
  request.traced = in.get<std::uint8_t>() != 0;
  if (in.get<std::uint8_t>() != 0) layout_ = detail::make_shared<const image_layout>(decode_image_layout(in));
  if (layout_ == nullptr) in.fail_here("the first save has no layout");
  const auto known = in.get<std::uint8_t>();  // 0: none, 1: as before, 2: here
  if (known == 2) metadata_ = detail::make_shared<const cairn::metadata>(decode_metadata(in));
  if (known != 0) request.metadata = metadata_;
  if (request.context.coordinator() && request.metadata == nullptr)
    in.fail_here("the save of the coordinator has no metadata");
  const auto image = decode_shared_place(in, layout_->bytes);
  const auto digests = in.get<std::uint64_t>();
  if (image.offset % image_alignment != 0 || digests % sizeof(std::uint64_t) != 0 || digests > image.bytes ||
      layout_->blocks > (image.bytes - digests) / sizeof(std::uint64_t))
    in.fail_here("the digests of an image are outside of its shared memory");
  const auto control = decode_shared_place(in, sizeof(image_control));
  if (control.offset % alignof(image_control) != 0) in.fail_here("the control of an image is not aligned");
  const auto attached = in.get<std::uint8_t>();
  std::size_t next = 0;
  const auto take = [&](const shared_place& place) {
    if (next >= descriptors.size()) in.fail_here("a descriptor of shared memory is missing");
    segments_.erase(place.id);
    unmapped_[place.id] = std::move(descriptors[next++]);
  };
  if ((attached & 1) != 0) take(image);
  if ((attached & 2) != 0) take(control);
  if ((attached & 4) != 0) {
    if (next >= descriptors.size()) in.fail_here("the descriptor of an announcement is missing");
    request.announced = std::move(descriptors[next++]);
  }
  for (auto count = in.get_count(sizeof(std::uint64_t)); count > 0; --count) {
    const auto id = in.get<std::uint64_t>();
    segments_.erase(id);
    unmapped_.erase(id);
  }
  in.finish();
  const auto image_memory = segment(image, in);
  const auto control_memory = segment(control, in);

  const std::shared_ptr<image_control> shared(
      control_memory, reinterpret_cast<image_control*>(control_memory->bytes().data() + control.offset));
  {
    const std::lock_guard lock(mutex_);
    serving_ = request.number;
    control_ = shared;
    if (trainer_gone_) go_on_alone(*shared);
  }
  const auto bytes = image_memory->bytes();
  request.image = staged_image(
      layout_, shared, bytes.subspan(image.offset, layout_->bytes),
      {reinterpret_cast<std::uint64_t*>(bytes.data() + digests), static_cast<std::size_t>(layout_->blocks)},
      digested, detail::make_shared<remote_backing>(*this, request.number, image_memory));
  return request;
}

CAIRN_BODY bool worker_session::trainer_gone() const noexcept {
  const std::lock_guard lock(mutex_);
  return trainer_gone_ || link_.lost();
}

CAIRN_BODY void worker_session::ended() noexcept {
  const std::lock_guard lock(mutex_);
  control_ = nullptr;
  reasons_.erase(reasons_.begin(), reasons_.upper_bound(serving_));
}

CAIRN_BODY any_writer worker_session::writer(writer_maker maker, const std::vector<std::byte>& description) {
  if (!writer_ || writer_maker_ != maker || writer_made_of_ != description) {
    writer_ = maker(description);
    writer_maker_ = maker;
    writer_made_of_ = description;
  }
  return *writer_;
}

CAIRN_BODY std::uint64_t worker_session::question_of(const secret_bytes& answer) noexcept {
  std::uint64_t number = 0;
  std::memcpy(&number, answer.view().data(), sizeof number);
  return number;
}

CAIRN_BODY std::shared_ptr<shared_segment> worker_session::segment(const shared_place& place,
                                                                   const wire_reader& in) {
  if (const auto came = unmapped_.find(place.id); came != unmapped_.end()) {
    file_descriptor file(::fcntl(came->second.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (!file.open()) fail_system(errno, "the descriptor of shared memory could not be kept");
    auto made = detail::make_shared<shared_segment>(std::move(file), place.bytes);
    if (made->id() != place.id) in.fail_here("a descriptor is of other shared memory than announced");
    segments_[place.id] = std::move(made);
    unmapped_.erase(came);
  }
  const auto found = segments_.find(place.id);
  if (found == segments_.end() || found->second->bytes().size() != place.bytes)
    in.fail_here("shared memory is not known here");
  return found->second;
}

/// Announces the worker that carries out a save. Where that fails, others see the trainer's announcement as
/// long as the trainer lives.
[[nodiscard]] inline save_announcement shown_worker(any_writer& writer, const save_context& c) noexcept {
  try {
    return writer.announce_worker(c);
  } catch (...) {
    return {};
  }
}

CAIRN_BODY void serve_request(worker_session& session, worker_request& request, writer_maker maker) {
  auto writer = session.writer(maker, request.writer);
  auto progress = detail::make_shared<save_progress>(request.context.step);
  auto& notes = progress->notes();
  if (request.traced) notes.journal = detail::make_shared<save_journal>();
  notes.write_limit = session.write_limit();
  request.image.carry_notes_of(progress);
  // All CPU time of this process from here on is this save's.
  const auto cpu = process_cpu_now();
  const auto with_costs = [&](wire_writer out) {
    auto share = progress->report().writing;
    share.cpu_seconds = 1e-9 * static_cast<double>(process_cpu_now() - cpu);
    encode(out, share, notes.journal != nullptr ? notes.journal->take() : vector<save_span>());
    return out.take();
  };
  progress->on_written([&] { session.say(frame_kind::written, with_costs({})); });
  {
    const auto shown = shown_worker(writer, request.context);
    run_save_job({writer, request.context, std::move(request.image), std::move(request.metadata), progress});
  }
  request.announced = file_descriptor();  // first: what is held alive cannot be removed
  if (session.trainer_gone()) writer.retract(request.context);
  if (const auto why = progress->failure())
    session.say(frame_kind::failed, with_costs(std::move(wire_writer().raw(encode_failure(why)))));
  else
    session.say(frame_kind::committed, with_costs({}));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
