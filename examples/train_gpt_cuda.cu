// SPDX-License-Identifier: Apache-2.0
// links: cairn::cuda cairn::interprocess
// uses: cairn::mpi cairn::s3
//
// train_gpt on a GPU: the same options, text, batches and names in the checkpoints, so that each program goes
// on from what the other saved. Losses after a resume are the same bit for bit on the same kind of GPU; those
// of the CPU differ in the last digits.
#include <CLI/CLI.hpp>
#include <cairn/cairn.hpp>
#include <cairn/cuda/gathering_stager.cuh>
#include <cairn/execute/process_executor.hpp>
#include <cairn/execute/worker_main.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpt/device/state.cuh"
#include "gpt/device/trainer.cuh"
#include "gpt/program.hpp"

namespace {

/// A checkpointer of any executor, whose before_update() makes the stream of training wait, not the host.
class stream_checkpointer {
 public:
  template <class Checkpointer>
  stream_checkpointer(Checkpointer held, cudaStream_t stream, int device)
      : held_(std::make_unique<holder<Checkpointer>>(std::move(held), stream, device)) {}
  std::optional<std::int64_t> resume(const cairn::state_dict& state) { return held_->resume(state); }
  cairn::save_handle save(const cairn::state_dict& state, std::int64_t step) {
    return held_->save(state, step);
  }
  void annotate(const cairn::annotations& about) { held_->annotate(about); }
  [[nodiscard]] bool any_rank(bool wants) { return held_->any_rank(wants); }
  void before_update() { held_->before_update(); }
  void close() { held_->close(); }

 private:
  struct base {
    virtual ~base() = default;
    virtual std::optional<std::int64_t> resume(const cairn::state_dict&) = 0;
    virtual cairn::save_handle save(const cairn::state_dict&, std::int64_t) = 0;
    virtual void annotate(const cairn::annotations&) = 0;
    virtual bool any_rank(bool) = 0;
    virtual void before_update() = 0;
    virtual void close() = 0;
  };
  template <class Checkpointer>
  struct holder final : base {
    holder(Checkpointer made, cudaStream_t on, int which)
        : held(std::move(made)), stream(on), device(which) {}
    std::optional<std::int64_t> resume(const cairn::state_dict& s) override { return held.resume(s); }
    cairn::save_handle save(const cairn::state_dict& s, std::int64_t step) override {
      return held.save(s, step);
    }
    void annotate(const cairn::annotations& about) override { held.annotate(about); }
    bool any_rank(bool wants) override { return held.any_rank(wants); }
    void before_update() override { held.before_update(stream, device); }
    void close() override { held.close(); }
    Checkpointer held;
    cudaStream_t stream;
    int device;
  };
  std::unique_ptr<base> held_;
};

struct gpu {
  static constexpr const char* program = "train_gpt_cuda";
  using trainer_type = gpt::device::trainer;
  using state_type = gpt::device::run_state;
  using checkpointer_type = stream_checkpointer;

  static std::string refuses(const gpt::run_options& options) {
    if (!options.tier.directory.empty()) return "what copies from a GPU has no tier yet: leave --tier out";
    return options.mode == gpt::save_mode::direct ? "direct writes from memory that the CPU can read" : "";
  }
  static checkpointer_type make_checkpointer(const gpt::run_options& options, gpt::store_type store,
                                             gpt::any_communicator ranks, const trainer_type& run) {
    using gpt::save_mode;
    const auto [keep, waits] = gpt::settings_of(options);
    cairn::cuda::gathering_engine_options copies;
    copies.compute = {{run.device(), run.on().stream()}};
    cairn::cuda::gathering_stager stager({}, cairn::cuda::gathering_engine(copies));
    const auto made = [&](auto... policies) {
      return stream_checkpointer(cairn::checkpointer{std::move(store), std::move(stager), std::move(ranks),
                                                     keep, waits, std::move(policies)...},
                                 run.on().stream(), run.device());
    };
    switch (options.mode) {
      case save_mode::synchronous:
        return made(cairn::inline_executor{});
      case save_mode::thread:
        return made(cairn::thread_executor{});
      case save_mode::process:
        return made(cairn::process_executor{});
      case save_mode::overlapped_thread:
        return made(cairn::thread_executor{}, cairn::overlapped{});
      case save_mode::overlapped_process:
        return made(cairn::process_executor{}, cairn::overlapped{});
      case save_mode::direct:
        break;
    }
    throw std::logic_error("a mode without a checkpointer");
  }
};

}  // namespace

int main(int argc, char** argv) {
  // First: started by a rank as the process that writes for it, it stays here.
  cairn::worker_main(argc, argv);
  return gpt::train_main<gpu>(argc, argv);
}
