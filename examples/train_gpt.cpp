// SPDX-License-Identifier: Apache-2.0
// test: --steps 4 --every 2 --ranks 2 --layers 1 --width 32 --context 32 --checkpoints @DIR@
// expect: step +4 +loss
// links: cairn::interprocess
// uses: cairn::mpi cairn::s3
//
// Trains a small GPT on the bytes of text files, on several ranks, and saves as it goes. Each rank is a
// process: this program starts them itself, or mpirun does. Started again with the same directory it goes on
// from the newest checkpoint, on any number of ranks, with the same losses bit for bit.
#include <CLI/CLI.hpp>
#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/execute/worker_main.hpp>
#include <cairn/stage/shared_stager.hpp>

#include <stdexcept>
#include <string>
#include <utility>

#include "gpt/program.hpp"
#include "gpt/state.hpp"

namespace {

/// Training on the CPU.
struct cpu {
  static constexpr const char* program = "train_gpt";
  using trainer_type = gpt::trainer;
  using state_type = gpt::run_state;
  using checkpointer_type = cairn::any_checkpointer;

  static std::string refuses(gpt::save_mode) { return {}; }
  /// The ways to save are compositions of the same parts; the rest of the program sees one type.
  static cairn::any_checkpointer make_checkpointer(const gpt::run_options& options, gpt::store_type store,
                                                   gpt::any_communicator ranks, const gpt::trainer&) {
    using gpt::save_mode;
    const auto [keep, waits] = gpt::settings_of(options);
    switch (options.mode) {
      case save_mode::synchronous:
        return cairn::any_checkpointer{cairn::checkpointer{
            std::move(store), cairn::no_staging{}, cairn::inline_executor{}, std::move(ranks), keep, waits}};
      case save_mode::thread:
        return cairn::any_checkpointer{cairn::checkpointer{std::move(store), std::move(ranks), keep, waits}};
      case save_mode::process:
        return cairn::any_checkpointer{cairn::checkpointer{std::move(store), cairn::shared_stager{},
                                                           cairn::process_executor{}, std::move(ranks), keep,
                                                           waits}};
      case save_mode::overlapped_process:
        return cairn::any_checkpointer{cairn::checkpointer{std::move(store), cairn::shared_stager{},
                                                           cairn::process_executor{}, std::move(ranks), keep,
                                                           waits, cairn::overlapped{}}};
      case save_mode::overlapped_thread:
        return cairn::any_checkpointer{
            cairn::checkpointer{std::move(store), std::move(ranks), keep, waits, cairn::overlapped{}}};
      case save_mode::direct:
        return cairn::any_checkpointer{cairn::checkpointer{
            std::move(store), cairn::no_staging{}, std::move(ranks), keep, waits, cairn::overlapped{}}};
    }
    throw std::logic_error("a mode without a checkpointer");
  }
};

}  // namespace

int main(int argc, char** argv) {
  // First: started by a rank as the process that writes for it, it stays here.
  cairn::worker_main(argc, argv);
  return gpt::train_main<cpu>(argc, argv);
}
