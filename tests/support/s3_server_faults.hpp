// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <support/s3_server_http.hpp>
#include <vector>

/// Which request of the scripted S3 server meets which fault.
///
/// A rule is one line: KIND REQUEST WHEN [NAME=VALUE]...
/// - REQUEST: an operation of S3 (PutObject, UploadPart, ...), or *
/// - WHEN: all, first, N, N-M, N+ (the N-th and all later), or every:K; it counts the requests that match
/// - key=TEXT: only requests whose key holds TEXT; part=N: only that part
///
/// Kinds, with what else they read:
/// - error: status=500 code=InternalError retry_after=S says=WORD, after the body was read; early=1: before
/// - reset_before: the connection is reset when the head has come
/// - reset_in_body: ... after=BYTES of the request's body (default: half of it)
/// - reset_after: ... when the body has come; nothing is done
/// - lost_reply: the work is done, the connection is reset in place of an answer
/// - reset_in_reply: the work is done, the answer ends after=BYTES of its body (default: half of it);
///   no_length=1: it does not say how long it is, as that of a proxy that closes the connection behind it
/// - hang_up: the connection is closed after a good answer that did not say so
/// - error_in_200: code=InternalError, status 200; done=1: although the work is done
/// - whitespace: spaces for ms=N before the result; then=error|cut|done: an error, nothing, or the result
/// - empty: a good status without a body; nothing is done; done=1: although it is
/// - garbage: body=html|bomb|nested|cut|huge|binary with status=200; nothing is done
/// - slow: the answer comes with rate=BYTES a second
/// - stall: no answer for ms=N (default: until the client gives up)
/// - delay: the answer comes ms=N later
/// - gather: no answer until count=N requests have met this, or release() of the server, or for ms=N (30000)
/// - short_range: the answer to a ranged read has fewer bytes, and says so
/// - wrong_range: ... is a range by=N further, and says so
/// - whole_object: a ranged read is answered with 200 and all bytes
/// - flip: one bit of the answer's body is another
/// - wrong_etag: the answer's ETag is another; no_etag: it has none
/// - changed: the object got another ETag just before
/// - damage: one bit of the request's body is another, or with cut=1 its last byte is missing, and its checksum is that of
///   what is left of it
/// - not_done: the answer of success (status=204), with nothing done
/// - redirect: status=301|307 region=R: to another region, or with Location: to a host that is not there
/// - header: text=LINE: this line among the answer's headers (~ is read as a space)
/// - kill: at=head|body|done|told: on_kill of the server is called when the head has come, half of the body,
///   when the work is done, or after the answer; the connection ends, and no later request is served until
///   revive()
namespace cairn_test::s3 {

struct fault {
  std::string kind;
  std::map<std::string, std::string> values;
  [[nodiscard]] std::string text(const std::string& name, std::string fallback = {}) const {
    const auto at = values.find(name);
    return at == values.end() ? fallback : at->second;
  }
  [[nodiscard]] std::uint64_t number(const std::string& name, std::uint64_t fallback) const {
    const auto at = values.find(name);
    if (at == values.end()) return fallback;
    const auto value = number_of(at->second);
    if (!value) throw std::invalid_argument("a fault's " + name + " is no number: " + at->second);
    return *value;
  }
};

class fault_script {
 public:
  /// Throws std::invalid_argument for a line that is no rule. Lines that are empty or begin with # are none.
  void add(const std::string& line) {
    std::vector<std::string> words;
    for (std::size_t at = 0; at < line.size();) {
      const auto end = std::min(line.find(' ', at), line.size());
      if (end > at) words.push_back(line.substr(at, end - at));
      at = end + 1;
    }
    if (words.empty() || words[0][0] == '#') return;
    if (words.size() < 3)
      throw std::invalid_argument("a fault is KIND REQUEST WHEN [NAME=VALUE]..., not: " + line);
    rule made;
    made.made.kind = words[0];
    made.operation = words[1];
    static constexpr std::array<std::string_view, 28> kinds = {
        "error",      "reset_before", "reset_in_body", "reset_after", "lost_reply",   "reset_in_reply",
        "hang_up",    "error_in_200", "whitespace",    "empty",       "garbage",      "slow",
        "stall",      "delay",        "short_range",   "wrong_range", "whole_object", "flip",
        "wrong_etag", "no_etag",      "changed",       "not_done",    "redirect",     "header",
        "none",       "kill",         "gather",        "damage"};
    if (std::find(kinds.begin(), kinds.end(), words[0]) == kinds.end())
      throw std::invalid_argument("no fault: " + words[0]);
    const std::string& when = words[2];
    const auto number = [&](std::string_view text) {
      const auto value = number_of(text);
      if (!value || *value == 0) throw std::invalid_argument("when is a fault " + when + "?");
      return *value;
    };
    if (when == "all") {
      made.last = UINT64_MAX;
    } else if (when == "first") {
    } else if (when.rfind("every:", 0) == 0) {
      made.every = number(when.substr(6));
      made.last = UINT64_MAX;
    } else if (when.back() == '+') {
      made.first = number(when.substr(0, when.size() - 1));
      made.last = UINT64_MAX;
    } else if (const auto dash = when.find('-'); dash != std::string::npos) {
      made.first = number(when.substr(0, dash));
      made.last = number(when.substr(dash + 1));
    } else {
      made.first = made.last = number(when);
    }
    for (std::size_t i = 3; i < words.size(); ++i) {
      const auto equals = words[i].find('=');
      if (equals == std::string::npos) throw std::invalid_argument("a fault's word without =: " + words[i]);
      made.made.values[words[i].substr(0, equals)] = words[i].substr(equals + 1);
    }
    const std::lock_guard lock(mutex_);
    rules_.push_back(std::move(made));
  }

