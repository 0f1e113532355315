// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/concepts/store_errors.hpp>
#include <cairn/stores/s3/answer.hpp>
#include <cairn/stores/s3/call.hpp>
#include <cairn/stores/s3/client.hpp>
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/crc64nvme.hpp>
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/http_transport.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/request.hpp>
#include <cairn/stores/s3/service.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/stores/s3/xml.hpp>
#include <cairn/system/credential_broker.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY s3_client::s3_client(s3_options options, s3_credential_source credentials,
                                std::shared_ptr<s3_clock> clock)
    : service_(detail::make_shared<s3_service>(std::move(options), std::move(credentials), clock)),
      transport_(
          {service_->options.verify_tls, service_->address.loopback, service_->options.ca_file,
           service_->options.connect_timeout, service_->options.stalled_after, service_->options.in_flight},
          std::move(clock)) {}

CAIRN_BODY std::uint64_t s3_client::answering_number() {
  const std::lock_guard lock(mutex_);
  if (number_ == 0) number_ = credential_broker::here().offer(service_);
  return number_;
}

CAIRN_BODY std::shared_ptr<s3_call> s3_client::begin(s3_request request,
                                                     const std::shared_ptr<call_group>& group,
                                                     std::function<void(const s3_call&)> on_end) {
  auto call = detail::make_shared<s3_call>(service_, transport_, std::move(request), group);
  call->on_end = std::move(on_end);
  group->begin();
  if (call->in_turn()) service_->calls.fetch_add(1, std::memory_order_relaxed);
  try {
    transport_.submit(call);
  } catch (...) {
    if (call->in_turn()) service_->calls.fetch_sub(1, std::memory_order_relaxed);
    group->end();
    throw;
  }
  return call;
}

CAIRN_BODY std::size_t s3_client::idle() const noexcept {
  const auto calls = service_->calls.load(std::memory_order_relaxed);
  return calls < service_->options.in_flight ? service_->options.in_flight - calls : 1;
}

CAIRN_BODY void s3_client::open_connections() noexcept {
  constexpr std::size_t most = 32;
  // Connections that nobody uses are closed by services after some 5 to 60 s.
  constexpr std::chrono::seconds stay_open{10};
  const auto& clock = service_->clock;
  const auto now = clock->now();
  {
    const std::lock_guard lock(mutex_);
    if (opened_ && now - *opened_ < stay_open) return;
    opened_ = now;
  }
  try {
    const auto group = detail::make_shared<call_group>();
    const auto wanted = std::min(service_->options.in_flight, most);
    // One is there, or is opened by the first request of those to come.
    for (std::size_t i = 1; i < wanted; ++i)
      static_cast<void>(begin({.method = "HEAD",
                               .opens_connection = true,
                               .until = {clock, now + service_->options.connect_timeout}},
                              group));
  } catch (...) {  // requests open them, then
  }
}

CAIRN_BODY std::shared_ptr<s3_call> s3_client::run(s3_request request) {
  const auto group = detail::make_shared<call_group>();
  auto call = begin(std::move(request), group);
  group->wait();
  return call;
}

CAIRN_BODY std::string s3_client::place(std::string_view key) const {
  return "s3://" + service_->options.bucket + "/" + std::string(key.substr(0, 1100));
}

