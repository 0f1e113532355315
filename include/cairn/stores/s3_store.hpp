// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/concepts/store_reads.hpp>
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/client.hpp>
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/object_writer.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/pace.hpp>
#include <cairn/stores/s3/service.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared.hpp>

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
namespace detail {
struct s3_read_counts;
}

/// A ByteStore that keeps objects in a bucket of an S3-compatible service, by libcurl.
///
/// - An object that fits into one part is sent by one conditional PUT (If-None-Match). A longer one is a
///   multipart upload, whose parts are sent as they become complete, at most options.in_flight at a time
///   over all objects. write() copies its ranges, at most in_flight parts and one for each open object;
///   write_stable() copies nothing.
/// - finish(), put_new() and publish_new() return after the service has acknowledged the object in a
///   complete answer. If an answer is lost, the store looks at the object under the key: it compares the
///   writer's token in the object's metadata, or else the bytes.
/// - Every range is requested with If-Match. ETags are cached; if an object was replaced in between, the
///   store looks it up once more.
/// - Requests are repeated as the options say. Every request ends by its timeout, with storage_unavailable or
///   the error of the server.
/// - leftovers(): returns uploads that were begun and not ended, without those of this process's writers
///   and without the announcements of live processes, which live_writers() returns. Other uploads of live
///   processes cannot be distinguished from those of dead ones.
/// - Copies share connections, credentials and one thread, which starts with the first request and ends
///   with the last copy or object writer. Not to be used in the child of a fork. Several threads may call
///   all functions.
class s3_store {
 public:
  using cairn_role = role::store;

  /// See ObjectWriter. The destructor aborts an unfinished upload, which may take as long as the timeout of a
  /// request.
  class object_writer {
   public:
    void write(std::span<const write_range> parts);
    /// See ZeroCopyObjectWriter.
    void write_stable(std::span<const write_range> parts);
    /// See DeadlineObjectWriter. Cancels requests that are under way at the deadline.
    void until(deadline when);
    void finish();
    /// See AnnouncingObjectWriter. Other processes see the unfinished object in live_writers() while this
    /// process lives, and in leftovers() afterwards, until the writer is destroyed. Costs three requests,
    /// and one every few seconds.
    void announce();
    /// See KeepsAnnouncement: false once the service did not know the announcement any more; it is made again then.
    [[nodiscard]] bool announced() const noexcept { return upload_ != nullptr && upload_->announced(); }

   private:
    friend s3_store;
    explicit object_writer(std::unique_ptr<detail::s3_upload> upload) : upload_(std::move(upload)) {}
    [[nodiscard]] detail::s3_upload& upload(const char* call);
    std::unique_ptr<detail::s3_upload> upload_;
  };

  /// What begin_reads() gives; see ReadSession. It keeps the bucket's connections, and may outlive the store.
  class read_session {
   public:
    using store_type = s3_store;
    void read(std::span<const read_range> ranges);
    /// Always false: nothing of a bucket is in memory here.
    [[nodiscard]] bool is_cached(std::string_view, std::uint64_t, std::uint64_t) const noexcept {
      return false;
    }
    [[nodiscard]] read_figures figures() const noexcept;

   private:
    friend s3_store;
    explicit read_session(std::shared_ptr<detail::s3_bucket> bucket);
    std::shared_ptr<detail::s3_bucket> bucket_;
    std::shared_ptr<detail::s3_read_counts> counts_;
  };

  /// Makes no request. @throws usage_bad_option
  explicit s3_store(s3_options options, s3_credential_source credentials = s3_credential_source::standard(),
                    std::shared_ptr<s3_clock> clock = detail::make_shared<s3_clock>());

