// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/stores/s3/object_writer.hpp>
#include <cairn/stores/s3/range_reader.hpp>

#include <algorithm>
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
    void write(std::span<const write_part> parts) { upload("write").add(parts, false); }
    /// The same, but the memory stays valid and unchanged until finish() has returned or thrown, or the
    /// writer was destroyed: nothing is copied.
    void write_stable(std::span<const write_part> parts) { upload("write_stable").add(parts, true); }
    /// See DeadlineObjectWriter. Requests that are under way then are cancelled.
    void until(deadline when) { upload("until").until(when); }
    void finish() { upload("finish").finish(); }
    /// Lets other processes see the unfinished object, in live_writers() while this one lives and in
    /// leftovers() afterwards, until this is destroyed. Three requests, and one every few seconds.
    void announce() { upload("announce").announce(); }

   private:
    friend s3_store;
    explicit object_writer(std::unique_ptr<detail::s3_upload> upload) : upload_(std::move(upload)) {}
    [[nodiscard]] detail::s3_upload& upload(const char* call) {
      if (!upload_) fail(error_id::usage_closed, std::string(call) + "() on an object that was moved away");
      return *upload_;
    }
    std::unique_ptr<detail::s3_upload> upload_;
  };

  /// Makes no request yet. @throws usage_bad_option
  explicit s3_store(s3_options options, s3_credential_source credentials = s3_credential_source::standard(),
                    std::shared_ptr<s3_clock> clock = std::make_shared<s3_clock>())
      : bucket_(std::make_shared<detail::s3_bucket>(std::move(options), std::move(credentials),
                                                    std::move(clock))) {}

  /// See Portable: the options and the kind of credentials, never these themselves. The other process takes
  /// them from its own environment or file; where a callback gives them, it asks this process for them, which
  /// needs the store or a copy of it alive. @throws usage_bad_option in a worker process.
  [[nodiscard]] std::vector<std::byte> description() const {
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
  [[nodiscard]] static s3_store from_description(std::span<const std::byte> bytes) {
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

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint) {
    const auto full = full_key(key);
    if (bucket_->client.head(full)) fail_exists(full);
    return object_writer(std::make_unique<detail::s3_upload>(bucket_, full, size_hint));
  }

  [[nodiscard]] std::size_t part_alignment() const noexcept { return 1; }
  [[nodiscard]] std::size_t min_part() const noexcept { return std::size_t{8} << 20; }
  /// How many read() calls, of some MiB each, it takes to use the connections.
  [[nodiscard]] std::size_t reads_at_once() const noexcept { return bucket_->client.options().in_flight; }

  void read(std::span<const read_range> ranges) {
    for (const auto& r : ranges) check_key(r.key);
    if (!ranges.empty()) detail::s3_range_reader(*bucket_, ranges).run();
  }

  void put_new(std::string_view key, std::span<const std::byte> bytes) {
    if (!publish_new(key, bytes)) fail_exists(full_key(key));
  }
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    const auto full = full_key(key);
    bucket_->require_exclusive();
    return bucket_->client.put(full, {bytes}) == detail::s3_client::put_result::stands;
  }

  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    return bucket_->client.get_all(full_key(key), cap);
  }
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) {
    const auto full = full_key(key);
    auto o = bucket_->client.head(full);
    if (!o) return std::nullopt;
    const auto bytes = o->bytes;
    bucket_->learn(full, std::move(*o));
    return bytes;
  }

  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix) {
    const auto full = full_prefix(prefix);
    const auto own = bucket_->client.options().prefix.size();
    auto found = bucket_->list(full);
    for (auto& o : found) o.key.erase(0, own);
    std::erase_if(found, [](const listed_object& o) {
      return !valid_key(o.key) || o.key.starts_with(detail::s3_bucket::probe_prefix);
    });
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    found.erase(
        std::unique(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.key == b.key; }),
        found.end());
    return found;
  }

  void remove(std::string_view key) {
    const auto full = full_key(key);
    bucket_->forget(full);
    bucket_->client.remove(full);
  }

  /// See ConditionalRemove: by If-Match. Where a service does not know that for removals, by a look alone.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes) {
    const auto full = full_key(key);
    bucket_->forget(full);
    return bucket_->client.remove_if(full, bytes);
  }

  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix) {
    const auto own = bucket_->client.options().prefix.size();
    std::vector<std::string> found;
    for (const auto& u : bucket_->uploads(full_prefix(prefix))) {
      const auto key = u.key.substr(own);
      if (valid_key(key) && !bucket_->lives(u.id) && !detail::gives_signs(*bucket_, u))
        found.push_back(key + suffix_of(u.id));
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  /// The unfinished objects by which processes announce that they write, of those that live: on this host
  /// they are asked, others are believed for half a minute after their last sign, by the service's clock.
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix) {
    const auto own = bucket_->client.options().prefix.size();
    std::vector<std::string> found;
    for (const auto& u : bucket_->uploads(full_prefix(prefix))) {
      const auto key = u.key.substr(own);
      if (valid_key(key) && u.key.ends_with(detail::sign_ending) &&
          (bucket_->lives(u.id) || detail::gives_signs(*bucket_, u)))
        found.push_back(key + suffix_of(u.id));
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  /// False: a finished object does not tell who wrote it; announcements do.
  [[nodiscard]] bool writer_lives([[maybe_unused]] std::string_view key) const noexcept { return false; }
  /// Its writers are seen by what they announce, not by their objects.
  [[nodiscard]] static constexpr bool announces_writers() noexcept { return true; }

  /// Ends an upload that leftovers() listed. @throws storage_bad_key for other keys; storage_exists if its
  /// writer lives in this process.
  void discard(std::string_view key) {
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

  /// See SelfTestingStore: whether the service heeds conditions, where that is not known. Two or three
  /// requests, once for each store.
  [[nodiscard]] store_proof prove() {
    const auto how = bucket_->client.options().exclusive;
    store_proof proof{
        .kind = "S3", .from = "", .single_writer = how == s3_exclusive::single_writer, .points = {}};
    store_point point{.what = "a key is given to one writer alone (If-None-Match)",
                      .seen = how == s3_exclusive::probe     ? "a second PUT was refused"
                              : how == s3_exclusive::assumed ? "known of this service: not tried"
                                                             : "not tried: one job alone writes there",
                      .follows = ""};
    try {
      bucket_->require_exclusive();
    } catch (const usage_error& e) {
      if (e.id() != error_id::usage_bad_option) throw;
      point.outcome = store_point::verdict::single_job;
      point.seen = "a second PUT was not refused";
      point.follows = e.message();
    }
    proof.points.push_back(std::move(point));
    return proof;
  }

  /// Nothing: a bucket has no limit, or does not tell.
  [[nodiscard]] std::optional<space_left> free_space() { return std::nullopt; }
  [[nodiscard]] std::string describe() const {
    const auto& o = bucket_->client.options();
    return "bucket " + o.bucket + " at " + bucket_->client.service().address.authority +
           (o.prefix.empty() ? std::string() : " below " + o.prefix) +
           (keeps_removed() ? ", which keeps versions of what is removed" : "");
  }
  /// Whether a removal by this store or a copy of it left a delete marker: the bucket has versions, and what
  /// was removed goes on costing until a lifecycle rule ends them.
  [[nodiscard]] bool keeps_removed() const noexcept { return bucket_->client.service().keeps_removed.load(); }
  /// What was asked for, with what was left open filled in.
  [[nodiscard]] const s3_options& options() const noexcept { return bucket_->client.options(); }

 private:
  static constexpr std::size_t suffix_bytes = 1 + 16 + 7;
  static std::string suffix_of(const std::string& id) {
    return "." + detail::sha256_text(id).substr(0, 16) + ".upload";
  }
  static void check_key(std::string_view key) {
    if (!valid_key(key))
      fail(error_id::storage_bad_key,
           "a key is a relative path of [A-Za-z0-9._-] and '/', without empty, '.' or '..' parts, of at most "
           "512 bytes",
           {.file = std::string(key.substr(0, 600))});
  }
  [[nodiscard]] std::string full_key(std::string_view key) const {
    check_key(key);
    return bucket_->client.options().prefix + std::string(key);
  }
  [[nodiscard]] std::string full_prefix(std::string_view prefix) const {
    if (prefix.size() > 512)
      fail(error_id::storage_bad_key, "a prefix is the beginning of a key",
           {.file = std::string(prefix.substr(0, 600))});
    return bucket_->client.options().prefix + std::string(prefix);
  }
  [[noreturn]] void fail_exists(const std::string& key) const {
    fail(error_id::storage_exists, "an object of this key exists already; it was not touched",
         {.file = bucket_->client.place(key)});
  }

  std::shared_ptr<detail::s3_bucket> bucket_;
};

static_assert(ByteStore<s3_store> && ConditionalRemove<s3_store>);
static_assert(SelfTestingStore<s3_store>);
static_assert(DeadlineObjectWriter<s3_store::object_writer>);
static_assert(Portable<s3_store>);

}  // namespace v1
}  // namespace cairn
