// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/call.hpp>
#include <cairn/stores/s3/client.hpp>
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/request.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/stores/s3/xml.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/thread_pool.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::unique_ptr<part_buffers::buffer> part_buffers::take(const s3_deadline& until) {
  std::unique_lock lock(mutex_);
  if (!until.wait(ended_, lock, [&] { return sending_ < max_; })) return nullptr;
  if (free_.empty()) return std::make_unique<buffer>();
  auto b = std::move(free_.back());
  free_.pop_back();
  return b;
}

CAIRN_BODY void part_buffers::give_back(std::unique_ptr<buffer> b) noexcept {
  const std::lock_guard lock(mutex_);
  if (!b || free_.size() >= max_) return;
  b->clear();
  try {
    free_.push_back(std::move(b));
  } catch (...) {
  }
}

CAIRN_BODY bool part_buffers::begin_sending(const s3_deadline& until) {
  std::unique_lock lock(mutex_);
  if (!until.wait(ended_, lock, [&] { return sending_ < max_; })) return false;
  ++sending_;
  return true;
}

CAIRN_BODY void part_buffers::sent(std::unique_ptr<buffer> b) noexcept {
  give_back(std::move(b));
  const std::lock_guard lock(mutex_);
  --sending_;
  ended_.notify_all();
}

CAIRN_BODY s3_bucket::s3_bucket(s3_options options, s3_credential_source credentials,
                                std::shared_ptr<s3_clock> clock)
    : client(std::move(options), std::move(credentials), std::move(clock)),
      buffers(client.options().in_flight) {}

CAIRN_BODY std::optional<s3_object> s3_bucket::known(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto at = known_.find(key);
  if (at == known_.end()) return std::nullopt;
  return at->second;
}

CAIRN_BODY void s3_bucket::learn(const std::string& key, s3_object o) {
  const std::lock_guard lock(mutex_);
  constexpr std::size_t max_known = 8192;
  if (known_.size() >= max_known) known_.clear();
  known_.insert_or_assign(key, std::move(o));
}

CAIRN_BODY void s3_bucket::forget(const std::string& key) {
  const std::lock_guard lock(mutex_);
  known_.erase(key);
}

CAIRN_BODY void s3_bucket::opened(const std::string& id) {
  const std::lock_guard lock(mutex_);
  live_.insert(id);
}

CAIRN_BODY void s3_bucket::closed(const std::string& id) noexcept {
  const std::lock_guard lock(mutex_);
  live_.erase(id);
}

CAIRN_BODY bool s3_bucket::lives(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return live_.contains(id);
}

