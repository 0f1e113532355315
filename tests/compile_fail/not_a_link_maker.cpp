// SPDX-License-Identifier: Apache-2.0
// expect: an argument declares the role link but does not model LinkMaker
#include <cairn/checkpointer.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/tiers/local_tier.hpp>

struct no_links {
  using cairn_role = cairn::role::link;
  void connect(cairn::collectives&);
};

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::local_tier{"/dev/shm/run"}, cairn::partner_copies{},
                           no_links{}};
}
