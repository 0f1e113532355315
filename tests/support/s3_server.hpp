// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <support/s3_server_faults.hpp>
#include <support/s3_server_google.hpp>
#include <support/s3_server_objects.hpp>
#include <support/s3_server_signature.hpp>
#include <thread>
#include <vector>

/// A strict S3 server for tests: HTTP/1.1 on a port of the loopback interface, objects in memory, a thread
/// for each connection. It recomputes signatures, digests and checksums, keeps S3's rules on parts and
/// conditions, and plays the faults of a script. What it does not know it answers with NotImplemented.
namespace cairn_test::s3 {

struct server_options {
  std::uint16_t port = 0;  ///< 0: any that is free
  signature_check signatures;
  bool check_signatures = true;
  object_rules objects;
  std::chrono::microseconds latency{0};   ///< before each answer, and before a connection's first request
  std::uint64_t bytes_per_second = 0;     ///< of each connection, each way; 0: no limit
  std::int64_t clock_offset_seconds = 0;  ///< the server's clock is ahead by this
  bool all_addresses = false;  ///< of this host, for clients elsewhere; else the loopback interface
};

/// One request as the server saw it.
struct journal_entry {
  std::string operation;
  std::string key;
  std::string part;       ///< its number, or empty
  std::string range;      ///< as asked for
  std::string prefix;     ///< of a listing
  bool if_match = false;  ///< only of an object with a known ETag
  bool hashed = false;    ///< the SHA-256 of its body was signed
  std::string fault;      ///< the kind that was played
  std::string code;       ///< of the error that was answered
  int status = 0;         ///< 0: no answer
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t connection = 0;
  std::size_t in_flight = 0;  ///< requests that were being served when this one began, with it
  std::chrono::microseconds began{0};
  std::chrono::microseconds ended{0};  ///< 0: its answer is still being sent
  std::uint64_t number = 0;            ///< counted from 1 over the server's life
};

class server {
 public:
  using clock = std::chrono::steady_clock;

  /// Listens when this returns. Throws std::runtime_error.
  explicit server(server_options options = {})
      : options_(std::move(options)), clock_offset_(options_.clock_offset_seconds) {
    table_.rules = options_.objects;
    options_.signatures.google = options_.objects.google;
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (options_.bytes_per_second > 0) {
      // What waits in the kernel would not be held back by the limit.
      const int small = 64 * 1024;
      ::setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
      ::setsockopt(listener_, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(options_.all_addresses ? INADDR_ANY : INADDR_LOOPBACK);
    address.sin_port = htons(options_.port);
    socklen_t length = sizeof address;
    if (listener_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_, 256) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      if (listener_ >= 0) ::close(listener_);
      throw std::runtime_error("the S3 server cannot listen");
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  server(const server&) = delete;
  server& operator=(const server&) = delete;
  ~server() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (const auto& one : connections_) {
        if (one.socket >= 0) ::shutdown(one.socket, SHUT_RDWR);
      }
    }
    woken_.notify_all();
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (auto& one : connections_) one.thread.join();
    ::close(listener_);
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // Each of these may be called at any time, from any thread.
  fault_script faults;
  /// What the fault "kill" calls; set before there are clients.
  std::function<void()> on_kill;
  /// After such a fault: requests are served again.
  void revive() { dying_ = false; }
  /// Waits until all connections have ended; false if they have not in a minute.
  [[nodiscard]] bool await_silence() {
    std::unique_lock lock(mutex_);
    return silent_.wait_for(lock, std::chrono::minutes(1), [&] {
      return std::all_of(connections_.begin(), connections_.end(), [](const auto& c) { return c.ended; });
    });
  }
  object_table& objects() { return table_; }
  void set_clock_offset(std::int64_t seconds) { clock_offset_ = seconds; }
  void set_latency(std::chrono::microseconds latency) {
    const std::lock_guard lock(mutex_);
    options_.latency = latency;
  }
  /// Replaces the credentials that are accepted.
  void set_credentials(std::vector<credentials> accepted) {
    const std::lock_guard lock(mutex_);
    options_.signatures.accepted = std::move(accepted);
  }
  /// Has every request of which a client has seen a byte of the answer, or has seen that there is none.
  [[nodiscard]] std::vector<journal_entry> journal() const {
    const std::lock_guard lock(mutex_);
    return journal_;
  }
  void clear_journal() {
    const std::lock_guard lock(mutex_);
    journal_.clear();
  }
  /// From now on no rule "gather" holds a request.
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    woken_.notify_all();
  }
  /// How many requests of this operation came since the journal was cleared.
  [[nodiscard]] std::size_t count(std::string_view operation) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count_if(
        journal_.begin(), journal_.end(),
        [&](const journal_entry& entry) { return operation == "*" || entry.operation == operation; }));
  }

