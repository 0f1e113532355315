// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/heartbeat.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <atomic>
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

/// The size of an upload's parts for an object of about `bytes` bytes (0: unknown).
[[nodiscard]] std::uint64_t part_bytes_for(std::uint64_t bytes, std::uint64_t wanted) noexcept;

/// An object that is being written: by one request if it fits into a part, else by an upload whose parts are
/// sent as soon as they are complete. Parts of write() are copied: for one that is written from front to
/// back, as many as run at a time are in memory, the one that is being filled among them; those of
/// write_stable() are sent from where they are, and wait once twice as many as run at a time are under way.
class s3_upload {
 public:
  s3_upload(std::shared_ptr<s3_bucket> bucket, std::string key, std::uint64_t size_hint);
  s3_upload(const s3_upload&) = delete;
  s3_upload& operator=(const s3_upload&) = delete;
  ~s3_upload();

  /// Looks whether something stands under the key, and begins the upload meanwhile where the object is longer
  /// than a part. @throws storage_exists
  void begin();

  void add(std::span<const write_range> parts, bool lasting);

  /// Has the service take all `bytes` from another object of the bucket, instead of add(): in parts, several at once.
  /// False where it does not do that; only another upload can be used then.
  [[nodiscard]] bool take_from(const std::string& from, std::uint64_t bytes);

  /// When calls that wait for their turn, or for requests, give up; before begin() also its requests.
  void until(deadline when);

  /// Makes the unfinished object one that others see, and that its writer lives.
  void announce();
  /// Whether others have seen it all the time since.
  [[nodiscard]] bool announced() const noexcept { return sign_ != nullptr && !sign_->was_lost(); }

  void finish();

 private:
  struct part_piece {
    std::uint64_t at;  // in the part
    std::uint64_t bytes;
    const std::byte* lasting;  // nothing: in the part's buffer, at the same place
  };
  struct waiting_part {
    std::vector<part_piece> pieces;
    std::unique_ptr<part_buffers::buffer> buffer;
    std::uint64_t filled = 0;
  };
  struct sent_part {
    std::shared_ptr<s3_call> call;
  };
  struct shared {
    std::shared_ptr<call_group> group = detail::make_shared<call_group>();
    std::atomic<bool> failed{false};
  };

  void must_be_open(const char* call) const;

  void add_one(const write_range& p, bool lasting);

  void put_into(std::uint64_t index, std::uint64_t at, std::span<const std::byte> bytes, bool lasting);

  /// All that the part may need at once, where the object's size is known: a buffer that grows is there
  /// twice while it does.
  void make_room(part_buffers::buffer& buffer, std::uint64_t index, std::size_t needed) const;

  /// The bytes of a part in order. @throws usage_incomplete_object if there is a hole, or something twice.
  [[nodiscard]] std::vector<std::span<const std::byte>> assembled(waiting_part& p, std::uint64_t bytes) const;

  void send(std::map<std::uint64_t, waiting_part>::iterator which);

  /// Waits until fewer than twice as many parts of the store as may run at once have been begun and not ended.
  void await_turn() const;
  /// `done` is called when the request has ended, or could not be begun.
  void begin_part(std::uint64_t index, s3_request r, const std::function<void()>& done = {});

  void begin_upload(bool with_checksums = true);

  void finish_object();

  /// The same parts once more, in another upload: what the service asks for where two requests for a key came
  /// in each other's way. Only where no part was copied: those are gone.
  void begin_again();

  /// False: nothing stands under the key, and the upload is to be begun again, where it `may` be.
  [[nodiscard]] bool complete(bool may_begin_again);

  [[noreturn]] void fail_incomplete() const;
  [[noreturn]] void fail_exists() const;
  /// give_up() cancels what is under way.
  [[noreturn]] void fail_late() const;
  [[noreturn]] void fail_failed_part();

  /// Leaves nothing under the key, and nothing that costs money, as far as the server lets it.
  void give_up() noexcept;

  std::shared_ptr<s3_bucket> bucket_;
  std::string key_;
  std::string token_;
  std::uint64_t size_hint_;  // 0: unknown
  std::uint64_t part_bytes_;
  std::shared_ptr<shared> shared_;
  std::string id_;
  std::map<std::uint64_t, waiting_part> parts_;  // that are not sent yet
  std::map<std::uint64_t, sent_part> sent_;
  std::unique_ptr<heartbeat> sign_;
  s3_deadline until_;
  std::uint64_t written_ = 0;
  std::uint64_t end_ = 0;
  bool checksums_ = false;
  bool copied_ = false;  // some part that was sent
  bool open_ = true;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/object_writer.ipp>
#endif
