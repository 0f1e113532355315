// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the benchmarks of whole saves and loads share: their command line, a directory, and a state.
#include <dirent.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cairn/model/state_dict.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <support/twins.hpp>
#include <vector>

namespace cairn_bench {

struct program_options {
  std::uint64_t bytes = std::uint64_t{1} << 30;
  int tensors = 200;
  std::string directory = ".";
  int pairs = 7;
  std::string json;
};

/// The end of main(), when the options are named: reads them, `run()`, errors as a sentence. Exit codes: 0
/// measured, 1 failed, 2 wrong usage.
template <class Run>
int run_program(CLI::App& app, int argc, char** argv, Run&& run) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    run();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), e.what());
    return 1;
  }
}

/// Names the options of a state that is saved or loaded in turns; its size is at least `min_bytes`.
inline void add_state_options(CLI::App& app, program_options& o, std::uint64_t min_bytes = 1) {
  app.option_defaults()->always_capture_default();
  app.add_option("--bytes", o.bytes, "Size of the state, such as 256MiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(min_bytes, std::uint64_t{1} << 40));
  app.add_option("--tensors", o.tensors, "Number of tensors in it")->check(CLI::Range(1, 1'000'000));
  app.add_option("--pairs", o.pairs, "Turns of ours and the hand-written twin")->check(CLI::Range(1, 1000));
  app.add_option("--json", o.json,
                 "File for the figures: an array of {name, value, unit, against, ratio, ...}");
}
inline void add_directory_option(CLI::App& app, program_options& o) {
  app.add_option("--directory", o.directory,
                 "Where checkpoints are written, in a fresh directory that is removed at the end; on a disk")
      ->check(CLI::ExistingDirectory);
}

/// main() of a benchmark with the options that most have: `run(options)`.
template <class Run>
int benchmark_main(int argc, char** argv, const char* name, const char* what, Run&& run) {
  program_options o;
  CLI::App app{what, name};
  add_state_options(app, o);
  add_directory_option(app, o);
  return run_program(app, argc, argv, [&] { run(o); });
}

/// What a program that stands for another library prints: so many numbers. Zeros where it exits with 77, as it lacks
/// what it takes. @throws std::runtime_error
inline std::vector<double> numbers_of(const std::string& command, std::size_t count) {
  std::vector<double> numbers(count, 0.0);
  std::FILE* answer = ::popen(command.c_str(), "r");
  if (answer == nullptr) throw std::runtime_error("it does not start: " + command);
  std::size_t found = 0;
  while (found < count && std::fscanf(answer, "%lf", &numbers[found]) == 1) ++found;
  const int status = ::pclose(answer);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return std::vector<double>(count, 0.0);
  if (status != 0 || found != count) throw std::runtime_error("it failed: " + command);
  return numbers;
}

/// A fresh directory on a disk, removed with all that is in it. @throws std::runtime_error
class scratch {
 public:
  explicit scratch(const std::string& parent) : path_(parent + "/cairn-bench-XXXXXX") {
    struct statfs s {};
    check_io(::statfs(parent.c_str(), &s) == 0, "statfs");
    if (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC)
      throw std::runtime_error(parent + " is in memory: give a directory on a disk with --directory");
    check_io(::mkdtemp(path_.data()) != nullptr, "mkdtemp");
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() { remove(path_); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// The files below, by path.
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> found;
    visit(path_, [&](const std::string& path, bool directory) {
      if (!directory) found.push_back(path);
    });
    return found;
  }

 private:
  template <class Call>
  static void visit(const std::string& path, Call&& call) {
    DIR* dir = ::opendir(path.c_str());
    if (dir == nullptr) return;
    while (const auto* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      const auto below = path + "/" + name;
      struct stat s {};
      if (::lstat(below.c_str(), &s) != 0) continue;
      const bool directory = S_ISDIR(s.st_mode);
      if (directory) visit(below, call);
      call(below, directory);
    }
    ::closedir(dir);
  }
  static void remove(const std::string& path) {
    visit(path, [](const std::string& below, bool directory) {
      (void)(directory ? ::rmdir(below.c_str()) : ::unlink(below.c_str()));
    });
    (void)::rmdir(path.c_str());
  }
  std::string path_;
};

/// Row-major tensors of fp32 with 1024 columns, from small to large, in one piece of memory, which they do
/// not fill: each begins 4 bytes behind a multiple of 64, where no device could write directly.
class bench_state {
 public:
  static constexpr std::int64_t columns = 1024;

  bench_state(std::uint64_t bytes, int tensors) : bench_state(tensor_rows(bytes, tensors)) {}
  explicit bench_state(std::vector<std::int64_t> rows, std::int64_t width = columns)
      : rows_(std::move(rows)), width_(width), memory_(room(rows_, width)) {
    std::uint64_t at = 0;
    for (const auto n : rows_) {
      places_.push_back(memory_.data() + at + 4);
      at += padded(n, width);
      bytes_ += size_of(n, width);
    }
  }
  /// Rows of tensors that have about these bytes together; each a multiple of 8.
  static std::vector<std::int64_t> tensor_rows(std::uint64_t bytes, int tensors) {
    auto sizes = tensor_sizes(bytes, tensors);
    for (auto& n : sizes) n = std::max<std::int64_t>(8, n / columns / 8 * 8);
    return sizes;
  }
  void fill(std::uint64_t seed) { memory_.fill(seed); }
  void clear() { std::memset(memory_.data(), 0, memory_.size()); }
  /// Gives the pages of the memory back; see warm_memory.
  void forget() const { memory_.forget(); }

  [[nodiscard]] const std::vector<std::int64_t>& rows() const noexcept { return rows_; }
  [[nodiscard]] std::byte* place(std::size_t i) const noexcept { return places_[i]; }
  [[nodiscard]] std::uint64_t size(std::size_t i) const noexcept { return size_of(rows_[i], width_); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  static std::string name(std::size_t i) { return "layers." + std::to_string(i) + ".weight"; }

  /// All tensors, whole.
  [[nodiscard]] cairn::state_dict whole() const {
    cairn::state_dict state;
    for (std::size_t i = 0; i < rows_.size(); ++i) state.tensor(name(i), data(i), {rows_[i], width_});
    return state;
  }
  /// This state as one of `parts` shards by rows (all columns) or by columns of tensors that are whole
  /// together.
  [[nodiscard]] cairn::state_dict row_shard(int part, int parts) const {
    cairn::state_dict state;
    for (std::size_t i = 0; i < rows_.size(); ++i)
      state.tensor(name(i), data(i),
                   cairn::shard{{rows_[i] * parts, width_}, {rows_[i] * part, 0}, {rows_[i], width_}});
    return state;
  }
  [[nodiscard]] cairn::state_dict column_shard(int part, int parts) const {
    cairn::state_dict state;
    for (std::size_t i = 0; i < rows_.size(); ++i)
      state.tensor(name(i), data(i),
                   cairn::shard{{rows_[i], width_ * parts}, {0, width_ * part}, {rows_[i], width_}});
    return state;
  }

 private:
  [[nodiscard]] float* data(std::size_t i) const noexcept { return reinterpret_cast<float*>(places_[i]); }
  static std::uint64_t size_of(std::int64_t rows, std::int64_t width) {
    return static_cast<std::uint64_t>(rows * width) * sizeof(float);
  }
  static std::uint64_t padded(std::int64_t rows, std::int64_t width) {
    return (size_of(rows, width) + 4 + 63) / 64 * 64;
  }
  static std::uint64_t room(const std::vector<std::int64_t>& rows, std::int64_t width) {
    std::uint64_t sum = 0;
    for (const auto n : rows) sum += padded(n, width);
    return sum;
  }
  std::vector<std::int64_t> rows_;
  std::int64_t width_;
  warm_memory memory_;
  std::vector<std::byte*> places_;
  std::uint64_t bytes_ = 0;
};

/// "1GiB" where it is one, else "1000MiB" and the like.
[[nodiscard]] inline std::string size_text(std::uint64_t bytes) {
  if (bytes % (1024 * mebibyte) == 0) return std::to_string(bytes / (1024 * mebibyte)) + "GiB";
  return std::to_string((bytes + mebibyte / 2) / mebibyte) + "MiB";
}

}  // namespace cairn_bench
