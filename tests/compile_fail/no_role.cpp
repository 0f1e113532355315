// SPDX-License-Identifier: Apache-2.0
// expect: an argument plays no role; declare one in its class
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, 3};
}
