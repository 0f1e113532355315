// SPDX-License-Identifier: Apache-2.0
// expect: partner copies and parity are not made by it
#include <cairn/checkpointer.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/tiers/partner_copies.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::partner_copies{.every = 2}};
}
