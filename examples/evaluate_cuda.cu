// SPDX-License-Identifier: Apache-2.0
// links: cairn::cuda
// uses: cairn::s3 cairn::zstd
//
// Opens a checkpoint of train_gpt or train_gpt_cuda in one process, whatever number of ranks wrote it, reads
// the model alone, and prints its loss, computed on a GPU, on text that training has not seen. May run while
// training goes on.
#include <CLI/CLI.hpp>
#include <cairn/cairn.hpp>
#include <cairn/cuda/device_loads.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpt/device/state.cuh"
#include "gpt/device/trainer.cuh"
#include "tools/store.hpp"

namespace {

void evaluate(const std::string& url, std::int64_t step, const std::vector<std::string>& files,
              std::size_t sample) {
  const gpt::device::chosen_device device(0);
  cairn::checkpointer checkpointer{tools::storage_type{tools::open_store(url)}, cairn::cuda::device_loads{}};
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

  const gpt::device::context on;
  gpt::device::model net(on, config.shape(), 1);
  cairn::state_dict parameters;
  gpt::device::add_model(parameters, net);
  checkpointer.load(parameters, step, cairn::only{"model.*"});

  const gpt::text source = gpt::text::read(files);
  const double loss = gpt::evaluate(net, source);
  std::printf("step %lld held-out loss %.4f (%a)\n", static_cast<long long>(step), loss, loss);
  gpt::rank_generator generator(1, 0);
  if (sample > 0) std::printf("%s\n", gpt::sample(net, generator, "The ", sample).c_str());
  checkpointer.close();
}

}  // namespace

int main(int argc, char** argv) {
  std::string url;
  std::int64_t step = -1;
  std::vector<std::string> files;
  std::size_t sample = 0;
  CLI::App app{
      "Prints the loss of a checkpoint of train_gpt or train_gpt_cuda, computed on a GPU, on text that "
      "training has not seen.",
      "evaluate_cuda"};
  app.footer(tools::url_help);
  app.add_option("url", url, "where the checkpoints are")->required()->option_text("URL");
  app.add_option("--step", step, "step of the checkpoint (default: the newest)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--text", files, "the text of the training run (default: /usr/share/common-licenses)")
      ->check(CLI::ExistingPath);
  app.add_option("--sample", sample, "let the model write this many bytes");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    evaluate(url, step, files, sample);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "evaluate_cuda: %s\n", error.what());
    return 1;
  }
}
