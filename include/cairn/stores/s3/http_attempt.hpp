// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/http_call.hpp>

#include <curl/curl.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How an http_transport connects.
struct http_settings {
  bool verify_tls = true;
  bool direct = false;  ///< through no proxy, whatever the environment says
  std::string ca_file;
  std::chrono::milliseconds connect_timeout;
  std::chrono::seconds stalled_after;
  std::size_t max_at_once = 16;
  CURLSH* sessions = nullptr;  ///< of TLS, which new connections go on with; of the transport's thread
};

/// One attempt of a call by libcurl: what it sends, what comes, and how it ended. Of the transport's thread;
/// it stays at its address while libcurl has its handle.
class http_attempt {
 public:
  /// Begins an attempt of a call that is prepared. @throws std::bad_alloc
  http_attempt(std::shared_ptr<http_call> call, const http_settings& settings, bool fresh_connection);
  http_attempt(const http_attempt&) = delete;
  http_attempt& operator=(const http_attempt&) = delete;
  ~http_attempt();

  [[nodiscard]] const std::shared_ptr<http_call>& call() const noexcept { return call_; }
  [[nodiscard]] CURL* easy() const noexcept { return easy_; }

  /// Whether the server has not answered the wish for a connection for 0.25, 0.5 and then 1 s. What asks for one may be
  /// lost on the way, and the system asks again only after a second.
  [[nodiscard]] bool connects_long() const noexcept;
  /// Goes back to its beginning. @pre connects_long(), and libcurl does not have its handle
  void begin_again() noexcept;

  /// Notes in the call how it ended, by what libcurl says.
  void conclude(CURLcode code) noexcept;

 private:
  void free() noexcept;
  void set_up(const http_settings& settings, bool fresh_connection);
  void add_header(const char* line);

  [[nodiscard]] static http_end meaning(CURLcode code) noexcept;

  [[nodiscard]] static certificate_problem certificate_problem_of(CURLcode code, CURL* easy) noexcept;

  // No exception may cross libcurl's frames.
  static std::size_t on_header(char* data, std::size_t, std::size_t bytes, void* self) noexcept;
  static int on_socket(void* self, curl_socket_t number, curlsocktype purpose) noexcept;
  static int on_send(void* self, char* their_address, char* our_address, int their_port,
                     int our_port) noexcept;
  static std::size_t on_answer(char* data, std::size_t, std::size_t bytes, void* self) noexcept;
  static std::size_t on_body(char* to, std::size_t, std::size_t room, void* self) noexcept;
  static int on_rewind(void* self, curl_off_t offset, int origin) noexcept;

  std::shared_ptr<http_call> call_;
  CURL* easy_;
  curl_slist* headers_ = nullptr;
  std::size_t piece_ = 0;  // of the body, and the place in it
  std::size_t place_ = 0;
  std::size_t header_bytes_ = 0;
  int begun_again_ = 0;
  std::optional<std::chrono::steady_clock::time_point> socket_since_;  // the last one that connects
  bool sent_ = false;
  bool refused_ = false;
  std::array<char, CURL_ERROR_SIZE> words_{};
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/http_attempt.ipp>
#endif
