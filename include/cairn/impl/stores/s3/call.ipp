// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/answer.hpp>
#include <cairn/stores/s3/bucket_terms.hpp>
#include <cairn/stores/s3/call.hpp>
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/http_transport.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/request.hpp>
#include <cairn/stores/s3/service.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/stores/s3/xml.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY s3_call::s3_call(std::shared_ptr<s3_service> service, http_transport& transport,
                            s3_request request, std::shared_ptr<call_group> group)
    : request_(std::move(request)),
      service_(std::move(service)),
      transport_(transport),
      group_(std::move(group)),
      answer_(request_, *this) {
  const auto& o = service_->options;
  std::uint64_t bytes = request_.length;
  for (const auto& piece : request_.body) bytes += piece.size();
  // A long part may take its time, at 256 KiB/s.
  timeout = (request_.completes ? o.completion_timeout : o.timeout) +
            std::chrono::milliseconds(static_cast<std::int64_t>(bytes >> 8));
  may_be_silent = request_.completes;
  latest = request_.until.when;
  beside = request_.opens_connection;
  urgent = request_.urgent;
}

CAIRN_BODY std::optional<std::chrono::nanoseconds> s3_call::waited() const noexcept {
  const auto began = attempt_began_.load(std::memory_order_relaxed);
  if (began == 0) return std::nullopt;
  return std::chrono::steady_clock::now().time_since_epoch() - std::chrono::nanoseconds(began);
}

CAIRN_BODY void s3_call::prepare() {
  try {
    make();
    const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
    attempt_began_.store(now.count(), std::memory_order_relaxed);
  } catch (...) {
    unmade_ = std::current_exception();
    throw;
  }
}

CAIRN_BODY std::optional<std::chrono::nanoseconds> s3_call::judge() {
  attempt_began_.store(0, std::memory_order_relaxed);
  uncertain_ = uncertain_ || sent_again;
  const auto pause = request_.opens_connection ? std::nullopt : verdict();
  fine_ = !pause && fine_;
  return pause;
}

CAIRN_BODY void s3_call::finished() noexcept {
  for (auto& h : headers) ::OPENSSL_cleanse(h.data(), h.size());
  headers.clear();
  ::OPENSSL_cleanse(taken_.credentials.secret_key.data(), taken_.credentials.secret_key.size());
  attempt_began_.store(0, std::memory_order_relaxed);
  ended_.store(fine_ ? ended_well : ended_badly, std::memory_order_release);
  if (in_turn()) service_->calls.fetch_sub(1, std::memory_order_relaxed);
  if (on_end) on_end(*this);
  on_end = nullptr;
  const auto group = group_;  // the owner may drop the call as soon as it is told
  group->end();
}

CAIRN_BODY void s3_call::make() {
  ++attempts_;
  sent_at_ = transport_.clock().now();
  answer_.clear();
  refusal_ = {};
  document_.reset();
  epoch_ = transport_.window().epoch();
  taken_ = service_->credentials.get(*service_->clock, refused_credentials_, service_->skew.load());
  refused_credentials_.reset();
  const auto now = service_->clock->unix_time();

  const auto& signer = service_->signer;
  auto to_sign = request_.headers;
  to_sign.emplace_back("host", service_->address.authority);
  add_terms(service_->options, request_, to_sign);
  with_checksum_ = !request_.body_checksum.empty() && service_->checksums.load();
  if (with_checksum_)
    to_sign.emplace_back(checksum_header(service_->options),
                         (google() ? "crc32c=" : "") + request_.body_checksum);
  if (!request_.pieces.empty())
    to_sign.emplace_back("range", "bytes=" + std::to_string(request_.offset) + "-" +
                                      std::to_string(request_.offset + request_.length - 1));
  const auto path = service_->address.base + percent_encoded(request_.key, true);
  static const std::string empty_hash = sha256_text(std::string_view());
  const std::string_view hash = !request_.has_body           ? std::string_view(empty_hash)
                                : request_.body_hash.empty() ? std::string_view("UNSIGNED-PAYLOAD")
                                                             : std::string_view(request_.body_hash);
  auto all = signer.sign({request_.method, path, &request_.query, &to_sign, hash}, taken_.credentials,
                         now + service_->skew.load());
  method = request_.method;
  url = (service_->address.tls ? "https://" : "http://") + service_->address.authority + path;
  if (!request_.query.empty()) url += "?" + canonical_query(request_.query);
  headers.clear();
  for (const auto& [name, value] : all)
    if (name != "host") headers.push_back(name + ": " + value);
  headers.push_back("Host: " + service_->address.authority);
  body = request_.body;
  has_body = request_.has_body;
  body_bytes = 0;
  for (const auto& piece : body) body_bytes += piece.size();
}

