// SPDX-License-Identifier: Apache-2.0
// test: --bytes 4MiB --tensors 20 --pairs 1
// What a save costs: the durable write, the stall of a blocking and of an overlapped save, memory.
#include <unistd.h>
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stage/no_staging.hpp>
#include <cairn/stores/file_store.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <support/bench.hpp>
#include <support/program.hpp>
#include <support/twins.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace {

using cairn_bench::at_least;
using cairn_bench::at_most;
using cairn_bench::make_pairs;
using cairn_bench::mebibyte;
using cairn_bench::rates;
using cairn_bench::samples;
using cairn_bench::seconds_of;

/// Proportional set size of this process, in bytes.
std::uint64_t pss() {
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string word; in >> word;)
    if (word == "Pss:") {
      std::uint64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  throw std::runtime_error("/proc/self/smaps_rollup does not tell Pss; it needs Linux 4.14");
}

/// The largest PSS while `work` runs.
template <class Work>
std::uint64_t peak_pss(Work&& work) {
  std::atomic<bool> done{false};
  std::uint64_t peak = 0;
  std::thread sampler([&] {
    while (!done.load()) {
      peak = std::max(peak, pss());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  work();
  done.store(true);
  sampler.join();
  return std::max(peak, pss());
}

/// Arithmetic on one thread for so many seconds: a forward and backward pass that leaves other cores alone.
void compute(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  double x = 1;
  while (std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 1000; ++i) x = std::sqrt(x + i);
  cairn_bench::keep(x);
}

struct storage_options : cairn_bench::program_options {
  std::string peers;
  std::string script = "benchmarks/save_peer.py";
  cairn::file_store_options store;
};

class storage_benchmark {
 public:
  explicit storage_benchmark(const storage_options& o)
      : options_(o),
        directory_(o.directory),
        memory_(o.bytes, o.tensors),
        state_(memory_.whole()),
        size_("/" + cairn_bench::size_text(o.bytes) + "/tensors=" + std::to_string(o.tensors)) {
    memory_.fill(1);
  }

  void run() {
    // First, while nothing else is in memory.
    measure_memory("no_staging", 0, cairn::no_staging{});
    measure_memory("depth=1", 1, cairn::heap_stager{{.depth = 1}});
    measure_memory("depth=2", 2, cairn::heap_stager{{.depth = 2}});
    measure_saves();
    measure_overlapped();
    report_.write(options_.json);
  }

 private:
  template <class... Policies>
  auto make(cairn::checkpointer_options o, Policies... policies) {
    o.quiet = true;
    return cairn::checkpointer(cairn::file_store{directory_.path() + "/checkpoints", options_.store},
                               std::move(o), std::move(policies)...);
  }
  /// Removes what was saved, so that the disk does not fill.
  template <class Checkpointer>
  void forget(Checkpointer& c) {
    for (const auto step : c.list()) c.remove(step);
  }
  [[nodiscard]] static int copy_threads() {
    return std::min(4, std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  }

  template <class Stager>
  void measure_memory(const char* name, std::uint64_t depth, Stager stager) {
    const auto before = pss();
    std::uint64_t image = 0;
    const auto peak = peak_pss([&] {
      auto c = make({.when_busy = cairn::busy_policy::queue}, std::move(stager));
      c.prepare(state_);
      cairn::save_handle last;
      for (int i = 0; i < 4; ++i) last = c.save(state_, ++step_);
      last.wait();
      image = last.report().bytes;
      c.close();
    });
    auto c = make({});
    forget(c);
    report_.add_against(std::string("memory_beyond_state/") + name + size_,
                        samples({static_cast<double>(peak > before ? peak - before : 0)}), "B",
                        static_cast<double>(image * depth + 64 * mebibyte), at_most(1));
  }

  /// Blocking saves: how long training stands still, and how long the rest takes from there to the commit. By
  /// default the writer digests, so that save() takes what a copy takes; beside it, digests in the pass that copies.
  void measure_saves() {
    cairn_bench::warm_memory copy(memory_.bytes() / 4096 * 4096 + 4096);
    std::vector<std::uint64_t> digests;
    const auto file = directory_.path() + "/twin";
    auto by_writer = make({});
    auto in_copy = make({.checksum_in_writer = false});
    std::printf("# %s\n", by_writer.describe().c_str());
    by_writer.prepare(state_);
    in_copy.prepare(state_);
    struct times {
      std::vector<double> written, durable;
    };
    times rest[2];
    const auto save = [&](auto& c, times& t) {
      cairn::save_handle handle;
      const double seconds = seconds_of([&] { handle = c.save(state_, ++step_); });
      handle.wait();
      const auto r = handle.report();
      t.written.push_back(r.committed_seconds - r.released_seconds);
      t.durable.push_back(r.committed_seconds);
      c.remove(step_);
      return seconds;
    };
    const auto timed_then_removed = [&](auto&& write) {
      const double seconds = seconds_of(write);
      ::unlink(file.c_str());
      return seconds;
    };
    const auto sources = tensor_spans();
    const auto twin = [&](std::vector<std::uint64_t>* hashes) {
      cairn_bench::copy_pieces(sources, copy.data(), copy_threads(), hashes);
    };
    (void)save(by_writer, rest[0]), (void)save(in_copy, rest[1]), twin(nullptr), twin(&digests);  // warm
    for (auto& t : rest) t = {};
    const auto seconds = cairn_bench::interleaved(
        options_.pairs, [&] { return save(by_writer, rest[0]); },
        [&] { return seconds_of([&] { twin(nullptr); }); }, [&] { return save(in_copy, rest[1]); },
        [&] { return seconds_of([&] { twin(&digests); }); },
        [&] {
          return timed_then_removed([&] { cairn_bench::write_direct(file, copy.data(), copy.size()); });
        },
        [&] {
          return timed_then_removed([&] { cairn_bench::write_plainly(file, copy.data(), copy.size()); });
        });
    compare_with_peers(rest[0].durable, seconds[0]);
    const auto bytes = memory_.bytes();
    report_.add("durable_write" + size_ + "/twin=O_DIRECT",
                make_pairs(rates(bytes, rest[0].written), rates(copy.size(), seconds[4])), "B/s",
                at_least(0.9));
    report_.add("durable_write" + size_ + "/twin=write+fdatasync",
                make_pairs(rates(bytes, rest[0].written), rates(copy.size(), seconds[5])), "B/s");
    report_.add("blocking_save" + size_ + "/twin=copy", make_pairs(seconds[0], seconds[1]), "s",
                at_most(1.15));
    report_.add("durable_write/digests_in_copy" + size_ + "/twin=O_DIRECT",
                make_pairs(rates(bytes, rest[1].written), rates(copy.size(), seconds[4])), "B/s",
                at_least(0.9));
    report_.add("blocking_save/digests_in_copy" + size_ + "/twin=copy+XXH3",
                make_pairs(seconds[2], seconds[3]), "s", at_most(1.15));
    report_.add("until_durable" + size_ + "/twin=digests_in_copy",
                make_pairs(rest[0].durable, rest[1].durable), "s", at_most(1.05));
  }

  /// PyTorch's distributed checkpoint, as often as ours was measured: until durable, and what training waits.
  void compare_with_peers(const std::vector<double>& durable, const std::vector<double>& blocked) {
    if (options_.peers.empty()) return;
    const auto command = "'" + options_.peers + "/bin/python3' '" + options_.script + "' --bytes " +
                         std::to_string(memory_.bytes()) + " --tensors " + std::to_string(options_.tensors) +
                         " --scratch '" + directory_.path() + "'";
    std::vector<double> theirs[2];
    while (theirs[0].size() < durable.size()) {
      const auto seconds = cairn_bench::numbers_of(command, 2);
      if (!(seconds[0] > 0)) return;
      for (std::size_t i = 0; i < 2; ++i) theirs[i].push_back(seconds[i]);
    }
    report_.add("until_durable" + size_ + "/peer=PyTorch-DCP", make_pairs(durable, theirs[0]), "s",
                at_most(0.5));
    report_.add("blocking_save" + size_ + "/peer=PyTorch-DCP-async", make_pairs(blocked, theirs[1]), "s",
                at_most(1));
  }

  void measure_overlapped() {
    auto synchronous = make({}, cairn::no_staging{}, cairn::inline_executor{});
    const auto save_at_once = [&] {
      const double seconds = seconds_of([&] { synchronous.save(state_, ++step_).wait(); });
      synchronous.remove(step_);
      return seconds;
    };
    auto staged = make({}, cairn::overlapped{});
    auto direct = make({}, cairn::overlapped{}, cairn::no_staging{});
    staged.prepare(state_);
    const auto save_beside = [&](auto& c, double pass) {
      cairn::save_handle handle;
      double blocked = seconds_of([&] { handle = c.save(state_, ++step_); });
      compute(pass);
      blocked += seconds_of([&] { c.before_update(); });
      handle.wait();
      last_released_ = handle.report().released_seconds;
      c.remove(step_);
      return blocked;
    };
    // The simulated pass is longer than the copy.
    (void)save_at_once();
    (void)save_beside(staged, 0), (void)save_beside(staged, 1);
    const double copy_pass = 2 * last_released_ + 0.1;
    (void)save_beside(direct, 0), (void)save_beside(direct, 1);
    const double write_pass = 2 * last_released_ + 0.5;
    const auto seconds = cairn_bench::interleaved(
        options_.pairs, [&] { return save_beside(staged, copy_pass); },
        [&] { return save_beside(direct, write_pass); }, save_at_once);
    report_.add("overlapped/heap_stager" + size_ + "/twin=synchronous", make_pairs(seconds[0], seconds[2]),
                "s", at_most(0.01));
    report_.add("overlapped/no_staging" + size_ + "/twin=synchronous", make_pairs(seconds[1], seconds[2]),
                "s", at_most(0.01));
    report_.add("synchronous_save" + size_, samples(rates(memory_.bytes(), seconds[2])), "B/s");
  }

  [[nodiscard]] std::vector<std::span<const std::byte>> tensor_spans() const {
    std::vector<std::span<const std::byte>> spans;
    for (std::size_t i = 0; i < memory_.rows().size(); ++i)
      spans.push_back({memory_.place(i), memory_.size(i)});
    return spans;
  }

  storage_options options_;
  cairn_bench::scratch directory_;
  cairn_bench::bench_state memory_;
  cairn::state_dict state_;
  std::string size_;
  cairn_bench::report report_{"storage"};
  std::int64_t step_ = 0;
  double last_released_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  storage_options o;
  CLI::App app{"What a save costs: durable writes, the stall of training, memory.", "bench_storage"};
  cairn_bench::add_state_options(app, o);
  cairn_bench::add_directory_option(app, o);
  app.add_option("--peers", o.peers, "A virtual environment of Python with PyTorch, which is measured, too");
  app.add_option("--script", o.script, "What runs it: benchmarks/save_peer.py");
  app.add_option("--write-bytes", o.store.write_bytes, "See file_store_options")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--writes-in-flight", o.store.writes_in_flight, "See file_store_options")
      ->check(CLI::Range(1, 1024));
  return cairn_bench::run_program(app, argc, argv, [&] { storage_benchmark(o).run(); });
}
