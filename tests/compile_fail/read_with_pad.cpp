// SPDX-License-Identifier: Apache-2.0
// expect: read: only, partial, pad and cut say something about a state, which read does not have
// errors: 1
#include <cairn/checkpointer.hpp>
#include <cairn/load_options.hpp>
#include <cairn/stores/memory_store.hpp>

int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}};
  (void)ckpt.read<float>("wte", 1, cairn::convert{}, cairn::pad{"wte", 0});
}
