// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/call.hpp>
#include <cairn/stores/s3/client.hpp>
#include <cairn/stores/s3/fetched_credentials.hpp>
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/stores/s3/heartbeat.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/request.hpp>
#include <cairn/stores/s3/xml.hpp>
#include <cairn/system/shared.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How often a heartbeat is written, and after which age it counts no more.
inline constexpr std::chrono::seconds heartbeat_interval{8};

inline constexpr std::chrono::seconds heartbeat_timeout{30};

/// How long one request for it is tried.
inline constexpr std::chrono::seconds heartbeat_request_timeout{10};

/// A small file of the kernel's, at most 1 KiB of it; "" where there is none.
[[nodiscard]] inline std::string kernel_text(const char* path) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::array<char, 1024> bytes;
  const auto n = ::read(file, bytes.data(), bytes.size());
  ::close(file);
  return n > 0 ? std::string(bytes.data(), static_cast<std::size_t>(n)) : std::string();
}

CAIRN_BODY std::string host_tag() {
  std::array<char, 128> space{};
  const auto n = ::readlink("/proc/self/ns/pid", space.data(), space.size() - 1);
  return sha256_text(kernel_text("/proc/sys/kernel/random/boot_id") +
                     std::string(space.data(), n > 0 ? static_cast<std::size_t>(n) : 0))
      .substr(0, 16);
}

/// When a process began, in ticks since the boot; "" where there is none, or one that has ended.
[[nodiscard]] inline std::string process_begin(std::string_view process) {
  const auto text = kernel_text(("/proc/" + std::string(process) + "/stat").c_str());
  // "7 (any) name) S 1 ...": the state is the third field, the time the 22nd.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return {};
  std::string_view rest = std::string_view(text).substr(name_end + 2);
  if (rest.front() == 'Z' || rest.front() == 'X') return {};
  for (int field = 3; field < 22; ++field) {
    const auto space = rest.find(' ');
    if (space == std::string_view::npos) return {};
    rest.remove_prefix(space + 1);
  }
  return std::string(rest.substr(0, rest.find(' ')));
}

/// "HOST-PROCESS-BEGIN" of this process.
[[nodiscard]] inline std::string own_tag() {
  const auto process = std::to_string(::getpid());
  return host_tag() + "-" + process + "-" + process_begin(process);
}

CAIRN_BODY heartbeat::heartbeat(std::shared_ptr<s3_bucket> bucket, const std::string& key)
    : bucket_(std::move(bucket)), key_(key + "." + own_tag() + std::string(sign_ending)) {
  const auto suspended = bucket_->client.service().clock->suspended();
  const auto call = bucket_->client.run(beginning());
  has_others_ = call->uncertain();
  try {
    id_ = bucket_->begun(*call, "announcing of a save");
  } catch (...) {
    end_others();
    throw;
  }
  seen_at_.store(call->sent_at() + suspended);
  end_others();
  // Where there is no thread, it is seen all the same, for a while.
  static_cast<void>(thread_.start("cairn heartbeat", [this] { repeat(); }));
}

CAIRN_BODY heartbeat::~heartbeat() {
  if (thread_.in_child()) {  // the parent announces, and takes it back
    static_cast<void>(ended_.release());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    if (under_way_) bucket_->client.cancel(*under_way_);
  }
  ended_->notify_all();
  thread_.join();
  try {
    bucket_->abort(key_, id_, request_deadline(), true);
  } catch (...) {  // leftovers() lists it
    try {
      bucket_->end_later(key_, id_);
    } catch (const std::bad_alloc&) {  // it counts until this process ends
    }
  }
  bucket_->closed(id_);
  end_others();
}

CAIRN_BODY s3_clock::time_point heartbeat::now() const noexcept {
  auto& clock = *bucket_->client.service().clock;
  return clock.now() + clock.suspended();
}

CAIRN_BODY bool heartbeat::was_lost() const noexcept {
  return lost_.load() || now() - seen_at_.load() > heartbeat_timeout;
}

CAIRN_BODY bool heartbeat::pause(std::unique_lock<std::mutex>& lock) {
  auto& clock = *bucket_->client.service().clock;
  const auto due = clock.now() + heartbeat_interval;
  // A clock may jump.
  constexpr s3_clock::time_point::duration longest = std::chrono::milliseconds(250);
  for (auto left = due - clock.now(); !ending_ && left.count() > 0; left = due - clock.now())
    ended_->wait_for(lock, std::min(left, longest));
  return !ending_;
}

CAIRN_BODY s3_deadline heartbeat::request_deadline() const {
  const auto& clock = bucket_->client.service().clock;
  return {clock, clock->now() + heartbeat_request_timeout};
}

CAIRN_BODY s3_request heartbeat::beginning() const {
  return {.method = "POST",
          .key = key_,
          .query = {{"uploads", ""}},
          .urgent = true,
          .root = "InitiateMultipartUploadResult"};
}

