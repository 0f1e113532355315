// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/s3/answer.hpp>
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/call.hpp>
#include <cairn/stores/s3/client.hpp>
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/crc64nvme.hpp>
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/stores/s3/heartbeat.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/object_writer.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/request.hpp>
#include <cairn/stores/s3/service.hpp>
#include <cairn/stores/s3/xml.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::uint64_t part_bytes_for(std::uint64_t bytes, std::uint64_t wanted) noexcept {
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  constexpr std::uint64_t max_parts = 10'000;
  // Few enough bytes that many connections share an object, and few enough parts. What has 8 MiB at most is one
  // request, which takes a third of the round trips.
  const bool some_parts = bytes > 8 * mib && bytes < 128 * mib;
  const auto by_length = some_parts ? std::clamp((bytes / 16 + mib - 1) / mib * mib, 5 * mib, 8 * mib)
                                    : std::clamp((bytes / 64 + mib - 1) / mib * mib, 8 * mib, 16 * mib);
  const auto least = (bytes / max_parts + mib) / mib * mib;
  return std::min(std::max(wanted != 0 ? wanted : by_length, bytes == 0 ? 0 : least), std::uint64_t{5} << 30);
}

CAIRN_BODY s3_upload::s3_upload(std::shared_ptr<s3_bucket> bucket, std::string key, std::uint64_t size_hint)
    : bucket_(std::move(bucket)),
      key_(std::move(key)),
      token_(random_token()),
      size_hint_(size_hint),
      part_bytes_(part_bytes_for(size_hint, bucket_->client.options().part_bytes)),
      shared_(detail::make_shared<shared>()) {}

CAIRN_BODY s3_upload::~s3_upload() {
  give_up();
}

CAIRN_BODY void s3_upload::begin() {
  auto& client = bucket_->client;
  const auto group = std::make_shared<call_group>();
  // The caller has told no deadline yet: behind parts that nobody answers it would wait for theirs.
  const auto look = client.begin({.method = "HEAD", .key = key_, .urgent = true, .until = until_}, group);
  try {
    if (size_hint_ > part_bytes_) begin_upload();
    group->wait();
    if (client.object_of(*look)) fail_exists();
  } catch (...) {
    // That the key is taken says more than what became of the upload.
    group->wait();
    give_up();
    if (look->fine() && client.object_of(*look)) fail_exists();
    throw;
  }
}

CAIRN_BODY void s3_upload::add(std::span<const write_range> parts, bool lasting) {
  must_be_open("write");
  try {
    for (const auto& p : parts) add_one(p, lasting);
  } catch (...) {
    give_up();
    throw;
  }
}

CAIRN_BODY bool s3_upload::take_from(const std::string& from, std::uint64_t bytes) {
  must_be_open("take_from");
  auto& client = bucket_->client;
  try {
    // One request copies some hundred MB a second. Each part is a request to pay for.
    constexpr std::uint64_t mib = std::uint64_t{1} << 20;
    const auto wanted = client.options().part_bytes;
    part_bytes_ = wanted != 0 ? part_bytes_for(bytes, wanted)
                              : std::max(std::clamp((bytes / 64 + mib - 1) / mib * mib, 64 * mib, 512 * mib),
                                         part_bytes_for(bytes, 0));
    begin_upload(false);
    const auto name = "/" + client.options().bucket + "/" + percent_encoded(from, true);
    for (std::uint64_t index = 0; index * part_bytes_ < bytes; ++index) {
      const auto first = index * part_bytes_, last = std::min(bytes, first + part_bytes_);
      s3_request r{.method = "PUT", .key = key_};
      r.query = {{"partNumber", std::to_string(index + 1)}, {"uploadId", id_}};
      r.headers.emplace_back(client.prefix_of_headers() + "copy-source", name);
      // Of a small object some services take no range.
      if (last - first != bytes)
        r.headers.emplace_back(client.prefix_of_headers() + "copy-source-range",
                               "bytes=" + std::to_string(first) + "-" + std::to_string(last - 1));
      r.completes = true;
      r.root = "CopyPartResult";
      client.set_body(r, {}, false);
      await_turn();
      if (shared_->failed.load()) break;
      begin_part(index, std::move(r));
    }
    end_ = written_ = bytes;
    if (!shared_->group->wait_until(until_)) fail_late();
    if (!shared_->failed.load()) return true;
    for (const auto& [index, part] : sent_)
      if (part.call->end == http_end::answered && (part.call->status == 501 || part.call->status == 405 ||
                                                   part.call->refusal().code == "NotImplemented")) {
        give_up();
        return false;
      }
    fail_failed_part();
  } catch (...) {
    give_up();
    throw;
  }
}

