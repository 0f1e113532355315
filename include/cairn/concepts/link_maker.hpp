// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_peer_link.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

#include <concepts>
#include <utility>

namespace cairn {
inline namespace v1 {

class collectives;

/// Makes the links over which the ranks of a job read memory of each other: what an argument of the role link is.
///
/// - `connect(job, deadline)`: a PeerLink between the ranks of `job`, in the same order. Collective: throws on all ranks
///   what one of them throws. `job` is not used after it has returned.
template <class L>
concept LinkMaker = std::move_constructible<L> && requires(L& maker, collectives& job, deadline until) {
  { maker.connect(job, until) } -> PeerLink;
};

/// A LinkMaker whose type is chosen at run time.
class any_link_maker {
  struct face {
    virtual ~face() = default;
    virtual any_peer_link connect(collectives& job, deadline until) = 0;
  };
  template <class L>
  struct face_of final : face {
    explicit face_of(L made) : maker(std::move(made)) {}
    any_peer_link connect(collectives& job, deadline until) override {
      return any_peer_link(maker.connect(job, until));
    }
    L maker;
  };

 public:
  using cairn_role = role::link;

  template <class L>
    requires(!std::same_as<L, any_link_maker> && LinkMaker<L>)
  explicit any_link_maker(L maker) : face_(new face_of<L>(std::move(maker))) {}

  // See LinkMaker.
  [[nodiscard]] any_peer_link connect(collectives& job, deadline until) { return face_->connect(job, until); }

 private:
  detail::owned<face> face_;
};

}  // namespace v1
}  // namespace cairn
