// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/peer_link.hpp>
#include <cairn/system/owned.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {

/// A PeerLink whose type is chosen at run time; models PeerLink, and owns the link. Each call costs one virtual call.
/// Movable. After a move from it only assignment and the destructor are allowed.
class any_peer_link {
  struct face {
    virtual ~face() = default;
    virtual void offer(const offer_key& key, std::span<const std::span<const std::byte>> parts) = 0;
    virtual void withdraw(const offer_key& key, deadline until) noexcept = 0;
    virtual std::uint64_t await_offer(int peer, const offer_key& key, deadline until) = 0;
    virtual std::uint64_t fetch(int peer, const offer_key& key, std::span<const fetch_range> ranges,
                                deadline until) = 0;
    virtual bool is_gone(int peer) const noexcept = 0;
  };
  template <class L>
  struct face_of final : face {
    explicit face_of(L made) : link(std::move(made)) {}
    void offer(const offer_key& key, std::span<const std::span<const std::byte>> parts) override {
      link.offer(key, parts);
    }
    void withdraw(const offer_key& key, deadline until) noexcept override { link.withdraw(key, until); }
    std::uint64_t await_offer(int peer, const offer_key& key, deadline until) override {
      return link.await_offer(peer, key, until);
    }
    std::uint64_t fetch(int peer, const offer_key& key, std::span<const fetch_range> ranges,
                        deadline until) override {
      return link.fetch(peer, key, ranges, until);
    }
    bool is_gone(int peer) const noexcept override { return link.is_gone(peer); }
    L link;
  };

 public:
  /// Holds a link of any type, given as an rvalue.
  template <class L>
    requires(!std::same_as<L, any_peer_link> && PeerLink<L>)
  explicit any_peer_link(L link)
      : rank_(link.rank()), size_(link.size()), face_(new face_of<L>(std::move(link))) {}

  // See PeerLink.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  void offer(const offer_key& key, std::span<const std::span<const std::byte>> parts);
  void withdraw(const offer_key& key, deadline until) noexcept;
  /// See PeerLink.
  std::uint64_t await_offer(int peer, const offer_key& key, deadline until);
  /// See PeerLink.
  std::uint64_t fetch(int peer, const offer_key& key, std::span<const fetch_range> ranges, deadline until);
  [[nodiscard]] bool is_gone(int peer) const noexcept;

 private:
  int rank_;
  int size_;
  detail::owned<face> face_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/any_peer_link.ipp>
#endif
