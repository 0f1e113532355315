// SPDX-License-Identifier: Apache-2.0
// expect: load: cairn::verify_memory is an option of refresh
// errors: 1
#include <cairn/checkpointer.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}};
  cairn::state_dict state;
  ckpt.load(state, 1, cairn::verify_memory);
}
