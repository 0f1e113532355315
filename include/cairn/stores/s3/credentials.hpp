// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/fetched_credentials.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/system/credential_broker.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

/// Where an s3_store takes its credentials from. A value that is shared by copies of the store; a callback is
/// called by one thread at a time, first when a request needs it, again shortly before the credentials expire
/// or when the server says that they have. Secrets go to the signer and nowhere else: into no message, trace,
/// command line, environment or description.
class s3_credential_source {
 public:
  enum class kind : std::uint8_t {
    standard,
    environment,
    file,
    web_identity,
    container,
    instance,
    callback,
    trainer
  };

  /// The first that there is, in the order of AWS's SDKs: environment(), web_identity(), file(), container(),
  /// instance().
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
  /// The role AWS_ROLE_ARN, taken at the token service (AWS_ENDPOINT_URL_STS, else that of AWS_REGION) by the
  /// token in the file AWS_WEB_IDENTITY_TOKEN_FILE, which is read again each time.
  static s3_credential_source web_identity() { return s3_credential_source(kind::web_identity); }
  /// What AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI answers, with
  /// AWS_CONTAINER_AUTHORIZATION_TOKEN or the token in the file AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE.
  static s3_credential_source container() { return s3_credential_source(kind::container); }
  /// Those of this machine's role, by its metadata service (IMDSv2; AWS_EC2_METADATA_SERVICE_ENDPOINT).
  static s3_credential_source instance() { return s3_credential_source(kind::instance); }
  /// What `get` gives; it is called on the store's own thread, which moves no bytes meanwhile: it should
  /// answer within seconds. What it throws ends the request with storage_permission.
  static s3_credential_source callback(std::function<s3_credentials()> get) {
    s3_credential_source source(kind::callback);
    source.get_ = std::move(get);
    return source;
  }
  /// In a worker process: what the trainer's callback gives, asked for over the socket between the two.
  /// `number`: under which the trainer answers, from a store's description. What it gave stays good until it
  /// expires, also when the trainer is gone.
  static s3_credential_source trainer(std::uint64_t number) {
    s3_credential_source source(kind::trainer);
    source.number_ = number;
    source.last_ = std::make_shared<std::atomic<std::uint64_t>>(0);
    return source;
  }
  /// These, for as long as the program runs.
  static s3_credential_source fixed(s3_credentials credentials) {
    return callback([credentials = std::move(credentials)] { return credentials; });
  }

