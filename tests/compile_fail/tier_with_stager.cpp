// SPDX-License-Identifier: Apache-2.0
// expect: leave the stager out, or, where it copies from devices, of which no tier holds images yet, the tier
#include <cairn/checkpointer.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/tiers/local_tier.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::local_tier{"/dev/shm/run"}, cairn::heap_stager{}};
}
