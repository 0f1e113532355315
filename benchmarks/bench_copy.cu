// SPDX-License-Identifier: Apache-2.0
// links: cairn::cuda cairn::interprocess
// Staging from a GPU's memory beside what one would write by hand: large tensors against one cudaMemcpyAsync
// after the other into pinned memory, and the bus; 10,000 tensors of 4 KiB, and transposed ones, against one
// copy of the same bytes; what the host waits for; how fast matrix products are while copies run.
#include <cairn/cairn.hpp>
#include <cairn/cuda/gathering_stager.cuh>
#include <cairn/model/image_control.hpp>
#include <cairn/stage/heap_memory.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <support/bench.hpp>
#include <support/device.cuh>
#include <support/program.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn_bench;

struct copy_options : program_options {
  copy_options() { bytes = std::uint64_t{4} << 30; }
  double matrix_seconds = 1;
};

using stager_type =
    cairn::buffered_stager<cairn::cuda::pinned<cairn::heap_memory>, cairn::cuda::gathering_engine>;

cairn::deadline soon() {
  return cairn::deadline::in(std::chrono::minutes(2));
}
stager_type stager_on(const device_stream& compute) {
  cairn::cuda::gathering_engine_options options;
  options.compute = {{0, compute.get()}};
  return stager_type({}, cairn::cuda::gathering_engine(options));
}

/// What one would write by hand: pinned memory of the same kind, one copy after the other.
class by_hand {
 public:
  explicit by_hand(std::uint64_t bytes) : pinned_(memory_.allocate(bytes)) {}
  double copy(const std::vector<cairn::tensor_view>& views) {
    return seconds_of([&] {
      auto* to = pinned_.bytes().data() + 4096;
      for (const auto& view : views) {
        check_cuda(cudaMemcpyAsync(to, view.data, view.bytes(), cudaMemcpyDeviceToHost, stream_.get()),
                   "cudaMemcpyAsync");
        to += view.bytes();
      }
      stream_.wait();
    });
  }

 private:
  cairn::cuda::pinned<cairn::heap_memory> memory_;
  cairn::cuda::pinned<cairn::heap_memory>::block_type pinned_;
  device_stream stream_;
};

/// Seconds from the call of stage() until the memory of training is copied.
double stage_once(stager_type& stager, const device_image& image) {
  return seconds_of([&] {
    const auto staged =
        stager.stage(image.layout, image.sources, {.overlapped = true, .digest = false}, soon());
    if (!staged.control()->wait_copied(soon())) throw std::runtime_error("an image failed");
  });
}

