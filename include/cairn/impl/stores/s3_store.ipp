// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/store_errors.hpp>
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/client.hpp>
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/stores/s3/heartbeat.hpp>
#include <cairn/stores/s3/object_writer.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/range_reader.hpp>
#include <cairn/stores/s3/service.hpp>
#include <cairn/stores/s3_store.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/thread_pool.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void s3_store::object_writer::write(std::span<const write_range> parts) {
  upload("write").add(parts, false);
}

CAIRN_BODY void s3_store::object_writer::write_stable(std::span<const write_range> parts) {
  upload("write_stable").add(parts, true);
}

CAIRN_BODY void s3_store::object_writer::until(deadline when) {
  upload("until").until(when);
}

CAIRN_BODY void s3_store::object_writer::finish() {
  upload("finish").finish();
}

CAIRN_BODY void s3_store::object_writer::announce() {
  upload("announce").announce();
}

CAIRN_BODY detail::s3_upload& s3_store::object_writer::upload(const char* call) {
  if (!upload_) fail(error_id::usage_closed, std::string(call) + "() on an object that was moved away");
  return *upload_;
}

CAIRN_BODY s3_store::s3_store(s3_options options, s3_credential_source credentials,
                              std::shared_ptr<s3_clock> clock)
    : bucket_(detail::make_shared<detail::s3_bucket>(std::move(options), std::move(credentials),
                                                     std::move(clock))) {}

CAIRN_BODY std::vector<std::byte> s3_store::description() const {
  const auto& source = bucket_->client.service().credentials.source();
  if (source.which() == s3_credential_source::kind::trainer)
    fail(error_id::usage_bad_option, "s3_store: a worker process has no workers that could ask it");
  const bool asked = source.which() == s3_credential_source::kind::callback;
  wire_writer out;
  detail::encode(out, bucket_->client.options());
  out.put(static_cast<std::uint8_t>(asked ? s3_credential_source::kind::trainer : source.which()));
  out.put(source.profile()).put(source.path());
  out.put(asked ? bucket_->client.answering_number() : std::uint64_t{0});
  return out.take();
}

CAIRN_BODY s3_store s3_store::from_description(std::span<const std::byte> bytes) {
  wire_reader in(bytes);
  auto options = detail::decode_s3_options(in);
  using from = s3_credential_source::kind;
  const auto kind = in.get_enum(from::trainer);
  auto profile = in.get_string();
  auto path = in.get_string();
  const auto number = in.get<std::uint64_t>();
  in.finish();
  if (kind == from::callback) in.fail_here("a callback does not cross to another process");
  return s3_store(std::move(options),
                  s3_credential_source::of(kind, std::move(profile), std::move(path), number));
}

CAIRN_BODY s3_store::object_writer s3_store::create(std::string_view key, std::uint64_t size_hint) {
  auto upload = std::make_unique<detail::s3_upload>(bucket_, full_key(key), size_hint);
  upload->begin();
  return object_writer(std::move(upload));
}

CAIRN_BODY s3_store::object_writer s3_store::show(std::string_view key) {
  auto upload = std::make_unique<detail::s3_upload>(bucket_, full_key(key), 0);
  upload->announce();
  return object_writer(std::move(upload));
}

CAIRN_BODY void s3_store::read_all_of(detail::s3_bucket& bucket, std::span<const read_range> ranges,
                                      detail::s3_read_counts* counts) {
  for (const auto& r : ranges) check_key(r.key);
  if (!ranges.empty()) detail::s3_range_reader(bucket, ranges, counts).run();
}

CAIRN_BODY void s3_store::read(std::span<const read_range> ranges) {
  read_all_of(*bucket_, ranges, nullptr);
}

CAIRN_BODY s3_store::read_session::read_session(std::shared_ptr<detail::s3_bucket> bucket)
    : bucket_(std::move(bucket)), counts_(detail::make_shared<detail::s3_read_counts>()) {}

CAIRN_BODY void s3_store::read_session::read(std::span<const read_range> ranges) {
  read_all_of(*bucket_, ranges, counts_.get());
}

CAIRN_BODY read_figures s3_store::read_session::figures() const noexcept {
  return {.requests = counts_->requests.load(), .hedges = counts_->hedges.load()};
}

CAIRN_BODY std::uint64_t s3_store::read_bytes(std::uint64_t total) const noexcept {
  const auto& o = bucket_->client.options();
  return o.get_bytes != 0 ? o.get_bytes : bucket_->client.service().pace.request_bytes(total, o.in_flight);
}

CAIRN_BODY s3_traffic s3_store::traffic() const noexcept {
  auto shown = bucket_->client.service().pace.traffic();
  shown.request_bytes = read_bytes(UINT64_MAX);
  return shown;
}

CAIRN_BODY void s3_store::put_new(std::string_view key, std::span<const std::byte> bytes) {
  if (!publish_new(key, bytes)) fail_exists(full_key(key));
}

