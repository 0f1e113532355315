// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/fetched_credentials.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/system/credential_broker.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
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

CAIRN_BODY s3_credential_source s3_credential_source::file(std::string profile, std::string path) {
  s3_credential_source source(kind::file);
  source.profile_ = std::move(profile);
  source.path_ = std::move(path);
  return source;
}

CAIRN_BODY s3_credential_source s3_credential_source::callback(std::function<s3_credentials()> get) {
  s3_credential_source source(kind::callback);
  source.get_ = std::move(get);
  return source;
}

CAIRN_BODY s3_credential_source s3_credential_source::trainer(std::uint64_t number) {
  s3_credential_source source(kind::trainer);
  source.number_ = number;
  source.last_ = detail::make_shared<std::atomic<std::uint64_t>>(0U);
  return source;
}

CAIRN_BODY s3_credential_source s3_credential_source::fixed(s3_credentials credentials) {
  return callback([credentials = std::move(credentials)] { return credentials; });
}

CAIRN_BODY s3_credentials s3_credential_source::get(bool refused) const {
  std::optional<s3_credentials> found;
  if (kind_ == kind::trainer) found = from_trainer(refused);
  if (kind_ == kind::callback) {
    try {
      found = get_();
    } catch (...) {  // its text may hold a secret
      fail(error_id::storage_permission, "the callback that gives the credentials of the object store threw");
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

CAIRN_BODY detail::secret_bytes s3_credential_source::encode(const s3_credentials& c, std::uint64_t number) {
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

CAIRN_BODY s3_credentials s3_credential_source::from_trainer(bool refused) const {
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

CAIRN_BODY std::optional<s3_credentials> s3_credential_source::from_environment() {
  s3_credentials c{detail::environment_text("AWS_ACCESS_KEY_ID"),
                   detail::environment_text("AWS_SECRET_ACCESS_KEY"),
                   detail::environment_text("AWS_SESSION_TOKEN"), 0};
  if (c.access_key.empty() && c.secret_key.empty()) return std::nullopt;
  return c;
}

CAIRN_BODY std::optional<s3_credentials> s3_credential_source::from_file() const {
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

CAIRN_BODY s3_credential_source s3_credential_source::of(kind k, std::string profile, std::string path,
                                                         std::uint64_t number) {
  if (k == kind::trainer) return trainer(number);
  if (k == kind::file) return file(std::move(profile), std::move(path));
  return s3_credential_source(k);
}

CAIRN_BODY std::optional<s3_credentials> s3_credential_source::in_profile(std::string_view text,
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

CAIRN_BODY void s3_credential_source::check(const s3_credentials& c) {
  const auto fine = [](const std::string& s) {
    for (const char ch : s)
      if (ch <= ' ' || ch > '~') return false;
    return s.size() <= 16 * 1024;
  };
  if (c.access_key.empty() || c.secret_key.empty() || !fine(c.access_key) || !fine(c.secret_key) ||
      !fine(c.session_token))
    fail(error_id::storage_permission,
         "a field of the credentials of the object store is empty, or has characters that no key has");
}

namespace detail {

CAIRN_BODY credential_cache::taken credential_cache::get(s3_clock& clock,
                                                         std::optional<std::uint64_t> refused,
                                                         std::int64_t skew) {
  const std::lock_guard lock(mutex_);
  const auto now = clock.unix_time() + skew;
  // A machine's metadata service has the next ones five minutes before.
  const bool given = source_.which() == s3_credential_source::kind::callback ||
                     source_.which() == s3_credential_source::kind::trainer;
  const std::int64_t early = given ? 120 : 300;
  const bool expired = current_.credentials.expires != 0 && current_.credentials.expires - early <= now;
  if (current_.number == 0 || expired || refused == current_.number) {
    const bool was_refused = current_.number != 0 && refused == current_.number;
    const bool good = current_.number != 0 && !was_refused && current_.credentials.expires > now;
    const auto begun = clock.now();
    if (good && begun < again_) return current_;
    // Nothing else moves while it is asked: that takes half of the time at most.
    const auto pause = [&](std::chrono::seconds least) {
      const auto ended = clock.now();
      again_ = ended + std::max<s3_clock::time_point::duration>(least, ended - begun);
    };
    try {
      auto fresh = source_.get(was_refused);
      current_ = {std::move(fresh), current_.number + 1};
      // Those that last for less than `early` are not asked for by each request.
      pause(std::chrono::seconds(1));
    } catch (const error&) {
      if (!good) throw;
      pause(std::chrono::seconds(5));
    }
  }
  return current_;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
