// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Opens a checkpoint of train_gpt in one process, whatever number of ranks wrote it, reads the model alone,
// and prints its loss on text that training has not seen. May run while training goes on.
#include <cairn/cairn.hpp>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "gpt/evaluation.hpp"
#include "gpt/state.hpp"
#include "gpt/trainer.hpp"
#include "tools/store.hpp"

namespace {

void evaluate(const gpt::evaluation& wanted) {
  const auto& url = wanted.url;
  auto step = wanted.step;
  cairn::checkpointer checkpointer{tools::storage_type{tools::open_store(url)}};
  if (step < 0) {
    const auto steps = checkpointer.list();
    if (steps.empty()) throw std::runtime_error("there is no checkpoint in " + url);
    step = steps.back();
  }

  // First the five values that tell how large the model is, then the parameters. Nothing else is read.
  gpt::stored_config config;
  cairn::state_dict values;
  values.object("config", config);
  try {
    checkpointer.load(values, step, cairn::only{"config.*"});
  } catch (const cairn::plan_error& error) {
    throw std::runtime_error("train_gpt did not write the checkpoint of step " + std::to_string(step) +
                             " in " + url + ": " + error.what());
  }

  gpt::model<float> net(config.shape(), 1);
  cairn::state_dict parameters;
  gpt::add_model(parameters, net);
  checkpointer.load(parameters, step, cairn::only{"model.*"});

  const gpt::text source = gpt::text::read(wanted.files);
  const double loss = gpt::evaluate(net, source);
  std::printf("step %lld held-out loss %.4f (%a)\n", static_cast<long long>(step), loss, loss);
  gpt::rank_generator generator(1, 0);
  if (wanted.sample > 0) std::printf("%s\n", gpt::sample(net, generator, "The ", wanted.sample).c_str());
  checkpointer.close();
}

}  // namespace

int main(int argc, char** argv) {
  return gpt::run_evaluation(
      "evaluate", "Prints the loss of a checkpoint of train_gpt on text that training has not seen.", argc,
      argv, evaluate);
}
