// SPDX-License-Identifier: Apache-2.0
// expect: the first argument is neither a ByteStore nor a Storage
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stores/memory_store.hpp>

struct almost_store {
  using cairn_role = cairn::role::store;
};
int main() {
  cairn::checkpointer ckpt{almost_store{}};
}
