// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_peer_link.hpp>
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/redundancy/strip_reader.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Fetches sources of strips from the ranks that have them, in the order in which a strip_reader asks for them, and ahead
/// of it: while a block is computed, a thread fetches the next ones of all sources. One thread uses it.
class link_reader {
 public:
  /// How the sources are reached: the rank of each member, and the keys under which it offers its image and its piece.
  /// A fetch waits at most `timeout` (nanoseconds) and until the deadline.
  struct options {
    std::vector<int> ranks;
    offer_key image;
    offer_key piece;
    std::int64_t timeout = 5'000'000'000;
    deadline until = deadline::never();
  };
  /// The link outlives the reader; `tables` and `strips` are those that will be asked for.
  link_reader(any_peer_link& link, options how, std::span<const redundancy_strip> strips,
              std::span<const member_tables> tables);
  link_reader(const link_reader&) = delete;
  link_reader& operator=(const link_reader&) = delete;
  /// Waits for a fetch that is under way.
  ~link_reader();

  /// See read_member: false where the peer, or its offer, is gone or late; failure() says why then.
  [[nodiscard]] bool read(const member_range& from, std::span<std::byte> out);
  /// What the last read() that failed met with.
  [[nodiscard]] const std::string& failure() const noexcept;
  /// Bytes that were fetched.
  [[nodiscard]] std::uint64_t fetched() const noexcept;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/link_reader.ipp>
#endif