CAIRN_BODY void s3_upload::until(deadline when) {
  must_be_open("until");
  until_ = s3_deadline::on(bucket_->client.service().clock, when);
}

CAIRN_BODY void s3_upload::announce() {
  must_be_open("announce");
  if (!sign_) sign_ = std::make_unique<heartbeat>(bucket_, key_);
}

CAIRN_BODY void s3_upload::finish() {
  must_be_open("finish");
  try {
    finish_object();
  } catch (...) {
    give_up();
    throw;
  }
  if (!id_.empty()) bucket_->closed(id_);
  open_ = false;
  sent_.clear();  // the writer of a finished object may be kept for long
}

CAIRN_BODY void s3_upload::must_be_open(const char* call) const {
  if (!open_)
    fail(error_id::usage_closed,
         std::string(call) + "() after finish() or after an error: begin a new object",
         {.file = bucket_->client.place(key_)});
}

CAIRN_BODY void s3_upload::add_one(const write_range& p, bool lasting) {
  std::uint64_t end = 0;
  if (__builtin_add_overflow(p.offset, std::uint64_t{p.bytes.size()}, &end) || end > std::uint64_t{5} << 40)
    fail(error_id::usage_overflow, "a range ends beyond the largest possible object, of 5 TiB",
         {.file = bucket_->client.place(key_)});
  if (end > part_bytes_ * 10'000)
    fail(error_id::storage_limit,
         "the object has more than 10,000 parts: give create() the size that it will have, or set "
         "part_bytes",
         {.file = bucket_->client.place(key_)});
  end_ = std::max(end_, end);
  written_ += p.bytes.size();
  auto bytes = p.bytes;
  for (auto at = p.offset; !bytes.empty();) {
    const auto index = at / part_bytes_;
    const auto in_part = at % part_bytes_;
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(part_bytes_ - in_part, bytes.size()));
    put_into(index, in_part, bytes.first(n), lasting);
    bytes = bytes.subspan(n);
    at += n;
  }
}

CAIRN_BODY void s3_upload::put_into(std::uint64_t index, std::uint64_t at, std::span<const std::byte> bytes,
                                    bool lasting) {
  if (sent_.contains(index)) fail_incomplete();
  auto& p = parts_[index];
  const part_piece next{at, bytes.size(), lasting ? bytes.data() : nullptr};
  if (!lasting) {
    if (!p.buffer) p.buffer = bucket_->buffers.take(until_);
    if (!p.buffer) fail_late();
    const auto needed = static_cast<std::size_t>(at + bytes.size());
    if (p.buffer->size() < needed) {
      if (p.buffer->capacity() < needed) make_room(*p.buffer, index, needed);
      p.buffer->resize(needed);
    }
    std::memcpy(p.buffer->data() + at, bytes.data(), bytes.size());
  }
  if (!p.pieces.empty()) {
    auto& last = p.pieces.back();
    const bool follows = last.at + last.bytes == at && (last.lasting == nullptr) == !lasting &&
                         (!lasting || last.lasting + last.bytes == bytes.data());
    if (follows)
      last.bytes += bytes.size();
    else
      p.pieces.push_back(next);
  } else {
    p.pieces.push_back(next);
  }
  p.filled += bytes.size();
  // The first part alone may be the whole object.
  if (id_.empty() && parts_.size() == 1) return;
  for (auto open = parts_.begin(); open != parts_.end();) {
    const auto now = open++;
    if (now->second.filled >= part_bytes_) send(now);
  }
}

