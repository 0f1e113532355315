// SPDX-License-Identifier: Apache-2.0
// expect: process_executor needs a stager whose images another process can read: take shared_stager
// errors: 1
// links: cairn::interprocess
#include <cairn/checkpointer.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/stores/file_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::file_store{"checkpoints"}, cairn::process_executor{}};
}
