// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/any_writer.hpp>
#include <cairn/execute/worker_link.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/credential_broker.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/shared_segment.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// One save as the worker got it.
struct worker_request {
  std::uint64_t number = 0;       ///< counted by the trainer
  std::vector<std::byte> writer;  ///< its description
  save_context context;
  staged_image image;
  std::shared_ptr<const cairn::metadata> metadata;
  bool traced = false;  ///< somebody wants to know what is done when
  /// Keeps alive what others see of the save: a run that resumes when the trainer is gone waits for this one,
  /// also before it is begun.
  file_descriptor announced;
};

/// Which ranks are gone, as the trainer told. Any thread.
class told_peers final : public peer_watch {
 public:
  void add(std::int32_t rank) {
    const std::lock_guard lock(mutex_);
    gone_.push_back(rank);
  }
  [[nodiscard]] bool is_gone(int rank) const noexcept override {
    const std::lock_guard lock(mutex_);
    return std::find(gone_.begin(), gone_.end(), rank) != gone_.end();
  }
  [[nodiscard]] bool leaves_workers() const noexcept override { return true; }

 private:
  mutable std::mutex mutex_;
  std::vector<std::int32_t> gone_;
};

/// What a worker keeps between saves, and its end of the socket. The receiving thread feeds it, the serving
/// thread takes from it.
class worker_session {
 public:
  explicit worker_session(worker_link link) : link_(std::move(link)) {}

  void say(frame_kind kind, std::span<const std::byte> bytes = {}) noexcept;

  /// Asks the trainer, and waits for `answer_timeout` at most; any thread but the receiving one. @throws
  /// what the trainer's side threw, peer_error (peer_lost) if it is gone, timeout_error.
  [[nodiscard]] secret_bytes ask(std::uint64_t whom, std::span<const std::byte> asked);

  /// For the receiving thread: takes in all that comes, until the trainer is gone. An image that the trainer
  /// did not release before never will be.
  void listen() noexcept;

  /// The next message that is no failure; nothing when the trainer is gone and all that it sent was taken.
  [[nodiscard]] std::optional<worker_frame> next();

  /// Why the image of a save will not be complete: the trainer says it soon after the image failed.
  [[nodiscard]] std::exception_ptr reason(std::uint64_t number) noexcept;

  /// Makes a request of a frame's bytes and descriptors. @throws wire_error, peer_error, storage_error
  [[nodiscard]] worker_request decode(wire_reader& in, std::vector<file_descriptor> descriptors);
  /// How fast writers may write from now on; 0: no limit.
  void limit_writing(std::uint64_t bytes_per_second) { rate_limiter_ = make_rate_limiter(bytes_per_second); }
  [[nodiscard]] const std::shared_ptr<rate_limiter>& write_limit() const noexcept { return rate_limiter_; }
  [[nodiscard]] bool trainer_gone() const noexcept;
  /// The save that decode() gave last has ended.
  void ended() noexcept;

  /// The writer of a description: the one of the save before where that was the same, so that it keeps its
  /// buffers and threads.
  [[nodiscard]] any_writer writer(writer_maker maker, const std::vector<std::byte>& description);

 private:
  // A store may show no sign of life meanwhile: with the 8 s between two signs, and the request for the next, less than the
  // 30 s after which others take this process for dead.
  static constexpr std::chrono::seconds answer_timeout{10};
  [[nodiscard]] static std::uint64_t question_of(const secret_bytes& answer) noexcept;
  struct remote_backing final : image_backing {
    remote_backing(worker_session& from, std::uint64_t of, std::shared_ptr<shared_segment> keeps)
        : session(from), number(of), segment(std::move(keeps)) {}
    [[nodiscard]] std::exception_ptr failure() const noexcept override { return session.reason(number); }
    worker_session& session;
    std::uint64_t number;
    std::shared_ptr<shared_segment> segment;
  };

  /// Maps what is not mapped yet. @throws storage_error, and then the next job may find room for it.
  std::shared_ptr<shared_segment> segment(const shared_place& place, const wire_reader& in);

  worker_link link_;
  std::mutex sending_;  // of messages, each whole
  std::mutex asking_;
  std::shared_ptr<rate_limiter> rate_limiter_;
  const std::shared_ptr<told_peers> peers_ = detail::make_shared<told_peers>();
  std::map<std::uint64_t, std::shared_ptr<shared_segment>> segments_;
  std::map<std::uint64_t, file_descriptor> unmapped_;  // as they came, which is once
  std::shared_ptr<const image_layout> layout_;
  std::shared_ptr<const cairn::metadata> metadata_;
  std::optional<any_writer> writer_;
  writer_maker writer_maker_ = nullptr;
  std::vector<std::byte> writer_made_of_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<worker_frame> frames_;
  std::map<std::uint64_t, std::exception_ptr> reasons_;  // of saves that have not ended
  std::uint64_t serving_ = 0;
  std::shared_ptr<image_control> control_;
  bool trainer_gone_ = false;
  std::uint64_t questions_ = 0;
  std::optional<secret_bytes> answer_;
};

/// Carries out a request and says how it ended.
void serve_request(worker_session& session, worker_request& request, writer_maker maker);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/execute/worker_session.ipp>
#endif
