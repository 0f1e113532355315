// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/http_transport.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/xml.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

/// What all requests of a store share. Members below the line belong to the transport's thread.
struct s3_service final : trainer_answers {
  s3_service(s3_options o, s3_credential_source source, std::shared_ptr<s3_clock> c)
      : options(std::move(o)),
        address(resolve(options)),
        signer(address.region, options.dialect),
        credentials(std::move(source)),
        clock(std::move(c)),
        retries(options.retry_burst, options.retry_rate) {
    checksums.store(options.checksums != s3_checksum::none);
  }
  s3_options options;
  s3_address address;
  sigv4_signer signer;
  credential_cache credentials;
  std::shared_ptr<s3_clock> clock;
  std::atomic<bool> checksums{true};  ///< the service accepts them, or was not asked yet
  std::atomic<bool> checksums_known{false};
  std::atomic<std::int64_t> skew{0};  ///< the server's clock less ours, in seconds

  /// To a worker process that asks for credentials, other ones than those of the number that it names.
  [[nodiscard]] secret_bytes answer(std::span<const std::byte> question) override {
    std::uint64_t without = 0;
    if (question.size() == sizeof without) std::memcpy(&without, question.data(), sizeof without);
    const auto now = credentials.get(clock->unix_time(),
                                     without != 0 ? std::optional<std::uint64_t>(without) : std::nullopt);
    return s3_credential_source::encode(now.credentials, now.number);
  }

  retry_bucket retries;
};

/// Whether bytes are sent with their hash signed.
[[nodiscard]] inline bool signs_payload(const s3_service& s) noexcept {
  return !s.address.tls || s.options.sign_payload;
}

/// The header that a body's checksum goes into.
[[nodiscard]] inline std::string_view checksum_header(const s3_options& o) noexcept {
  if (o.dialect == s3_dialect::google) return "x-goog-hash";
  return o.checksums == s3_checksum::crc64nvme ? "x-amz-checksum-crc64nvme" : "x-amz-checksum-crc32c";
}

/// A piece of memory that a part of an answer goes to; without address: that part is passed over.
struct answer_piece {
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

/// One request to an object store, as its owner describes it; unchanged over its attempts.
struct s3_request {
  std::string method = {};
  std::string key = {};  ///< with the store's prefix; "" for the bucket
  name_values query = {};
  name_values headers = {};
  std::vector<std::span<const std::byte>> body = {};  ///< valid until the call has ended
  bool has_body = false;
  std::string body_hash = {};      ///< SHA-256, where signs_payload(); "" for no body
  std::string body_checksum = {};  ///< of the options' kind, in base 64; "": none
  std::uint64_t body_crc64 = 0;    ///< the same, where it is CRC-64/NVME
  bool completes = false;          ///< puts an upload together, which is slow
  std::string root = {};  ///< the document that is awaited: its root's name, or how that begins; "": none
  /// Where the answer goes: all to memory, at most this many bytes,
  std::uint64_t most_answer = std::uint64_t{1} << 20;
  /// or, if not empty, `length` bytes of the object from `offset` on, to these.
  std::vector<answer_piece> pieces = {};
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// An answer's error in the server's words, checked and shortened.
struct s3_refusal {
  std::string code;
  std::string message;
  std::string request_id;
  std::string region;
};

/// An s3_request while it is attempted. The owner waits for its group.
class s3_call final : public http_call {
 public:
  s3_call(std::shared_ptr<s3_service> service, http_transport& transport, s3_request request,
          std::shared_ptr<call_group> group)
      : request_(std::move(request)),
        service_(std::move(service)),
        transport_(transport),
        group_(std::move(group)) {
    const auto& o = service_->options;
    std::uint64_t bytes = request_.length;
    for (const auto& piece : request_.body) bytes += piece.size();
    // A long part may take its time, at 256 KiB/s.
    patience = (request_.completes ? o.completion_patience : o.patience) +
               std::chrono::milliseconds(static_cast<std::int64_t>(bytes >> 8));
    may_be_silent = request_.completes;
  }

  /// Called when the call has ended, by the transport's thread; must not throw. Set before it begins.
  std::function<void(const s3_call&)> on_end;

