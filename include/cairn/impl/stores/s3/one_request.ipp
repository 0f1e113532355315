// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/one_request.hpp>

#include <curl/curl.h>
#include <openssl/crypto.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY one_request::~one_request() {
  for (auto& h : headers) ::OPENSSL_cleanse(h.data(), h.size());
  ::OPENSSL_cleanse(body.data(), body.size());
}

CAIRN_BODY one_answer::one_answer(one_answer&& other) noexcept
    : status(other.status), body(std::exchange(other.body, {})) {}

CAIRN_BODY one_answer::~one_answer() {
  ::OPENSSL_cleanse(body.data(), body.size());
}

CAIRN_BODY std::optional<one_answer> ask_once(const one_request& request) {
  const std::unique_ptr<CURL, decltype(&::curl_easy_cleanup)> easy(::curl_easy_init(), &::curl_easy_cleanup);
  if (!easy) throw std::bad_alloc();
  auto* const e = easy.get();
  curl_slist* list = nullptr;
  for (const auto& line : request.headers) {
    auto* const longer = ::curl_slist_append(list, line.c_str());
    if (longer == nullptr) {
      ::curl_slist_free_all(list);
      throw std::bad_alloc();
    }
    list = longer;
  }
  const std::unique_ptr<curl_slist, decltype(&::curl_slist_free_all)> headers(list, &::curl_slist_free_all);
  one_answer answer;
  answer.body.reserve(std::size_t{64} << 10);  // it does not move, and leaves no copies
  using write_function = std::size_t (*)(char*, std::size_t, std::size_t, void*);
  const write_function write = [](char* data, std::size_t, std::size_t bytes,
                                  void* to) noexcept -> std::size_t {
    auto& text = *static_cast<std::string*>(to);
    if (bytes > text.capacity() - text.size()) return 0;
    text.append(data, bytes);
    return bytes;
  };
  ::curl_easy_setopt(e, CURLOPT_URL, request.url.c_str());
  ::curl_easy_setopt(e, CURLOPT_HTTPHEADER, list);
  ::curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L);  // else its end waits for the resolver
  ::curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
  ::curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
  if (request.direct) ::curl_easy_setopt(e, CURLOPT_NOPROXY, "*");
  if (const char* authorities = std::getenv("AWS_CA_BUNDLE"); authorities != nullptr && *authorities != '\0')
    ::curl_easy_setopt(e, CURLOPT_CAINFO, authorities);
  ::curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_timeout.count()));
  ::curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
  ::curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, write);
  ::curl_easy_setopt(e, CURLOPT_WRITEDATA, &answer.body);
  ::curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  if (request.method == "POST") {
    ::curl_easy_setopt(e, CURLOPT_POSTFIELDS, request.body.c_str());
    ::curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  } else if (request.method == "PUT") {
    ::curl_easy_setopt(e, CURLOPT_POSTFIELDS, "");
  }
  if (::curl_easy_perform(e) != CURLE_OK) return std::nullopt;
  ::curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &answer.status);
  return answer;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