CAIRN_BODY s3_call::pause_or_end s3_call::verdict() {
  fine_ = false;
  if (end == http_end::cancelled || end == http_end::tls) return note(detail), std::nullopt;
  if (end == http_end::unmade) return note(detail), std::nullopt;
  if (end == http_end::expired) {
    if (attempts_ != 0 && status == 0 && last_failure_.empty())
      uncertain_ = true, note("no answer came in time");
    uncertain_ = uncertain_ || status == 0;
    return std::nullopt;
  }
  if (end == http_end::not_sent) return note(detail), retry(false);
  if (end == http_end::refused && answer_.too_long() && status / 100 == 2 && request_.pieces.empty())
    return note("its answer is longer than it may be"), std::nullopt;
  if (end == http_end::refused && status / 100 != 2) {  // an error of more than a MiB: the status must do
    answer_.forget();
    return judge_refusal();
  }
  if (end != http_end::answered) {
    // Whatever the status: the answer was not read to its end.
    uncertain_ = true;
    note(answer_.wrong_range() ? "the answer holds other bytes than those asked for"
         : detail.empty()      ? "the answer was cut"
                               : detail);
    return retry(false);
  }
  if (status / 100 == 2) return judge_success();
  return judge_refusal();
}

CAIRN_BODY s3_call::pause_or_end s3_call::judge_success() {
  if (!request_.root.empty()) {
    try {
      document_ = xml_reader::read(answer_.text(), request_.key);
    } catch (const corrupt_error&) {
      uncertain_ = true;
      note("the answer is no document of the kind that was asked for");
      return retry(false);
    }
    if (document_->name == "Error") {  // also under a good status
      refusal_ = refusal_in(*document_, taken_.credentials);
      return judge_refusal();
    }
    // Some servers end the name of a completion otherwise.
    if (!document_->name.starts_with(request_.root) ||
        (request_.completes && document_->text_of("ETag").empty())) {
      uncertain_ = true;
      note("the answer is another document than the one that was asked for");
      return retry(false);
    }
  }
  // A proxy's page, an error under a good status: nothing that a store says of a write.
  if (request_.method == "PUT" && request_.root.empty() &&
      (status != 200 || !answer_.bytes().empty() || !header("etag"))) {
    uncertain_ = true;
    note("the answer is not that of a store");
    return answer_.bytes().empty() ? retry(false) : judge_refusal();
  }
  // An object has an ETag; a proxy's page and an error under a good status have none.
  const bool object = request_.method == "GET" && request_.root.empty() && request_.query.empty() &&
                      request_.pieces.empty() && !request_.key.empty();
  if ((object && !header("etag")) ||
      (request_.method == "HEAD" && (!header("etag") || !header("content-length")))) {
    note("the answer is not that of a store");
    return retry(false);
  }
  // It may end early: who passed it on closed the connection, and nobody can tell.
  if (object && !header("content-length") && !header("transfer-encoding")) {
    note("the answer does not say how long the object is");
    return retry(false);
  }
  if (const auto asked = encryption_name(service_->options.encryption);
      !asked.empty() && creates_object(request_) && header("x-amz-server-side-encryption") != asked) {
    unencrypted_ = true;
    return note("the answer confirms no encryption"), std::nullopt;
  }
  if (!request_.pieces.empty()) {
    if (!answer_.filled_pieces()) {
      note("the answer holds other bytes than those asked for");
      return retry(false);
    }
    service_->pace.answered(to_first_byte, request_.length, after_it);
  } else if (request_.method != "HEAD" && !answer_.has_its_length()) {
    uncertain_ = true;
    note("the answer has another length than it says");
    return retry(false);
  }
  if (request_.has_body && request_.body_hash.empty()) service_->takes_unsigned.store(true);
  if (signing_tried_) service_->signs_bodies.store(true);
  if (with_checksum_) {
    service_->checksums_known.store(true);
    const auto theirs = stated_checksum();
    if (theirs && *theirs != request_.body_checksum) {
      note("the server computed another checksum of what it received");
      return ++bad_digests_ < 3 ? retry(false) : std::nullopt;
    }
  }
  if (request_.method == "DELETE" && header("x-amz-delete-marker") == "true")
    service_->keeps_removed.store(true);
  transport_.window().success();
  fine_ = true;
  return std::nullopt;
}

