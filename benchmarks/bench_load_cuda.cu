// SPDX-License-Identifier: Apache-2.0
// links: cairn::cuda cairn::interprocess
// What a load into a GPU's memory costs from a cold cache, beside the slower of the two that it needs: the
// disk (the same files read with O_DIRECT, or through the page cache, into memory of the host and no further)
// and the bus (the same bytes by one cudaMemcpyAsync after the other from pinned memory). And beside what
// Python has: safetensors and PyTorch load the same tensors to the GPU in benchmarks/load_python.py.
#include <cairn/cairn.hpp>
#include <cairn/cuda/device_loads.hpp>
#include <cairn/cuda/gathering_stager.cuh>
#include <cairn/stage/heap_memory.hpp>

#include <CLI/CLI.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <support/device.cuh>
#include <support/program.hpp>
#include <support/twins.hpp>
#include <utility>
#include <vector>

namespace {
using namespace cairn_bench;

struct load_options : program_options {
  load_options() {
    bytes = std::uint64_t{4} << 30;
    pairs = 5;
  }
  std::uint64_t pinned = std::uint64_t{64} << 20;
  std::string script;
};

__global__ void count_differences(std::uint64_t count, const std::uint32_t* a, const std::uint32_t* b,
                                  unsigned long long* differences) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count && a[i] != b[i]) atomicAdd(differences, 1ull);
}

