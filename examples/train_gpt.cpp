// SPDX-License-Identifier: Apache-2.0
// test: --steps 4 --every 2 --ranks 2 --layers 1 --width 32 --context 32 --checkpoints @DIR@
// expect: step +4 +loss
// links: cairn::interprocess
// uses: cairn::mpi cairn::s3 cairn::links
//
// Trains a small GPT on the bytes of text files, on several ranks, and saves as it goes. Each rank is a
// process: this program starts them itself, on this host, or mpirun, torchrun or srun does, on any hosts.
// Started again with the same directory it goes on from the newest checkpoint, on any number of ranks, with the
// same losses bit for bit.
#include <CLI/CLI.hpp>
#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/execute/worker_main.hpp>
#include <cairn/stage/shared_stager.hpp>
#include <cairn/tiers/local_tier.hpp>
#ifdef CAIRN_USES_LINKS
#include <cairn/links/tls_link.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#endif

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

  static std::string refuses(const gpt::run_options&) { return {}; }
  /// The ways to save are compositions of the same parts; the rest of the program sees one type.
  static cairn::any_checkpointer make_checkpointer(const gpt::run_options& options, gpt::store_type store,
                                                   gpt::any_communicator ranks, const gpt::trainer&) {
    using gpt::save_mode;
    const auto [keep, waits] = gpt::settings_of(options);
    const auto made = [&](auto... policies) {
      return cairn::any_checkpointer{
          cairn::checkpointer{std::move(store), std::move(ranks), keep, waits, std::move(policies)...}};
    };
    if (!options.tier.directory.empty()) return with_tier(options, ranks.rank(), ranks.size(), made);
    switch (options.mode) {
      case save_mode::synchronous:
        return made(cairn::no_staging{}, cairn::inline_executor{});
      case save_mode::thread:
        return made();
      case save_mode::process:
        return made(cairn::shared_stager{}, cairn::process_executor{});
      case save_mode::overlapped_process:
        return made(cairn::shared_stager{}, cairn::process_executor{}, cairn::overlapped{});
      case save_mode::overlapped_thread:
        return made(cairn::overlapped{});
      case save_mode::direct:
        return made(cairn::no_staging{}, cairn::overlapped{});
    }
    throw std::logic_error("a mode without a checkpointer");
  }

 private:
  /// Each save is held in memory of this host; some go on to the store.
  static cairn::any_checkpointer with_tier(const gpt::run_options& options, int rank, int ranks, auto made) {
    const gpt::tier_settings& tier = options.tier;
    const auto held = [&](auto... policies) {
      // A save in which to be killed is one that goes to the store, even if an earlier one is still on its way there.
      const cairn::persist persisted{.every = tier.persist, .strict = options.kill_after_release != 0};
      if (options.mode == gpt::save_mode::overlapped_thread)
        return made(cairn::local_tier{tier.directory_of(rank, ranks)}, persisted, cairn::overlapped{},
                    std::move(policies)...);
      return made(cairn::local_tier{tier.directory_of(rank, ranks)}, persisted, cairn::process_executor{},
                  cairn::overlapped{}, std::move(policies)...);
    };
    if (tier.partner_copies == 0) return held();
#ifdef CAIRN_USES_LINKS
    return held(
        cairn::partner_copies{.every = tier.partner_copies, .failure_group = tier.host_of(rank, ranks)},
        cairn::tls_links{});
#else
    throw std::runtime_error(
        "this build has no links: for --partner-copies install OpenSSL (Debian and Ubuntu: apt-get install "
        "libssl-dev), configure again and build");
#endif
  }
};

}  // namespace

int main(int argc, char** argv) {
  // First: started by a rank as the process that writes for it, it stays here.
  cairn::worker_main(argc, argv);
  return gpt::train_main<cpu>(argc, argv);
}
