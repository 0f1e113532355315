// SPDX-License-Identifier: Apache-2.0
// links: cairn::cuda cairn::interprocess
// What each way of saving costs a training loop on a GPU, in two settings: the published one's shape (a
// Llama-like model of 1.345 B parameters, parameters and both moments in bf16: 7.52 GiB; 25 steps of about
// 110 ms, a save every 5, to memory) and a longer one (steps of 400 ms, a save every 10 s, to a disk). A step
// is products of bf16 matrices and a pass of Adam over all of the state.
#include <cairn/cairn.hpp>
#include <cairn/cuda/gathering_stager.cuh>
#include <cairn/execute/process_executor.hpp>
#include <cairn/execute/worker_main.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <support/bench.hpp>
#include <support/device.cuh>
#include <support/program.hpp>
#include <support/published.hpp>
#include <utility>
#include <vector>

namespace {
using namespace cairn_bench;

struct mode_options {
  std::string setting = "published";
  double parameters = 1.345e9;
  int steps = 0;  ///< 0: what the setting has
  int every = 0;
  double step_seconds = 0;
  int rounds = 3;
  std::string directory = ".";
  std::vector<std::string> only;
  std::string json;
  std::string table;
  [[nodiscard]] bool to_disk() const { return setting == "disk"; }
};

__global__ void adam(std::uint64_t count, const __nv_bfloat16* gradient, std::uint64_t gradients, float rate,
                     __nv_bfloat16* p, __nv_bfloat16* m, __nv_bfloat16* v) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float g = __bfloat162float(gradient[i % gradients]);
  const float m1 = 0.9f * __bfloat162float(m[i]) + 0.1f * g;
  const float v1 = 0.95f * __bfloat162float(v[i]) + 0.05f * g * g;
  m[i] = __float2bfloat16(m1);
  v[i] = __float2bfloat16(v1);
  p[i] = __float2bfloat16(__bfloat162float(p[i]) - rate * m1 / (sqrtf(fabsf(v1)) + 1e-6f));
}