CAIRN_BODY s3_call::pause_or_end s3_call::judge_refusal() {
  if (refusal_.code.empty() && !answer_.bytes().empty()) {
    try {
      const auto document = xml_reader::read(answer_.text(), request_.key);
      if (document.name == "Error") refusal_ = refusal_in(document, taken_.credentials);
    } catch (const corrupt_error&) {  // a proxy's page: the status must do
    }
  }
  if (const auto id = header(google() ? "x-guploader-uploadid" : "x-amz-request-id");
      id && refusal_.request_id.empty())
    refusal_.request_id = printable_text(*id, 128, taken_.credentials);
  if (const auto region = header("x-amz-bucket-region"))
    refusal_.region = printable_text(*region, 64, taken_.credentials);
  const auto& code = refusal_.code;
  note("status " + std::to_string(status) + (code.empty() ? std::string() : " " + code));
  const auto is = [&](std::initializer_list<std::string_view> codes) {
    return detail::contains(codes, std::string_view(code));
  };

  if (is({"RequestTimeTooSkewed"})) return once(skew_tried_) && adopt_time() ? pause_or_end(0) : std::nullopt;
  // An answer to HEAD names nothing: the clock is what can be looked at.
  if (code.empty() && status == 403 && request_.method == "HEAD" && clock_differs() && once(skew_tried_) &&
      adopt_time())
    return std::chrono::nanoseconds(0);
  const bool nameless = code.empty() && (status == 400 || status == 403) && request_.method == "HEAD";
  if (is({"ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken",
          "TokenRefreshRequired"}) ||
      nameless) {
    if (!once(credentials_tried_)) return std::nullopt;
    refused_credentials_ = taken_.number;
    return std::chrono::nanoseconds(0);
  }
  if (is({"InvalidArgument", "InvalidRequest", "XAmzContentSHA256Mismatch"}) && sign_bodies())
    return std::chrono::nanoseconds(0);
  if (with_checksum_ && !service_->checksums_known.load() &&
      (status == 501 || is({"NotImplemented", "InvalidRequest", "InvalidArgument", "InvalidHeader"})) &&
      once(checksum_tried_)) {
    service_->checksums.store(false);
    if (std::exchange(signing_tried_, false)) request_.body_hash.clear();  // that was not what it refused
    return std::chrono::nanoseconds(0);
  }
  if (is({"BadDigest", "XAmzContentSHA256Mismatch", "InvalidDigest", "XAmzContentChecksumMismatch",
          "IncompleteBody"}))
    return ++bad_digests_ < 3 ? retry(false) : std::nullopt;
  if (status == 409 && is({"ConditionalRequestConflict", "OperationAborted"}) && !request_.completes)
    return retry(false);
  if (status / 100 == 2 && code.empty()) {
    note("the answer is not that of a store");
    return retry(false);
  }
  const bool slow = status == 503 || status == 429 ||
                    is({"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException",
                        "TooManyRequests", "RequestLimitExceeded"});
  if (slow || status == 408 || status == 500 || status == 502 || status == 504 ||
      is({"InternalError", "RequestTimeout", "Busy"})) {
    // A gateway's error says nothing of what the server behind it did.
    if (!slow || status == 503) uncertain_ = true;
    if (slow) transport_.window().slow_down(epoch_);
    return retry(true);
  }
  return std::nullopt;
}

CAIRN_BODY s3_call::pause_or_end s3_call::retry(bool use_retry_after) {
  const auto& o = service_->options;
  if (attempts_ >= o.max_attempts) return std::nullopt;
  auto& clock = transport_.clock();
  auto pause = jittered(o.first_pause, o.max_pause, attempts_ - 1, clock.random());
  if (use_retry_after) {
    if (const auto after = header("retry-after")) {
      std::uint64_t seconds = 0;
      if (parse_decimal(*after, seconds)) {
        pause = std::max<std::chrono::nanoseconds>(
            pause, std::chrono::seconds(std::min<std::uint64_t>(seconds, 86400)));
      } else if (const auto when = ::curl_getdate(std::string(*after).c_str(), nullptr); when > 0) {
        const auto left = static_cast<std::int64_t>(when) - clock.unix_time() - service_->skew.load();
        pause = std::max<std::chrono::nanoseconds>(
            pause, std::chrono::seconds(std::clamp<std::int64_t>(left, 0, 86400)));
      }
    }
  }
  return std::max(pause, service_->retries.take(clock.now()));
}

CAIRN_BODY bool s3_call::sign_bodies() {
  const bool without = request_.has_body && request_.body_hash.empty() && service_->address.loopback;
  if (!without || service_->takes_unsigned.load() || !once(signing_tried_)) return false;
  request_.body_hash = sha256_text(request_.body);
  return true;
}

CAIRN_BODY std::optional<std::int64_t> s3_call::their_time() const {
  const auto date = header("date");
  const auto theirs = date ? ::curl_getdate(std::string(*date).c_str(), nullptr) : -1;
  return theirs > 0 ? std::optional(static_cast<std::int64_t>(theirs)) : std::nullopt;
}

CAIRN_BODY bool s3_call::clock_differs() const {
  constexpr std::int64_t allowed = 5 * 60;
  const auto theirs = their_time();
  const auto ours = service_->clock->unix_time() + service_->skew.load();
  return theirs && (*theirs - ours > allowed || ours - *theirs > allowed);
}

CAIRN_BODY bool s3_call::adopt_time() {
  const auto theirs = their_time();
  if (theirs) service_->skew.store(*theirs - service_->clock->unix_time());
  return theirs.has_value();
}

CAIRN_BODY std::optional<std::string_view> s3_call::stated_checksum() const {
  const auto name = checksum_header(service_->options);
  if (!google()) return header(name);
  for (const auto& [n, value] : answer_headers) {  // several of them, or several in one
    const auto at = value.find("crc32c=");
    if (n != name || at == std::string::npos) continue;
    const auto rest = std::string_view(value).substr(at + 7);
    return rest.substr(0, rest.find(','));
  }
  return std::nullopt;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
