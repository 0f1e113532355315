// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/peer_link.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/owned.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

class offer_table;

/// One who reads an offer: as long as it lives, a withdrawal of the offer waits, at most until its deadline. Must not
/// outlive the table. One thread at a time.
class offer_reading {
 public:
  offer_reading(offer_reading&& other) noexcept;
  offer_reading& operator=(offer_reading&& other) noexcept;
  ~offer_reading();

  /// The number of bytes of the offer.
  [[nodiscard]] std::uint64_t size() const noexcept;
  /// Calls use() with the bytes from `offset` on that lie in one part, at most `limit` of them, and at least one.
  /// A withdrawal waits until use() has returned, whatever its deadline, so use() does not block. False, and no call,
  /// when the offer was cut off. @pre offset < size(), limit > 0
  [[nodiscard]] bool read(std::uint64_t offset, std::size_t limit,
                          function_ref<void(std::span<const std::byte>)> use);

 private:
  friend offer_table;
  struct shared_offer;
  offer_reading(offer_table& table, std::shared_ptr<shared_offer> what) noexcept;
  void end() noexcept;

  offer_table* table_;
  std::shared_ptr<shared_offer> what_;
};

/// What a rank offers to its peers, and who reads it. Any thread.
class offer_table {
 public:
  offer_table();
  offer_table(const offer_table&) = delete;
  offer_table& operator=(const offer_table&) = delete;
  ~offer_table();

  /// See PeerLink::offer.
  void add(const offer_key& key, std::span<const std::span<const std::byte>> parts);
  /// See PeerLink::withdraw.
  void withdraw(const offer_key& key, deadline until) noexcept;
  /// Withdraws everything at once, and refuses to offer anything later: the rank is gone. Wakes those that wait.
  void close() noexcept;
  /// Takes offers again after close(); nothing is offered.
  void open() noexcept;

  /// Begins to read an offer; nothing where it is not there or is being withdrawn.
  [[nodiscard]] std::optional<offer_reading> begin(const offer_key& key);
  /// The size of an offer, if it is there and not being withdrawn.
  [[nodiscard]] std::optional<std::uint64_t> size_of(const offer_key& key) const;
  /// Waits until the key is offered, the table is closed, or wake() was called; false at the deadline. Ask again.
  [[nodiscard]] bool wait(const offer_key& key, std::uint64_t seen_wakes, deadline until) const;
  /// How often wake() was called.
  [[nodiscard]] std::uint64_t wakes() const noexcept;
  /// Ends the waits of wait().
  void wake() noexcept;

 private:
  friend offer_reading;
  struct inside;
  detail::owned<inside> in_;
};

/// @throws usage_error (usage_bad_name) unless a key may be offered
void check(const offer_key& key);
/// @throws usage_error (usage_bad_option) unless 0 <= peer < size
void check_peer(int peer, int size);
/// @throws usage_error (usage_bad_option) unless a range of an offer of `peer` lies within its `size` bytes
void check_range(const fetch_range& range, std::uint64_t size, int peer, const offer_key& key);
/// What a fetch says of a key that its peer does not offer. @throws peer_error (peer_not_offered)
[[noreturn]] void fail_not_offered(int peer, const offer_key& key);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/links/offer_table.ipp>
#endif
