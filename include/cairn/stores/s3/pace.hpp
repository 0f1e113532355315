// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace cairn {
inline namespace v1 {

/// What a store has asked of its service and what the service showed, as s3_store::traffic() tells it.
struct s3_traffic {
  std::uint64_t reads = 0;       ///< ranged GETs, hedges among them, without attempts that were repeated
  std::uint64_t hedges = 0;      ///< of these: second requests for a range whose first was slow
  std::uint64_t hedges_won = 0;  ///< of these: that brought the range first
  double latency = 0;  ///< seconds to the first byte of an answer, median of the last 32; 0: not known
  double bytes_per_second = 0;      ///< of one connection after that, the same; 0: not known
  std::uint64_t request_bytes = 0;  ///< the longest GET that is made now
};

namespace detail {

/// What is assumed before enough answers came: what AWS says of a request in the same region.
inline constexpr double assumed_latency = 0.03;
inline constexpr double assumed_rate = 80e6;

/// The bytes of a ranged GET, in whole MiB, where `total` bytes are read by `connections` at a time. Each has its
/// share of them, but none is shorter than what a connection would have brought while it waits for the first byte
/// (1 to 16 MiB), or longer than four times that (8 to 32 MiB), when waiting is a fifth of its time.
[[nodiscard]] std::uint64_t s3_request_bytes(double latency, double bytes_per_second, std::uint64_t total,
                                             std::size_t connections) noexcept;

/// The last few answers of a service, and what follows from them. Any thread.
class s3_pace {
 public:
  /// A ranged GET is begun.
  void request_begun() noexcept;
  /// An answer of `bytes` bytes: from the request to its first byte, and from that to its end.
  void answered(std::chrono::nanoseconds first_byte, std::uint64_t bytes,
                std::chrono::nanoseconds rest) noexcept;

  /// See s3_request_bytes().
  [[nodiscard]] std::uint64_t request_bytes(std::uint64_t total, std::size_t connections) const noexcept;

  /// When an answer of so many bytes is slow: after thrice the time of the last ones, and a quarter of a second at
  /// least. Nothing while too few have come.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> slow_after(std::uint64_t bytes) const noexcept;
  /// Whether a slow range may be asked for again: once, and once more for every twenty reads, of which four may be
  /// saved up. The caller makes the request, or says that it was not made.
  [[nodiscard]] bool take_hedge() noexcept;
  /// The request was not made.
  void return_hedge() noexcept;
  void hedge_won() noexcept;

  [[nodiscard]] s3_traffic traffic() const noexcept;

 private:
  static constexpr std::size_t kept = 32;
  static constexpr std::size_t enough = 8;
  static constexpr std::uint64_t min_bytes_for_rate = std::uint64_t{1} << 20;
  struct last_ones {
    std::array<double, kept> values{};
    std::uint64_t count = 0;
    void add(double value) noexcept { values[count++ % kept] = value; }
    /// 0 where fewer than `least` are there.
    [[nodiscard]] double median(std::size_t least) const noexcept;
  };

  mutable std::mutex mutex_;
  last_ones latencies_;
  last_ones rates_;
  static constexpr std::uint32_t reads_for_a_hedge = 20;
  static constexpr std::uint32_t hedges_saved_up = 4;
  std::uint32_t credit_ = reads_for_a_hedge;  // a read adds one, a hedge takes those of 20
  std::uint64_t reads_ = 0;
  std::uint64_t hedges_ = 0;
  std::uint64_t won_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/pace.ipp>
#endif
