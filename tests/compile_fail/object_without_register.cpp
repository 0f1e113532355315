// SPDX-License-Identifier: Apache-2.0
// expect: joins a state_dict through a member void register_state
#include <cairn/model/state_dict.hpp>

struct plain {};
int main() {
  plain p;
  cairn::state_dict state;
  state.object("p", p);
}
