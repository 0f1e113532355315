// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/system/compiler.hpp>

#include <curl/curl.h>
#include <openssl/crypto.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A request to a service that gives credentials.
struct one_request {
  std::string method = "GET";
  std::string url = {};
  std::vector<std::string> headers = {};  ///< "name: value"
  std::string body = {};                  ///< of a POST
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(1);
  std::chrono::milliseconds timeout = std::chrono::seconds(2);  ///< of everything, the connection among it
  bool direct = true;  ///< through no proxy: what is asked for is nobody else's business

  /// What it holds may be secret.
  ~one_request();
};
struct one_answer {
  long status = 0;
  std::string body = {};

  one_answer() = default;
  one_answer(one_answer&& other) noexcept;
  one_answer& operator=(one_answer&&) = delete;
  ~one_answer();
};

/// Makes a request on this thread and waits for its end, until its timeout at most; nothing if no whole
/// answer of at most 64 KiB came. No redirect is followed. @throws std::bad_alloc
[[nodiscard]] std::optional<one_answer> ask_once(const one_request& request);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/one_request.ipp>
#endif