/// `word` as one word of a shell's command line.
std::string shell_word(const std::string& word) {
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

class load_benchmark {
 public:
  explicit load_benchmark(load_options o)
      : options_(std::move(o)),
        directory_(options_.directory),
        rows_(rows_of(options_)),
        saved_(bytes_of(rows_), 1),
        loaded_(bytes_of(rows_), 2),
        host_(memory_.allocate(bytes_of(rows_))) {}

  void run() {
    std::printf("# %s\n", device_text().c_str());
    const cairn::file_store store{directory_.path() + "/saved"};
    cairn::cuda::device_loads_options loads;
    loads.pinned_bytes = options_.pinned;
    cairn::checkpointer checkpoints{store, cairn::cuda::gathering_stager{}, cairn::cuda::device_loads{loads},
                                    cairn::checkpointer_options{.quiet = true}};
    const auto state = state_in(saved_);
    checkpoints.save(state, 1).wait();
    for (const auto& path : directory_.files())
      if (path.ends_with(".safetensors")) data_.push_back(path);
    if (data_.size() != 1) throw std::runtime_error("one rank is expected to write one file");
    measure_cold(checkpoints);
    checkpoints.close();
    report_.write(options_.json);
    measure_python();
    report_.write(options_.json);
  }

 private:
  static std::vector<std::int64_t> rows_of(const load_options& o) {
    return bench_state::tensor_rows(o.bytes, o.tensors);
  }
  static std::uint64_t size_of(std::int64_t rows) {
    return static_cast<std::uint64_t>(rows * bench_state::columns) * sizeof(float);
  }
  static std::uint64_t bytes_of(const std::vector<std::int64_t>& rows) {
    std::uint64_t sum = 0;
    for (const auto n : rows) sum += size_of(n);
    return sum;
  }
  [[nodiscard]] cairn::state_dict state_in(const device_memory& memory) const {
    cairn::state_dict state;
    auto* at = memory.data();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      state.tensor(bench_state::name(i),
                   cairn::cuda::device_view(at, cairn::dtype::f32, {rows_[i], bench_state::columns}));
      at += size_of(rows_[i]);
    }
    return state;
  }
  void check_loaded() const {
    const device_memory counter(256);
    auto* differences = reinterpret_cast<unsigned long long*>(counter.data());
    check_cuda(cudaMemset(differences, 0, sizeof *differences), "cudaMemset");
    const auto count = saved_.bytes() / 4;
    count_differences<<<static_cast<unsigned>((count + 255) / 256), 256>>>(
        count, reinterpret_cast<const std::uint32_t*>(saved_.data()),
        reinterpret_cast<const std::uint32_t*>(loaded_.data()), differences);
    unsigned long long found = 1;
    check_cuda(cudaMemcpy(&found, differences, sizeof found, cudaMemcpyDeviceToHost),
               "comparing what was loaded");
    if (found != 0) throw std::runtime_error("a load brought other bytes than were saved");
  }
  /// The same tensors from pinned memory, by hand.
  [[nodiscard]] double bus() const {
    return seconds_of([&] {
      std::uint64_t at = 0;
      for (const auto rows : rows_) {
        check_cuda(cudaMemcpyAsync(loaded_.data() + at, host_.bytes().data() + at, size_of(rows),
                                   cudaMemcpyHostToDevice, stream_.get()),
                   "cudaMemcpyAsync");
        at += size_of(rows);
      }
      stream_.wait();
    });
  }

  template <class Checkpointer>
  void measure_cold(Checkpointer& checkpoints) {
    const auto state = state_in(loaded_);
    const auto all = directory_.files();
    const auto cold = [&](auto&& work) {
      for (const auto& path : all) make_cold(path);
      return seconds_of(work);
    };
    const auto bytes = saved_.bytes();
    // The file's data, behind its header, in the order of the file.
    const read_file by_hand{data_[0], {{open_file(data_[0], 0).size() - bytes, bytes, host_.bytes().data()}}};
    const read_file nowhere{data_[0], {}};
    const auto ours = [&] { return cold([&] { stages_ = checkpoints.load(state, 1).stages; }); };
    const auto direct = [&] { return cold([&] { read_direct({&nowhere, 1}); }); };
    const auto buffered = [&] { return cold([&] { read_buffered({&by_hand, 1}); }); };
    check_cuda(cudaMemset(loaded_.data(), 0, loaded_.bytes()), "cudaMemset");
    (void)ours(), check_loaded();
    (void)direct(), (void)buffered(), (void)bus();
    const auto seconds = interleaved(options_.pairs, ours, direct, buffered, [&] { return bus(); });
    const bool second = samples(seconds[2]).median() < samples(seconds[1]).median();
    const auto& disk = seconds[second ? 2 : 1];
    std::vector<double> slower;
    for (std::size_t i = 0; i < disk.size(); ++i) slower.push_back(std::max(disk[i], seconds[3][i]));
    ours_ = rates(bytes, seconds[0]);
    tell_stages();
    report_.add("load_cold/of-slower-of-disk-and-bus", make_pairs(ours_, rates(bytes, slower)), "B/s",
                at_least(0.9));
    report_.add(second ? "disk/pread" : "disk/O_DIRECT", samples(rates(bytes, disk)), "B/s");
    report_.add("bus", samples(rates(bytes, seconds[3])), "B/s");
  }

  /// Where the last load spent its time, all threads together.
  void tell_stages() const {
    const auto& s = stages_;
    std::printf(
        "# last load: %u reads in flight, %.3f s reading (%.3f s of processors), %.3f s verifying, %.3f s "
        "delivering; %.2f GB past the page cache, %.2f GB from it\n",
        static_cast<unsigned>(s.reads_in_flight), s.read_seconds, s.read_cpu_seconds, s.verify_seconds,
        s.deliver_seconds, 1e-9 * static_cast<double>(s.bytes_direct),
        1e-9 * static_cast<double>(s.bytes_cached));
  }

  /// What load_python.py prints: "NAME SECONDS..." for each library, or a sentence behind "#".
  void measure_python() {
    if (options_.script.empty()) {
      std::printf("# beside Python: left out, since no --script was given\n");
      return;
    }
    std::fflush(stdout);
    const auto command = "python3 " + shell_word(options_.script) + " --pairs " +
                         std::to_string(options_.pairs) + " --scratch " + shell_word(directory_.path()) +
                         " " + shell_word(data_[0]);
    std::FILE* const pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error("python3 cannot be started");
    std::string said;
    std::array<char, 4096> buffer{};
    while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe) != nullptr) said += buffer.data();
    const int status = ::pclose(pipe);
    std::istringstream lines(said);
    bool any = false;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      std::vector<double> seconds;
      for (double s = 0; words >> s;) seconds.push_back(s);
      if (name == "#" || seconds.size() != ours_.size()) {
        std::printf("%s\n", line.c_str());
        continue;
      }
      any = true;
      report_.add("load_cold/of-" + name, make_pairs(ours_, rates(saved_.bytes(), seconds)), "B/s");
    }
    if (!any)
      std::printf("# beside Python: left out (status %d)\n",
                  WIFEXITED(status) ? WEXITSTATUS(status) : status);
  }

  load_options options_;
  scratch directory_;
  std::vector<std::int64_t> rows_;
  device_memory saved_;
  device_memory loaded_;
  cairn::cuda::pinned<cairn::heap_memory> memory_;
  cairn::cuda::pinned<cairn::heap_memory>::block_type host_;
  device_stream stream_;
  std::vector<std::string> data_;
  std::vector<double> ours_;  ///< rates of the last measurement, in the order of its turns
  cairn::load_stages stages_;
  report report_{"bench_load_cuda"};
};

}  // namespace

int main(int argc, char** argv) {
  load_options o;
  CLI::App app{"What a load into a GPU's memory costs, beside the disk, the bus and Python",
               "bench_load_cuda"};
  add_state_options(app, o, std::uint64_t{16} << 20);
  add_directory_option(app, o);
  app.add_option("--pinned", o.pinned, "Pinned memory that a load uses at most, such as 256MiB")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--script", o.script, "benchmarks/load_python.py; else Python's loads are left out");
  return run_program(app, argc, argv, [&] { load_benchmark(std::move(o)).run(); });
}
