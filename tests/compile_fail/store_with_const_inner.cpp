// SPDX-License-Identifier: Apache-2.0
// expect: return the store below as a reference that is not const
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stores/memory_store.hpp>

// Leases would be held in this store, and not in the one below.
struct layered_store : cairn::memory_store {
  const cairn::memory_store& inner() { return below; }
  cairn::memory_store below;
};
int main() {
  cairn::checkpointer ckpt{layered_store{}, cairn::inline_executor{}};
}
