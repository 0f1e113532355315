// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/http_attempt.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/system/resend_pause.hpp>

#include <curl/curl.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY http_attempt::http_attempt(std::shared_ptr<http_call> call, const http_settings& settings,
                                      bool fresh_connection)
    : call_(std::move(call)), easy_(::curl_easy_init()) {
  if (easy_ == nullptr) throw std::bad_alloc();
  try {
    set_up(settings, fresh_connection);
  } catch (...) {
    free();
    throw;
  }
}

CAIRN_BODY http_attempt::~http_attempt() {
  free();
}

CAIRN_BODY bool http_attempt::connects_long() const noexcept {
  constexpr auto first_pause = std::chrono::milliseconds(250);
  if (sent_ || !socket_since_ || begun_again_ == 3) return false;
  if (std::chrono::steady_clock::now() - *socket_since_ < first_pause * (1 << begun_again_)) return false;
  curl_off_t connected = 0;
  ::curl_easy_getinfo(easy_, CURLINFO_CONNECT_TIME_T, &connected);
  return connected == 0;
}

CAIRN_BODY void http_attempt::begin_again() noexcept {
  ++begun_again_;
  socket_since_.reset();
}

CAIRN_BODY void http_attempt::conclude(CURLcode code) noexcept {
  long status = 0;
  ::curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  call_->status = status;
  curl_off_t sent = 0;
  curl_off_t first = 0;
  curl_off_t all = 0;
  ::curl_easy_getinfo(easy_, CURLINFO_PRETRANSFER_TIME_T, &sent);
  ::curl_easy_getinfo(easy_, CURLINFO_STARTTRANSFER_TIME_T, &first);
  ::curl_easy_getinfo(easy_, CURLINFO_TOTAL_TIME_T, &all);
  call_->to_first_byte = std::chrono::microseconds(first - sent);
  call_->after_it = std::chrono::microseconds(all - first);
  call_->end = refused_ ? http_end::refused : meaning(code);
  // Over a connection of before that ended without an answer; libcurl could make no other one.
  if (sent_ && (call_->end == http_end::not_sent || call_->end == http_end::tls)) call_->sent_again = true;
  call_->certificate = certificate_problem_of(code, easy_);
  try {
    if (code != CURLE_OK) call_->detail = ::curl_easy_strerror(code);
    if (call_->certificate != certificate_problem::none && words_[0] != '\0') call_->detail = words_.data();
  } catch (const std::bad_alloc&) {  // how it ended is known all the same
  }
}

CAIRN_BODY void http_attempt::free() noexcept {
  ::curl_easy_cleanup(easy_);
  ::curl_slist_free_all(headers_);
}

CAIRN_BODY void http_attempt::set_up(const http_settings& settings, bool fresh_connection) {
  auto* const e = easy_;
  for (const auto& h : call_->headers) add_header(h.c_str());
  add_header("Expect:");  // waiting for permission would cost a round trip for each part
  add_header("Accept:");
  add_header("Content-Type:");
  if (call_->method == "POST" && !call_->has_body) add_header("Content-Length: 0");  // some insist on it
  const auto must = [](CURLcode code) {
    if (code != CURLE_OK) throw std::bad_alloc();
  };
  must(::curl_easy_setopt(e, CURLOPT_URL, call_->url.c_str()));
  must(::curl_easy_setopt(e, CURLOPT_HTTPHEADER, headers_));
  ::curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L);
  ::curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
  ::curl_easy_setopt(e, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  ::curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L);
  if (settings.direct) must(::curl_easy_setopt(e, CURLOPT_NOPROXY, "*"));
  ::curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
  ::curl_easy_setopt(e, CURLOPT_DNS_CACHE_TIMEOUT, 30L);
  ::curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings.connect_timeout.count()));
  ::curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, settings.verify_tls ? 1L : 0L);
  ::curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, settings.verify_tls ? 2L : 0L);
  if (!settings.ca_file.empty()) must(::curl_easy_setopt(e, CURLOPT_CAINFO, settings.ca_file.c_str()));
  if (settings.sessions != nullptr) ::curl_easy_setopt(e, CURLOPT_SHARE, settings.sessions);
  if (!call_->may_be_silent) {
    ::curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1024L);
    ::curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings.stalled_after.count()));
  }
  if (fresh_connection) ::curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L);
  ::curl_easy_setopt(e, CURLOPT_BUFFERSIZE, call_->method == "HEAD" ? 16L << 10 : 512L << 10);
  ::curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, &http_attempt::on_header);
  ::curl_easy_setopt(e, CURLOPT_HEADERDATA, this);
  ::curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, &http_attempt::on_answer);
  ::curl_easy_setopt(e, CURLOPT_WRITEDATA, this);
  ::curl_easy_setopt(e, CURLOPT_SOCKOPTFUNCTION, &http_attempt::on_socket);
  ::curl_easy_setopt(e, CURLOPT_SOCKOPTDATA, this);
  ::curl_easy_setopt(e, CURLOPT_PREREQFUNCTION, &http_attempt::on_send);
  ::curl_easy_setopt(e, CURLOPT_PREREQDATA, this);
  ::curl_easy_setopt(e, CURLOPT_PRIVATE, this);
  ::curl_easy_setopt(e, CURLOPT_ERRORBUFFER, words_.data());
  if (call_->has_body) {
    ::curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
    ::curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
    ::curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(call_->body_bytes));
    ::curl_easy_setopt(e, CURLOPT_READFUNCTION, &http_attempt::on_body);
    ::curl_easy_setopt(e, CURLOPT_READDATA, this);
    ::curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, &http_attempt::on_rewind);
    ::curl_easy_setopt(e, CURLOPT_SEEKDATA, this);
  }
  if (call_->method == "HEAD")
    ::curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
  else
    must(::curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, call_->method.c_str()));
}

