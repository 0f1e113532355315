// SPDX-License-Identifier: Apache-2.0
// expect: value: takes a number or an enumeration; a struct of yours joins through register_state .* state.bytes.* cairn::per_rank
// expect: bytes: takes a container of elements of one byte .* state.tensor.name, it, .size.*cairn::per_rank.* register_state
// expect: bytes: the state_dict refers to the container, so it must be an lvalue
// errors: 6
#include <cairn/model/state_dict.hpp>

#include <map>
#include <random>
#include <string>
#include <vector>

struct settings {
  int depth = 3;
};
int main() {
  std::string text;
  std::map<std::string, int> counts;
  std::mt19937 generator;
  settings s;
  std::vector<double> numbers(4);
  cairn::state_dict state;
  state.value("text", text);
  state.value("counts", counts);
  state.value("generator", generator);
  state.value("settings", s);
  state.bytes("numbers", numbers);
  state.bytes("temporary", std::string("text"));
}
