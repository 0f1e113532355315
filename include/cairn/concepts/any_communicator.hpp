// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/owned.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A Communicator whose type is chosen at run time; models Communicator, and what communicators may offer
/// besides. Each message costs one virtual call, and no copy more than the communicator itself. Owns the
/// communicator. One thread at a time uses it; movable. After a move from it only assignment and the
/// destructor are allowed.
class any_communicator {
  struct face {
    virtual ~face() = default;
    virtual void send(int to, std::span<const std::byte> bytes, deadline until) = 0;
    virtual std::vector<std::byte> receive(int from, deadline until) = 0;
    virtual void lend(int to, const lent_message& message, deadline until) = 0;
    virtual borrowed_message borrow(int from, deadline until) = 0;
    virtual borrowed_message borrow_into(int from, std::size_t first, std::span<std::byte> rest,
                                         deadline until) = 0;
    virtual std::shared_ptr<const peer_watch> watch_peers() const = 0;
    virtual void* object() noexcept = 0;
  };
  template <class C>
  struct face_of final : face {
    explicit face_of(C made) : communicator(std::move(made)) {}
    void send(int to, std::span<const std::byte> bytes, deadline until) override {
      communicator.send(to, bytes, until);
    }
    std::vector<std::byte> receive(int from, deadline until) override {
      return communicator.receive(from, until);
    }
    void lend(int to, const lent_message& message, deadline until) override {
      if constexpr (ZeroCopyCommunicator<C>)
        communicator.lend(to, message, until);
      else
        communicator.send(to, message.view(), until);
    }
    borrowed_message borrow(int from, deadline until) override {
      if constexpr (ZeroCopyCommunicator<C>)
        return communicator.borrow(from, until);
      else
        return {communicator.receive(from, until), {}};
    }
    borrowed_message borrow_into(int from, std::size_t first, std::span<std::byte> rest,
                                 deadline until) override {
      if constexpr (LandsMessages<C>)
        return communicator.borrow_into(from, first, rest, until);
      else
        return borrow(from, until);
    }
    std::shared_ptr<const peer_watch> watch_peers() const override {
      if constexpr (DetectsLostPeers<C>)
        return communicator.watch_peers();
      else
        return nullptr;
    }
    void* object() noexcept override { return std::addressof(communicator); }
    C communicator;
  };

 public:
  using cairn_role = role::communicator;

  /// Holds a communicator of any type, given as an rvalue.
  template <class C>
    requires(!std::same_as<C, any_communicator> && Communicator<C>)
  explicit any_communicator(C communicator)
      : rank_(communicator.rank()),
        size_(communicator.size()),
        face_(new face_of<C>(std::move(communicator))) {}

  // See Communicator.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  void send(int to, std::span<const std::byte> bytes, deadline until);
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until);
  /// See ZeroCopyCommunicator; send() where the communicator lends nothing.
  void lend(int to, const lent_message& message, deadline until);
  /// See ZeroCopyCommunicator; what receive() gives where the communicator lends nothing.
  [[nodiscard]] borrowed_message borrow(int from, deadline until);
  /// See LandsMessages; borrow() where the communicator does not.
  [[nodiscard]] borrowed_message borrow_into(int from, std::size_t first, std::span<std::byte> rest,
                                             deadline until);
  /// See DetectsLostPeers; null where the communicator does not know.
  [[nodiscard]] std::shared_ptr<const peer_watch> watch_peers() const;

  /// The communicator itself. @pre C is the type that this was made of: nobody checks it.
  template <class C>
  [[nodiscard]] C& get() noexcept {
    if constexpr (std::same_as<C, any_communicator>)
      return *this;
    else
      return *static_cast<C*>(face_->object());
  }

 private:
  int rank_;
  int size_;
  detail::owned<face> face_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/any_communicator.ipp>
#endif
