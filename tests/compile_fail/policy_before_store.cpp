// SPDX-License-Identifier: Apache-2.0
// expect: the store goes first, then the policies
// errors: 2
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::heap_stager{}, cairn::memory_store{}};
  cairn::checkpointer number{42};
}
