// SPDX-License-Identifier: Apache-2.0
// expect: pass a tier, such as cairn::local_tier, or leave persist out
#include <cairn/checkpointer.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::persist{.every = 2}};
}