CAIRN_BODY std::shared_ptr<s3_call> heartbeat::run(s3_request r, bool may_cancel,
                                                   std::unique_lock<std::mutex>& lock) {
  r.until = request_deadline();
  const auto group = detail::make_shared<call_group>();
  auto call = bucket_->client.begin(std::move(r), group);
  if (may_cancel) under_way_ = call;
  lock.unlock();
  group->wait();
  lock.lock();
  under_way_.reset();
  return call;
}

CAIRN_BODY void heartbeat::repeat() noexcept {
  std::unique_lock lock(mutex_);
  while (pause(lock)) {
    try {
      show_again(lock);
    } catch (...) {  // the next one may come through
    }
    if (ending_) return;
    lock.unlock();
    end_others();
    lock.lock();
  }
}

CAIRN_BODY void heartbeat::show_again(std::unique_lock<std::mutex>& lock) {
  static constexpr std::array<std::byte, 1> mark{};
  s3_request r{.method = "PUT", .key = key_, .urgent = true};
  r.query = {{"partNumber", "1"}, {"uploadId", id_}};
  bucket_->client.set_body(r, {std::span<const std::byte>(mark)}, false);
  const auto begun = now();
  const auto call = run(std::move(r), true, lock);
  if (call->fine()) {
    // One that comes too late undoes nothing: others may have taken this process for dead until then.
    if (was_lost()) lost_.store(true);
    seen_at_.store(begun);
    return;
  }
  if (call->end != http_end::answered || call->status != 404 || ending_) return;
  lost_.store(true);
  bucket_->closed(id_);
  // An upload that was begun and is not known would stand for this process until it ends.
  const auto again = run(beginning(), false, lock);
  has_others_ = has_others_ || again->uncertain();
  id_ = bucket_->begun(*again, "announcing of a save");
}

CAIRN_BODY void heartbeat::end_others() noexcept {
  if (!has_others_) return;
  try {
    const auto until = request_deadline();
    for (const auto& upload : bucket_->uploads(key_, until, true))
      if (upload.key == key_ && !bucket_->lives(upload.id) && upload.id != id_)
        bucket_->abort(key_, upload.id, until, true);
    has_others_ = false;
  } catch (...) {  // after the next sign, or at the end
  }
}

/// Says once for a store that it is not told who lives, `why`, and what that costs.
inline void warn_of_hidden_signs(s3_bucket& bucket, const s3_call& look, const char* why) {
  if (bucket.client.service().told_of_hidden_signs.exchange(true)) return;
  const auto what = look.fine() ? "status " + std::to_string(look.status) : look.last_failure();
  std::fprintf(
      stderr,
      "cairn: %s: whether the process that shows itself by it lives is not told (%s): %s. Such processes "
      "of other hosts are taken for living ones, so that a run waits for saves that a dead one began, and "
      "what a dead one read stays, until somebody, or a lifecycle rule, aborts this upload\n",
      bucket.client.place(look.request().key).c_str(), what.c_str(), why);
}

CAIRN_BODY bool has_heartbeat(s3_bucket& bucket, const open_upload& upload) {
  if (bucket.was_left(upload.id)) return false;
  std::string_view tag = upload.key;
  if (!tag.ends_with(sign_ending)) return false;
  tag.remove_suffix(sign_ending.size());
  tag.remove_prefix(tag.rfind('.') == std::string_view::npos ? 0 : tag.rfind('.') + 1);
  const auto first = tag.find('-');
  const auto second = tag.rfind('-');
  if (first == std::string_view::npos || first == second) return false;
  if (tag.substr(0, first) == host_tag()) {
    std::uint64_t process = 0;
    if (!parse_decimal(tag.substr(first + 1, second - first - 1), process)) return false;
    const auto begin = process_begin(std::to_string(process));
    return !begin.empty() && begin == tag.substr(second + 1);
  }
  s3_request r{.method = "GET", .key = upload.key, .query = {{"max-parts", "1"}, {"uploadId", upload.id}}};
  r.root = "ListPartsResult";
  const auto call = bucket.client.run(std::move(r));
  if (!call->fine() && call->end == http_end::answered) {
    if (call->status == 404) return false;  // it has ended
    // That a service has no time says nothing of it, nor that we may not look: who is not known to be dead lives.
    const bool busy =
        call->status == 408 || call->status == 429 || (call->status >= 500 && call->status != 501);
    const bool forbidden = call->status == 401 || call->status == 403;
    if (!busy)
      return warn_of_hidden_signs(bucket, *call,
                                  forbidden
                                      ? "the credentials lack the right s3:ListMultipartUploadParts on it"
                                      : "the service refuses ListParts"),
             true;
  }
  bucket.client.require(*call, "looking for a writer's signs of life");
  const auto date = call->header("date");
  const auto now = date ? ::curl_getdate(std::string(*date).c_str(), nullptr) : -1;
  if (now <= 0) return warn_of_hidden_signs(bucket, *call, "its answer has no Date, or more than one"), true;
  auto last = time_of_iso(upload.begun);
  for (const auto& part : call->document().children)
    if (part.name == "Part") last = time_of_iso(part.text_of("LastModified"));  // its only one
  if (!last) return warn_of_hidden_signs(bucket, *call, "its answers have no times that can be read"), true;
  return now - *last <= heartbeat_timeout.count();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
