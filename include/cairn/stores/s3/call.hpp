// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/answer.hpp>
#include <cairn/stores/s3/bucket_terms.hpp>
#include <cairn/stores/s3/http_transport.hpp>
#include <cairn/stores/s3/service.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// An s3_request while it is attempted. The owner waits for its group.
class s3_call final : public http_call {
 public:
  s3_call(std::shared_ptr<s3_service> service, http_transport& transport, s3_request request,
          std::shared_ptr<call_group> group);

  /// Called when the call has ended, by the transport's thread; must not throw. Set before it begins.
  std::function<void(const s3_call&)> on_end;

  // --- After the call has ended.
  [[nodiscard]] bool fine() const noexcept { return fine_; }
  /// Ended, and not fine; may be asked while other calls of the group still run.
  [[nodiscard]] bool failed() const noexcept { return ended_.load(std::memory_order_acquire) == ended_badly; }
  /// Ended, and fine; may be asked like failed().
  [[nodiscard]] bool succeeded() const noexcept {
    return ended_.load(std::memory_order_acquire) == ended_well;
  }
  /// How long the attempt that runs has run; nothing between two of them, before the first and after the last. Any
  /// thread.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> waited() const noexcept;
  /// An attempt before the last, or the last, may have been carried out although its answer did not come.
  [[nodiscard]] bool uncertain() const noexcept { return uncertain_; }
  [[nodiscard]] const s3_refusal& refusal() const noexcept { return refusal_; }
  [[nodiscard]] const std::vector<std::byte>& answer() const noexcept { return answer_.bytes(); }
  [[nodiscard]] std::vector<std::byte> take_answer() noexcept { return answer_.take(); }
  [[nodiscard]] const s3_request& request() const noexcept { return request_; }
  /// The document that was awaited; where the call is fine.
  [[nodiscard]] const xml_element& document() const noexcept { return *document_; }
  /// The answer is longer than it may be; what it says its length is, or 0.
  [[nodiscard]] std::optional<std::uint64_t> too_long() const noexcept { return answer_.too_long(); }
  /// The size of the object that a Content-Range gave.
  [[nodiscard]] std::optional<std::uint64_t> object_bytes() const noexcept { return answer_.object_bytes(); }
  [[nodiscard]] const std::string& last_failure() const noexcept { return last_failure_; }
  /// The service computed another checksum of what an attempt had sent.
  [[nodiscard]] bool had_bad_digest() const noexcept { return bad_digests_ != 0; }
  [[nodiscard]] bool sent_checksum() const noexcept { return with_checksum_; }
  [[nodiscard]] std::size_t attempts() const noexcept { return attempts_; }
  /// When the last attempt began, on the store's clock.
  [[nodiscard]] s3_clock::time_point sent_at() const noexcept { return sent_at_; }
  /// The object was taken, and perhaps stands, but the answer does not say that it is encrypted as was asked.
  [[nodiscard]] bool unencrypted() const noexcept { return unencrypted_; }

  /// Why the request could not be made.
  [[nodiscard]] const std::exception_ptr& unmade() const noexcept { return unmade_; }

  // --- For the transport.
  void prepare() override;

  bool receive(std::span<const std::byte> bytes) override { return answer_.receive(bytes); }

  std::optional<std::chrono::nanoseconds> judge() override;
  void finished() noexcept override;

 private:
  void make();

  using pause_or_end = std::optional<std::chrono::nanoseconds>;

  [[nodiscard]] pause_or_end verdict();

  [[nodiscard]] pause_or_end judge_success();

  [[nodiscard]] pause_or_end judge_refusal();

  /// Full jitter, at least what the server asks for, once a token is there.
  [[nodiscard]] pause_or_end retry(bool use_retry_after);
  static bool once(bool& tried) noexcept { return !std::exchange(tried, true); }
  /// The service's clock, in seconds since 1970, where its answer tells.
  [[nodiscard]] std::optional<std::int64_t> their_time() const;
  /// By more than minutes from what is signed.
  [[nodiscard]] bool clock_differs() const;
  [[nodiscard]] bool adopt_time();
  /// From now on bodies are signed, this one among them: false where that is no help.
  [[nodiscard]] bool sign_bodies();

  [[nodiscard]] bool google() const noexcept { return service_->options.dialect == s3_dialect::google; }
  /// The checksum that the server computed of what it received, where it tells.
  [[nodiscard]] std::optional<std::string_view> stated_checksum() const;

  void note(std::string_view what) { last_failure_ = what; }

  s3_request request_;
  std::shared_ptr<s3_service> service_;
  http_transport& transport_;
  std::shared_ptr<call_group> group_;

  std::size_t attempts_ = 0;
  s3_clock::time_point sent_at_{};
  std::size_t bad_digests_ = 0;
  bool skew_tried_ = false;
  bool credentials_tried_ = false;
  bool checksum_tried_ = false;
  bool signing_tried_ = false;
  bool with_checksum_ = false;
  bool uncertain_ = false;
  bool unencrypted_ = false;
  bool fine_ = false;
  enum how_it_ended : std::uint8_t { not_ended, ended_well, ended_badly };
  std::atomic<how_it_ended> ended_{not_ended};
  std::atomic<std::int64_t> attempt_began_{0};  // on the steady clock; 0: none runs
  std::uint64_t epoch_ = 0;
  credential_cache::taken taken_;
  std::optional<std::uint64_t> refused_credentials_;
  std::string last_failure_;
  std::exception_ptr unmade_;

  s3_answer answer_;
  std::optional<xml_element> document_;
  s3_refusal refusal_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/call.ipp>
#endif