CAIRN_BODY void s3_upload::make_room(part_buffers::buffer& buffer, std::uint64_t index,
                                     std::size_t needed) const {
  const auto begin = index * part_bytes_;
  const auto known = size_hint_ > begin ? std::min(part_bytes_, size_hint_ - begin) : 0;
  buffer.reserve(std::min(static_cast<std::size_t>(part_bytes_),
                          std::max({needed, static_cast<std::size_t>(known),
                                    known == 0 ? buffer.capacity() * 2 : std::size_t{0}})));
}

CAIRN_BODY std::vector<std::span<const std::byte>> s3_upload::assembled(waiting_part& p,
                                                                        std::uint64_t bytes) const {
  detail::sort(p.pieces, [](const part_piece& a, const part_piece& b) { return a.at < b.at; });
  std::vector<std::span<const std::byte>> out;
  std::uint64_t at = 0;
  for (const auto& piece : p.pieces) {
    if (piece.at != at) fail_incomplete();
    out.emplace_back(piece.lasting != nullptr ? piece.lasting : p.buffer->data() + piece.at,
                     static_cast<std::size_t>(piece.bytes));
    at += piece.bytes;
  }
  if (at != bytes) fail_incomplete();
  return out;
}

CAIRN_BODY void s3_upload::await_turn() const {
  // Any number of them could be submitted, but what is begun later would wait for all.
  if (!bucket_->sent_parts.wait_until(until_, 2 * bucket_->client.options().in_flight - 1)) fail_late();
}

CAIRN_BODY void s3_upload::begin_part(std::uint64_t index, s3_request r, const std::function<void()>& done) {
  const auto on_end = [shared = shared_, bucket = bucket_.get(), done](const s3_call& call) {
    if (!call.fine()) shared->failed.store(true);
    if (done) done();
    bucket->sent_parts.end();
  };
  bucket_->sent_parts.begin();
  try {
    sent_[index].call = bucket_->client.begin(std::move(r), shared_->group, on_end);
  } catch (...) {
    sent_.erase(index);
    if (done) done();
    bucket_->sent_parts.end();
    throw;
  }
}

CAIRN_BODY void s3_upload::send(std::map<std::uint64_t, waiting_part>::iterator which) {
  await_turn();
  if (shared_->failed.load()) fail_failed_part();
  if (id_.empty()) begin_upload();
  const auto index = which->first;
  auto pieces = assembled(which->second, std::min(part_bytes_, end_ - index * part_bytes_));
  s3_request r{.method = "PUT", .key = key_};
  r.query = {{"partNumber", std::to_string(index + 1)}, {"uploadId", id_}};
  bucket_->client.set_body(r, std::move(pieces), checksums_);
  auto buffer = detail::make_shared<std::unique_ptr<part_buffers::buffer>>();
  *buffer = std::move(which->second.buffer);
  parts_.erase(which);
  const bool copied = *buffer != nullptr;
  copied_ = copied_ || copied;
  if (copied && !bucket_->buffers.begin_sending(until_)) fail_late();
  begin_part(index, std::move(r), [buffer, copied, bucket = bucket_.get()] {
    if (copied) bucket->buffers.sent(std::move(*buffer));
  });
}

