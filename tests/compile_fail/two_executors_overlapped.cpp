// SPDX-License-Identifier: Apache-2.0
// expect: two arguments play the role executor; pass one
// errors: 1
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::inline_executor{}, cairn::inline_executor{},
                           cairn::overlapped{}};
}
