// SPDX-License-Identifier: Apache-2.0
// expect: the first argument is a name, not a store; write cairn::file_store\{name\}
// errors: 1
#include <cairn/any_checkpointer.hpp>
#include <cairn/checkpointer.hpp>

int main() {
  cairn::any_checkpointer ckpt = cairn::checkpointer{"checkpoints"};
  ckpt.close();
}