CAIRN_BODY void http_attempt::add_header(const char* line) {
  auto* const longer = ::curl_slist_append(headers_, line);
  if (longer == nullptr) throw std::bad_alloc();
  headers_ = longer;
}

CAIRN_BODY http_end http_attempt::meaning(CURLcode code) noexcept {
  switch (code) {
    case CURLE_OK:
      return http_end::answered;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
      return http_end::not_sent;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
      return http_end::tls;
    default:
      return http_end::broken;
  }
}

CAIRN_BODY certificate_problem http_attempt::certificate_problem_of(CURLcode code, CURL* easy) noexcept {
  if (code == CURLE_SSL_CONNECT_ERROR) return certificate_problem::handshake;
  if (code == CURLE_SSL_CACERT_BADFILE) return certificate_problem::ca_file;
  if (meaning(code) != http_end::tls) return certificate_problem::none;
  long verdict = -1;
  ::curl_easy_getinfo(easy, CURLINFO_SSL_VERIFYRESULT, &verdict);
  // libcurl looks at the names first where the certificate itself is right.
  if (verdict == X509_V_OK || verdict == X509_V_ERR_UNSPECIFIED) return certificate_problem::name;
  if (verdict == X509_V_ERR_CERT_HAS_EXPIRED || verdict == X509_V_ERR_CERT_NOT_YET_VALID)
    return certificate_problem::time;
  return certificate_problem::authority;
}

CAIRN_BODY std::size_t http_attempt::on_header(char* data, std::size_t, std::size_t bytes,
                                               void* self) noexcept {
  auto& a = *static_cast<http_attempt*>(self);
  constexpr std::size_t max_header_bytes = 64u << 10;
  a.header_bytes_ += bytes;
  if (a.header_bytes_ > max_header_bytes) return 0;
  try {
    std::string_view line(data, bytes);
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {
      a.call_->answer_headers.clear();
      return bytes;
    }
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return bytes;
    a.call_->answer_headers.emplace_back(lower_case(line.substr(0, colon)),
                                         canonical_value(line.substr(colon + 1)));
    return bytes;
  } catch (...) {
    return 0;
  }
}

CAIRN_BODY int http_attempt::on_socket(void* self, curl_socket_t number, curlsocktype) noexcept {
  static_cast<http_attempt*>(self)->socket_since_ = std::chrono::steady_clock::now();
  send_again_after(number, std::chrono::milliseconds(50));
  return CURL_SOCKOPT_OK;
}

CAIRN_BODY int http_attempt::on_send(void* self, char*, char*, int, int) noexcept {
  // libcurl sends it once more by itself where a connection that was used before ends without an answer.
  auto& a = *static_cast<http_attempt*>(self);
  a.call_->sent_again = std::exchange(a.sent_, true);
  return CURL_PREREQFUNC_OK;
}

CAIRN_BODY std::size_t http_attempt::on_answer(char* data, std::size_t, std::size_t bytes,
                                               void* self) noexcept {
  auto& a = *static_cast<http_attempt*>(self);
  try {
    long status = 0;
    ::curl_easy_getinfo(a.easy_, CURLINFO_RESPONSE_CODE, &status);
    a.call_->status = status;
    if (a.call_->receive(std::as_bytes(std::span(data, bytes)))) return bytes;
    a.refused_ = true;
  } catch (...) {
  }
  return bytes == 0 ? 1 : 0;
}

CAIRN_BODY std::size_t http_attempt::on_body(char* to, std::size_t, std::size_t room, void* self) noexcept {
  auto& a = *static_cast<http_attempt*>(self);
  const auto& body = a.call_->body;
  std::size_t done = 0;
  while (done < room && a.piece_ < body.size()) {
    const auto piece = body[a.piece_];
    const auto n = std::min(room - done, piece.size() - a.place_);
    if (n != 0) std::memcpy(to + done, piece.data() + a.place_, n);
    done += n;
    a.place_ += n;
    if (a.place_ == piece.size()) ++a.piece_, a.place_ = 0;
  }
  return done;
}

CAIRN_BODY int http_attempt::on_rewind(void* self, curl_off_t offset, int origin) noexcept {
  auto& a = *static_cast<http_attempt*>(self);
  if (origin != SEEK_SET || offset != 0) return CURL_SEEKFUNC_CANTSEEK;
  a.piece_ = a.place_ = 0;
  return CURL_SEEKFUNC_OK;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
