// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/system/error.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace cairn_test {

/// The smallest model of Communicator: nothing that the concept does not ask for may be used on it. It is a
/// world of one rank, in which nothing is ever sent.
class communicator_archetype {
 public:
  struct number {
    int value;
    operator int() const { return value; }
  };

  static communicator_archetype make() { return communicator_archetype(0); }
  communicator_archetype(const communicator_archetype&) = delete;
  communicator_archetype& operator=(const communicator_archetype&) = delete;
  communicator_archetype(communicator_archetype&&) = default;
  communicator_archetype& operator=(communicator_archetype&&) = default;
  void operator&() const = delete;

  [[nodiscard]] number rank() const { return {0}; }
  [[nodiscard]] number size() const { return {1}; }
  void send(int to, std::span<const std::byte>, cairn::deadline) { nobody(to); }
  std::vector<std::byte> receive(int from, cairn::deadline) { nobody(from); }

 private:
  explicit communicator_archetype(int) {}
  [[noreturn]] static void nobody(int rank) {
    cairn::fail(cairn::error_id::peer_lost, "a world of one rank has no peer", {.rank = rank});
  }
};

static_assert(cairn::Communicator<communicator_archetype> &&
              !cairn::ZeroCopyCommunicator<communicator_archetype> &&
              !cairn::DetectsLostPeers<communicator_archetype>);

/// The smallest model of ZeroCopyCommunicator: it lends to itself.
class lending_archetype : public communicator_archetype {
 public:
  static lending_archetype make() { return lending_archetype(communicator_archetype::make()); }
  void lend(int, const cairn::lent_message& message, cairn::deadline) { lent_ = message; }
  cairn::borrowed_message borrow(int, cairn::deadline) { return {{}, lent_}; }

 private:
  explicit lending_archetype(communicator_archetype base) : communicator_archetype(std::move(base)) {}
  cairn::lent_message lent_;
};
static_assert(cairn::ZeroCopyCommunicator<lending_archetype>);

/// The smallest model of DetectsLostPeers.
class watching_archetype : public communicator_archetype {
 public:
  struct watch {
    operator std::shared_ptr<const cairn::peer_watch>() const { return nullptr; }
  };
  static watching_archetype make() { return watching_archetype(communicator_archetype::make()); }
  [[nodiscard]] watch watch_peers() const { return {}; }

 private:
  explicit watching_archetype(communicator_archetype base) : communicator_archetype(std::move(base)) {}
};
static_assert(cairn::DetectsLostPeers<watching_archetype>);

}  // namespace cairn_test