CAIRN_BODY bool s3_store::publish_new(std::string_view key, std::span<const std::byte> bytes) {
  const auto full = full_key(key);
  bucket_->require_exclusive();
  bucket_->forget(full);
  return bucket_->client.put(full, {bytes}) == detail::s3_client::put_result::stands;
}

CAIRN_BODY std::optional<std::uint64_t> s3_store::size(std::string_view key) {
  const auto found = identify(key);
  if (!found) return std::nullopt;
  return found->bytes;
}

CAIRN_BODY std::optional<object_identity> s3_store::identify(std::string_view key) {
  const auto full = full_key(key);
  auto o = bucket_->client.head(full);
  if (!o) return std::nullopt;
  object_identity found{o->bytes, o->etag};
  bucket_->learn(full, std::move(*o));
  return found;
}

CAIRN_BODY std::vector<listed_object> s3_store::list(std::string_view prefix) {
  return list(prefix, SIZE_MAX);
}
CAIRN_BODY std::vector<std::string> s3_store::keys(std::string_view prefix, std::size_t parts) {
  return keys_after(prefix, {}, parts);
}
CAIRN_BODY std::vector<std::string> s3_store::keys_after(std::string_view prefix, std::string_view after,
                                                         std::size_t parts) {
  const auto slashes = static_cast<std::size_t>(std::count(prefix.begin(), prefix.end(), '/'));
  std::vector<std::string> found;
  if (parts <= slashes) return found;
  for (auto& o : list(prefix, parts - slashes - 1, after)) found.push_back(std::move(o.key));
  return found;
}
CAIRN_BODY std::vector<listed_object> s3_store::list(std::string_view prefix, std::size_t deeper,
                                                     std::string_view after) {
  const auto full = full_prefix(prefix);
  const auto& own = bucket_->client.options().prefix;
  auto found = bucket_->list(full, deeper, after.empty() ? "" : own + std::string(after));
  for (auto& o : found) o.key.erase(0, own.size());
  detail::erase_if(found, [&](const listed_object& o) {
    // A service may not know where to begin.
    return o.key <= after || !valid_key(o.key) || o.key.starts_with(detail::s3_bucket::probe_prefix);
  });
  detail::sort(found, [](const auto& a, const auto& b) { return a.key < b.key; });
  found.erase(
      std::unique(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.key == b.key; }),
      found.end());
  return found;
}

CAIRN_BODY void s3_store::link(std::string_view from, std::string_view to, deadline until) {
  const auto source_key = full_key(from), key = full_key(to);
  const auto by = detail::s3_deadline::on(bucket_->client.service().clock, until);
  const auto source = bucket_->client.head(source_key, by);
  if (!source) fail_no_object(bucket_->client.place(source_key));
  {
    detail::s3_upload upload(bucket_, key, 0);
    upload.until(until);
    upload.begin();
    // Nothing cannot be a part.
    if (source->bytes == 0 || upload.take_from(source_key, source->bytes)) return upload.finish();
  }
  detail::s3_upload upload(bucket_, key, source->bytes);
  upload.until(until);
  upload.begin();
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(source->bytes, std::uint64_t{16} << 20)));
  for (std::uint64_t at = 0; at < source->bytes; at += buffer.size()) {
    const auto piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), source->bytes - at)));
    const read_range wanted{from, at, piece};
    detail::s3_range_reader(*bucket_, {&wanted, 1}, nullptr, by).run();
    const write_range part{at, piece};
    upload.add({&part, 1}, false);
  }
  upload.finish();
}

CAIRN_BODY void s3_store::remove(std::string_view key) {
  const auto full = full_key(key);
  bucket_->forget(full);
  bucket_->client.remove(full);
}

CAIRN_BODY void s3_store::remove_all(std::span<const std::string> keys) {
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const auto& key : keys) full.push_back(full_key(key));
  bucket_->remove_all(full);
}

CAIRN_BODY bool s3_store::remove_if(std::string_view key, std::span<const std::byte> bytes) {
  const auto full = full_key(key);
  bucket_->forget(full);
  return bucket_->client.remove_if(full, bytes);
}

CAIRN_BODY std::vector<listed_unfinished> s3_store::unfinished(std::span<const std::string_view> prefixes) {
  const auto own = bucket_->client.options().prefix.size();
  std::vector<std::string> full;
  for (const auto prefix : prefixes) full.push_back(full_prefix(prefix));
  auto uploads = bucket_->uploads(full);
  detail::erase_if(uploads, [&](const detail::open_upload& u) {
    // This process's own are begun and ended by their writers; others see those that are announced.
    return !valid_key(u.key.substr(own)) || (bucket_->lives(u.id) && !u.key.ends_with(detail::sign_ending));
  });
  std::vector<listed_unfinished> found(uploads.size());
  detail::thread_pool().run(uploads.size(), bucket_->client.options().in_flight, [&](std::size_t i) {
    const auto& u = uploads[i];
    found[i] = {u.key.substr(own) + suffix_of(u.id),
                bucket_->lives(u.id) || detail::has_heartbeat(*bucket_, u)};
  });
  detail::sort(found, [](const auto& a, const auto& b) { return a.key < b.key; });
  return found;
}

