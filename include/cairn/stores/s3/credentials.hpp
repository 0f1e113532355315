// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/model/error.hpp>
#include <cairn/stores/s3/sigv4.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Where an s3_store takes its credentials from. A value that is shared by copies of the store; a callback is
/// called by one thread at a time, first when a request needs it, again shortly before the credentials expire
/// or when the server says that they have. Secrets go to the signer and nowhere else: into no message, trace,
/// command line, environment or description.
class s3_credential_source {
 public:
  enum class kind : std::uint8_t { standard, environment, file, callback };

  /// The environment if AWS_ACCESS_KEY_ID is set there, else the shared credentials file.
  static s3_credential_source standard() { return s3_credential_source(kind::standard); }
  /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, where it is set, AWS_SESSION_TOKEN, of this process.
  static s3_credential_source environment() { return s3_credential_source(kind::environment); }
  /// The shared credentials file, read again when needed. `path` "": AWS_SHARED_CREDENTIALS_FILE or
  /// ~/.aws/credentials; `profile` "": AWS_PROFILE or "default".
  static s3_credential_source file(std::string profile = {}, std::string path = {}) {
    s3_credential_source source(kind::file);
    source.profile_ = std::move(profile);
    source.path_ = std::move(path);
    return source;
  }
  /// What `get` gives; it is called on the store's own thread, which moves no bytes meanwhile: it should
  /// answer within seconds. What it throws ends the request with storage_permission.
  static s3_credential_source callback(std::function<s3_credentials()> get) {
    s3_credential_source source(kind::callback);
    source.get_ = std::move(get);
    return source;
  }
  /// These, for as long as the program runs.
  static s3_credential_source fixed(s3_credentials credentials) {
    return callback([credentials = std::move(credentials)] { return credentials; });
  }

  [[nodiscard]] kind which() const noexcept { return kind_; }
  [[nodiscard]] const std::string& profile() const noexcept { return profile_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// The credentials of now. @throws storage_permission where there are none.
  [[nodiscard]] s3_credentials get() const {
    std::optional<s3_credentials> found;
    if (kind_ == kind::callback) {
      try {
        found = get_();
      } catch (...) {  // its words may hold a secret
        fail(error_id::storage_permission,
             "the callback that gives the credentials of the object store threw");
      }
    }
    if (kind_ == kind::environment || kind_ == kind::standard) found = from_environment();
    if (!found && (kind_ == kind::file || kind_ == kind::standard)) found = from_file();
    if (!found)
      fail(error_id::storage_permission,
           "there are no credentials for the object store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
           "or write "
           "them to the shared credentials file, or give the store a callback");
    check(*found);
    return std::move(*found);
  }

 private:
  explicit s3_credential_source(kind k) : kind_(k) {}

  static std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
  }
  static std::optional<s3_credentials> from_environment() {
    s3_credentials c{variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"),
                     variable("AWS_SESSION_TOKEN"), 0};
    if (c.access_key.empty() && c.secret_key.empty()) return std::nullopt;
    return c;
  }
  [[nodiscard]] std::optional<s3_credentials> from_file() const {
    auto path = path_.empty() ? variable("AWS_SHARED_CREDENTIALS_FILE") : path_;
    if (path.empty()) {
      const auto home = variable("HOME");
      if (home.empty()) return std::nullopt;
      path = home + "/.aws/credentials";
    }
    auto profile = profile_.empty() ? variable("AWS_PROFILE") : profile_;
    if (profile.empty()) profile = "default";
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
    if (!file) return std::nullopt;
    std::string text(std::size_t{1} << 20, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file.get()));
    auto found = in_profile(text, profile);
    ::OPENSSL_cleanse(text.data(), text.size());
    return found;
  }

 public:
  /// What a shared credentials file says of a profile; nothing if it does not know it.
  [[nodiscard]] static std::optional<s3_credentials> in_profile(std::string_view text,
                                                                std::string_view profile) {
    const auto trimmed = [](std::string_view s) {
      const auto first = s.find_first_not_of(" \t\r");
      if (first == std::string_view::npos) return std::string_view();
      return s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
    };
    s3_credentials c;
    bool inside = false;
    bool known = false;
    while (!text.empty()) {
      const auto end = text.find('\n');
      const auto line = trimmed(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      if (line.empty() || line.front() == '#' || line.front() == ';') continue;
      if (line.front() == '[') {
        inside = line.back() == ']' && trimmed(line.substr(1, line.size() - 2)) == profile;
        known |= inside;
        continue;
      }
      const auto equals = line.find('=');
      if (!inside || equals == std::string_view::npos) continue;
      const auto name = trimmed(line.substr(0, equals));
      const auto value = std::string(trimmed(line.substr(equals + 1)));
      if (name == "aws_access_key_id") c.access_key = value;
      if (name == "aws_secret_access_key") c.secret_key = value;
      if (name == "aws_session_token") c.session_token = value;
    }
    if (!known) return std::nullopt;
    return c;
  }

 private:
  /// What becomes a header must not begin another one.
  static void check(const s3_credentials& c) {
    const auto fine = [](const std::string& s) {
      for (const char ch : s)
        if (ch <= ' ' || ch > '~') return false;
      return s.size() <= 16 * 1024;
    };
    if (c.access_key.empty() || c.secret_key.empty() || !fine(c.access_key) || !fine(c.secret_key) ||
        !fine(c.session_token))
      fail(error_id::storage_permission,
           "the credentials of the object store are empty in part, or hold characters that no key has");
  }

  kind kind_;
  std::string profile_;
  std::string path_;
  std::function<s3_credentials()> get_;
};

namespace detail {

/// Credentials as they are now, asked for again when they expire. Any thread.
class credential_cache {
 public:
  explicit credential_cache(s3_credential_source source) : source_(std::move(source)) {}

  struct taken {
    s3_credentials credentials;
    std::uint64_t number = 0;  ///< of the refresh that gave them
  };
  /// `now`: seconds since 1970. `refused`: the number of credentials that the server refused; those are not
  /// given again. @throws storage_permission
  [[nodiscard]] taken get(std::int64_t now, std::optional<std::uint64_t> refused = {}) {
    const std::lock_guard lock(mutex_);
    constexpr std::int64_t early = 120;
    const bool expired = current_.credentials.expires != 0 && current_.credentials.expires - early <= now;
    if (current_.number == 0 || expired || refused == current_.number) {
      auto fresh = source_.get();
      current_ = {std::move(fresh), current_.number + 1};
    }
    return current_;
  }
  [[nodiscard]] const s3_credential_source& source() const noexcept { return source_; }

 private:
  s3_credential_source source_;
  std::mutex mutex_;
  taken current_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