  // --- After the call has ended.
  [[nodiscard]] bool fine() const noexcept { return fine_; }
  /// Ended, and not fine; may be asked while other calls of the group still run.
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  /// An attempt before the last, or the last, may have been carried out although its answer did not come.
  [[nodiscard]] bool uncertain() const noexcept { return uncertain_; }
  [[nodiscard]] const s3_refusal& refusal() const noexcept { return refusal_; }
  [[nodiscard]] const std::vector<std::byte>& answer() const noexcept { return answer_; }
  [[nodiscard]] std::vector<std::byte> take_answer() noexcept { return std::move(answer_); }
  [[nodiscard]] std::string_view answer_text() const noexcept {
    return {reinterpret_cast<const char*>(answer_.data()), answer_.size()};
  }
  [[nodiscard]] const s3_request& request() const noexcept { return request_; }
  /// The document that was awaited; where the call is fine.
  [[nodiscard]] const xml_element& document() const noexcept { return *document_; }
  /// The answer is longer than it may be; what it says its length is, or 0.
  [[nodiscard]] std::optional<std::uint64_t> too_long() const noexcept { return too_long_; }
  /// The size that a Content-Range told of the object.
  [[nodiscard]] std::optional<std::uint64_t> object_bytes() const noexcept { return object_bytes_; }
  [[nodiscard]] bool was_tls() const noexcept { return end == http_end::tls; }
  [[nodiscard]] const std::string& last_failure() const noexcept { return last_failure_; }
  [[nodiscard]] bool sent_checksum() const noexcept { return with_checksum_; }
  [[nodiscard]] std::size_t attempts() const noexcept { return attempts_; }

  /// Why the request could not be made.
  [[nodiscard]] const std::exception_ptr& unmade() const noexcept { return unmade_; }

  // --- For the transport.
  void prepare() override {
    try {
      make();
    } catch (...) {
      unmade_ = std::current_exception();
      throw;
    }
  }

  bool receive(std::span<const std::byte> bytes) override {
    if (status == 206 && !request_.pieces.empty()) return place(bytes);
    const auto most =
        status / 100 == 2 ? (request_.pieces.empty() ? request_.most_answer : 0) : std::uint64_t{1} << 20;
    if (bytes.size() > most - std::min<std::uint64_t>(answer_.size(), most)) {
      std::uint64_t told = 0;
      if (const auto length = header("content-length")) (void)parse_decimal(*length, told);
      too_long_ = told;
      return false;
    }
    answer_.insert(answer_.end(), bytes.begin(), bytes.end());
    return true;
  }

  std::optional<std::chrono::nanoseconds> judge() override {
    const auto pause = verdict();
    fine_ = !pause && fine_;
    return pause;
  }
  void finished() noexcept override {
    for (auto& h : headers) ::OPENSSL_cleanse(h.data(), h.size());
    headers.clear();
    ::OPENSSL_cleanse(taken_.credentials.secret_key.data(), taken_.credentials.secret_key.size());
    if (!fine_) failed_.store(true, std::memory_order_release);
    if (on_end) on_end(*this);
    on_end = nullptr;
    const auto group = group_;  // the owner may drop the call as soon as it is told
    group->end();
  }

