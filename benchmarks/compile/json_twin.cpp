// SPDX-License-Identifier: Apache-2.0
// What the others are compared with: ten lines with a header-only library that many projects include.
#include <nlohmann/json.hpp>

#include <cstdio>
#include <string>
#include <vector>

int main() {
  const auto settings =
      nlohmann::json::parse(R"({"layers": [512, 64], "learning_rate": 0.01, "name": "tiny"})");
  const auto layers = settings.at("layers").get<std::vector<int>>();
  const auto rate = settings.at("learning_rate").get<double>();
  const auto name = settings.at("name").get<std::string>();
  nlohmann::json result{{"name", name}, {"weights", layers.at(0) * layers.at(1)}};
  result["rate"] = rate;
  std::printf("%s\n", result.dump(2).c_str());
}