void measure_copies(report& out, const copy_options& o, const device_memory& memory) {
  const device_stream compute;
  auto stager = stager_on(compute);
  const auto rate_pairs = [&](const char* name, const std::vector<cairn::tensor_view>& views,
                              const std::vector<cairn::tensor_view>& twin, bool rates_wanted, goal wanted) {
    const auto image = image_of(views);
    stager.prepare(*image.layout, soon());
    by_hand hand(image.layout->bytes);
    (void)stage_once(stager, image);
    (void)hand.copy(twin);
    const auto turns = interleaved(
        o.pairs, [&] { return stage_once(stager, image); }, [&] { return hand.copy(twin); });
    std::uint64_t bytes = 0;
    for (const auto& view : views) bytes += view.bytes();
    if (rates_wanted)
      out.add(name, make_pairs(rates(bytes, turns[0]), rates(bytes, turns[1])), "B/s", wanted);
    else
      out.add(name, make_pairs(turns[0], turns[1]), "s", wanted);
  };
  const auto view_of = [](std::byte* data, const cairn::extents& shape) {
    return cairn::cuda::device_view(data, cairn::dtype::bf16, shape);
  };
  {
    const auto each = o.bytes / static_cast<std::uint64_t>(o.tensors) / 4096 * 4096;
    std::vector<cairn::tensor_view> views;
    for (int i = 0; i < o.tensors; ++i)
      views.push_back(view_of(memory.data() + static_cast<std::uint64_t>(i) * each,
                              {static_cast<std::int64_t>(each / 4096), 2048}));
    rate_pairs("large/of-by-hand", views, views, true, at_least(0.95));
    const std::vector<cairn::tensor_view> whole{
        view_of(memory.data(), {static_cast<std::int64_t>(each / 2) * o.tensors})};
    rate_pairs("large/of-bus", views, whole, true, at_least(0.95));
  }
  {
    std::vector<cairn::tensor_view> views;
    for (int i = 0; i < 10'000; ++i) views.push_back(view_of(memory.data() + i * 8192, {2048}));
    const std::vector<cairn::tensor_view> whole{view_of(memory.data(), {10'000 * 2048})};
    rate_pairs("10000-of-4KiB/of-one-copy", views, whole, false, at_most(2));
    rate_pairs("10000-of-4KiB/of-by-hand", views, views, false, at_most(1));
  }
  {
    auto transposed = view_of(memory.data(), {8192, 16384});
    const std::vector<cairn::tensor_view> whole{transposed};
    transposed.strides[0] = 1, transposed.strides[1] = 8192;
    rate_pairs("transposed-256MiB/of-one-copy", {transposed}, whole, false, at_most(2));
  }
}

/// What save() and before_update(stream) take of the host's time, by a whole checkpointer.
void measure_blocking(report& out, const copy_options& o, const device_memory& memory) {
  const device_stream compute;
  cairn::checkpointer checkpoints{cairn::memory_store{}, stager_on(compute), cairn::overlapped{},
                                  cairn::keep_last{1}, cairn::checkpointer_options{.quiet = true}};
  cairn::state_dict state;
  const auto each = o.bytes / static_cast<std::uint64_t>(o.tensors) / 4096 * 4096;
  for (int i = 0; i < o.tensors; ++i)
    state.tensor("layers." + std::to_string(i),
                 cairn::cuda::device_view(memory.data() + static_cast<std::uint64_t>(i) * each,
                                          cairn::dtype::bf16, {static_cast<std::int64_t>(each / 2)}));
  checkpoints.prepare(state);
  std::vector<double> blocked;
  for (int step = 0; step <= o.pairs; ++step) {
    cairn::save_handle handle;
    const double seconds = seconds_of([&] {
      handle = checkpoints.save(state, step);
      checkpoints.before_update(compute.get());
    });
    if (step > 0) blocked.push_back(seconds);  // the first waits for prepare()
    handle.wait();
  }
  out.add_against("overlapped/blocked", samples(blocked), "s", 0.001, at_most(1));
  checkpoints.close();
}

void measure_beside(report& out, const copy_options& o, const device_memory& memory) {
  const device_stream compute;
  const matrix_work work(compute.get());
  work.launch(20);
  compute.wait();
  const double one = seconds_of([&] {
                       work.launch(50);
                       compute.wait();
                     }) /
                     50;
  const int products = std::max(10, static_cast<int>(o.matrix_seconds / one));
  const auto run = [&] {
    return seconds_of([&] {
      work.launch(products);
      compute.wait();
    });
  };
  // A compute stream of its own: copies are not ordered behind the products, but run beside them.
  const device_stream other;
  auto stager = stager_on(other);
  const auto image = image_of({cairn::cuda::device_view(memory.data(), cairn::dtype::bf16,
                                                        {static_cast<std::int64_t>(o.bytes / 2)})});
  stager.prepare(*image.layout, soon());
  (void)stage_once(stager, image);
  std::vector<double> alone;
  std::vector<double> beside;
  std::vector<double> copied;
  for (int i = 0; i < std::max(3, o.pairs / 2); ++i) {
    alone.push_back(matrix_work::operations * products / run());
    std::atomic<bool> through{false};
    std::exception_ptr failure;
    std::exception_ptr failure_here;
    std::thread copies([&] {
      try {
        while (!through.load()) copied.push_back(static_cast<double>(o.bytes) / stage_once(stager, image));
      } catch (...) {
        failure = std::current_exception();
      }
    });
    try {
      beside.push_back(matrix_work::operations * products / run());
    } catch (...) {
      failure_here = std::current_exception();
    }
    through.store(true);
    copies.join();
    if (failure_here != nullptr) std::rethrow_exception(failure_here);
    if (failure != nullptr) std::rethrow_exception(failure);
  }
  out.add("products/beside-copies/of-alone", make_pairs(beside, alone), "FLOP/s", at_least(0.97));
  out.add("copies/beside-products", samples(copied), "B/s");
}

void measure(const copy_options& o) {
  std::printf("# %s\n", device_text().c_str());
  report out("bench_copy");
  const device_memory memory(std::max<std::uint64_t>(o.bytes, std::uint64_t{10'000} * 8192));
  // Each part's figures are written when it is through.
  for (const auto part : {measure_copies, measure_blocking, measure_beside}) {
    part(out, o, memory);
    out.write(o.json);
  }
}

}  // namespace

int main(int argc, char** argv) {
  copy_options o;
  CLI::App app{"Staging from a GPU beside copies written by hand", "bench_copy"};
  add_state_options(app, o, std::uint64_t{512} << 20);
  app.add_option("--matrix-seconds", o.matrix_seconds, "Seconds of matrix products in a turn")
      ->check(CLI::Range(0.01, 60.0));
  return run_program(app, argc, argv, [&] { measure(o); });
}
