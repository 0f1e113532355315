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
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
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
    if (const auto* const r = outside()) {
      if (!use_remembered || !remembered_) fail_outside(*r);
      for (const auto& each : ranges_)
        bucket_.forget(key_of(each));  // another object may have taken its place
      continue;
    }
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
      auto call = bucket_.client.begin({.method = "HEAD", .key = key, .until = until_}, group);
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

CAIRN_BODY const read_range* s3_range_reader::outside() const {
  for (const auto& r : ranges_) {
    const auto bytes = objects_.at(key_of(r)).bytes;
    if (r.offset > bytes || r.destination.size() > bytes - r.offset) return &r;
  }
  return nullptr;
}

CAIRN_BODY void s3_range_reader::fail_outside(const read_range& r) const {
  const auto bytes = objects_.at(key_of(r)).bytes;
  fail(error_id::corrupt_truncated,
       "the object ends before the requested bytes: it was truncated or replaced",
       {.file = bucket_.client.place(key_of(r)),
        .offset = static_cast<std::int64_t>(r.offset & INT64_MAX),
        .expected = std::to_string(r.destination.size()) + " bytes",
        .got = std::to_string(r.offset > bytes ? 0 : bytes - r.offset) + " bytes"});
}

CAIRN_BODY std::shared_ptr<s3_call> s3_range_reader::fetch() {
  const auto group = detail::make_shared<call_group>();
  std::vector<flight> flights;
  std::shared_ptr<s3_call> failed;
  try {
    auto all = requests();
    flights.reserve(all.size());
    for (auto& r : all) {
      flights.push_back({bucket_.client.begin(std::move(r), group)});
      bucket_.client.service().pace.request_begun();
      if (counts_ != nullptr) counts_->requests.fetch_add(1, std::memory_order_relaxed);
    }
    using clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds between_looks(50);
    auto looked = clock::now();
    for (auto left = flights.size(); left != 0 && !failed; left = group->running()) {
      // Others may go on ending while some are slow.
      if (!group->wait_for(left - 1, between_looks) || clock::now() - looked >= between_looks) {
        hedge_slow(flights, group);
        looked = clock::now();
      }
      end_needless(flights);
      failed = first_failure(flights);  // which ends the others
    }
  } catch (...) {
    cancel_all(flights);
    group->wait();
    throw;
  }
  if (failed) cancel_all(flights);
  group->wait();
  if (!failed) failed = first_failure(flights);
  if (!failed) take_hedges(flights);
  return failed;
}

CAIRN_BODY void s3_range_reader::hedge_slow(std::vector<flight>& flights,
                                            const std::shared_ptr<call_group>& group) {
  auto& pace = bucket_.client.service().pace;
  for (auto& f : flights) {
    const auto waited = f.call->waited();
    if (f.hedge || !waited) continue;
    const auto& first = f.call->request();
    const auto limit = pace.slow_after(first.length);
    // Without its ETag the second request might find another object than the first.
    if (!limit || *waited < *limit || objects_.at(first.key).etag.empty()) continue;
    if (!pace.take_hedge()) return;
    try {
      auto again = first;
      f.room.resize(static_cast<std::size_t>(again.length));
      again.pieces = {{f.room.data(), f.room.size()}};
      f.hedge = bucket_.client.begin(std::move(again), group);
    } catch (const std::bad_alloc&) {  // the first request may bring the range all the same
      f.room = std::vector<std::byte>();
      pace.return_hedge();
      return;
    }
    pace.request_begun();
    if (counts_ == nullptr) continue;
    counts_->requests.fetch_add(1, std::memory_order_relaxed);
    counts_->hedges.fetch_add(1, std::memory_order_relaxed);
  }
}

CAIRN_BODY void s3_range_reader::end_needless(const std::vector<flight>& flights) noexcept {
  for (const auto& f : flights) {
    if (!f.hedge) continue;
    if (f.call->succeeded()) bucket_.client.cancel(*f.hedge);
    if (f.hedge->succeeded()) bucket_.client.cancel(*f.call);
  }
}

CAIRN_BODY void s3_range_reader::cancel_all(const std::vector<flight>& flights) noexcept {
  for (const auto& f : flights) {
    bucket_.client.cancel(*f.call);
    if (f.hedge) bucket_.client.cancel(*f.hedge);
  }
}

CAIRN_BODY void s3_range_reader::take_hedges(std::vector<flight>& flights) {
  for (auto& f : flights) {
    if (!f.call->failed()) continue;
    const auto* from = f.room.data();
    for (const auto& piece : f.call->request().pieces) {
      if (piece.to != nullptr && piece.bytes != 0) std::memcpy(piece.to, from, piece.bytes);
      from += piece.bytes;
    }
    bucket_.client.service().pace.hedge_won();
  }
}

CAIRN_BODY std::shared_ptr<s3_call> s3_range_reader::first_failure(const std::vector<flight>& flights) {
  for (const auto& f : flights)
    if (f.call->failed() && (!f.hedge || f.hedge->failed())) {
      // A definite answer says more than none.
      const bool by_hedge =
          f.hedge && f.hedge->end == http_end::answered && f.call->end != http_end::answered;
      return by_hedge ? f.hedge : f.call;
    }
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
  std::uint64_t total = 0;
  for (const auto* r : sorted) total += r->destination.size();
  const auto& client = bucket_.client;
  const auto max_get = client.options().get_bytes != 0
                           ? client.options().get_bytes
                           : client.service().pace.request_bytes(total, client.idle());
  const auto gap = bucket_.client.options().gap_bytes;
  std::vector<s3_request> out;
  const read_range* last = nullptr;
  for (const auto* r : sorted) {
    const auto in_object = [&] { return out.back().offset + out.back().length; };
    std::uint64_t done = 0;
    if (last != nullptr && last->key == r->key && r->offset >= in_object() &&
        r->offset - in_object() <= gap &&
        r->offset - in_object() <= max_get - std::min(max_get, out.back().length)) {
      auto& back = out.back();
      const auto between = r->offset - in_object();
      const auto n = std::min<std::uint64_t>(max_get - back.length - between, r->destination.size());
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
      const auto n = std::min<std::uint64_t>(max_get, r->destination.size() - done);
      s3_request next{.method = "GET", .key = key_of(*r), .until = until_};
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
