// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Opens a checkpoint of train_gpt in one process, whatever number of ranks wrote it, reads the model alone,
// and prints its loss on text that training has not seen. May run while training goes on: with --follow it measures
// each newer checkpoint, and reads only what changed.
#include <cairn/cairn.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>

#include "gpt/evaluation.hpp"
#include "gpt/state.hpp"
#include "gpt/trainer.hpp"
#include "tools/store.hpp"

namespace {

/// The parameters of a run, and the text on which they are measured.
class evaluator {
 public:
  explicit evaluator(const gpt::evaluation& wanted)
      : wanted_(wanted),
        checkpointer_(tools::storage_type{tools::open_store(wanted.url)}),
        source_(gpt::text::read(wanted.files)) {}

  void run() {
    if (wanted_.follow)
      follow();
    else
      evaluate(wanted_.step >= 0 ? wanted_.step : newest());
    checkpointer_.close();
  }

 private:
  std::int64_t newest() {
    const auto steps = checkpointer_.list();
    if (steps.empty()) throw std::runtime_error("there is no checkpoint in " + wanted_.url);
    return steps.back();
  }
  /// Each checkpoint that is the newest while the one before was measured.
  void follow() {
    const cairn::stop_signal stop{SIGINT, SIGTERM};
    constexpr double never = 1e9;  // seconds; more has no room in nanoseconds
    auto steps =
        checkpointer_.follow({.gone_after = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  std::chrono::duration<double>(std::min(wanted_.gone_after, never))),
                              .stop = [&] { return stop.requested(); }});
    while (const auto step = steps.next()) {
      try {
        evaluate(*step);
      } catch (const cairn::storage_error& error) {
        if (error.id() != cairn::error_id::storage_not_committed) throw;  // else it was removed: the next one
      }
    }
    const auto why = steps.why();
    if (why == cairn::follow_end::trainer_lost) std::printf("the trainer has died\n");
    if (why == cairn::follow_end::trainer_ended || why == cairn::follow_end::trainer_gone)
      std::printf("the trainer has gone\n");
  }
  void evaluate(std::int64_t step) {
    if (!net_) make_model(step);
    // Reads only what differs from the step before; the first time everything.
    checkpointer_.refresh(parameters_, step, cairn::only{"model.*"});
    const double loss = gpt::evaluate(*net_, source_);
    std::printf("step %lld held-out loss %.4f (%a)\n", static_cast<long long>(step), loss, loss);
    gpt::rank_generator generator(1, 0);
    if (wanted_.sample > 0)
      std::printf("%s\n", gpt::sample(*net_, generator, "The ", wanted_.sample).c_str());
    std::fflush(stdout);
  }
  /// Reads the five values that tell how large the model is.
  void make_model(std::int64_t step) {
    gpt::stored_config config;
    cairn::state_dict values;
    values.object("config", config);
    try {
      checkpointer_.load(values, step, cairn::only{"config.*"});
    } catch (const cairn::plan_error& error) {
      throw std::runtime_error("train_gpt did not write the checkpoint of step " + std::to_string(step) +
                               " in " + wanted_.url + ": " + error.what());
    }
    net_.emplace(config.shape(), 1);
    gpt::add_model(parameters_, *net_);
  }

  const gpt::evaluation& wanted_;
  cairn::checkpointer_for<tools::storage_type> checkpointer_;
  const gpt::text source_;
  std::optional<gpt::model<float>> net_;
  cairn::state_dict parameters_;  // made once: what it has loaded is known by it
};

}  // namespace

int main(int argc, char** argv) {
  return gpt::run_evaluation(
      "evaluate", "Prints the loss of a checkpoint of train_gpt on text that training has not seen.", argc,
      argv, [](const gpt::evaluation& wanted) { evaluator(wanted).run(); }, true);
}
