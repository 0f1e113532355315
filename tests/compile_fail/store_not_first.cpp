// SPDX-License-Identifier: Apache-2.0
// expect: the store or storage is the first argument, and there is one
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::memory_store{}};
}