 private:
  struct connection {
    std::thread thread;
    int socket = -1;
    bool ended = false;
  };

  /// Slows a stream down to so many bytes a second.
  struct pacer {
    std::uint64_t bytes_per_second = 0;
    clock::time_point next{};
  };

  void accept_all() {
    for (std::uint64_t number = 1;; ++number) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        if (socket >= 0) ::close(socket);
        return;
      }
      for (auto at = connections_.begin(); at != connections_.end();) {
        if (at->ended) {
          at->thread.join();
          at = connections_.erase(at);
        } else {
          ++at;
        }
      }
      if (socket < 0) continue;
      const int on = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      connections_.emplace_back();
      connection& made = connections_.back();
      made.socket = socket;
      made.thread = std::thread([this, &made, socket, number] {
        try {
          serve(socket, number);
        } catch (const std::exception& failure) {
          std::fprintf(stderr, "S3 server: %s\n", failure.what());
        }
        const std::lock_guard ending(mutex_);
        ::close(made.socket);
        made.socket = -1;
        made.ended = true;
        silent_.notify_all();
      });
    }
  }

  /// False when the server ends first.
  bool pause_until(clock::time_point when) {
    std::unique_lock lock(mutex_);
    woken_.wait_until(lock, when, [&] { return stopping_; });
    return !stopping_;
  }
  bool pause(std::chrono::microseconds time) { return time.count() == 0 || pause_until(clock::now() + time); }
  /// Waits until so many requests wait here, including this one, or until release(), or until the time is
  /// over; false if the server ends first.
  bool gather(std::uint64_t count, std::uint64_t milliseconds) {
    std::unique_lock lock(mutex_);
    const auto round = gather_round_;
    if (++gathered_ >= count) {
      gathered_ = 0;
      ++gather_round_;
      woken_.notify_all();
    }
    woken_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                    [&] { return stopping_ || released_ || gather_round_ != round; });
    return !stopping_;
  }
  bool keep_pace(pacer& pace, std::size_t bytes) {
    if (pace.bytes_per_second == 0) return true;
    // A sleep that took too long is compensated by the next ones.
    pace.next = std::max(pace.next, clock::now() - std::chrono::milliseconds(20)) +
                std::chrono::nanoseconds(static_cast<std::int64_t>(
                    1e9 * static_cast<double>(bytes) / static_cast<double>(pace.bytes_per_second)));
    return pause_until(pace.next);
  }

  static void reset(int socket) {
    const linger at_once{1, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

  bool send_all(int socket, std::string_view data, pacer& pace) {
    while (!data.empty()) {
      std::size_t piece = data.size();
      if (pace.bytes_per_second > 0) {
        piece =
            std::min<std::size_t>(piece, std::clamp<std::size_t>(pace.bytes_per_second / 100, 1, 128 * 1024));
      }
      const ssize_t sent = ::send(socket, data.data(), piece, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      data.remove_prefix(static_cast<std::size_t>(sent));
      if (!keep_pace(pace, static_cast<std::size_t>(sent))) return false;
    }
    return true;
  }

  [[nodiscard]] std::time_t now() const {
    return std::time(nullptr) + static_cast<std::time_t>(clock_offset_.load());
  }
  [[nodiscard]] std::chrono::microseconds since_start() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(clock::now() - started_);
  }

  /// The head of a request; nothing where it cannot be understood.
  static std::optional<http_request> parse_head(std::string_view head) {
    http_request request;
    const auto line_end = head.find("\r\n");
    const std::string_view line = head.substr(0, line_end);
    const auto first = line.find(' ');
    const auto second = line.rfind(' ');
    if (first == std::string_view::npos || first == second || line.substr(second + 1) != "HTTP/1.1")
      return std::nullopt;
    request.method = line.substr(0, first);
    const std::string_view target = line.substr(first + 1, second - first - 1);
    if (target.empty() || target[0] != '/') return std::nullopt;
    const auto question = target.find('?');
    request.raw_path = target.substr(0, question);
    std::string_view query =
        question == std::string_view::npos ? std::string_view() : target.substr(question + 1);
    while (!query.empty()) {
      const auto end = query.find('&');
      const std::string_view field = query.substr(0, end);
      const auto equals = field.find('=');
      const auto name = percent_decoded(field.substr(0, equals));
      const auto value =
          percent_decoded(equals == std::string_view::npos ? std::string_view() : field.substr(equals + 1));
      if (!name || !value) return std::nullopt;
      request.parameters.emplace_back(*name, *value);
      query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    }
    std::set<std::string> seen;
    for (std::string_view rest = head.substr(line_end + 2); !rest.empty();) {
      const auto end = rest.find("\r\n");
      const std::string_view field = rest.substr(0, end);
      const auto colon = field.find(':');
      if (colon == std::string_view::npos || colon == 0) return std::nullopt;
      std::string name = lower(field.substr(0, colon));
      if (!seen.insert(name).second) return std::nullopt;
      request.headers.emplace_back(std::move(name), trimmed(field.substr(colon + 1)));
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 2);
    }
    return request;
  }

  /// Names the operation, bucket and key; an error to answer where there is none.
  static std::optional<http_reply> classify(http_request& request) {
    const auto* host = request.header("host");
    if (host == nullptr) return error_reply(400, "InvalidRequest", "There is no Host header");
    auto path = percent_decoded(request.raw_path);
    if (!path) return error_reply(400, "InvalidURI", "Couldn't parse the specified URI.");
    const std::string name = host->substr(0, host->find(':'));
    static constexpr std::string_view domain = ".localhost";
    if (name.size() > domain.size() &&
        name.compare(name.size() - domain.size(), domain.size(), domain) == 0) {
      request.bucket = name.substr(0, name.size() - domain.size());
      request.key = path->substr(1);
    } else {
      const auto slash = path->find('/', 1);
      request.bucket = path->substr(1, slash == std::string::npos ? slash : slash - 1);
      if (slash != std::string::npos) request.key = path->substr(slash + 1);
    }
    if (request.bucket.empty()) return error_reply(501, "NotImplemented", "There is no list of buckets here");
    struct shape {
      std::string_view method;
      bool has_key;
      std::string_view must;  // a parameter that names the operation
      std::string_view may;   // others, each between spaces
      std::string_view operation;
    };
    static constexpr std::array<shape, 14> shapes = {{
        {"PUT", true, "partNumber", " uploadId ", "UploadPart"},
        {"PUT", true, "", "", "PutObject"},
        {"PUT", false, "", "", "CreateBucket"},
        {"GET", true, "uploadId", " max-parts part-number-marker ", "ListParts"},
        {"GET", true, "", "", "GetObject"},
        {"GET", false, "uploads", " prefix delimiter key-marker upload-id-marker max-uploads encoding-type ",
         "ListMultipartUploads"},
        {"GET", false, "list-type",
         " prefix delimiter max-keys continuation-token start-after encoding-type fetch-owner ",
         "ListObjectsV2"},
        {"HEAD", true, "", "", "HeadObject"},
        {"HEAD", false, "", "", "HeadBucket"},
        {"POST", true, "uploads", "", "CreateMultipartUpload"},
        {"POST", true, "uploadId", "", "CompleteMultipartUpload"},
        {"POST", false, "delete", "", "DeleteObjects"},
        {"DELETE", true, "uploadId", "", "AbortMultipartUpload"},
        {"DELETE", true, "", "", "DeleteObject"},
    }};
    for (const auto& one : shapes) {
      if (one.method != request.method || one.has_key != !request.key.empty()) continue;
      if (!one.must.empty() && request.parameter(one.must) == nullptr) continue;
      const bool all_known =
          std::all_of(request.parameters.begin(), request.parameters.end(), [&](const auto& parameter) {
            return parameter.first == one.must ||
                   one.may.find(" " + parameter.first + " ") != std::string_view::npos;
          });
      if (!all_known) continue;
      request.operation = one.operation;
      break;
    }
    const bool copy = request.header("x-amz-copy-source") != nullptr && request.operation != "UploadPart";
    if (request.operation == "UploadPart" && request.header("x-amz-copy-source") != nullptr)
      request.operation = "UploadPartCopy";
    if (request.operation.empty() || copy ||
        (request.operation.starts_with("UploadPart") && request.parameter("uploadId") == nullptr)) {
      request.operation = "Unknown";
      return error_reply(501, "NotImplemented", "The request implies functionality that is not implemented");
    }
    return std::nullopt;
  }

  void serve(int socket, std::uint64_t number) {
    pacer in{options_.bytes_per_second, {}};
    pacer out{options_.bytes_per_second, {}};
    if (!pause(latency())) return;
    std::string received;
    while (serve_one(socket, number, received, in, out)) {
    }
  }
  std::chrono::microseconds latency() const {
    const std::lock_guard lock(mutex_);
    return options_.latency;
  }

  /// One request; false where the connection ends.
  bool serve_one(int socket, std::uint64_t number, std::string& received, pacer& in, pacer& out) {
    std::array<char, 128 * 1024> buffer;  // NOLINT: read into
    std::size_t end = 0;
    while ((end = received.find("\r\n\r\n")) == std::string::npos) {
      if (received.size() > 64 * 1024) return false;
      const ssize_t got = ::recv(socket, buffer.data(), buffer.size(), 0);
      if (got <= 0) return false;
      received.append(buffer.data(), static_cast<std::size_t>(got));
    }
    journal_entry entry;
    entry.connection = number;
    entry.began = since_start();
    entry.in_flight = ++in_flight_;
    struct landing {
      server& self;
      journal_entry& entry;
      ~landing() {
        --self.in_flight_;
        entry.ended = self.since_start();
        self.record(entry);
      }
    } landing{*this, entry};

    auto parsed = parse_head(std::string_view(received).substr(0, end));
    received.erase(0, end + 4);
    if (!parsed) {
      entry.operation = "Unreadable";
      answer(socket, error_reply(400, "BadRequest", "The request cannot be understood"), {}, entry, false,
             out, std::nullopt);
      return false;
    }
    http_request& request = *parsed;
    auto refused = classify(request);
    entry.operation = request.operation;
    entry.key = request.key;
    if (const auto* part = request.parameter("partNumber")) entry.part = *part;
    if (const auto* range = request.header("range")) entry.range = *range;
    if (const auto* prefix = request.parameter("prefix")) entry.prefix = *prefix;
    entry.if_match = request.header("if-match") != nullptr;
    if (const auto* hash = request.header("x-amz-content-sha256")) entry.hashed = hash->size() == 64;
    const auto met = faults.next(request);
    if (met) entry.fault = met->kind;
    record(entry);
    const std::string kind = met ? met->kind : std::string();
    if (kind == "reset_before") {
      reset(socket);
      return false;
    }
    // A process that is about to be killed waits here until it is.
    const std::string kills = kind == "kill" ? met->text("at") : std::string();
    if (kills.empty() ? dying_.load() : dying_.exchange(true)) return false;
    if (kills == "head") {
      on_kill();
      return false;
    }
    if (!refused && options_.check_signatures) {
      const std::lock_guard lock(mutex_);
      refused = options_.signatures.refuse(request, now());
    }
    if (!refused && options_.objects.google) refused = from_google(request);
    if (kind == "error" && met->number("early", 0) != 0) refused = error_of(*met);

    std::uint64_t length = 0;
    const auto* length_text = request.header("content-length");
    if (request.header("transfer-encoding") != nullptr ||
        (length_text == nullptr && request.method == "PUT")) {
      answer(socket,
             error_reply(411, "MissingContentLength", "You must provide the Content-Length HTTP header."),
             request, entry, false, out, std::nullopt);
      return false;
    }
    if (length_text != nullptr) {
      const auto value = number_of(*length_text);
      if (!value || *value > (std::uint64_t{6} << 30U)) {
        answer(socket, error_reply(400, "InvalidArgument", "Content-Length"), request, entry, false, out,
               std::nullopt);
        return false;
      }
      length = *value;
    }
    const auto* expect = request.header("expect");
    const bool continues = expect != nullptr && lower(*expect) == "100-continue" && length > 0;
    if (refused && (continues || kind == "error")) {
      pause(latency());
      answer(socket, *refused, request, entry, false, out, std::nullopt);
      return false;
    }
    if (continues && !send_all(socket, "HTTP/1.1 100 Continue\r\n\r\n", out)) return false;

    // The body, hashed while it comes.
    running_hash sha256(EVP_sha256());
    running_hash md5(EVP_md5());
    const auto* payload = request.header("x-amz-content-sha256");
    const bool wants_sha256 =
        options_.check_signatures && payload != nullptr && *payload != "UNSIGNED-PAYLOAD";
    const bool wants_md5 = !options_.objects.opaque_etags && length > 0;
    const std::uint64_t cut = kind == "reset_in_body" || kills == "body"
                                  ? std::min(met->number("after", length / 2), length)
                                  : UINT64_MAX;
    request.body.reserve(length);
    const auto take = [&](std::string_view piece) {
      if (wants_sha256) sha256.add(piece);
      if (wants_md5) md5.add(piece);
      request.body.append(piece);
    };
    const std::size_t already = std::min<std::size_t>(received.size(), length);
    take(std::string_view(received).substr(0, already));
    received.erase(0, already);
    while (request.body.size() < std::min(length, cut)) {
      const ssize_t got = ::recv(socket, buffer.data(),
                                 std::min<std::size_t>(buffer.size(), length - request.body.size()), 0);
      if (got <= 0) return false;
      take({buffer.data(), static_cast<std::size_t>(got)});
      if (!keep_pace(in, static_cast<std::size_t>(got))) return false;
    }
    entry.bytes_in = request.body.size();
    if (kills == "body") on_kill();
    if (cut != UINT64_MAX || kind == "reset_after") {
      reset(socket);
      return false;
    }
    request.body_sha256 = hex_of(wants_sha256 ? sha256.finish() : std::string());
    request.body_md5 = wants_md5 || options_.objects.opaque_etags ? md5.finish() : hash_of(EVP_md5(), "");

    if (kind == "stall") {
      pollfd waiting{socket, POLLRDHUP, 0};
      ::poll(&waiting, 1, static_cast<int>(met->number("ms", 600000)));
      return false;
    }
    if (kind == "gather" && !gather(met->number("count", 2), met->number("ms", 30'000))) return false;
    if (!pause(latency() + std::chrono::milliseconds(kind == "delay" ? met->number("ms", 100) : 0)))
      return false;
    if (!refused && options_.check_signatures) refused = signature_check::refuse_body(request);
    http_reply reply;
    if (refused) {
      reply = *refused;
    } else if (met && !does_the_work(*met)) {
      reply = without_work(*met);
    } else {
      if (kind == "changed") table_.touch(request.bucket, request.key);
      if (kind == "whole_object" || kind == "wrong_range" || kind == "short_range") bend_range(request, *met);
      if (kind == "damage") damage(request, *met);
      reply = table_.perform(request, now());
    }
    if (kills == "done") on_kill();
    if (kind == "lost_reply" || kills == "done") {
      reset(socket);
      return false;
    }
    const auto* close = request.header("connection");
    const bool keep = (close == nullptr || lower(*close) != "close") && kind != "hang_up";
    const bool goes_on = answer(socket, std::move(reply), request, entry, keep, out, met) && keep;
    if (kills == "told") on_kill();
    return goes_on && kills.empty();
  }

  static http_reply error_of(const fault& made) {
    auto reply = error_reply(static_cast<int>(made.number("status", 500)), made.text("code", "InternalError"),
                             made.text("says", "We encountered an internal error. Please try again."));
    if (const auto after = made.text("retry_after"); !after.empty()) reply.set("Retry-After", after);
    return reply;
  }

  static bool does_the_work(const fault& made) {
    static const std::set<std::string> without{"error", "garbage", "not_done", "redirect"};
    static const std::set<std::string> asked{"error_in_200", "empty"};
    if (made.kind == "whitespace")
      return made.text("then") == "done" || made.text("then").empty() || made.number("done", 0) != 0;
    if (asked.contains(made.kind)) return made.number("done", 0) != 0;
    return !without.contains(made.kind);
  }

  http_reply without_work(const fault& made) const {
    if (made.kind == "error") return error_of(made);
    http_reply reply;
    reply.set("Content-Type", "application/xml");
    reply.status = static_cast<int>(made.number("status", made.kind == "not_done"   ? 204
                                                          : made.kind == "redirect" ? 301
                                                                                    : 200));
    if (made.kind == "redirect") {
      const std::string region = made.text("region", "eu-west-1");
      reply = error_reply(
          reply.status, reply.status == 307 ? "TemporaryRedirect" : "PermanentRedirect",
          "The bucket you are attempting to access must be addressed using the specified endpoint.",
          xml_element("Endpoint", "elsewhere.invalid"));
      reply.set("x-amz-bucket-region", region);
      reply.set("Location", "http://elsewhere.invalid/");
    } else if (made.kind == "garbage") {
      const std::string body = made.text("body", "html");
      if (body == "html") {
        reply.set("Content-Type", "text/html");
        reply.body =
            "<!DOCTYPE html><html><head><title>Sign in</title></head><body>Welcome to our "
            "network<br></body></html>";
      } else if (body == "bomb") {
        reply.body =
            "<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b "
            "\"&a;&a;&a;&a;&a;&a;&a;&a;\">"
            "<!ENTITY c \"&b;&b;&b;&b;&b;&b;&b;&b;\">]><Error><Code>&c;&c;&c;</Code></Error>";
      } else if (body == "nested") {
        for (int i = 0; i < 100000; ++i) reply.body += "<a>";
      } else if (body == "huge") {
        reply.body =
            std::string(xml_declaration) + "<Error><Code>" + std::string(40U << 20U, 'x') + "</Code></Error>";
      } else if (body == "binary") {
        for (int i = 0; i < 4096; ++i) reply.body += static_cast<char>((i * 37 + 11) & 255);
      } else {
        reply.body = std::string(xml_declaration) +
                     "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Na";
      }
    }
    return reply;
  }

  static void damage(http_request& request, const fault& made) {
    if (request.body.empty()) return;
    if (made.number("cut", 0) != 0)
      request.body.pop_back();
    else
      request.body[request.body.size() / 2] ^= 1;
    static constexpr std::string_view prefix = "x-amz-checksum-";
    for (auto& [name, value] : request.headers)
      if (name.starts_with(prefix))
        if (const auto sum = checksum_of(name.substr(prefix.size()), request.body)) value = base64_of(*sum);
  }

  static void bend_range(http_request& request, const fault& made) {
    for (auto& [name, value] : request.headers) {
      if (name != "range") continue;
      if (made.kind == "whole_object") value = "none";
      const auto dash = value.find('-');
      const auto first =
          number_of(std::string_view(value).substr(0, dash).substr(std::min<std::size_t>(6, value.size())));
      const auto last =
          dash == std::string::npos ? std::nullopt : number_of(std::string_view(value).substr(dash + 1));
      if (!first || !last) continue;
      const std::uint64_t by = made.number("by", 1);
      if (made.kind == "wrong_range")
        value = "bytes=" + std::to_string(*first + by) + "-" + std::to_string(*last + by);
      if (made.kind == "short_range")
        value = "bytes=" + std::to_string(*first) + "-" + std::to_string(*first + (*last - *first) / 2);
    }
  }

  /// Called before anything that a client can notice, so that none knows more than the journal, and once more
  /// at the request's end.
  void record(journal_entry& entry) {
    const std::lock_guard lock(mutex_);
    if (entry.number == 0) {
      entry.number = ++recorded_;
      journal_.push_back(entry);
      return;
    }
    const auto place = std::find_if(journal_.rbegin(), journal_.rend(),
                                    [&](const journal_entry& other) { return other.number == entry.number; });
    if (place != journal_.rend()) *place = entry;  // not there: the journal was cleared meanwhile
  }

  /// False where the connection ends.
  bool answer(int socket, http_reply reply, const http_request& request, journal_entry& entry, bool keep,
              pacer& out, const std::optional<fault>& met) {
    const std::string kind = met ? met->kind : std::string();
    entry.status = reply.status;
    entry.code = reply.code;
    const std::string id = "R" + std::to_string(++requests_);
    if (const auto at = reply.body.find("@REQUEST@"); at != std::string::npos) reply.body.replace(at, 9, id);
    if (kind == "error_in_200") {
      auto error = error_of(*met);
      reply.status = 200;
      reply.body = error.body;
    }
    if (options_.objects.google) to_google(reply);
    if (kind == "empty") reply.body.clear();
    if (kind == "flip" && !reply.body.empty())
      reply.body[reply.body.size() / 2] = static_cast<char>(reply.body[reply.body.size() / 2] ^ 16);
    if (kind == "wrong_etag") reply.set("ETag", "\"0123456789abcdef0123456789abcdef\"");
    if (kind == "no_etag") reply.remove("ETag");
    const bool no_body = request.method == "HEAD" || reply.status == 204 || reply.status == 304;
    const bool spaces = kind == "whitespace" && !no_body;
    if (no_body && request.method != "HEAD") reply.remove("Content-Length");
    const bool has_length = std::any_of(reply.headers.begin(), reply.headers.end(),
                                        [](const auto& header) { return header.first == "Content-Length"; });
    if (!spaces && !no_body && (!has_length || kind == "flip" || kind == "empty")) {
      reply.set("Content-Length", std::to_string(reply.body.size()));
    }
    if (no_body) reply.body.clear();
    if (kind == "reset_in_reply" && met->number("no_length", 0) != 0) reply.remove("Content-Length");
    if (spaces) {
      reply.remove("Content-Length");
      reply.set("Transfer-Encoding", "chunked");
    }
    std::string head =
        "HTTP/1.1 " + std::to_string(reply.status) + " " + std::string(reason_of(reply.status)) + "\r\n";
    for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
    const std::time_t time = now();
    std::tm parts{};
    ::gmtime_r(&time, &parts);
    std::array<char, 64> date{};
    std::strftime(date.data(), date.size(), "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &parts);
    head += date.data();
    head += "Server: scripted\r\n";
    head += (options_.objects.google ? "x-guploader-uploadid: " : "x-amz-request-id: ") + id + "\r\n";
    if (kind == "header") {
      std::string line = met->text("text");
      std::replace(line.begin(), line.end(), '~', ' ');
      head += line + "\r\n";
    }
    if (!keep && kind != "hang_up") head += "Connection: close\r\n";
    head += "\r\n";
    entry.bytes_out = reply.body.size();
    record(entry);
    if (spaces) return send_with_spaces(socket, head, reply, *met, out);
    if (kind == "reset_in_reply") {
      const std::uint64_t half = met->number("after", reply.body.size() / 2);
      if (reply.body.empty()) {
        send_all(socket, std::string_view(head).substr(0, 10), out);
      } else {
        send_all(socket, head + reply.body.substr(0, half), out);
      }
      // A reset may overtake what was sent; an end in the middle may not.
      ::shutdown(socket, SHUT_WR);
      return false;
    }
    if (kind == "slow") {
      pacer slow{met->number("rate", 100), {}};
      return send_all(socket, head + reply.body, slow);
    }
    if (reply.body.size() < 64 * 1024) return send_all(socket, head + reply.body, out);
    return send_all(socket, head, out) && send_all(socket, reply.body, out);
  }

  /// As CompleteMultipartUpload answers when it takes long: the declaration, then spaces, then the result.
  bool send_with_spaces(int socket, const std::string& head, const http_reply& reply, const fault& made,
                        pacer& out) {
    const auto chunk = [](std::string_view data) {
      std::array<char, 24> size{};
      std::snprintf(size.data(), size.size(), "%zx\r\n", data.size());
      return size.data() + std::string(data) + "\r\n";
    };
    if (!send_all(socket, head + chunk(xml_declaration), out)) return false;
    const auto until = clock::now() + std::chrono::milliseconds(made.number("ms", 50));
    while (clock::now() < until) {
      if (!send_all(socket, chunk(" "), out) || !pause(std::chrono::milliseconds(10))) return false;
    }
    const std::string then = made.text("then");
    std::string body =
        reply.body.rfind(xml_declaration, 0) == 0 ? reply.body.substr(xml_declaration.size()) : reply.body;
    if (then == "cut") {
      send_all(socket, chunk(std::string_view(body).substr(0, body.size() / 2)), out);
      return false;
    }
    if (then == "error") body = error_of(made).body.substr(xml_declaration.size());
    if (body.empty()) return send_all(socket, "0\r\n\r\n", out);
    return send_all(socket, chunk(body) + "0\r\n\r\n", out);
  }

  server_options options_;
  object_table table_;
  std::atomic<std::int64_t> clock_offset_{0};
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::size_t> in_flight_{0};
  std::atomic<bool> dying_{false};
  const clock::time_point started_ = clock::now();
  int listener_ = -1;
  std::uint16_t port_ = 0;
  mutable std::mutex mutex_;  // over all that follows, and options_ where it changes
  std::condition_variable woken_;
  std::condition_variable silent_;
  bool stopping_ = false;
  std::list<connection> connections_;
  std::vector<journal_entry> journal_;
  std::uint64_t recorded_ = 0;
  std::uint64_t gathered_ = 0;
  std::uint64_t gather_round_ = 0;
  bool released_ = false;
  std::thread acceptor_;
};

}  // namespace cairn_test::s3