CAIRN_BODY std::vector<std::string> s3_store::unfinished_keys(std::string_view prefix, bool living) {
  std::vector<std::string> found;
  for (auto& object : unfinished({&prefix, 1}))
    if (object.lives == living) found.push_back(std::move(object.key));
  return found;
}

CAIRN_BODY std::vector<std::string> s3_store::leftovers(std::string_view prefix) {
  return unfinished_keys(prefix, false);
}

CAIRN_BODY std::vector<std::string> s3_store::live_writers(std::string_view prefix) {
  return unfinished_keys(prefix, true);
}

CAIRN_BODY void s3_store::discard(std::string_view key) {
  const auto suffix = suffix_bytes;
  if (key.size() <= suffix || !key.ends_with(".upload") || !valid_key(key.substr(0, key.size() - suffix)))
    fail(error_id::storage_bad_key,
         "only unfinished objects are discarded, under the keys that leftovers() gives",
         {.file = std::string(key.substr(0, 600))});
  const auto full = bucket_->client.options().prefix + std::string(key.substr(0, key.size() - suffix));
  for (const auto& u : bucket_->uploads(full)) {
    if (u.key != full || suffix_of(u.id) != key.substr(key.size() - suffix)) continue;
    if (bucket_->lives(u.id))
      fail(error_id::storage_exists,
           "the unfinished object belongs to a writer that lives: it was not discarded",
           {.file = bucket_->client.place(full)});
    bucket_->abort(u.key, u.id);
  }
}

CAIRN_BODY store_test_report s3_store::self_test() {
  const auto how = bucket_->client.options().exclusive;
  store_test_report report{
      .kind = "S3", .from = "", .single_writer = how == s3_exclusive::single_writer, .points = {}};
  store_check point{.what = "a key is given to one writer alone (If-None-Match)",
                    .seen = how == s3_exclusive::probe     ? "a second PUT was refused"
                            : how == s3_exclusive::assumed ? "known of this service: not tried"
                                                           : "not tried: one job alone writes there",
                    .follows = ""};
  try {
    bucket_->require_exclusive();
  } catch (const usage_error& e) {
    if (e.id() != error_id::usage_bad_option) throw;
    point.outcome = store_check::verdict::single_job;
    point.seen = "a second PUT was not refused";
    point.follows = e.message();
  }
  report.points.push_back(std::move(point));
  return report;
}

/// What the service has shown and what was chosen for it, in words; "" before.
[[nodiscard]] inline std::string s3_shown(const s3_traffic& t, std::size_t in_flight) {
  if (t.latency <= 0 || t.bytes_per_second <= 0) return {};
  char text[200];
  std::snprintf(
      text, sizeof text,
      ", reads of up to %.0f MiB, %zu at a time (%.1f ms to the first byte, then %.0f MB/s; %llu of %llu "
      "asked for twice)",
      static_cast<double>(t.request_bytes) / (1 << 20), in_flight, t.latency * 1e3, t.bytes_per_second / 1e6,
      static_cast<unsigned long long>(t.hedges), static_cast<unsigned long long>(t.reads));
  return text;
}

CAIRN_BODY std::string s3_store::describe() const {
  const auto& o = bucket_->client.options();
  return "bucket " + o.bucket + " at " + bucket_->client.service().address.authority +
         (o.prefix.empty() ? std::string() : " below " + o.prefix) + s3_shown(traffic(), o.in_flight) +
         (keeps_removed() ? ", which keeps versions of what is removed" : "");
}

CAIRN_BODY std::string s3_store::suffix_of(const std::string& id) {
  return "." + detail::sha256_text(id).substr(0, 16) + ".upload";
}

CAIRN_BODY void s3_store::check_key(std::string_view key) {
  if (!valid_key(key))
    fail(error_id::storage_bad_key,
         "a key is a relative path of [A-Za-z0-9._-] and '/', without empty, '.' or '..' parts, of at most "
         "512 bytes",
         {.file = std::string(key.substr(0, 600))});
}

CAIRN_BODY std::string s3_store::full_key(std::string_view key) const {
  check_key(key);
  return bucket_->client.options().prefix + std::string(key);
}

CAIRN_BODY std::string s3_store::full_prefix(std::string_view prefix) const {
  if (prefix.size() > 512)
    fail(error_id::storage_bad_key, "a prefix is the beginning of a key",
         {.file = std::string(prefix.substr(0, 600))});
  return bucket_->client.options().prefix + std::string(prefix);
}

CAIRN_BODY void s3_store::fail_exists(const std::string& key) const {
  fail(error_id::storage_exists, "an object of this key exists already; it was not touched",
       {.file = bucket_->client.place(key)});
}

}  // namespace v1
}  // namespace cairn
