// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/s3/client.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/owned.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
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

/// How many bytes are copied to be sent: parts wait here for their turn, so that memory stays bounded.
/// Buffers are used again. Any thread.
class part_buffers {
 public:
  explicit part_buffers(std::size_t max) : max_(max) {}
  using buffer = std::vector<std::byte>;
  /// One to fill, once fewer than the most are being sent: with it, an object writer has no more than these.
  /// Nothing if that is not so in time.
  [[nodiscard]] std::unique_ptr<buffer> take(const s3_deadline& until);
  void give_back(std::unique_ptr<buffer> b) noexcept;
  /// Waits until fewer than the most buffers are being sent; false if that is not so in time.
  [[nodiscard]] bool begin_sending(const s3_deadline& until);
  void sent(std::unique_ptr<buffer> b) noexcept;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t max_;
  std::size_t sending_ = 0;
  std::vector<std::unique_ptr<buffer>> free_;
};

class thread_pool;

/// An upload that was begun and not ended.
struct open_upload {
  std::string key;
  std::string id;
  std::string begun = {};  ///< when, as the server says
};

/// A bucket, as copies of a store and their object writers share it. Keys have the prefix. Any thread.
class s3_bucket {
 public:
  s3_bucket(s3_options options, s3_credential_source credentials, std::shared_ptr<s3_clock> clock);
  s3_bucket(const s3_bucket&) = delete;
  s3_bucket& operator=(const s3_bucket&) = delete;
  /// Waits for a request of end_later() that is under way, some seconds at most.
  ~s3_bucket();

  s3_client client;
  part_buffers buffers;
  call_group sent_parts;  ///< of all uploads, that were submitted and have not ended

  // --- What is known of objects, so that ranges are asked for with their ETag.
  [[nodiscard]] std::optional<s3_object> known(const std::string& key);
  void learn(const std::string& key, s3_object o);
  void forget(const std::string& key);

  // --- Uploads of this process's writers.
  void opened(const std::string& id);
  void closed(const std::string& id) noexcept;
  [[nodiscard]] bool lives(const std::string& id);
  /// An upload that this process is done with and could not end: nobody waits for it here any more. A thread ends it when
  /// the service answers again: to other processes of this host it counts as long as this one lives.
  void end_later(const std::string& key, const std::string& id);
  [[nodiscard]] bool was_left(const std::string& id);

  /// All objects below a prefix whose keys have at most `deeper` slashes behind it, not sorted; learns their ETags. Keys
  /// outside of it are passed over. Large directories are listed at once, by several threads. With `after`, those whose
  /// keys are greater, and perhaps more: a service may not know where to begin.
  [[nodiscard]] std::vector<listed_object> list(const std::string& prefix, std::size_t deeper = SIZE_MAX,
                                                const std::string& after = "");

  /// All uploads below a prefix that were begun and not ended.
  [[nodiscard]] std::vector<open_upload> uploads(const std::string& prefix, const s3_deadline& until = {},
                                                 bool urgent = false);
  /// The same below any of several, by one request where the bucket has few besides.
  [[nodiscard]] std::vector<open_upload> uploads(std::span<const std::string> prefixes);

  /// The id of an upload of this process that a call began. @throws what the call failed of; nothing of an
  /// upload stays then.
  [[nodiscard]] std::string begun(const s3_call& call, std::string_view doing);
  /// Ends an upload, and its parts that come late, too. @throws also timeout_write at the deadline
  void abort(const std::string& key, const std::string& id, const s3_deadline& until = {},
             bool urgent = false);

  /// Removes objects, a thousand by one request where the service does that; those that are not there are passed over.
  void remove_all(std::span<const std::string> keys);

  /// An answer that must be a document of one kind.
  [[nodiscard]] xml_element ask(s3_request r, std::string_view root, std::string_view doing);

  /// Whether the service refuses a second conditional write, found out once. @throws usage_bad_option if it
  /// does not.
  void require_exclusive();
  static constexpr std::string_view probe_prefix = "cairn-probe-";

 private:
  /// False where the service did not take the request, and removed none: never, or not this time.
  [[nodiscard]] bool remove_many(std::span<const std::string> keys);
  void remove_one_by_one(std::span<const std::string> keys);
  [[noreturn]] void fail_answer(std::string_view what) const;
  [[nodiscard]] std::vector<listed_object> list(thread_pool& pool, const std::string& prefix,
                                                std::size_t deeper, const std::string& after);
  /// Returns the token of the next page; "" where there is none.
  [[nodiscard]] std::string add_page(const std::string& prefix, const std::string& token, bool by_directory,
                                     std::vector<listed_object>& found, std::vector<std::string>& directories,
                                     const std::string& after);
  /// Where the next page of uploads begins; no key where there is none.
  struct upload_marker {
    std::string key, id;
    friend auto operator<=>(const upload_marker&, const upload_marker&) = default;
  };
  [[nodiscard]] upload_marker add_uploads(const std::string& prefix, const upload_marker& from,
                                          std::vector<open_upload>& found, const s3_deadline& until = {},
                                          bool urgent = false);
  void end_late() noexcept;
  static std::optional<std::string> decoded(std::string_view text, bool encoded);
  static std::optional<std::string> key_of(const xml_element& e, bool encoded);

  std::mutex mutex_;
  std::map<std::string, s3_object> known_;
  std::set<std::string> live_;
  std::set<std::string> left_;
  std::vector<open_upload> to_end_;
  owned<std::condition_variable> changed_ = make_owned<std::condition_variable>();  // as in heartbeat
  bool ending_ = false;
  std::mutex probe_mutex_;
  bool probed_ = false;
  bool exclusive_ = false;
  background_thread late_ends_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/bucket.ipp>
#endif