  /// From now on, `percent` of all requests meet one of `faults` (their WHEN says nothing).
  void at_random(unsigned percent, std::uint64_t seed, const std::vector<std::string>& faults) {
    fault_script parsed;
    for (const auto& line : faults) parsed.add(line);
    const std::lock_guard lock(mutex_);
    percent_ = percent;
    random_.seed(seed);
    random_faults_ = std::move(parsed.rules_);
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    rules_.clear();
    random_faults_.clear();
    percent_ = 0;
  }

  /// The fault that this request meets; counts the request.
  std::optional<fault> next(const http_request& request) {
    const std::lock_guard lock(mutex_);
    std::optional<fault> out;
    for (auto& one : rules_) {
      if (!matches(one, request)) continue;
      ++one.seen;
      if (!out && one.seen >= one.first && one.seen <= one.last && one.seen % one.every == 0) out = one.made;
    }
    if (!out && percent_ > 0 && random_() % 100 < percent_) {
      std::vector<const rule*> possible;
      for (const auto& one : random_faults_) {
        if (matches(one, request)) possible.push_back(&one);
      }
      if (!possible.empty()) out = possible[random_() % possible.size()]->made;
    }
    return out;
  }

 private:
  struct rule {
    fault made;
    std::string operation;
    std::uint64_t first = 1;
    std::uint64_t last = 1;
    std::uint64_t every = 1;
    std::uint64_t seen = 0;
  };
  static bool matches(const rule& one, const http_request& request) {
    if (one.operation != "*" && one.operation != request.operation) return false;
    if (request.key.find(one.made.text("key")) == std::string::npos) return false;
    const auto part = one.made.text("part");
    const auto* number = request.parameter("partNumber");
    return part.empty() || (number != nullptr && *number == part);
  }

  std::mutex mutex_;
  std::vector<rule> rules_;
  std::vector<rule> random_faults_;
  unsigned percent_ = 0;
  std::mt19937_64 random_;
};

}  // namespace cairn_test::s3