 private:
  void make() {
    ++attempts_;
    answer_.clear();
    refusal_ = {};
    document_.reset();
    too_long_.reset();
    object_bytes_.reset();
    received_ = 0;
    wrong_range_ = false;
    epoch_ = transport_.window().epoch();
    const auto now = service_->clock->unix_time();
    taken_ = service_->credentials.get(now, refused_credentials_);
    refused_credentials_.reset();

    const auto& signer = service_->signer;
    auto to_sign = request_.headers;
    to_sign.emplace_back("host", service_->address.authority);
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

  using pause_or_end = std::optional<std::chrono::nanoseconds>;

  [[nodiscard]] pause_or_end verdict() {
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
    if (end == http_end::refused && too_long_ && status / 100 == 2 && request_.pieces.empty())
      return note("its answer is longer than it may be"), std::nullopt;
    if (end == http_end::refused && status / 100 != 2) {  // an error of more than a MiB: the status must do
      answer_.clear();
      return judge_refusal();
    }
    if (end != http_end::answered) {
      // Whatever the status: the answer was not read to its end.
      uncertain_ = true;
      note(wrong_range_     ? "the answer holds other bytes than those asked for"
           : detail.empty() ? "the answer was cut"
                            : detail);
      return retry(false);
    }
    if (status / 100 == 2) return judge_success();
    return judge_refusal();
  }

  [[nodiscard]] pause_or_end judge_success() {
    if (!request_.root.empty()) {
      try {
        document_ = xml_reader::read(answer_text(), request_.key);
      } catch (const corrupt_error&) {
        uncertain_ = true;
        note("the answer is no document of the kind that was asked for");
        return retry(false);
      }
      if (document_->name == "Error") {  // also under a good status
        read_error(*document_);
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
    if (request_.method == "PUT" && (status != 200 || !answer_.empty() || !header("etag"))) {
      uncertain_ = true;
      note("the answer is not that of a store");
      return answer_.empty() ? retry(false) : judge_refusal();
    }
    // An object has an ETag; a proxy's page and an error under a good status have none.
    const bool object = request_.method == "GET" && request_.root.empty() && request_.query.empty() &&
                        request_.pieces.empty() && !request_.key.empty();
    if ((object && !header("etag")) ||
        (request_.method == "HEAD" && (!header("etag") || !header("content-length")))) {
      note("the answer is not that of a store");
      return retry(false);
    }
    if (!request_.pieces.empty()) {
      if (status != 206 || received_ != request_.length || !right_range()) {
        note("the answer holds other bytes than those asked for");
        return retry(false);
      }
    } else if (request_.method != "HEAD") {
      if (const auto length = header("content-length"); length) {
        std::uint64_t told = 0;
        if (!parse_decimal(*length, told) || told != answer_.size()) {
          uncertain_ = true;
          note("the answer has another length than it says");
          return retry(false);
        }
      }
    }
    if (with_checksum_) {
      service_->checksums_known.store(true);
      const auto theirs = told_checksum();
      if (theirs && *theirs != request_.body_checksum) {
        note("the server computed another checksum of what it received");
        return ++bad_digests_ < 3 ? retry(false) : std::nullopt;
      }
    }
    transport_.window().success();
    fine_ = true;
    return std::nullopt;
  }

  [[nodiscard]] pause_or_end judge_refusal() {
    if (refusal_.code.empty() && !answer_.empty()) {
      try {
        const auto document = xml_reader::read(answer_text(), request_.key);
        if (document.name == "Error") read_error(document);
      } catch (const corrupt_error&) {  // a proxy's page: the status must do
      }
    }
    if (const auto id = header(google() ? "x-guploader-uploadid" : "x-amz-request-id");
        id && refusal_.request_id.empty())
      refusal_.request_id = clean(*id, 128);
    if (const auto region = header("x-amz-bucket-region")) refusal_.region = clean(*region, 64);
    const auto& code = refusal_.code;
    note("status " + std::to_string(status) + (code.empty() ? std::string() : " " + code));
    const auto is = [&](std::initializer_list<std::string_view> codes) {
      return std::find(codes.begin(), codes.end(), std::string_view(code)) != codes.end();
    };

    if (is({"RequestTimeTooSkewed"}))
      return once(skew_tried_) && adopt_time() ? pause_or_end(0) : std::nullopt;
    const bool nameless = code.empty() && (status == 400 || status == 403) && request_.method == "HEAD";
    if (is({"ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken",
            "TokenRefreshRequired"}) ||
        nameless) {
      if (!once(credentials_tried_)) return std::nullopt;
      refused_credentials_ = taken_.number;
      return std::chrono::nanoseconds(0);
    }
    if (with_checksum_ && !service_->checksums_known.load() &&
        (status == 501 || is({"NotImplemented", "InvalidRequest", "InvalidArgument", "InvalidHeader"})) &&
        once(checksum_tried_)) {
      service_->checksums.store(false);
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

  /// Full jitter, at least what the server asks for, once a token is there.
  [[nodiscard]] pause_or_end retry(bool heed) {
    const auto& o = service_->options;
    if (attempts_ >= o.most_attempts) return std::nullopt;
    auto& clock = transport_.clock();
    auto pause = jittered(o.first_pause, o.longest_pause, attempts_ - 1, clock.random());
    if (heed) {
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
  static bool once(bool& tried) noexcept { return !std::exchange(tried, true); }
  [[nodiscard]] bool adopt_time() {
    const auto date = header("date");
    if (!date) return false;
    const auto theirs = ::curl_getdate(std::string(*date).c_str(), nullptr);
    if (theirs <= 0) return false;
    service_->skew.store(static_cast<std::int64_t>(theirs) - service_->clock->unix_time());
    return true;
  }

  [[nodiscard]] bool google() const noexcept { return service_->options.dialect == s3_dialect::google; }
  /// The checksum that the server computed of what it received, where it tells.
  [[nodiscard]] std::optional<std::string_view> told_checksum() const {
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

  void read_error(const xml_element& e) {
    refusal_.code = clean(e.text_of("Code"), 64);
    refusal_.message = clean(e.text_of("Message"), 200);
    refusal_.request_id = clean(e.text_of("RequestId"), 128);
    if (!e.text_of("Region").empty()) refusal_.region = clean(e.text_of("Region"), 64);
  }
  /// A server's words for a message: short, printable, without what only the signer may know.
  [[nodiscard]] std::string clean(std::string_view text, std::size_t most) const {
    const auto& known = taken_.credentials;
    for (const auto* secret : {&known.secret_key, &known.session_token}) {
      if (secret->size() < 4) continue;
      // Also a piece of it, since a long token does not fit into a message; and before the message is cut.
      const auto piece = std::string_view(*secret).substr(0, std::min<std::size_t>(secret->size(), 16));
      if (text.find(piece) != std::string::npos) return "(withheld)";
    }
    std::string out;
    for (const char c : text.substr(0, most)) out += c >= ' ' && c <= '~' ? c : '?';
    return out;
  }
  void note(std::string_view what) { last_failure_ = what; }

  /// "bytes 5-9/100" as asked for; notes the size of the object.
  [[nodiscard]] bool right_range() {
    const auto value = header("content-range");
    if (!value || !value->starts_with("bytes ") || header("content-encoding")) return false;
    auto rest = value->substr(6);
    const auto dash = rest.find('-');
    const auto slash = rest.find('/');
    if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return false;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::uint64_t total = 0;
    if (!parse_decimal(rest.substr(0, dash), first) ||
        !parse_decimal(rest.substr(dash + 1, slash - dash - 1), last) ||
        !parse_decimal(rest.substr(slash + 1), total))
      return false;
    object_bytes_ = total;
    return first == request_.offset && last == request_.offset + request_.length - 1 && last < total;
  }
  /// Puts bytes of the answer where they belong.
  [[nodiscard]] bool place(std::span<const std::byte> bytes) {
    if (received_ == 0 && !right_range()) return wrong_range_ = true, false;
    if (bytes.size() > request_.length - received_) return wrong_range_ = true, false;
    if (received_ == 0) piece_ = 0, in_piece_ = 0;
    received_ += bytes.size();
    while (!bytes.empty()) {
      const auto& piece = request_.pieces[piece_];
      const auto n = std::min(bytes.size(), piece.bytes - in_piece_);
      if (piece.to != nullptr && n != 0) std::memcpy(piece.to + in_piece_, bytes.data(), n);
      bytes = bytes.subspan(n);
      in_piece_ += n;
      if (in_piece_ == piece.bytes) ++piece_, in_piece_ = 0;
    }
    return true;
  }

  s3_request request_;
  std::shared_ptr<s3_service> service_;
  http_transport& transport_;
  std::shared_ptr<call_group> group_;

  std::size_t attempts_ = 0;
  std::size_t bad_digests_ = 0;
  bool skew_tried_ = false;
  bool credentials_tried_ = false;
  bool checksum_tried_ = false;
  bool with_checksum_ = false;
  bool uncertain_ = false;
  bool fine_ = false;
  std::atomic<bool> failed_{false};
  std::uint64_t epoch_ = 0;
  credential_cache::taken taken_;
  std::optional<std::uint64_t> refused_credentials_;
  std::string last_failure_;
  std::exception_ptr unmade_;

  std::vector<std::byte> answer_;
  std::optional<xml_element> document_;
  std::optional<std::uint64_t> too_long_;
  std::optional<std::uint64_t> object_bytes_;
  s3_refusal refusal_;
  std::uint64_t received_ = 0;
  std::size_t piece_ = 0;
  std::size_t in_piece_ = 0;
  bool wrong_range_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
