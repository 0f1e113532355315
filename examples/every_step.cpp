// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// test: @DIR@/checkpoints
// expect: step 27 loaded from the local tier
//
// Saves every step in memory of this host and every tenth in a store. Its first process is killed in mid-training; its
// second one goes on from the very step.
#include <cairn/cairn.hpp>
#include <cairn/tiers/local_tier.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

/// The directory of the tier: the job's own, by the name of its store.
std::string tier_for(std::string store) {
  std::replace(store.begin(), store.end(), '/', '-');
  return "/dev/shm/cairn" + store;
}

/// `killed_at`: the step after which the process is killed; 0: it is not.
int train(const std::string& directory, long long killed_at) try {
  std::vector<float> weights(512 * 1024, 0.5f);
  cairn::state_dict state;
  state.tensor("weights", weights, {512, 1024});

  cairn::checkpointer ckpt{cairn::file_store{directory}, cairn::local_tier{tier_for(directory), {.keep = 2}},
                           cairn::persist{.every = 10},  // the others are held by the tier alone
                           cairn::overlapped{}};
  auto step = ckpt.resume(state).value_or(0);
  if (step > 0) std::printf("resumed at step %lld\n", static_cast<long long>(step));
  for (; step < 40;) {
    const auto gradient = 0.01f;
    ckpt.before_update();
    for (auto& w : weights) w -= gradient * w;
    ++step;
    const auto save = ckpt.save(state, step);
    if (step == killed_at) {
      save.wait_held();
      std::printf("killed after step %lld\n", killed_at);
      std::fflush(stdout);
      ::kill(::getpid(), SIGKILL);
    }
  }
  ckpt.close();  // writes the last step to the store, and leaves nothing in the tier
  std::printf("step %lld is committed in %s\n", static_cast<long long>(step), directory.c_str());
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "every_step: %s\n", e.what());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr,
                 "usage: every_step DIRECTORY\nDIRECTORY: where checkpoints are written, an absolute path\n");
    return 2;
  }
  const ::pid_t first = ::fork();
  if (first < 0) return 1;
  if (first == 0) ::_exit(train(argv[1], 27));
  int status = 0;
  ::waitpid(first, &status, 0);
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);  // it was at its end already
  return train(argv[1], 0);
}
