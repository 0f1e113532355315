// SPDX-License-Identifier: Apache-2.0
// expect: process_executor makes the StorageWriter again in the worker process
// errors: 1
// links: cairn::interprocess
#include <cairn/checkpointer.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::process_executor{}};
}
