// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_peer_link.hpp>
#include <cairn/concepts/link_maker.hpp>
#include <cairn/concepts/peer_link.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn_test {

/// The least that models PeerLink: nothing that the concept does not ask for may be used on it. One rank, which
/// keeps no offer.
class peer_link_archetype {
 public:
  struct number {
    int value;
    operator int() const { return value; }
  };
  struct bytes {
    operator std::uint64_t() const { return 0; }
  };
  struct truth {
    operator bool() const { return false; }
  };

  static peer_link_archetype make() { return peer_link_archetype(0); }
  peer_link_archetype(const peer_link_archetype&) = delete;
  peer_link_archetype& operator=(const peer_link_archetype&) = delete;
  peer_link_archetype(peer_link_archetype&&) = default;
  peer_link_archetype& operator=(peer_link_archetype&&) = default;
  void operator&() const = delete;

  [[nodiscard]] number rank() const { return {0}; }
  [[nodiscard]] number size() const { return {1}; }
  void offer(const cairn::offer_key&, std::span<const std::span<const std::byte>>) {}
  void withdraw(const cairn::offer_key&, cairn::deadline) noexcept {}
  bytes await_offer(int peer, const cairn::offer_key&, cairn::deadline) { nothing(peer); }
  bytes fetch(int peer, const cairn::offer_key&, std::span<const cairn::fetch_range>, cairn::deadline) {
    nothing(peer);
  }
  [[nodiscard]] truth is_gone(int) const noexcept { return {}; }

 private:
  explicit peer_link_archetype(int) {}
  [[noreturn]] static void nothing(int peer) {
    cairn::fail(cairn::error_id::peer_not_offered, "nothing is offered here", {.rank = peer});
  }
};

static_assert(cairn::PeerLink<peer_link_archetype> && cairn::PeerLink<cairn::any_peer_link>);

/// The least that models LinkMaker: it connects once, and only where it may be changed.
class link_maker_archetype {
 public:
  static link_maker_archetype make() { return link_maker_archetype(0); }
  link_maker_archetype(link_maker_archetype&&) = default;
  link_maker_archetype& operator=(link_maker_archetype&&) = delete;
  void operator&() const = delete;

  peer_link_archetype connect(cairn::collectives&, cairn::deadline) & { return peer_link_archetype::make(); }

 private:
  explicit link_maker_archetype(int) {}
};
static_assert(cairn::LinkMaker<link_maker_archetype>);

// Near misses: each differs from a LinkMaker in one point.
struct no_link_maker_that_stays : link_maker_archetype {
  no_link_maker_that_stays(no_link_maker_that_stays&&) = delete;
};
struct no_link_maker_without_a_deadline {
  peer_link_archetype connect(cairn::collectives&);
};
struct no_link_maker_that_makes_none {
  void connect(cairn::collectives&, cairn::deadline);
};
static_assert(!cairn::LinkMaker<no_link_maker_that_stays>);
static_assert(!cairn::LinkMaker<no_link_maker_without_a_deadline>);
static_assert(!cairn::LinkMaker<no_link_maker_that_makes_none>);

}  // namespace cairn_test