CAIRN_BODY s3_bucket::~s3_bucket() {
  if (late_ends_.in_child()) {
    static_cast<void>(changed_.release());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_->notify_all();
  late_ends_.join();
}

CAIRN_BODY void s3_bucket::end_later(const std::string& key, const std::string& id) {
  // What is more counts on this host until this process ends, as where there is no thread.
  constexpr std::size_t max = 256;
  {
    const std::lock_guard lock(mutex_);
    left_.insert(id);
    if (to_end_.size() >= max || late_ends_.in_child()) return;
    to_end_.push_back({key, id});
    if (!late_ends_.joinable()) static_cast<void>(late_ends_.start("cairn s3 ends", [this] { end_late(); }));
  }
  changed_->notify_all();
}

CAIRN_BODY void s3_bucket::end_late() noexcept {
  constexpr std::chrono::seconds pause{2}, request{5};
  const auto& clock = client.service().clock;
  bool answers = false;
  for (std::unique_lock lock(mutex_);;) {
    changed_->wait(lock, [&] { return ending_ || !to_end_.empty(); });
    if (ending_ || (!answers && changed_->wait_for(lock, pause, [&] { return ending_; }))) return;
    auto upload = std::move(to_end_.back());
    to_end_.pop_back();
    lock.unlock();
    answers = true;
    try {
      abort(upload.key, upload.id, {clock, clock->now() + request}, true);
    } catch (const storage_error& e) {
      answers = e.id() != error_id::storage_unavailable;  // a refusal is for good
    } catch (...) {
      answers = false;
    }
    lock.lock();
    if (!answers && to_end_.size() < to_end_.capacity()) to_end_.push_back(std::move(upload));
  }
}

CAIRN_BODY bool s3_bucket::was_left(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return left_.contains(id);
}

CAIRN_BODY std::string s3_bucket::add_page(const std::string& prefix, const std::string& token,
                                           bool by_directory, std::vector<listed_object>& found,
                                           std::vector<std::string>& directories, const std::string& after) {
  s3_request r{.method = "GET"};
  r.query = {{"list-type", "2"}, {"prefix", prefix}, {"encoding-type", "url"}, {"max-keys", "1000"}};
  if (by_directory) r.query.emplace_back("delimiter", "/");
  if (!after.empty()) r.query.emplace_back("start-after", after);
  if (!token.empty()) r.query.emplace_back("continuation-token", token);
  const auto page = ask(std::move(r), "ListBucketResult", "listing of the bucket");
  const bool encoded = page.text_of("EncodingType") == "url";
  for (const auto& c : page.children) {
    if (c.name == "CommonPrefixes")
      if (auto directory = decoded(c.text_of("Prefix"), encoded);
          directory && directory->size() > prefix.size() && directory->starts_with(prefix))
        directories.push_back(std::move(*directory));
    if (c.name != "Contents") continue;
    s3_object o;
    auto key = key_of(c, encoded);
    if (!parse_decimal(c.text_of("Size"), o.bytes)) fail_answer("a listing without sizes");
    if (!key || !key->starts_with(prefix)) continue;
    o.etag = c.text_of("ETag");
    if (!o.etag.empty() && o.etag.size() <= 1024 && header_safe(o.etag)) learn(*key, o);
    found.push_back({std::move(*key), o.bytes});
  }
  if (page.text_of("IsTruncated") != "true") return {};
  auto next = std::string(page.text_of("NextContinuationToken"));
  if (next.empty()) fail_answer("a listing that never ends");
  return next;
}

CAIRN_BODY std::vector<listed_object> s3_bucket::list(const std::string& prefix, std::size_t deeper,
                                                      const std::string& after) {
  thread_pool pool;
  return list(pool, prefix, deeper, after);
}

CAIRN_BODY std::vector<listed_object> s3_bucket::list(thread_pool& pool, const std::string& prefix,
                                                      std::size_t deeper, const std::string& after) {
  // A service that lists directories takes the name of one for its end, and begins behind it.
  if (!after.empty() && after <= prefix) return list(pool, prefix, deeper, {});
  std::vector<listed_object> found;
  std::vector<std::string> directories;
  std::set<std::string> seen;
  std::string token;
  const auto next_page = [&](bool by_directory) {
    token = add_page(prefix, token, by_directory, found, directories, after);
    if (!token.empty() && !seen.insert(token).second) fail_answer("a listing that never ends");
    return !token.empty();
  };
  /// Whether the keys of the last page are in one or two directories, which then have hundreds of keys each.
  const auto in_large_directories = [&](std::size_t first) {
    std::size_t others = 0;
    std::string_view last;
    for (auto i = first; i < found.size(); ++i) {
      const auto key = std::string_view(found[i].key);
      const auto slash = key.find('/', prefix.size());
      if (slash == std::string_view::npos) continue;
      if (key.substr(0, slash) != last) ++others;
      last = key.substr(0, slash);
    }
    return others == 1 || others == 2;
  };
  if (deeper == 0) {
    while (next_page(true)) {
    }
    return found;
  }
  for (std::size_t first = 0; next_page(false); first = found.size())
    if (in_large_directories(first)) {
      // Pages of one listing come one after another. Those of directories come at once, and not where keys are longer
      // than the caller wants.
      found.clear();
      token.clear();
      seen.clear();
      while (next_page(true)) {
      }
      // Not each service shows the directory that `after` is in.
      if (const auto slash = after.find('/', prefix.size());
          slash != std::string::npos && after.starts_with(prefix)) {
        auto cut = after.substr(0, slash + 1);
        if (!detail::contains(directories, cut)) directories.push_back(std::move(cut));
      }
      std::vector<std::vector<listed_object>> parts(directories.size());
      pool.run(parts.size(), client.options().in_flight, [&](std::size_t i) {
        const auto& directory = directories[i];
        parts[i] = list(pool, directory, deeper - 1, after.starts_with(directory) ? after : std::string());
      });
      for (auto& part : parts)
        found.insert(found.end(), std::make_move_iterator(part.begin()), std::make_move_iterator(part.end()));
      return found;
    }
  detail::erase_if(found, [&](const listed_object& o) {
    return static_cast<std::size_t>(std::count(o.key.begin() + static_cast<std::ptrdiff_t>(prefix.size()),
                                               o.key.end(), '/')) > deeper;
  });
  return found;
}

CAIRN_BODY s3_bucket::upload_marker s3_bucket::add_uploads(const std::string& prefix,
                                                           const upload_marker& from,
                                                           std::vector<open_upload>& found,
                                                           const s3_deadline& until, bool urgent) {
  s3_request r{.method = "GET", .urgent = urgent, .until = until};
  r.query = {{"uploads", ""}, {"prefix", prefix}, {"encoding-type", "url"}, {"max-uploads", "1000"}};
  if (!from.key.empty()) r.query.emplace_back("key-marker", from.key);
  if (!from.id.empty()) r.query.emplace_back("upload-id-marker", from.id);
  const auto page = ask(std::move(r), "ListMultipartUploadsResult", "listing of unfinished uploads");
  const bool encoded = page.text_of("EncodingType") == "url";
  for (const auto& c : page.children) {
    if (c.name != "Upload") continue;
    auto key = key_of(c, encoded);
    std::string id(c.text_of("UploadId"));
    if (!key || !key->starts_with(prefix) || id.empty() || id.size() > 4096) continue;
    found.push_back({std::move(*key), std::move(id), std::string(c.text_of("Initiated"))});
  }
  if (page.text_of("IsTruncated") != "true") return {};
  upload_marker next{decoded(page.text_of("NextKeyMarker"), encoded).value_or(""),
                     std::string(page.text_of("NextUploadIdMarker"))};
  if (next.key.empty()) fail_answer("a listing that never ends");
  return next;
}

CAIRN_BODY std::vector<open_upload> s3_bucket::uploads(const std::string& prefix, const s3_deadline& until,
                                                       bool urgent) {
  std::vector<open_upload> found;
  std::set<upload_marker> seen;
  for (upload_marker next;;) {
    next = add_uploads(prefix, next, found, until, urgent);
    if (next.key.empty()) return found;
    if (!seen.insert(next).second) fail_answer("a listing that never ends");
  }
}

CAIRN_BODY std::vector<open_upload> s3_bucket::uploads(std::span<const std::string> prefixes) {
  std::vector<open_upload> found;
  if (prefixes.empty()) return found;
  std::string shared = prefixes.front();
  for (const auto& prefix : prefixes)
    shared.resize(static_cast<std::size_t>(
        std::mismatch(shared.begin(), shared.end(), prefix.begin(), prefix.end()).first - shared.begin()));
  if (add_uploads(shared, {}, found).key.empty()) {
    detail::erase_if(found, [&](const open_upload& u) {
      return !detail::any_of(prefixes, [&](const auto& prefix) { return u.key.starts_with(prefix); });
    });
    return found;
  }
  // What others have begun below the same beginning may be pages over pages.
  found.clear();
  std::vector<std::vector<open_upload>> parts(prefixes.size());
  thread_pool().run(prefixes.size(), client.options().in_flight,
                    [&](std::size_t i) { parts[i] = uploads(prefixes[i]); });
  for (auto& part : parts)
    found.insert(found.end(), std::make_move_iterator(part.begin()), std::make_move_iterator(part.end()));
  return found;
}

CAIRN_BODY std::string s3_bucket::begun(const s3_call& call, std::string_view doing) {
  const auto& key = call.request().key;
  auto id =
      call.fine() || call.unencrypted() ? std::string(call.document().text_of("UploadId")) : std::string();
  if (call.unencrypted() && !id.empty()) abort(key, id);
  client.require(call, doing);
  if (id.empty() || id.size() > 4096)
    fail(error_id::storage_io, "the server began an upload without naming its id",
         {.file = client.place(key)});
  opened(id);
  return id;
}

CAIRN_BODY void s3_bucket::abort(const std::string& key, const std::string& id, const s3_deadline& until,
                                 bool urgent) {
  for (int i = 0; i < 3; ++i) {
    const auto call = client.run(
        {.method = "DELETE", .key = key, .query = {{"uploadId", id}}, .urgent = urgent, .until = until});
    const bool gone = !call->fine() && call->end == http_end::answered && call->status == 404;
    if (!gone) client.require(*call, "ending of an upload");
    if (gone) return;
    const auto left = client.run({.method = "GET",
                                  .key = key,
                                  .query = {{"max-parts", "1"}, {"uploadId", id}},
                                  .urgent = urgent,
                                  .until = until});
    if (!left->fine()) return;  // 404: nothing is left; other refusals tell no more
  }
}

CAIRN_BODY void s3_bucket::remove_all(std::span<const std::string> keys) {
  constexpr std::size_t most = 1000;
  for (const auto& key : keys) forget(key);
  for (; !keys.empty(); keys = keys.subspan(std::min(most, keys.size()))) {
    const auto batch = keys.first(std::min(most, keys.size()));
    if (batch.size() == 1 || !remove_many(batch)) remove_one_by_one(batch);
  }
}

CAIRN_BODY void s3_bucket::remove_one_by_one(std::span<const std::string> keys) {
  thread_pool().run(keys.size(), client.options().in_flight, [&](std::size_t i) { client.remove(keys[i]); });
}

CAIRN_BODY bool s3_bucket::remove_many(std::span<const std::string> keys) {
  auto& service = client.service();
  if (client.google() || !service.removes_many.load()) return false;
  std::string text = "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (const auto& key : keys) text += "<Object><Key>" + xml_text(key) + "</Key></Object>";
  text += "</Delete>";
  s3_request r{.method = "POST"};
  r.query = {{"delete", ""}};
  r.root = "DeleteResult";
  r.max_answer = xml_reader::max_bytes;
  if (auto digest = md5_text(text); !digest.empty()) r.headers.emplace_back("content-md5", std::move(digest));
  client.set_body(r, {std::as_bytes(std::span(text.data(), text.size()))}, true);
  const auto call = client.run(std::move(r));
  if (!call->fine() && call->end == http_end::answered && (call->status / 100 == 4 || call->status == 501)) {
    // Other refusals say something of these objects or this moment, which the requests for single ones find out.
    const auto& code = call->refusal().code;
    if (call->status == 501 || call->status == 405 || code == "NotImplemented" || code == "MethodNotAllowed")
      service.removes_many.store(false);
    return false;
  }
  client.require(*call, "removing of objects");
  std::set<std::string, std::less<>> left(keys.begin(), keys.end());
  for (const auto& c : call->document().children) {
    if (c.name == "Deleted" && c.text_of("DeleteMarker") == "true") service.keeps_removed.store(true);
    if (c.name == "Deleted" || (c.name == "Error" && c.text_of("Code") == "NoSuchKey"))
      if (const auto at = left.find(c.text_of("Key")); at != left.end()) left.erase(at);
  }
  // What it refused, or says nothing of, is tried one by one, which tells why.
  remove_one_by_one(std::vector<std::string>(left.begin(), left.end()));
  return true;
}

CAIRN_BODY xml_element s3_bucket::ask(s3_request r, std::string_view root, std::string_view doing) {
  r.max_answer = xml_reader::max_bytes;
  r.root = root;
  const auto call = client.run(std::move(r));
  client.require(*call, doing);
  return call->document();
}

CAIRN_BODY void s3_bucket::require_exclusive() {
  if (client.options().exclusive != s3_exclusive::probe) return;
  const std::lock_guard lock(probe_mutex_);
  if (!probed_) {
    const auto key = client.options().prefix + std::string(probe_prefix) + random_token();
    const auto attempt = [&] {
      s3_request r{.method = "PUT", .key = key};
      client.only_if_absent(r);
      client.set_body(r, {}, false);
      return client.run(std::move(r));
    };
    const auto first = attempt();
    const bool unsupported = first->end == http_end::answered && first->status == 501;
    // Nobody else knows the key: an attempt whose answer was lost, of libcurl's own perhaps, put the
    // object.
    const bool heeded = first->end == http_end::answered && first->status == 412;
    if (!unsupported && !heeded) client.require(*first, "trying conditional writes");
    const auto second = unsupported || heeded ? first : attempt();
    const bool refused = second->end == http_end::answered && second->status == 412;
    if (!unsupported) client.remove(key);
    if (!unsupported && !refused && !second->fine()) client.fail_call(*second, "trying conditional writes");
    exclusive_ = refused;
    probed_ = true;
  }
  if (!exclusive_)
    fail(error_id::usage_bad_option,
         "the object store ignores If-None-Match, so that two jobs could both commit a step: if only "
         "one job "
         "at a time writes there, say so with s3_options{.exclusive = s3_exclusive::single_writer}",
         {.file = client.place("")});
}

CAIRN_BODY void s3_bucket::fail_answer(std::string_view what) const {
  // What a service says wrongly is no damage of a checkpoint, which resume would set aside.
  fail(error_id::storage_io, "the server answered with " + std::string(what), {.file = client.place("")});
}

CAIRN_BODY std::optional<std::string> s3_bucket::decoded(std::string_view text, bool encoded) {
  std::string out(text);
  if (encoded && !percent_decoded(text, out)) return std::nullopt;
  return out;
}

CAIRN_BODY std::optional<std::string> s3_bucket::key_of(const xml_element& e, bool encoded) {
  return decoded(e.text_of("Key"), encoded);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
