// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/clock.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/owned.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

// A bucket has no locks by which a process that is gone is told from one that lives. So a writer that must be
// seen begins an upload that it never completes, and sends its only part anew every few seconds: the service
// itself notes when the last one came. The upload's key names host and process, so that on the same host
// nobody waits for a process that is gone.

inline constexpr std::string_view sign_ending = ".writer";

/// Names the space in which process numbers mean something: this boot of this host, this container.
[[nodiscard]] std::string host_tag();

/// Shows that this process writes, from its making to its end. A sign that another process has removed, as after an
/// outage in which this one's came too late, is shown again. @throws the bucket's errors when it is made.
class heartbeat {
 public:
  /// `key`: with the prefix, as the unfinished object is to be listed.
  heartbeat(std::shared_ptr<s3_bucket> bucket, const std::string& key);
  heartbeat(const heartbeat&) = delete;
  heartbeat& operator=(const heartbeat&) = delete;
  /// Takes the sign back, for at most some seconds: one that stays counts no more here, nor elsewhere after its age.
  ~heartbeat();

  /// Whether others may have taken this process for dead meanwhile: the sign was removed, or none came through for
  /// as long as makes others do so. Any thread.
  [[nodiscard]] bool was_lost() const noexcept;

 private:
  /// False: it ends.
  [[nodiscard]] bool pause(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] s3_deadline request_deadline() const;
  [[nodiscard]] s3_request beginning() const;
  /// Makes a request, which the destructor cancels where it `may`; unlocks meanwhile.
  [[nodiscard]] std::shared_ptr<s3_call> run(s3_request r, bool may_cancel,
                                             std::unique_lock<std::mutex>& lock);
  void repeat() noexcept;
  /// Sends the sign, or begins it again where it was removed.
  void show_again(std::unique_lock<std::mutex>& lock);
  /// Ends uploads of which an answer that was lost would have told: they count like this one, and nobody else ends
  /// them.
  void end_others() noexcept;
  /// With the time that the host was suspended: others count it.
  [[nodiscard]] s3_clock::time_point now() const noexcept;

  std::shared_ptr<s3_bucket> bucket_;
  std::string key_;
  std::string id_;
  bool has_others_ = false;  // perhaps: of the thread, while it runs
  std::mutex mutex_;
  /// Of the heap: the end of one for which a thread of the parent waited would wait for it in a child of fork().
  owned<std::condition_variable> ended_ = make_owned<std::condition_variable>();
  bool ending_ = false;
  std::atomic<bool> lost_{false};
  /// When the last sign that the service has acknowledged was sent.
  std::atomic<s3_clock::time_point> seen_at_;
  std::shared_ptr<s3_call> under_way_;
  background_thread thread_;
};

/// Whether an upload is the sign of a process that lives: as this host knows, else by the age of the last
/// sign, both times by the service's clock. Where the service does not say that, it lives, which a line on stderr says
/// once.
[[nodiscard]] bool has_heartbeat(s3_bucket& bucket, const open_upload& upload);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/heartbeat.ipp>
#endif
