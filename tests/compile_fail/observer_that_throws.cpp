// SPDX-License-Identifier: Apache-2.0
// expect: does not model Observer: it needs observe
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stores/memory_store.hpp>

struct loud {
  using cairn_role = cairn::role::observer;
  void observe(const cairn::observation&) {}
};
int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, loud{}};
}
