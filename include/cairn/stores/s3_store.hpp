// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/client.hpp>
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/object_writer.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/service.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Objects in a bucket of an S3-compatible service; a ByteStore over libcurl.
///
/// - Objects that fit into a part are one conditional PUT; longer ones are multipart uploads whose parts are
///   sent as they become complete, options.in_flight at a time over all objects. write() copies what it is
///   given, at most in_flight parts and one for each open object; write_stable() copies nothing.
/// - What finish(), put_new() and publish_new() acknowledge, the service has acknowledged, in an answer that
///   was read to its end. An answer that is lost is settled by looking at what stands: by the writer's token
///   in its metadata, else by its bytes.
/// - Every range is asked for with If-Match. ETags are remembered; an object that was replaced in between is
///   looked at anew once.
/// - Requests are repeated as the options say; every one ends by its timeout, with storage_unavailable or
///   what the server said.
/// - leftovers(): uploads that were begun and not ended, except those of this process's writers, and those by
///   which others announce that they write, as long as they live; live_writers() are these. The other uploads
///   of other processes that live cannot be told from those of dead ones.
/// - Copies share connections, credentials and one thread, which begins with the first request and ends with
///   the last copy or object writer. Not to be used in the child of a fork. All functions may be called by
///   several threads.
class s3_store {
 public:
  using cairn_role = role::store;

  /// An object that is being written, see ObjectWriter; destroyed unfinished, its upload is ended, which may
  /// take as long as a request's timeout.
  class object_writer {
   public:
    void write(std::span<const write_range> parts);
    /// The same, but the memory stays valid and unchanged until finish() has returned or thrown, or the
    /// writer was destroyed: nothing is copied.
    void write_stable(std::span<const write_range> parts);
    /// See DeadlineObjectWriter. Requests that are under way then are cancelled.
    void until(deadline when);
    void finish();
    /// Lets other processes see the unfinished object, in live_writers() while this one lives and in
    /// leftovers() afterwards, until this is destroyed. Three requests, and one every few seconds.
    void announce();

   private:
    friend s3_store;
    explicit object_writer(std::unique_ptr<detail::s3_upload> upload) : upload_(std::move(upload)) {}
    [[nodiscard]] detail::s3_upload& upload(const char* call);
    std::unique_ptr<detail::s3_upload> upload_;
  };

  /// Makes no request yet. @throws usage_bad_option
  explicit s3_store(s3_options options, s3_credential_source credentials = s3_credential_source::standard(),
                    std::shared_ptr<s3_clock> clock = std::make_shared<s3_clock>());

  /// See Portable: the options and the kind of credentials, never these themselves. The other process takes
  /// them from its own environment or file; where a callback gives them, it asks this process for them, which
  /// needs the store or a copy of it alive. @throws usage_bad_option in a worker process.
  [[nodiscard]] std::vector<std::byte> description() const;
  [[nodiscard]] static s3_store from_description(std::span<const std::byte> bytes);

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint);

  [[nodiscard]] std::size_t io_alignment() const noexcept { return 1; }
  [[nodiscard]] std::size_t min_write_bytes() const noexcept { return std::size_t{8} << 20; }
  /// How many read() calls, of some MiB each, it takes to use the connections.
  [[nodiscard]] std::size_t reads_at_once() const noexcept { return bucket_->client.options().in_flight; }

  void read(std::span<const read_range> ranges);

  void put_new(std::string_view key, std::span<const std::byte> bytes);
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    return bucket_->client.get_all(full_key(key), cap);
  }
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key);

  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix);

  void remove(std::string_view key);

  /// See ConditionalRemove: by If-Match. Where a service does not know that for removals, by a look alone.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix);
  /// The unfinished objects by which processes announce that they write, of those that live: on this host
  /// they are asked, others are believed for half a minute after their last sign, by the service's clock.
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix);
  /// False: a finished object does not tell who wrote it; announcements do.
  [[nodiscard]] bool writer_lives([[maybe_unused]] std::string_view key) const noexcept { return false; }
  /// Its writers are seen by what they announce, not by their objects.
  [[nodiscard]] static constexpr bool announces_writers() noexcept { return true; }

  /// Ends an upload that leftovers() listed. @throws storage_bad_key for other keys; storage_exists if its
  /// writer lives in this process.
  void discard(std::string_view key);

  /// See SelfTestingStore: whether the service heeds conditions, where that is not known. Two or three
  /// requests, once for each store.
  [[nodiscard]] store_proof prove();

  /// Nothing: a bucket has no limit, or does not tell.
  [[nodiscard]] std::optional<space_left> free_space() { return std::nullopt; }
  [[nodiscard]] std::string describe() const;
  /// Whether a removal by this store or a copy of it left a delete marker: the bucket has versions, and what
  /// was removed goes on costing until a lifecycle rule ends them.
  [[nodiscard]] bool keeps_removed() const noexcept { return bucket_->client.service().keeps_removed.load(); }
  /// What was asked for, with what was left open filled in.
  [[nodiscard]] const s3_options& options() const noexcept { return bucket_->client.options(); }

 private:
  static constexpr std::size_t suffix_bytes = 1 + 16 + 7;
  static std::string suffix_of(const std::string& id);
  static void check_key(std::string_view key);
  [[nodiscard]] std::string full_key(std::string_view key) const;
  [[nodiscard]] std::string full_prefix(std::string_view prefix) const;
  [[noreturn]] void fail_exists(const std::string& key) const;

  std::shared_ptr<detail::s3_bucket> bucket_;
};

static_assert(ByteStore<s3_store> && ConditionalRemove<s3_store>);
static_assert(SelfTestingStore<s3_store>);
static_assert(DeadlineObjectWriter<s3_store::object_writer>);
static_assert(Portable<s3_store>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3_store.ipp>
#endif
