// SPDX-License-Identifier: Apache-2.0
// expect: must be an lvalue that outlives it
#include <cairn/model/state_dict.hpp>

int main() {
  cairn::state_dict state;
  state.tensor("w", std::vector<float>(4), {4});
}
