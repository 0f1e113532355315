// SPDX-License-Identifier: Apache-2.0
// expect: two arguments play the role stager; pass one
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::heap_stager{}, cairn::heap_stager{}};
}