CAIRN_BODY void s3_client::fail_call(const s3_call& call, std::string_view doing) const {
  if (call.unmade()) std::rethrow_exception(call.unmade());
  const auto& r = call.refusal();
  error_fields fields{.file = place(call.request().key)};
  fields.got = call.last_failure();
  if (!r.message.empty()) fields.got += ": " + r.message;
  if (!r.request_id.empty()) fields.got += ", request " + r.request_id;
  if (call.attempts() > 1) fields.got += ", after " + std::to_string(call.attempts()) + " attempts";
  const auto because = [&](error_id id, std::string_view what) {
    fail(id, std::string(doing) + " failed: " + std::string(what), std::move(fields));
  };
  const auto is = [&](std::initializer_list<std::string_view> codes) {
    for (const auto c : codes)
      if (r.code == c) return true;
    return false;
  };
  const auto& host = service_->address.authority;
  if (call.end == http_end::expired && call.request().until.passed())
    because(error_id::timeout_write, "it was not answered by the deadline");
  if (call.unencrypted())
    because(error_id::usage_bad_option,
            "the service does not confirm that it encrypts the object as s3_options::encryption asks: set "
            "that to s3_encryption::bucket if it has a way of its own");
  if (call.end == http_end::tls) because(error_id::storage_permission, advice_on(call.certificate, host));
  if (call.end == http_end::cancelled) because(error_id::storage_io, "it was cancelled");
  if (call.end == http_end::answered || call.end == http_end::refused) {
    if (call.status / 100 == 3 || is({"PermanentRedirect", "TemporaryRedirect",
                                      "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}))
      because(error_id::storage_io,
              r.region.empty()
                  ? std::string("the bucket is somewhere else: check endpoint and region")
                  : "the bucket is in region " + r.region + ": set s3_options::region and endpoint");
    if (is({"NoSuchBucket"})) because(error_id::storage_not_found, "there is no such bucket");
    if (is({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}))
      because(error_id::storage_permission, "the server does not accept the credentials");
    // An answer to HEAD has no words.
    if (call.status == 400 && r.code.empty() && call.request().method == "HEAD")
      because(error_id::storage_permission,
              "the server refused it without a reason, as it does where a session token is missing or has "
              "expired, or the bucket is in another region");
    if (r.code.starts_with("KMS."))
      because(error_id::storage_permission,
              "the key of its encryption cannot be used: look at s3_options::kms_key and the key's policy");
    if (is({"InvalidObjectState"}))
      because(error_id::storage_permission,
              "the object lies in an archive, where a rule of the bucket put it: restore it first");
    if (call.status == 403 && call.request().method == "DELETE" && call.request().query.empty())
      because(
          error_id::storage_permission,
          "the bucket lets nobody remove it, or not with these credentials: look for a retention rule, an "
          "object lock or a legal hold, and at the right s3:DeleteObject");
    if (call.status == 401 || call.status == 403)
      because(error_id::storage_permission,
              service_->options.bucket_owner.empty()
                  ? std::string("the credentials do not permit it")
                  : "the credentials do not permit it, or the bucket is not of account " +
                        service_->options.bucket_owner + " (s3_options::bucket_owner)");
    if (call.status == 404) because(error_id::storage_not_found, "there is no such object");
    if (call.status == 507 || is({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull"}))
      because(error_id::storage_no_space, "the store is full");
    if (is({"EntityTooLarge", "TooManyParts", "EntityTooSmall"}))
      because(error_id::storage_limit, "the server does not take objects or parts of this size");
    if (call.status == 412 || call.status == 409)
      because(error_id::storage_exists, "something else stands there, or is being written");
    const bool transient = call.status / 100 == 5 || call.status == 408 || call.status == 429;
    if (!transient && call.status / 100 == 4) because(error_id::storage_io, "the server refused it");
  }
  if (call.certificate == certificate_problem::handshake)
    because(error_id::storage_unavailable,
            "no TLS connection to " + host +
                " came about: check that it speaks TLS on this port, and that the endpoint rightly begins "
                "with https://");
  because(error_id::storage_unavailable,
          "the object store did not do it in time and in spite of further attempts");
  __builtin_unreachable();
}

CAIRN_BODY std::string s3_client::advice_on(certificate_problem what, const std::string& host) {
  switch (what) {
    case certificate_problem::ca_file:
      return "the certificates of s3_options::ca_file, for " + host +
             ", cannot be read: name a file of PEM certificates";
    case certificate_problem::name:
      return "the certificate of " + host +
             " is for other hosts: set s3_options::endpoint to a name that it lists, or addressing to "
             "s3_addressing::path where the bucket's name in the host does not fit it";
    case certificate_problem::time:
      return "the certificate of " + host +
             " has expired or is not valid yet: have it renewed, or set this machine's clock";
    default:
      return "the certificate of " + host +
             " is signed by no authority that is trusted here; for an authority of your own set "
             "s3_options::ca_file";
  }
}

CAIRN_BODY void s3_client::require(const s3_call& call, std::string_view doing) const {
  if (!call.fine()) fail_call(call, doing);
}

CAIRN_BODY std::optional<s3_object> s3_client::head(const std::string& key, const s3_deadline& until) {
  return object_of(*run({.method = "HEAD", .key = key, .until = until}));
}

CAIRN_BODY std::optional<s3_object> s3_client::object_of(const s3_call& call) const {
  if (!call.fine() && call.end == http_end::answered && call.status == 404) return std::nullopt;
  require(call, "asking for an object");
  s3_object o;
  const auto length = call.header("content-length");
  if (!length || !parse_decimal(*length, o.bytes))
    fail(error_id::storage_io, "the server does not say how long an object is",
         {.file = place(call.request().key)});
  if (const auto etag = call.header("etag"); etag && etag->size() <= 1024 && header_safe(*etag))
    o.etag = *etag;
  if (const auto token = call.header(token_header())) o.token = *token;
  return o;
}

CAIRN_BODY std::optional<std::vector<std::byte>> s3_client::get_all(const std::string& key,
                                                                    std::uint64_t cap) {
  const auto call = run({.method = "GET", .key = key, .max_answer = cap});
  if (!call->fine() && call->end == http_end::answered && call->status == 404 &&
      call->refusal().code != "NoSuchBucket")
    return std::nullopt;
  if (const auto stated_length = call->too_long(); stated_length && call->status / 100 == 2)
    fail(error_id::corrupt_size_mismatch, "the object is longer than it can be",
         {.file = place(key),
          .expected = "at most " + std::to_string(cap) + " bytes",
          .got = *stated_length != 0 ? std::to_string(*stated_length) + " bytes" : "more"});
  require(*call, "reading of an object");
  return call->take_answer();
}

CAIRN_BODY void s3_client::remove(const std::string& key) {
  const auto call = run({.method = "DELETE", .key = key});
  if (!call->fine() && call->end == http_end::answered && call->status == 404 &&
      call->refusal().code != "NoSuchBucket")
    return;
  require(*call, "removing of an object");
}

CAIRN_BODY bool s3_client::remove_if(const std::string& key, std::span<const std::byte> bytes) {
  for (int tries = 0;; ++tries) {
    const auto there = head(key);
    if (!there) return true;
    if (there->bytes != bytes.size()) return false;
    const auto held = get_all(key, bytes.size());
    if (!held) return true;
    if (!std::equal(held->begin(), held->end(), bytes.begin(), bytes.end())) return false;
    if (tries == 3)
      fail(error_id::storage_unavailable,
           "the object store refused three times to remove an object, as something else was done to it: try "
           "again",
           {.file = place(key)});
    s3_request r{.method = "DELETE", .key = key};
    if (!there->etag.empty() && !google()) r.headers.emplace_back("if-match", there->etag);
    const auto call = run(std::move(r));
    const bool answered = call->end == http_end::answered;
    if (call->fine()) return true;
    if (answered && call->status == 404 && call->refusal().code != "NoSuchBucket") return true;
    if (answered && (call->status == 412 || call->status == 409)) continue;  // look again
    if (answered && (call->status == 501 || call->refusal().code == "NotImplemented")) {
      remove(key);
      return true;
    }
    require(*call, "removing of an object");
  }
}

CAIRN_BODY std::string s3_client::token_header() const {
  return prefix_of_headers() + "meta-cairn-writer";
}

CAIRN_BODY void s3_client::only_if_absent(s3_request& r) const {
  if (service_->options.exclusive == s3_exclusive::single_writer) return;
  if (google())
    r.headers.emplace_back("x-goog-if-generation-match", "0");
  else
    r.headers.emplace_back("if-none-match", "*");
}

CAIRN_BODY void s3_client::set_body(s3_request& r, std::vector<std::span<const std::byte>> pieces,
                                    bool checksum) const {
  r.body = std::move(pieces);
  r.has_body = true;
  if (signs_payload(*service_)) r.body_hash = sha256_text(r.body);
  if (!checksum || !service_->checksums.load()) return;
  if (service_->options.checksums == s3_checksum::crc64nvme)
    r.body_checksum = checksum_text(r.body_crc64 = crc64nvme(r.body));
  else
    r.body_checksum = checksum_text(crc32c(r.body));
}

CAIRN_BODY s3_client::put_result s3_client::put(const std::string& key,
                                                std::vector<std::span<const std::byte>> pieces,
                                                const s3_deadline& until) {
  const auto token = random_token();
  if (service_->options.exclusive == s3_exclusive::single_writer && head(key, until))
    return put_result::existed;
  s3_request r{.method = "PUT", .key = key, .until = until};
  r.headers.emplace_back(token_header(), token);
  only_if_absent(r);
  set_body(r, std::move(pieces), true);
  const auto call = run(std::move(r));
  if (call->fine()) return put_result::stands;
  if (call->unencrypted()) fail_call(*call, "writing of an object");
  const bool exists = call->end == http_end::answered && call->status == 412;
  if (!exists && !call->uncertain()) fail_call(*call, "writing of an object");
  try {
    switch (occupant_of(key, token, call->request().body, until, call->had_bad_digest())) {
      case occupant::ours:
        return put_result::stands;
      case occupant::other:
        return put_result::existed;
      case occupant::none:
        break;
    }
    fail_call(*call, "writing of an object");
  } catch (const storage_error& e) {
    // It may still carry out an earlier request that was not answered, which these ids would deny.
    if (!denies_publication(e.id()) || !call->uncertain()) throw;
    fail(error_id::storage_unavailable, e.message() + "; an earlier request for it may still be carried out",
         e.fields());
  }
}

CAIRN_BODY s3_client::occupant s3_client::occupant_of(const std::string& key, const std::string& token,
                                                      std::span<const std::span<const std::byte>> pieces,
                                                      const s3_deadline& until, bool compare) {
  const auto found = head(key, until);
  if (!found) return occupant::none;
  const bool ours = found->token == token;
  if (!found->token.empty() && !ours) return occupant::other;
  std::uint64_t bytes = 0;
  for (const auto& p : pieces) bytes += p.size();
  bool same = found->bytes == bytes;
  if (same && (compare || !ours)) {
    const auto there = get_all(key, bytes);
    if (!there) return occupant::none;
    same = there->size() == bytes;
    for (auto at = there->begin(); const auto& p : pieces) {
      same = same && std::equal(p.begin(), p.end(), at);
      if (same) at += static_cast<std::ptrdiff_t>(p.size());
    }
  }
  if (ours && !same)
    fail(error_id::storage_io, "the server stored other bytes than it was sent",
         {.file = place(key),
          .expected = std::to_string(bytes) + " bytes",
          .got = found->bytes == bytes ? std::string("as many, but others")
                                       : std::to_string(found->bytes) + " bytes"});
  return same ? occupant::ours : occupant::other;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
