// SPDX-License-Identifier: Apache-2.0
// test: @DIR@/model @DIR@/run
// expect: start 2 goes on from step 3
//
// The beginning of a fine-tuning: weights from a directory of Hugging Face, under other names, in another dtype, for a
// vocabulary that was rounded up; then checkpoints of the run's own, which are what a second start goes on from. The
// embedding is not trained: it is written once by each start, and later checkpoints link its file.
//   fine_tune MODEL RUN     MODEL: a directory with *.safetensors; RUN: where this run saves
#include <cairn/cairn.hpp>
#include <cairn/load_options.hpp>
#include <cairn/safetensors_files.hpp>

#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

constexpr std::int64_t words = 10, padded_words = 16, width = 8;

/// Somebody else's model, so that this example needs nothing: half precision, names as transformers has them.
void write_model(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0777) != 0) return;  // there is one
  const std::string header =
      R"({"__metadata__":{"format":"pt"},)"
      R"("model.embed_tokens.weight":{"dtype":"BF16","shape":[10,8],"data_offsets":[0,160]},)"
      R"("model.layers.0.mlp.weight":{"dtype":"BF16","shape":[8,8],"data_offsets":[160,288]}})";
  const std::uint64_t length = header.size();
  const std::vector<std::uint16_t> ones((words + width) * width, 0x3f80);
  std::ofstream file(directory + "/model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header;
  file.write(reinterpret_cast<const char*>(ones.data()), static_cast<std::streamsize>(2 * ones.size()));
}

/// What is trained, in single precision.
struct tuned_model {
  std::vector<float> embedding = std::vector<float>(padded_words * width);
  std::vector<float> mlp = std::vector<float>(width * width);
  std::vector<float> moments = std::vector<float>(width * width);  // of the optimizer: no model has them

  void register_weights(cairn::state_dict& state) {
    state.tensor("wte", embedding, {padded_words, width}, cairn::frozen);
    state.tensor("blocks.0.mlp", mlp, {width, width});
  }
  void register_all(cairn::state_dict& state) {
    register_weights(state);
    state.tensor("adam.blocks.0.mlp", moments, {width, width});
  }
};

void begin(tuned_model& model, const std::string& directory) {
  cairn::state_dict weights;
  model.register_weights(weights);
  cairn::checkpointer base{cairn::safetensors_files(directory)};
  const auto report = base.load(
      weights, cairn::safetensors_files::step,
      cairn::rename{{"model.embed_tokens.weight", "wte"}, {"model.layers.*.mlp.weight", "blocks.*.mlp"}},
      cairn::convert{}, cairn::pad{"wte", 0});
  for (const auto& each : report.converted) std::printf("converted %s\n", each.c_str());
  for (const auto& each : report.resized) std::printf("resized %s\n", each.c_str());
}

int main(int argc, char** argv) try {
  const std::string base = argc > 1 ? argv[1] : "model", run = argc > 2 ? argv[2] : "run";
  write_model(base);
  for (const int start : {1, 2}) {  // a second process would do as the second round does
    tuned_model model;
    cairn::state_dict state;
    model.register_all(state);
    cairn::checkpointer ckpt{cairn::file_store{run}};
    auto step = ckpt.resume(state);
    if (step) {
      std::printf("start %d goes on from step %lld\n", start, static_cast<long long>(*step));
    } else {
      begin(model, base);
      step = 0;
      std::printf("start %d: a new run from step 0 of somebody else's model\n", start);
    }
    for (const auto last = *step + 3; *step < last;) {
      for (auto& weight : model.mlp) weight *= 0.5f;  // an update
      ckpt.save(state, ++*step);
    }
    ckpt.close();
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "fine_tune: %s\n", e.what());
  return 1;
}
