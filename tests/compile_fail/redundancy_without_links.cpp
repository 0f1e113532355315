// SPDX-License-Identifier: Apache-2.0
// expect: partner copies and parity are made of what a tier holds; pass a tier
// expect: partner copies and parity travel over links of their own; pass
#include <cairn/checkpointer.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::partner_copies{.every = 2}};
}
