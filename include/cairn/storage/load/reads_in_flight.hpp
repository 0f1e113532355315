// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How many reads of a load are under way at once: what keeps a local device busy, and twice as many as long as
/// latency shows. Two things are measured in the load itself: how long a small request takes alone, and how long large
/// ones take together. A large one that takes less than twice as long as a small one waits for the latency of a
/// network or a slow device and not for its bandwidth, so that more of them bring more; else more of them would wait
/// for each other. Once it is found so no more is asked. One thread at a time.
class reads_in_flight {
 public:
  /// What a small request reads, and how often it is tried: the quickest counts.
  static constexpr std::uint64_t small_bytes = std::uint64_t{64} << 10;
  static constexpr int small_requests = 3;

  /// `first`: at the beginning. `max`: at most; what is not more than `first` asks for no more.
  reads_in_flight(std::size_t first, std::size_t max) noexcept
      : count_(first), max_(max), settled_(max <= first) {}

  /// Whether more than now may be wanted: then the latency is worth measuring.
  [[nodiscard]] bool is_open() const noexcept { return !settled_; }
  /// The nanoseconds of a small request, with no other under way.
  void small_took(std::int64_t nanoseconds) noexcept;
  /// `nanoseconds` in which all of `reads` large ones together were under way, since the beginning. Where that says so
  /// the number is doubled.
  void large_took(std::int64_t nanoseconds, std::uint64_t reads) noexcept;
  /// How many may be under way.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// The time of a small request, in nanoseconds; 0 if it was not measured.
  [[nodiscard]] std::int64_t latency() const noexcept { return latency_; }

 private:
  std::size_t count_;
  std::size_t max_;
  bool settled_;
  std::int64_t latency_ = 0;
  // What large reads came to when their number was last changed.
  std::int64_t last_nanoseconds_ = 0;
  std::uint64_t last_reads_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/load/reads_in_flight.ipp>
#endif