  /// See Portable: the options and the kind of credentials, never the credentials themselves. The other
  /// process takes them from its own environment or file. If a callback provides them, it asks this
  /// process, where the store or a copy of it must exist. @throws usage_bad_option in a worker process.
  [[nodiscard]] std::vector<std::byte> description() const;
  [[nodiscard]] static s3_store from_description(std::span<const std::byte> bytes);

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint);

  /// See ShowsWriters: costs one request, and one every few seconds.
  [[nodiscard]] object_writer show(std::string_view key);

  [[nodiscard]] std::size_t io_alignment() const noexcept { return 1; }
  [[nodiscard]] std::size_t min_write_bytes() const noexcept { return std::size_t{8} << 20; }
  /// See DistantStore.
  [[nodiscard]] std::size_t reads_at_once() const noexcept { return bucket_->client.options().in_flight; }
  /// See SizesReads: from the latency and the bytes per second of the last answers, unless options.get_bytes says it.
  [[nodiscard]] std::uint64_t read_bytes(std::uint64_t total) const noexcept;

  void read(std::span<const read_range> ranges);
  /// See OffersReadSessions: counts the requests of a load.
  [[nodiscard]] read_session begin_reads() const { return read_session(bucket_); }
  /// See OpensConnections: as many as may be used at once, at most 32, each by a HEAD request for the bucket. Nothing
  /// where that was done less than 10 s ago.
  void open_connections() noexcept { bucket_->client.open_connections(); }
  /// What this store and its copies have asked the service for, and what it showed.
  [[nodiscard]] s3_traffic traffic() const noexcept;

  void put_new(std::string_view key, std::span<const std::byte> bytes);
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    return bucket_->client.get_all(full_key(key), cap);
  }
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key);
  /// See IdentifiesObjects: the version is the ETag.
  [[nodiscard]] std::optional<object_identity> identify(std::string_view key);

  /// A request for each 1000 keys; large directories are listed at once.
  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix);
  /// See ListsKeys: large directories that hold only longer keys cost nothing.
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix, std::size_t parts);
  /// See ListsKeysAfter: as keys(), at the cost of what is behind `after`.
  [[nodiscard]] std::vector<std::string> keys_after(std::string_view prefix, std::string_view after,
                                                    std::size_t parts);

  /// See LinksObjects: the service copies the object itself, in parts of 64 MiB and more, several at once; no byte goes
  /// through this process, unless the service knows no such copies. Costs a request for each part and five more. See
  /// LinksUntil: cancels copies, or reads in their place, that are under way at the deadline, and then removes the upload. The few
  /// requests before and after them have their own time (s3_options::timeout, completion_timeout).
  void link(std::string_view from, std::string_view to, deadline until = deadline::never());
  /// See MayLink: not with Google's dialect, whose uploads take no part from another object.
  [[nodiscard]] bool links() const noexcept { return !bucket_->client.google(); }

  void remove(std::string_view key);
  /// See RemovesMany: a thousand by a request.
  void remove_all(std::span<const std::string> keys);

  /// See ConditionalRemove: by If-Match. Where a service ignores it for removals, the store only compares
  /// before.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes);

  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix);
  /// See ListsUnfinished: by one request where the bucket has fewer than 1000 uploads besides, and one for each
  /// announcement of another host.
  [[nodiscard]] std::vector<listed_unfinished> unfinished(std::span<const std::string_view> prefixes);
  /// Returns the announcements of processes that live. A process of this host is asked; one of another
  /// host counts as alive for half a minute after its last heartbeat, by the service's clock.
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix);
  /// Always false: only announcements tell which writers live.
  [[nodiscard]] bool writer_lives([[maybe_unused]] std::string_view key) const noexcept { return false; }
  /// See AnnouncesWriters.
  [[nodiscard]] static constexpr bool announces_writers() noexcept { return true; }

  /// Ends an upload that leftovers() listed. @throws storage_bad_key for other keys; storage_exists if its
  /// writer lives in this process.
  void discard(std::string_view key);

  /// See SelfTestingStore: tests whether the service honours conditional writes, where that is not known.
  /// Costs two or three requests, once for each store.
  [[nodiscard]] store_test_report self_test();

  /// Returns nothing: a bucket has no limit, or does not report it.
  [[nodiscard]] std::optional<space_left> free_space() { return std::nullopt; }
  [[nodiscard]] std::string describe() const;
  /// Whether a removal by this store or a copy of it left a delete marker. The bucket then keeps old
  /// versions, and removed objects cost money until a lifecycle rule deletes them.
  [[nodiscard]] bool keeps_removed() const noexcept { return bucket_->client.service().keeps_removed.load(); }
  /// The options of the constructor, with defaults filled in.
  [[nodiscard]] const s3_options& options() const noexcept { return bucket_->client.options(); }

 private:
  static constexpr std::size_t suffix_bytes = 1 + 16 + 7;
  static std::string suffix_of(const std::string& id);
  static void check_key(std::string_view key);
  static void read_all_of(detail::s3_bucket& bucket, std::span<const read_range> ranges,
                          detail::s3_read_counts* counts);
  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix, std::size_t deeper,
                                                std::string_view after = {});
  [[nodiscard]] std::vector<std::string> unfinished_keys(std::string_view prefix, bool living);
  [[nodiscard]] std::string full_key(std::string_view key) const;
  [[nodiscard]] std::string full_prefix(std::string_view prefix) const;
  [[noreturn]] void fail_exists(const std::string& key) const;

  std::shared_ptr<detail::s3_bucket> bucket_;
};

static_assert(ByteStore<s3_store> && ConditionalRemove<s3_store> && ListsKeysAfter<s3_store>);
static_assert(SelfTestingStore<s3_store> && SizesReads<s3_store> && OffersReadSessions<s3_store>);
static_assert(ListsUnfinished<s3_store> && ShowsWriters<s3_store> && IdentifiesObjects<s3_store>);
static_assert(DeadlineObjectWriter<s3_store::object_writer>);
static_assert(Portable<s3_store> && MayLink<s3_store>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3_store.ipp>
#endif
