// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/clock.hpp>
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
  static s3_credential_source file(std::string profile = {}, std::string path = {});
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
  static s3_credential_source callback(std::function<s3_credentials()> get);
  /// In a worker process: what the trainer's callback gives, asked for over the socket between the two.
  /// `number`: under which the trainer answers, from a store's description. What it gave stays good until it
  /// expires, also when the trainer is gone.
  static s3_credential_source trainer(std::uint64_t number);
  /// These, for as long as the program runs.
  static s3_credential_source fixed(s3_credentials credentials);

  /// The way by which credentials are found.
  [[nodiscard]] kind which() const noexcept { return kind_; }
  /// The profile of a source file(); empty: AWS_PROFILE, or the default one.
  [[nodiscard]] const std::string& profile() const noexcept { return profile_; }
  /// The path of a source file(); empty: AWS_SHARED_CREDENTIALS_FILE, or the usual one.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// The credentials of now; `refused`: the server did not take the last ones. @throws storage_permission
  /// where there are none.
  [[nodiscard]] s3_credentials get(bool refused = false) const;

  /// The answer to a worker's question, for from_trainer(). `number`: of the refresh that gave them.
  [[nodiscard]] static detail::secret_bytes encode(const s3_credentials& c, std::uint64_t number);

 private:
  explicit s3_credential_source(kind k) : kind_(k) {}

  [[nodiscard]] s3_credentials from_trainer(bool refused) const;

  static std::optional<s3_credentials> from_environment();
  [[nodiscard]] std::optional<s3_credentials> from_file() const;

 public:
  /// The source of a description, by what it was made with. @pre no callback.
  static s3_credential_source of(kind k, std::string profile, std::string path, std::uint64_t number);
  /// What a shared credentials file says of a profile; nothing if it does not know it.
  [[nodiscard]] static std::optional<s3_credentials> in_profile(std::string_view text,
                                                                std::string_view profile);

 private:
  /// What becomes a header must not begin another one.
  static void check(const s3_credentials& c);

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
  /// `clock`: the store's. `refused`: the number of credentials that the server refused; those are not given
  /// again. `skew`: the server's clock, by which they expire, less this one, in seconds. @throws storage_permission
  [[nodiscard]] taken get(s3_clock& clock, std::optional<std::uint64_t> refused = {}, std::int64_t skew = 0);
  [[nodiscard]] const s3_credential_source& source() const noexcept { return source_; }

 private:
  s3_credential_source source_;
  std::mutex mutex_;
  taken current_;
  s3_clock::time_point again_;  // not before
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/credentials.ipp>
#endif
