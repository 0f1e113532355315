// SPDX-License-Identifier: Apache-2.0
// expect: overlapped\{\} needs an executor that runs beside training
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::inline_executor{}, cairn::overlapped{}};
}
