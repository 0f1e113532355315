// SPDX-License-Identifier: Apache-2.0
// expect: an argument behind the step is no option of a load: cairn::only
#include <cairn/checkpointer.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}};
  cairn::state_dict state;
  ckpt.load(state, 1, "model.*");
}