CAIRN_BODY void s3_upload::begin_upload(bool with_checksums) {
  auto& service = bucket_->client.service();
  for (int i = 0;; ++i) {
    checksums_ = with_checksums && service.checksums.load();
    const bool named = checksums_ && !bucket_->client.google();
    const bool whole = service.options.checksums == s3_checksum::crc64nvme;
    s3_request r{.method = "POST", .key = key_};
    r.query = {{"uploads", ""}};
    r.root = "InitiateMultipartUploadResult";
    r.urgent = true;
    r.until = until_;
    r.headers.emplace_back(bucket_->client.token_header(), token_);
    if (named) r.headers.emplace_back("x-amz-checksum-algorithm", whole ? "CRC64NVME" : "CRC32C");
    if (named && whole) r.headers.emplace_back("x-amz-checksum-type", "FULL_OBJECT");
    const auto call = bucket_->client.run(std::move(r));
    if (!call->fine() && named && i == 0 && !service.checksums_known.load() &&
        call->end == http_end::answered && (call->status == 400 || call->status == 501)) {
      service.checksums.store(false);
      continue;
    }
    id_ = bucket_->begun(*call, "beginning of an upload");
    return;
  }
}

CAIRN_BODY void s3_upload::finish_object() {
  if (written_ != end_) fail_incomplete();
  auto& client = bucket_->client;
  if (parts_.empty() && sent_.empty() && !id_.empty()) {  // nothing came of what was announced
    bucket_->abort(key_, id_, until_);
    bucket_->closed(std::exchange(id_, {}));
  }
  if (id_.empty() && parts_.size() <= 1) {
    std::vector<std::span<const std::byte>> pieces;
    if (!parts_.empty()) {
      if (parts_.begin()->first != 0) fail_incomplete();
      pieces = assembled(parts_.begin()->second, end_);
    }
    if (client.put(key_, std::move(pieces), until_) == s3_client::put_result::existed) fail_exists();
    return;
  }
  while (!parts_.empty()) send(parts_.begin());
  for (int conflicts = 0;; ++conflicts) {
    if (!shared_->group->wait_until(until_)) fail_late();
    if (shared_->failed.load()) fail_failed_part();
    if (complete(!copied_ && conflicts < 2)) return;
    begin_again();
  }
}

CAIRN_BODY void s3_upload::begin_again() {
  bucket_->closed(id_);
  bucket_->abort(key_, std::exchange(id_, {}), until_);
  const auto before = std::exchange(sent_, {});
  begin_upload(checksums_);
  for (const auto& [index, part] : before) {
    auto r = part.call->request();
    r.query = {{"partNumber", std::to_string(index + 1)}, {"uploadId", id_}};
    await_turn();
    begin_part(index, std::move(r));
  }
}

