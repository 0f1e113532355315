// SPDX-License-Identifier: Apache-2.0
// expect: pass a pointer to non-const elements
#include <cairn/model/state_dict.hpp>

int main() {
  const float w[4] = {};
  const float* p = w;
  cairn::state_dict state;
  state.tensor("w", p, {4});
}
