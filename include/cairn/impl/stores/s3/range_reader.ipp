// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/call.hpp>
#include <cairn/stores/s3/client.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/range_reader.hpp>
#include <cairn/stores/s3/request.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void s3_range_reader::run() {
  for (bool use_remembered = true;; use_remembered = false) {
    find_objects(use_remembered);
    check_bounds();
    const auto failed = fetch();
    if (!failed) return;
    const auto& call = *failed;
    const bool stale = call.end == http_end::answered && (call.status == 412 || call.status == 404);
    if (stale) bucket_.forget(call.request().key);
    if (stale && use_remembered && remembered_) continue;
    if (call.end == http_end::answered && call.status == 412)
      fail(error_id::corrupt_identity, "the object was replaced by another one while it was read",
           {.file = bucket_.client.place(call.request().key),
            .offset = static_cast<std::int64_t>(call.request().offset)});
    bucket_.client.fail_call(call, "reading of an object");
  }
}

CAIRN_BODY std::string s3_range_reader::key_of(const read_range& r) const {
  return bucket_.client.options().prefix + std::string(r.key);
}

CAIRN_BODY void s3_range_reader::find_objects(bool use_remembered) {
  objects_.clear();
  remembered_ = false;
  const auto group = detail::make_shared<call_group>();
  std::map<std::string, std::shared_ptr<s3_call>> asked;
  try {
    for (const auto& r : ranges_) {
      auto key = key_of(r);
      if (objects_.contains(key) || asked.contains(key)) continue;
      if (auto o = use_remembered ? bucket_.known(key) : std::nullopt) {
        remembered_ = true;
        objects_.emplace(std::move(key), std::move(*o));
        continue;
      }
      auto call = bucket_.client.begin({.method = "HEAD", .key = key}, group);
      asked.emplace(std::move(key), std::move(call));
    }
  } catch (...) {
    group->wait();
    throw;
  }
  group->wait();
  for (const auto& [key, call] : asked) {
    const auto o = bucket_.client.object_of(*call);
    if (!o)
      fail(error_id::storage_not_found, "there is no object of this key",
           {.file = bucket_.client.place(key)});
    bucket_.learn(key, *o);
    objects_.emplace(key, *o);
  }
}

CAIRN_BODY void s3_range_reader::check_bounds() const {
  for (const auto& r : ranges_) {
    const auto bytes = objects_.at(key_of(r)).bytes;
    const auto wanted = r.destination.size();
    if (r.offset <= bytes && wanted <= bytes - r.offset) continue;
    fail(error_id::corrupt_truncated,
         "the object ends before the requested bytes: it was truncated or replaced",
         {.file = bucket_.client.place(key_of(r)),
          .offset = static_cast<std::int64_t>(r.offset & INT64_MAX),
          .expected = std::to_string(wanted) + " bytes",
          .got = std::to_string(r.offset > bytes ? 0 : bytes - r.offset) + " bytes"});
  }
}

CAIRN_BODY std::shared_ptr<s3_call> s3_range_reader::fetch() {
  const auto group = detail::make_shared<call_group>();
  std::vector<std::shared_ptr<s3_call>> calls;
  try {
    for (auto& r : requests()) calls.push_back(bucket_.client.begin(std::move(r), group));
  } catch (...) {
    for (const auto& c : calls) bucket_.client.cancel(*c);
    group->wait();
    throw;
  }
  std::shared_ptr<s3_call> failed;
  for (auto left = calls.size(); left != 0 && !failed;) {
    group->wait(left - 1);  // the first failure ends the others
    left = group->running();
    failed = first_failure(calls);
    if (left == 0) break;
  }
  if (failed)
    for (const auto& c : calls) bucket_.client.cancel(*c);
  group->wait();
  return failed ? failed : first_failure(calls);
}

CAIRN_BODY std::shared_ptr<s3_call> s3_range_reader::first_failure(
    const std::vector<std::shared_ptr<s3_call>>& calls) {
  for (const auto& c : calls)
    if (c->failed()) return c;
  return nullptr;
}

CAIRN_BODY std::vector<s3_request> s3_range_reader::requests() const {
  std::vector<const read_range*> sorted;
  std::vector<std::string> keys;
  for (const auto& r : ranges_)
    if (!r.destination.empty()) sorted.push_back(&r);
  detail::sort(sorted, [](const auto* a, const auto* b) {
    return a->key != b->key ? a->key < b->key : a->offset < b->offset;
  });
  const auto most = bucket_.client.options().get_bytes;
  const auto gap = bucket_.client.options().gap_bytes;
  std::vector<s3_request> out;
  const read_range* last = nullptr;
  for (const auto* r : sorted) {
    const auto in_object = [&] { return out.back().offset + out.back().length; };
    std::uint64_t done = 0;
    if (last != nullptr && last->key == r->key && r->offset >= in_object() &&
        r->offset - in_object() <= gap &&
        r->offset - in_object() <= most - std::min(most, out.back().length)) {
      auto& back = out.back();
      const auto between = r->offset - in_object();
      const auto n = std::min<std::uint64_t>(most - back.length - between, r->destination.size());
      if (n == r->destination.size() || between == 0) {
        if (n != 0) {
          if (between != 0) back.pieces.push_back({nullptr, static_cast<std::size_t>(between)});
          back.pieces.push_back({r->destination.data(), static_cast<std::size_t>(n)});
          back.length += between + n;
        }
        done = n;
      }
    }
    while (done < r->destination.size()) {
      const auto n = std::min<std::uint64_t>(most, r->destination.size() - done);
      s3_request next{.method = "GET", .key = key_of(*r)};
      const auto& etag = objects_.at(next.key).etag;
      if (!etag.empty()) next.headers.emplace_back("if-match", etag);
      next.pieces.push_back({r->destination.data() + done, static_cast<std::size_t>(n)});
      next.offset = r->offset + done;
      next.length = n;
      out.push_back(std::move(next));
      done += n;
    }
    last = r;
  }
  return out;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
