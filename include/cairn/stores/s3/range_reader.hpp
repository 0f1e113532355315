// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/bucket.hpp>
#include <cairn/stores/s3/clock.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
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

/// What reads cost; see read_figures.
struct s3_read_counts {
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> hedges{0};
};

/// Reads ranges of objects: sorted, neighbours together, long ones cut, all at once, each only from the
/// object whose ETag is known. A range that is slow beside others is asked for a second time, as s3_pace allows; what
/// comes first is taken, and the other request has ended when run() returns. One use.
class s3_range_reader {
 public:
  s3_range_reader(s3_bucket& bucket, std::span<const read_range> ranges, s3_read_counts* counts = nullptr,
                  s3_deadline until = {})
      : bucket_(bucket), ranges_(ranges), counts_(counts), until_(std::move(until)) {}

  /// @throws storage_not_found, corrupt_truncated, corrupt_identity (the object changed meanwhile), and what
  /// requests throw. Nothing is written to the destinations afterwards.
  void run();

 private:
  [[nodiscard]] std::string key_of(const read_range& r) const;

  /// Size and ETag of every object; those that are not known are asked for, many at once.
  void find_objects(bool use_remembered);

  /// A range that its object does not have all of; null: each has.
  [[nodiscard]] const read_range* outside() const;
  [[noreturn]] void fail_outside(const read_range& r) const;

  /// One request, and the second one for the same range, which has memory of its own.
  struct flight {
    std::shared_ptr<s3_call> call;
    std::shared_ptr<s3_call> hedge = {};
    std::vector<std::byte> room = {};
  };

  /// A call that failed, or nothing.
  [[nodiscard]] std::shared_ptr<s3_call> fetch();
  /// Asks again for ranges that are slow, and ends the request that another one has made needless.
  void hedge_slow(std::vector<flight>& flights, const std::shared_ptr<call_group>& group);
  void end_needless(const std::vector<flight>& flights) noexcept;
  void cancel_all(const std::vector<flight>& flights) noexcept;
  /// Once all have ended: brings what a hedge has won to its place.
  void take_hedges(std::vector<flight>& flights);
  static std::shared_ptr<s3_call> first_failure(const std::vector<flight>& flights);

  [[nodiscard]] std::vector<s3_request> requests() const;

  s3_bucket& bucket_;
  std::span<const read_range> ranges_;
  s3_read_counts* counts_;
  s3_deadline until_;
  std::map<std::string, s3_object> objects_;
  bool remembered_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/range_reader.ipp>
#endif