/// Parameters and moments with the shapes of a Llama of width 2048: 24 layers make 1.345 B parameters.
class training {
 public:
  training(double parameters, double step_seconds) : work_(stream_.get()) {
    const double layer = 4.0 * 2048 * 2048 + 3.0 * 2048 * 5504 + 2 * 2048;
    const int layers = std::max(1, static_cast<int>(std::lround((parameters - 2.0 * 32'000 * 2048) / layer)));
    add("embedding", {32'000, 2048});
    for (int l = 0; l < layers; ++l) {
      const auto name = "layers." + std::to_string(l) + ".";
      for (const char* part : {"q", "k", "v", "o"}) add(name + part, {2048, 2048});
      for (const char* part : {"gate", "up"}) add(name + part, {5504, 2048});
      add(name + "down", {2048, 5504});
      for (const char* part : {"norm1", "norm2"}) add(name + part, {2048});
    }
    add("norm", {2048});
    add("head", {32'000, 2048});
    for (std::uint32_t i = 0; i < 3; ++i) states_.emplace_back(2 * count_, i);
    const auto timed = [&](auto&& launch) {
      return median_of(5, [&] {
        launch();
        wait();
      });
    };
    work_.launch(20);
    update();
    wait();
    update_seconds_ = timed([&] { update(); });
    const double one = timed([&] { work_.launch(20); }) / 20;
    products_ = std::max(1, static_cast<int>(std::lround((step_seconds - update_seconds_) / one)));
    forward_seconds_ = timed([&] { forward_and_backward(); });
  }
  void forward_and_backward() const { work_.launch(products_); }
  void update() const {
    const auto at = [&](std::size_t i) { return reinterpret_cast<__nv_bfloat16*>(states_[i].data()); };
    adam<<<static_cast<unsigned>((count_ + 255) / 256), 256, 0, stream_.get()>>>(
        count_, work_.result(), matrix_work::elements, 1e-6f, at(0), at(1), at(2));
    check_cuda(cudaGetLastError(), "the update");
  }
  void wait() const { stream_.wait(); }
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
  [[nodiscard]] double forward_seconds() const { return forward_seconds_; }
  [[nodiscard]] double update_seconds() const { return update_seconds_; }
  [[nodiscard]] int products() const { return products_; }
  [[nodiscard]] std::uint64_t parameters() const { return count_; }
  [[nodiscard]] std::uint64_t bytes() const { return 6 * count_; }

  [[nodiscard]] cairn::state_dict state() const {
    cairn::state_dict state;
    const char* const kinds[] = {"model.", "adam.m.", "adam.v."};
    for (std::size_t i = 0; i < 3; ++i)
      for (const auto& t : tensors_)
        state.tensor(kinds[i] + t.name,
                     cairn::cuda::device_view(states_[i].data() + 2 * t.offset, cairn::dtype::bf16, t.shape));
    return state;
  }

 private:
  struct named {
    std::string name;
    cairn::extents shape;
    std::uint64_t offset;
  };
  void add(std::string name, const cairn::extents& shape) {
    tensors_.push_back({std::move(name), shape, count_});
    count_ += static_cast<std::uint64_t>(shape.volume());
  }
  device_stream stream_;
  matrix_work work_;
  std::vector<named> tensors_;
  std::uint64_t count_ = 0;
  std::vector<device_memory> states_;
  int products_ = 1;
  double update_seconds_ = 0;
  double forward_seconds_ = 0;
};

struct run_result {
  std::vector<double> steps, blocked, durable;
  double copy = 0;  ///< of all of the state, on a device that does nothing else
  int skipped = 0;
  double after = 0;  ///< waiting after the last step
};

/// The loop, with `saves` (or without): a step ends when the device has done it.
template <class Save, class BeforeUpdate>
run_result run_loop(const training& train, int steps, int every, Save&& save, BeforeUpdate&& before_update) {
  run_result r;
  train.wait();
  double stall = 0;
  for (int step = 1; step <= steps; ++step)
    r.steps.push_back(seconds_of([&] {
      train.forward_and_backward();
      const double waited = seconds_of(before_update);
      if (stall > 0) r.blocked.push_back(stall + waited), stall = 0;
      train.update();
      if (step % every == 0) stall = seconds_of([&] { save(step); });
      train.wait();
    }));
  if (stall > 0) r.blocked.push_back(stall);
  return r;
}

template <class Checkpointer>
run_result run_saving(const training& train, int steps, int every, Checkpointer checkpoints) {
  const auto state = train.state();
  checkpoints.prepare(state);
  // The first save of the loop is to be like the others: plans, buffers and worker are there.
  train.wait();
  const auto first = checkpoints.save(state, 0);
  first.wait();
  std::vector<cairn::save_handle> handles;
  auto r = run_loop(
      train, steps, every, [&](int step) { handles.push_back(checkpoints.save(state, step)); },
      [&] { checkpoints.before_update(train.stream()); });
  r.copy = first.report().copying.seconds;
  r.after = seconds_of([&] {
    checkpoints.before_update(train.stream());
    for (auto& handle : handles) {
      handle.wait();
      if (handle.skipped()) {
        ++r.skipped;
        continue;
      }
      r.durable.push_back(handle.report().committed_seconds);
    }
    checkpoints.close();
  });
  return r;
}

using stager_type = cairn::cuda::gathering_stager;
stager_type make_stager(const training& train, int depth) {
  cairn::cuda::gathering_engine_options options;
  options.compute = {{0, train.stream()}};
  return stager_type({.depth = depth}, cairn::cuda::gathering_engine(options));
}

struct mode {
  std::string name;
  const char* published;  ///< the mode of the published table that does the same; null: none
  std::function<run_result()> run;
};
std::vector<mode> modes_of(const training& train, const mode_options& o) {
  const auto depth = [&o] { return std::max(1, o.steps / o.every); };
  const auto options = [](cairn::busy_policy busy) {
    return cairn::checkpointer_options{.when_busy = busy, .quiet = true};
  };
  if (o.to_disk())
    return {{"overlapped-process", nullptr, [=, &train, &o] {
               const std::string place = o.directory + "/bench-modes-cuda";
               std::filesystem::remove_all(place);
               auto result =
                   run_saving(train, o.steps, o.every,
                              cairn::checkpointer{cairn::file_store{place}, make_stager(train, 1),
                                                  cairn::process_executor{}, cairn::overlapped{},
                                                  cairn::keep_last{1}, options(cairn::busy_policy::skip)});
               std::filesystem::remove_all(place);
               return result;
             }}};
  // What matters most comes first: each mode's figures are written when it is through.
  return {{"overlapped-thread", "process",
           [=, &train, &o] {
             return run_saving(
                 train, o.steps, o.every,
                 cairn::checkpointer{cairn::memory_store{}, make_stager(train, depth()), cairn::overlapped{},
                                     cairn::keep_last{1}, options(cairn::busy_policy::queue)});
           }},
          {"synchronous", "synchronous",
           [=, &train, &o] {
             return run_saving(
                 train, o.steps, o.every,
                 cairn::checkpointer{cairn::memory_store{}, make_stager(train, 1), cairn::inline_executor{},
                                     cairn::keep_last{1}, options(cairn::busy_policy::block)});
           }},
          {"thread", "thread", [=, &train, &o] {
             return run_saving(train, o.steps, o.every,
                               cairn::checkpointer{cairn::memory_store{}, make_stager(train, depth()),
                                                   cairn::keep_last{1}, options(cairn::busy_policy::queue)});
           }}};
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}
double median_or_zero(std::vector<double> values) {
  return values.empty() ? 0 : samples(std::move(values)).median();
}

void measure(mode_options o) {
  std::printf("# %s\n", device_text().c_str());
  if (o.step_seconds == 0) o.step_seconds = o.to_disk() ? 0.4 : 0.11;
  if (o.every == 0) o.every = o.to_disk() ? 25 : 5;
  if (o.steps == 0) o.steps = o.to_disk() ? 60 : 25;
  report out("bench_modes_cuda");
  const training train(o.parameters, o.step_seconds);
  std::printf(
      "# %.4g B parameters, %.2f GiB; %d steps of %d products (%.1f ms) and an update (%.1f ms), a save "
      "every %d\n",
      1e-9 * static_cast<double>(train.parameters()), static_cast<double>(train.bytes()) / (1 << 30), o.steps,
      train.products(), 1000 * train.forward_seconds(), 1000 * train.update_seconds(), o.every);
  std::string table =
      "| | mean step | overhead | bound | slowest step | blocked | copy | durable after | skipped |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  std::vector<std::pair<const mode*, double>> overheads;
  const auto all = modes_of(train, o);
  char line[400];
  for (const auto& m : all) {
    if (!o.only.empty() && std::find(o.only.begin(), o.only.end(), m.name) == o.only.end()) continue;
    std::vector<double> plain, mean, overhead, beyond, slowest, blocked, copy, durable, skipped, saved,
        bounds;
    for (int round = 0; round < o.rounds; ++round) {
      const auto nothing = [] {};
      const double usual = mean_of(run_loop(
                                       train, o.steps, o.every, [](int) {}, nothing)
                                       .steps);
      const auto r = m.run();
      plain.push_back(usual);
      mean.push_back(mean_of(r.steps));
      overhead.push_back(100 * (mean.back() / usual - 1));
      bounds.push_back(100 * std::max(0.0, r.copy - train.forward_seconds()) / (o.every * usual));
      beyond.push_back(overhead.back() - bounds.back());
      slowest.push_back(*std::max_element(r.steps.begin(), r.steps.end()));
      blocked.push_back(median_or_zero(r.blocked));
      copy.push_back(r.copy);
      durable.push_back(median_or_zero(r.durable));
      skipped.push_back(r.skipped);
      saved.push_back(static_cast<double>(r.durable.size()));
    }
    const bool overlaps = m.name.starts_with("overlapped");
    out.add(m.name + "/mean_step", make_pairs(mean, plain), "s");
    out.add(m.name + "/overhead", samples(overhead), "%");
    out.add(m.name + "/bound", samples(bounds), "%");
    out.add_against(m.name + "/overhead-beyond-bound", samples(beyond), "%", 3,
                    overlaps ? at_most(1) : goal{});
    out.add(m.name + "/slowest", samples(slowest), "s");
    out.add_against(m.name + "/blocked", samples(blocked), "s", 0.001, overlaps ? at_most(1) : goal{});
    out.add(m.name + "/copy", samples(copy), "s");
    out.add(m.name + "/durable", samples(durable), "s");
    out.add_against(m.name + "/saved", samples(saved), "saves", o.steps / o.every,
                    overlaps ? at_least(1) : goal{});
    std::snprintf(line, sizeof line,
                  "| %s | %.1f ms | %.1f %% | %.1f %% | %.1f ms | %.2f ms | %.3f s | %.3f s | %.0f |\n",
                  m.name.c_str(), 1000 * samples(mean).median(), samples(overhead).median(),
                  samples(bounds).median(), 1000 * samples(slowest).median(),
                  1000 * samples(blocked).median(), samples(copy).median(), samples(durable).median(),
                  samples(skipped).most());
    table += line;
    overheads.emplace_back(&m, samples(overhead).median());
    out.write(o.json);
  }
  std::printf(
      "\n%s\nbound: what the copy takes longer than forward and backward, over the interval of the saves\n",
      table.c_str());
  if (!o.to_disk()) {
    table += std::string("\nPublished (") + published_setting +
             "), beside ours that does the same:\n\n| | overhead | staging | ours |\n|---|---|---|---|\n";
    for (const auto& p : published_table) {
      std::string ours;
      for (const auto& [m, percent] : overheads)
        if (m->published != nullptr && m->published == std::string(p.mode)) {
          std::snprintf(line, sizeof line, "%s %.1f %%", m->name.c_str(), percent);
          ours = line;
        }
      std::snprintf(line, sizeof line, "| %s | %.0f %% | %s | %s |\n", p.what, p.overhead,
                    p.staging > 0 ? (std::to_string(p.staging).substr(0, 4) + " s").c_str() : "",
                    ours.c_str());
      table += line;
    }
    std::printf("\n%s", table.substr(table.find("Published")).c_str());
  }
  if (!o.table.empty()) {
    std::ofstream file(o.table);
    if (!(file << table).flush()) throw std::runtime_error("cannot write " + o.table);
  }
}

}  // namespace

int main(int argc, char** argv) {
  cairn::worker_main(argc, argv);
  mode_options o;
  CLI::App app{"What each way of saving costs a training loop on a GPU", "bench_modes_cuda"};
  app.option_defaults()->always_capture_default();
  app.add_option("--setting", o.setting, "published: saves to memory; disk: longer steps, saves to a disk")
      ->check(CLI::IsMember({"published", "disk"}));
  app.add_option("--parameters", o.parameters, "Parameters of the model, about")
      ->check(CLI::Range(2e8, 1e11));
  app.add_option("--steps", o.steps, "Steps of a run; 0: 25, or 60 with saves to a disk")
      ->check(CLI::Range(0, 100'000));
  app.add_option("--every", o.every, "Steps between saves; 0: 5, or 25")->check(CLI::Range(0, 100'000));
  app.add_option("--step-seconds", o.step_seconds, "Seconds of a plain step; 0: 0.11, or 0.4")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--rounds", o.rounds, "Runs of each mode, each behind a plain one")
      ->check(CLI::Range(1, 1000));
  app.add_option("--directory", o.directory, "Where checkpoints are written; on a disk")
      ->check(CLI::ExistingDirectory);
  app.add_option("--only", o.only, "Modes to measure");
  app.add_option("--json", o.json, "File for the figures");
  app.add_option("--table", o.table, "File for the table in Markdown");
  return run_program(app, argc, argv, [&] { measure(o); });
}