CAIRN_BODY bool s3_upload::complete(bool may_begin_again) {
  auto& client = bucket_->client;
  std::string text = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  std::uint64_t expected = 0;
  const bool crc64 = client.options().checksums == s3_checksum::crc64nvme;
  const std::string element = crc64 ? "ChecksumCRC64NVME" : "ChecksumCRC32C";
  bool sums = crc64;        // all parts have one
  std::uint64_t whole = 0;  // that of all parts together
  for (const auto& [index, part] : sent_) {
    const bool copied = !part.call->request().root.empty();
    const auto etag = copied ? std::optional<std::string_view>(part.call->document().text_of("ETag"))
                             : part.call->header("etag");
    if (index != expected++ || !etag || etag->empty() || etag->size() > 1024)
      fail(error_id::storage_io, "the server took a part without giving its ETag",
           {.file = client.place(key_)});
    text += "<Part><PartNumber>" + std::to_string(index + 1) + "</PartNumber><ETag>" + xml_text(*etag) +
            "</ETag>";
    const auto& sent = part.call->request();
    if (part.call->sent_checksum() && !client.google())
      text += "<" + element + ">" + sent.body_checksum + "</" + element + ">";
    text += "</Part>";
    sums = sums && part.call->sent_checksum();
    std::uint64_t bytes = 0;
    for (const auto& piece : sent.body) bytes += piece.size();
    if (sums) whole = crc64nvme_joined(whole, sent.body_crc64, bytes);
  }
  text += "</CompleteMultipartUpload>";
  // Google refuses all conditions on uploads: there a look must do, as names are those of one attempt
  // alone.
  if (client.google() && client.head(key_, until_)) fail_exists();
  for (bool conditional = !client.google();; conditional = false) {
    s3_request r{.method = "POST", .key = key_, .until = until_};
    r.query = {{"uploadId", id_}};
    r.completes = true;
    r.root = "CompleteMultipartUpload";
    if (conditional) client.only_if_absent(r);
    if (sums) {
      r.headers.emplace_back("x-amz-checksum-type", "FULL_OBJECT");
      r.headers.emplace_back(checksum_header(client.options()), checksum_text(whole));
    }
    client.set_body(r, {std::as_bytes(std::span(text.data(), text.size()))}, false);
    const auto call = client.run(std::move(r));
    if (call->fine()) {
      const auto theirs = call->document().text_of(element);
      if (sums && !theirs.empty() && theirs != checksum_text(whole))
        fail(error_id::storage_io, "the server assembled other bytes than it was sent",
             {.file = client.place(key_),
              .expected = "CRC-64/NVME " + checksum_text(whole),
              .got = std::string(theirs.substr(0, 24))});
      return true;
    }
    const bool answered = call->end == http_end::answered;
    // Where it is not understood here, the look of create() must do: names are those of one attempt alone.
    if (conditional && answered && (call->status == 501 || call->refusal().code == "NotImplemented"))
      continue;
    const bool taken = answered && (call->status == 412 || call->status == 409);
    const bool gone = answered && call->status == 404;
    if (!taken && !gone && !call->uncertain()) client.fail_call(*call, "completion of an upload");
    const auto stands = client.head(key_, until_);
    if (stands && stands->token == token_ && stands->bytes == end_) return true;
    if (stands && (taken || !stands->token.empty())) fail_exists();
    if (may_begin_again && !stands && answered && call->status == 409) return false;
    client.fail_call(*call, "completion of an upload");
  }
}

CAIRN_BODY void s3_upload::fail_incomplete() const {
  fail(error_id::usage_incomplete_object, "each byte of an object must be written once before it is finished",
       {.file = bucket_->client.place(key_),
        .expected = std::to_string(end_) + " bytes",
        .got = std::to_string(written_) + " bytes"});
}

CAIRN_BODY void s3_upload::fail_exists() const {
  fail(error_id::storage_exists, "an object of this key exists already; it was not touched",
       {.file = bucket_->client.place(key_)});
}

CAIRN_BODY void s3_upload::fail_late() const {
  fail(error_id::timeout_write,
       "the object was not written in time: it still waits for the requests of earlier parts",
       {.file = bucket_->client.place(key_)});
}

CAIRN_BODY void s3_upload::fail_failed_part() {
  for (const auto& [index, part] : sent_) bucket_->client.cancel(*part.call);
  shared_->group->wait();
  for (const auto& [index, part] : sent_)
    if (!part.call->fine() && part.call->end != http_end::cancelled)
      bucket_->client.fail_call(*part.call, "sending of a part");
  fail(error_id::storage_io, "sending of a part failed", {.file = bucket_->client.place(key_)});
}

CAIRN_BODY void s3_upload::give_up() noexcept {
  if (!std::exchange(open_, false)) return;
  try {
    for (const auto& [index, part] : sent_) bucket_->client.cancel(*part.call);
    shared_->group->wait();
    for (auto& [index, part] : parts_) bucket_->buffers.give_back(std::move(part.buffer));
    // Its owner is late already, and parts of other objects may be under way that are not answered.
    const auto until =
        s3_deadline::on(bucket_->client.service().clock, deadline::in(std::chrono::seconds(10)));
    if (!id_.empty()) bucket_->abort(key_, id_, until, true);
  } catch (...) {  // leftovers() lists it
  }
  if (!id_.empty()) bucket_->closed(id_);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