  [[nodiscard]] kind which() const noexcept { return kind_; }
  [[nodiscard]] const std::string& profile() const noexcept { return profile_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// The credentials of now; `refused`: the server did not take the last ones. @throws storage_permission
  /// where there are none.
  [[nodiscard]] s3_credentials get(bool refused = false) const {
    std::optional<s3_credentials> found;
    if (kind_ == kind::trainer) found = from_trainer(refused);
    if (kind_ == kind::callback) {
      try {
        found = get_();
      } catch (...) {  // its words may hold a secret
        fail(error_id::storage_permission,
             "the callback that gives the credentials of the object store threw");
      }
    }
    const auto may = [&](kind k) { return !found && (kind_ == k || kind_ == kind::standard); };
    if (may(kind::environment)) found = from_environment();
    if (may(kind::web_identity)) found = detail::credentials_of_web_identity();
    if (may(kind::file)) found = from_file();
    if (may(kind::container)) found = detail::credentials_of_container();
    if (may(kind::instance)) found = detail::credentials_of_instance(kind_ == kind::instance);
    if (!found)
      fail(error_id::storage_permission,
           "there are no credentials for the object store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
           "or write them to the shared credentials file, or give the machine, the container or the pod a "
           "role, "
           "or the store a callback");
    check(*found);
    return std::move(*found);
  }

  /// The answer to a worker's question, for from_trainer(). `number`: of the refresh that gave them.
  [[nodiscard]] static detail::secret_bytes encode(const s3_credentials& c, std::uint64_t number) {
    std::vector<std::byte> out;
    std::uint64_t sizes[] = {number, static_cast<std::uint64_t>(c.expires), c.access_key.size(),
                             c.secret_key.size(), c.session_token.size()};
    out.reserve(sizeof sizes + c.access_key.size() + c.secret_key.size() + c.session_token.size());
    const auto put = [&](std::span<const std::byte> bytes) {
      out.insert(out.end(), bytes.begin(), bytes.end());
    };
    put(std::as_bytes(std::span(sizes)));
    for (const auto* text : {&c.access_key, &c.secret_key, &c.session_token})
      put(std::as_bytes(std::span(text->data(), text->size())));
    return detail::secret_bytes(std::move(out));
  }

 private:
  explicit s3_credential_source(kind k) : kind_(k) {}

  [[nodiscard]] s3_credentials from_trainer(bool refused) const {
    const std::uint64_t without = refused ? last_->load() : 0;
    try {
      const auto answer = detail::ask_trainer(number_, std::as_bytes(std::span(&without, 1)));
      wire_reader in(answer.view());
      last_->store(in.get<std::uint64_t>());
      s3_credentials c;
      c.expires = in.get<std::int64_t>();
      std::uint64_t sizes[3];
      for (auto& size : sizes) size = in.get<std::uint64_t>();
      std::size_t i = 0;
      for (auto* text : {&c.access_key, &c.secret_key, &c.session_token}) {
        const auto bytes = in.take(static_cast<std::size_t>(std::min<std::uint64_t>(sizes[i++], in.left())));
        text->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      in.finish();
      return c;
    } catch (const peer_error&) {
      fail(error_id::storage_permission,
           "there are no fresh credentials for the object store: the trainer that gives them is gone, and "
           "this "
           "worker goes on only until those that it has expire");
    } catch (const timeout_error&) {
      fail(error_id::storage_permission,
           "there are no fresh credentials for the object store: the trainer's callback that gives them did "
           "not "
           "answer in time");
    } catch (const wire_error&) {
      fail(error_id::storage_permission, "the trainer's answer holds no credentials for the object store");
    }
  }

  static std::optional<s3_credentials> from_environment() {
    s3_credentials c{detail::environment_text("AWS_ACCESS_KEY_ID"),
                     detail::environment_text("AWS_SECRET_ACCESS_KEY"),
                     detail::environment_text("AWS_SESSION_TOKEN"), 0};
    if (c.access_key.empty() && c.secret_key.empty()) return std::nullopt;
    return c;
  }
  [[nodiscard]] std::optional<s3_credentials> from_file() const {
    auto path = path_.empty() ? detail::environment_text("AWS_SHARED_CREDENTIALS_FILE") : path_;
    if (path.empty()) {
      const auto home = detail::environment_text("HOME");
      if (home.empty()) return std::nullopt;
      path = home + "/.aws/credentials";
    }
    auto profile = profile_.empty() ? detail::environment_text("AWS_PROFILE") : profile_;
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
  /// The source of a description, by what it was made with. @pre no callback.
  static s3_credential_source of(kind k, std::string profile, std::string path, std::uint64_t number) {
    if (k == kind::trainer) return trainer(number);
    if (k == kind::file) return file(std::move(profile), std::move(path));
    return s3_credential_source(k);
  }
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
      const auto value = trimmed(line.substr(equals + 1));
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
  std::uint64_t number_ = 0;
  std::shared_ptr<std::atomic<std::uint64_t>> last_;
};

namespace detail {

/// Credentials as they are now, asked for again when they expire; those of before serve until then where
/// fresh ones cannot be had. Any thread.
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
    // A machine's metadata service has the next ones five minutes before.
    const bool given = source_.which() == s3_credential_source::kind::callback ||
                       source_.which() == s3_credential_source::kind::trainer;
    const std::int64_t early = given ? 120 : 300;
    const bool expired = current_.credentials.expires != 0 && current_.credentials.expires - early <= now;
    if (current_.number == 0 || expired || refused == current_.number) {
      const bool was_refused = current_.number != 0 && refused == current_.number;
      const bool good = current_.number != 0 && !was_refused && current_.credentials.expires > now;
      if (good && now < again_) return current_;
      try {
        auto fresh = source_.get(was_refused);
        current_ = {std::move(fresh), current_.number + 1};
        again_ = now + 1;  // those that last for less than `early` are not asked for by each request
      } catch (const error&) {
        if (!good) throw;
        again_ = now + 5;
      }
    }
    return current_;
  }
  [[nodiscard]] const s3_credential_source& source() const noexcept { return source_; }

 private:
  s3_credential_source source_;
  std::mutex mutex_;
  taken current_;
  std::int64_t again_ = 0;  // not before that time, after a failure
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
