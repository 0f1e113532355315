// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/call.hpp>
#include <cairn/stores/s3/crc64nvme.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a HEAD request or a listing says about an object.
struct s3_object {
  std::uint64_t bytes = 0;
  std::string etag;   ///< as it was received, with its quotes
  std::string token;  ///< of the writer, where the service keeps metadata
};

/// Requests to one bucket, made and awaited: any thread. Keys have the store's prefix already.
class s3_client {
 public:
  s3_client(s3_options options, s3_credential_source credentials, std::shared_ptr<s3_clock> clock);

  [[nodiscard]] s3_service& service() const noexcept { return *service_; }
  /// Under which this process answers workers that ask for credentials.
  [[nodiscard]] std::uint64_t answering_number();
  [[nodiscard]] const s3_options& options() const noexcept { return service_->options; }
  [[nodiscard]] std::string prefix_of_headers() const { return service_->signer.prefix(); }
  [[nodiscard]] bool google() const noexcept { return service_->options.dialect == s3_dialect::google; }

  /// Begins a call of a group.
  [[nodiscard]] std::shared_ptr<s3_call> begin(s3_request request, const std::shared_ptr<call_group>& group,
                                               std::function<void(const s3_call&)> on_end = {});
  /// How many more requests could run at once, and one at least.
  [[nodiscard]] std::size_t idle() const noexcept;
  /// Requests come soon: begins as many connections as may be used at once, and returns. Nothing where that was done
  /// lately; what fails is not told.
  void open_connections() noexcept;
  void cancel(s3_call& call) noexcept { transport_.cancel(call); }
  /// Makes a request and waits for its end, whatever that is.
  [[nodiscard]] std::shared_ptr<s3_call> run(s3_request request);

  /// "s3://bucket/key" for messages.
  [[nodiscard]] std::string place(std::string_view key) const;

  /// Throws what a call that was not fine means. `doing`: "reading of an object".
  [[noreturn]] void fail_call(const s3_call& call, std::string_view doing) const;
  [[nodiscard]] static std::string advice_on(certificate_problem what, const std::string& host);
  void require(const s3_call& call, std::string_view doing) const;

  /// What stands under a key, or nothing. @throws timeout_write at the deadline.
  [[nodiscard]] std::optional<s3_object> head(const std::string& key, const s3_deadline& until = {});
  /// The result of a HEAD request that has ended.
  [[nodiscard]] std::optional<s3_object> object_of(const s3_call& call) const;

  /// All of an object, or nothing if there is none. @throws corrupt_size_mismatch if it is longer than `cap`.
  [[nodiscard]] std::optional<std::vector<std::byte>> get_all(const std::string& key, std::uint64_t cap);

  void remove(const std::string& key);

  /// Removes an object that is exactly these bytes, on condition that it is still the one that was looked at,
  /// where the service knows conditions of removals: true, also where there is none. False if something else
  /// stands there.
  [[nodiscard]] bool remove_if(const std::string& key, std::span<const std::byte> bytes);

  /// The header by which a writer's objects are known again.
  [[nodiscard]] std::string token_header() const;
  /// A request may only succeed where nothing stands under its key.
  void only_if_absent(s3_request& r) const;
  /// Sets what is sent, with its hash and checksum where they are needed. Reads all bytes.
  void set_body(s3_request& r, std::vector<std::span<const std::byte>> pieces, bool checksum) const;

  enum class put_result : std::uint8_t { stands, existed };
  /// One object by one request, only if nothing stands there. A lost answer is settled by looking at what
  /// stands.
  [[nodiscard]] put_result put(const std::string& key, std::vector<std::span<const std::byte>> pieces,
                               const s3_deadline& until = {});

  enum class occupant : std::uint8_t { none, ours, other };
  /// Whose object stands under a key: by the writer's token, or, where the service keeps none, by its bytes. @throws
  /// storage_io where it is ours, and has other bytes: `compare` looks at all of them, else the length must do.
  [[nodiscard]] occupant occupant_of(const std::string& key, const std::string& token,
                                     std::span<const std::span<const std::byte>> pieces,
                                     const s3_deadline& until, bool compare);

 private:
  std::shared_ptr<s3_service> service_;
  std::mutex mutex_;
  std::uint64_t number_ = 0;
  std::optional<s3_clock::time_point> opened_;  // when connections were, lately
  http_transport transport_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/client.ipp>
#endif
