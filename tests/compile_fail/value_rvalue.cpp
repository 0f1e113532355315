// SPDX-License-Identifier: Apache-2.0
// expect: it must be an lvalue that outlives it
#include <cairn/model/state_dict.hpp>

int main() {
  cairn::state_dict state;
  state.value("lr", 0.5);
}
