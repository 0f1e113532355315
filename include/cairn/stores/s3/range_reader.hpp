// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/bucket.hpp>

#include <algorithm>
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

/// Reads ranges of objects: sorted, neighbours together, long ones cut, all at once, each only from the
/// object whose ETag is known. One use.
class s3_range_reader {
 public:
  s3_range_reader(s3_bucket& bucket, std::span<const read_range> ranges) : bucket_(bucket), ranges_(ranges) {}

  /// @throws storage_not_found, corrupt_truncated, corrupt_identity (the object changed meanwhile), and what
  /// requests throw. Nothing is written to the destinations afterwards.
  void run();

 private:
  [[nodiscard]] std::string key_of(const read_range& r) const;

  /// Size and ETag of every object; those that are not known are asked for, many at once.
  void find_objects(bool use_remembered);

  void check_bounds() const;

  /// A call that failed, or nothing.
  [[nodiscard]] std::shared_ptr<s3_call> fetch();
  static std::shared_ptr<s3_call> first_failure(const std::vector<std::shared_ptr<s3_call>>& calls);

  [[nodiscard]] std::vector<s3_request> requests() const;

  s3_bucket& bucket_;
  std::span<const read_range> ranges_;
  std::map<std::string, s3_object> objects_;
  bool remembered_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/range_reader.ipp>
#endif
