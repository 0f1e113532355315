// SPDX-License-Identifier: Apache-2.0
// expect: the first argument is a name, not a store; write cairn::file_store\{name\}
// errors: 1
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{"checkpoints"};
}
