// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// test: --bytes 4MiB --tensors 20 --rounds 1 --steps 4 --every 2 --step-seconds 0.01
// slow
// The ways of saving beside each other, on one state and one training loop: what each costs the loop. Beside
// them what one would write by hand, and what was published of PyTorch. Columns, medians of the rounds: mean
// step, its overhead over the plain loop of the same round, slowest step, blocked (save() and the
// before_update() after it), staging (from the first copied byte to the last), durable (after save();
// by-hand-fwrite and synchronous-never-durable are not safe from a power loss), beside (training alone in
// steps during which a save was written, over a plain step), back (steps until one is within 5 % of a plain
// one), memory (beyond the state, workers included), at end (waiting after the last step), skipped (saves,
// with --when-busy skip).
//
// Then how long saves block and what a step beside a write takes, by thread and by process in turns; how soon
// a checkpointer is ready after prepare(), its first save against later ones, the start of a worker, and what
// save() itself takes for 10,000 tensors.
#include <cairn/cairn.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/stage/shared_stager.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <support/program.hpp>
#include <support/published.hpp>
#include <support/readiness.hpp>
#include <support/timeline.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn_bench;

struct mode_options {
  program_options common;
  int steps = 25;
  int every = 5;
  double step_seconds = 0.5;
  int threads = 1;
  bool streams = false;  ///< the gradient reads the state instead of multiplying in cache
  bool skips = false;
  bool figures = true;
  std::vector<std::string> only;
  std::string chart;
  std::string table;
  std::string trace;
  std::string picture;
};

/// Training: matrix products in cache, or passes over the parameters, for about as long as was asked; then
/// one pass of Adam over all of the state, which is parameters and two moments.
class training {
 public:
  training(bench_state& state, const mode_options& o)
      : state_(state), threads_(o.threads), streams_(o.streams), teams_(static_cast<std::size_t>(o.threads)) {
    for (auto& one_team : teams_)
      for (auto* m : {&one_team.a, &one_team.b, &one_team.c}) m->assign(side * side, 0.5f);
    const double update_seconds = median_of(3, [&] { update(); });
    rounds_ = 20;
    const double one = median_of(5, [&] { gradient(); }) / rounds_;
    rounds_ = static_cast<int>(std::max(1.0, (o.step_seconds - update_seconds) / one));
    update_share_ = update_seconds / o.step_seconds;
  }
  /// Forward and backward: changes nothing of the state.
  void gradient() {
    each_thread([&](std::size_t t) {
      for (int i = 0; i < rounds_; ++i) streams_ ? stream(t) : multiply(teams_[t]);
      keep(teams_[t]);
    });
  }
  void update() {
    ++step_;
    each_thread([&](std::size_t t) { update(t); });
  }
  [[nodiscard]] double update_share() const { return update_share_; }

 private:
  static constexpr std::size_t side = 128;  // three matrices: 192 KiB
  struct team {
    std::vector<float> a, b, c;
    float sum = 0;
  };
  template <class Work>
  void each_thread(Work&& work) {
    if (threads_ == 1) return work(0);
    in_parallel(threads_, static_cast<std::uint64_t>(threads_), 1,
                [&](std::uint64_t t, std::uint64_t) { work(static_cast<std::size_t>(t)); });
  }
  void update(std::size_t thread) {
    const float rate = 1e-3f / static_cast<float>(step_);
    const auto& c = teams_[thread].c;
    const auto third = state_.rows().size() / 3;
    for (std::size_t i = thread; i < third; i += teams_.size()) {
      auto* p = reinterpret_cast<float*>(state_.place(i));
      auto* m = reinterpret_cast<float*>(state_.place(third + i));
      auto* v = reinterpret_cast<float*>(state_.place(2 * third + i));
      const auto count =
          std::min({state_.size(i), state_.size(third + i), state_.size(2 * third + i)}) / sizeof(float);
      for (std::size_t k = 0; k < count; ++k) {
        const float gradient = c[k % c.size()];
        m[k] = 0.9f * m[k] + 0.1f * gradient;
        v[k] = 0.999f * v[k] + 0.001f * gradient * gradient;
        p[k] -= rate * m[k] / (std::sqrt(v[k]) + 1e-8f);
      }
    }
  }
  static void multiply(team& m) {
    for (std::size_t i = 0; i < side; ++i)
      for (std::size_t k = 0; k < side; ++k) {
        const float x = m.a[i * side + k];
        for (std::size_t j = 0; j < side; ++j)
          m.c[i * side + j] = m.c[i * side + j] * 0.5f + x * m.b[k * side + j];
      }
  }
  /// A sixteenth of the first tensor that is the thread's.
  void stream(std::size_t thread) {
    const auto i = thread % state_.rows().size();
    const auto* p = reinterpret_cast<const float*>(state_.place(i));
    const auto count = std::max<std::uint64_t>(state_.size(i) / sizeof(float) / 16, 1);
    const auto from = count * static_cast<std::uint64_t>(part_++ % 16);
    float sum = 0;
    for (std::uint64_t k = from; k < from + count; ++k) sum += p[k];
    teams_[thread].sum += sum;
  }
  bench_state& state_;
  int threads_;
  bool streams_;
  std::vector<team> teams_;
  std::atomic<unsigned> part_{0};
  int rounds_ = 1;
  int step_ = 0;
  double update_share_ = 0;
};

/// Bytes that this process and the workers that it started have beyond files, each page shared out among
/// those that map it.
double proportional_bytes() {
  const auto of = [](const std::string& process) {
    std::ifstream file("/proc/" + process + "/smaps_rollup");
    double bytes = 0;
    for (std::string word; file >> word;)
      if (word == "Pss_Anon:" || word == "Pss_Shmem:") {
        double kib = 0;
        file >> kib;
        bytes += kib * 1024;
      }
    return bytes;
  };
  double sum = of("self");
  std::ifstream children("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  for (std::string child; children >> child;) sum += of(child);
  // Workers are started by a thread of their executor.
  if (DIR* tasks = ::opendir("/proc/self/task"); tasks != nullptr) {
    while (const auto* task = ::readdir(tasks)) {
      if (task->d_name[0] == '.' || task->d_name == std::to_string(::getpid())) continue;
      std::ifstream own("/proc/self/task/" + std::string(task->d_name) + "/children");
      for (std::string child; own >> child;) sum += of(child);
    }
    ::closedir(tasks);
  }
  return sum;
}

/// One way of saving, for one run of the loop.
class saver {
 public:
  virtual ~saver() = default;
  /// After `step` updates.
  virtual void save(int step) = 0;
  virtual void before_update() {}
  /// Whether a save is under way.
  [[nodiscard]] virtual bool busy() { return false; }
  /// Waits until the last save has ended.
  virtual void wait() {}
  /// Waits until all is as safe as this way makes it.
  virtual void finish() {}
  virtual void end_of_step(int) {}
  std::vector<double> durable_after;  ///< seconds from save() on, of each save
  std::vector<double> staging;        ///< seconds from the first copied byte to the last
  std::vector<double> writing_cpu;    ///< CPU seconds of whoever wrote
  int skipped = 0;                    ///< saves that were not begun
};

/// What a run of the loop measured. Seconds.
struct run_result {
  std::vector<double> steps;    ///< whole steps, with what saves cost them
  std::vector<double> blocked;  ///< of each save: save() and the before_update() after it
  std::vector<double> durable;
  std::vector<double> staging;
  std::vector<double> writing_cpu;
  std::vector<double> beside;  ///< training alone in steps during which a save was written
  int skipped = 0;
  double after = 0;   ///< waiting after the last step
  double memory = 0;  ///< bytes beyond those before the run, at most

  [[nodiscard]] double mean() const {
    double sum = 0;
    for (const double s : steps) sum += s;
    return sum / static_cast<double>(steps.size());
  }
  [[nodiscard]] double slowest() const { return *std::max_element(steps.begin(), steps.end()); }
};

run_result run_loop(training& train, saver* how, const mode_options& o, double memory_before) {
  run_result r;
  double save_stall = 0;
  for (int step = 1; step <= o.steps; ++step) {
    const bool writing = how != nullptr && how->busy();
    double stall = 0;
    double forward = 0;
    double update = 0;
    r.steps.push_back(seconds_of([&] {
      forward = seconds_of([&] { train.gradient(); });
      if (how != nullptr) {
        stall = seconds_of([&] { how->before_update(); });
        if (save_stall > 0) r.blocked.push_back(save_stall + stall), save_stall = 0;
      }
      update = seconds_of([&] { train.update(); });
      if (how != nullptr && step % o.every == 0) save_stall = seconds_of([&] { how->save(step); });
    }));
    if (how != nullptr) how->end_of_step(step);
    if (writing) r.beside.push_back(forward + update);
    if (how != nullptr && how->busy()) r.memory = std::max(r.memory, proportional_bytes() - memory_before);
  }
  if (how != nullptr) {
    r.after = seconds_of([&] { how->finish(); });
    if (save_stall > 0) r.blocked.push_back(save_stall);
    r.durable = how->durable_after;
    r.staging = how->staging;
    r.writing_cpu = how->writing_cpu;
    r.skipped = how->skipped;
  }
  return r;
}

// --- Ours
// ------------------------------------------------------------------------------------------------------

template <class Checkpointer>
class cairn_saver : public saver {
 public:
  cairn_saver(Checkpointer checkpointer, const bench_state& state)
      : checkpointer_(std::move(checkpointer)), state_(state.whole()) {
    checkpointer_.prepare(state_);
    // The first save of the loop is to be like the others: plans, buffers and worker are there.
    checkpointer_.save(state_, 0).wait();
  }
  void save(int step) override { handles_.push_back(checkpointer_.save(state_, step)); }
  void before_update() override { checkpointer_.before_update(); }
  [[nodiscard]] bool busy() override {
    return !handles_.empty() && !handles_.back().committed() && !handles_.back().failed() &&
           !handles_.back().skipped();
  }
  void wait() override { handles_.back().wait(); }
  void finish() override {
    for (auto& handle : handles_) {
      handle.wait();
      if (handle.skipped()) {
        ++skipped;
        continue;
      }
      const auto report = handle.report();
      durable_after.push_back(report.committed_seconds);
      staging.push_back(report.copying.seconds);
      writing_cpu.push_back(report.writing.cpu_seconds);
    }
    checkpointer_.close();
  }

 private:
  Checkpointer checkpointer_;
  cairn::state_dict state_;
  std::vector<cairn::save_handle> handles_;
};
bool skips = false;  // for the modes, which are made by functions without options

template <class... Policies>
auto checkpointer_of(const std::string& directory, Policies... policies) {
  return cairn::checkpointer{
      cairn::file_store{directory}, std::move(policies)..., cairn::keep_last{1},
      cairn::checkpointer_options{.when_busy = skips ? cairn::busy_policy::skip : cairn::busy_policy::block,
                                  .quiet = true}};
}
template <class... Policies>
std::unique_ptr<saver> ours(const std::string& directory, const bench_state& state, Policies... policies) {
  auto made = checkpointer_of(directory, std::move(policies)...);
  return std::make_unique<cairn_saver<decltype(made)>>(std::move(made), state);
}

/// The file system without its fsyncs: for a comparison with those who do without them, and for nothing else.
struct unsynced_file_system : cairn::posix_file_system {
  [[nodiscard]] int sync(int) const noexcept { return 0; }
  [[nodiscard]] int sync_directory(int) const noexcept { return 0; }
};
/// Synchronous, through the page cache, and as little durable as by-hand-fwrite.
std::unique_ptr<saver> never_durable(const std::string& directory, const bench_state& state) {
  cairn::checkpointer made{cairn::basic_file_store<unsynced_file_system>{directory, {.direct_io = false}},
                           cairn::no_staging{}, cairn::inline_executor{}, cairn::keep_last{1},
                           cairn::checkpointer_options{.quiet = true}};
  return std::make_unique<cairn_saver<decltype(made)>>(std::move(made), state);
}

/// Overlapped, by a process, with a trace of all that it does.
using traced_checkpointer = decltype(checkpointer_of({}, cairn::shared_stager{}, cairn::process_executor{},
                                                     cairn::overlapped{}, std::declval<cairn::trace_file>()));
class traced_saver : public cairn_saver<traced_checkpointer> {
 public:
  traced_saver(const std::string& directory, const bench_state& state, cairn::trace_file trace)
      : cairn_saver(checkpointer_of(directory, cairn::shared_stager{}, cairn::process_executor{},
                                    cairn::overlapped{}, trace),
                    state),
        trace_(std::move(trace)) {
    trace_.step(0);
  }
  void end_of_step(int step) override { trace_.step(step); }

 private:
  cairn::trace_file trace_;
};

// --- By hand
// -----------------------------------------------------------------------------------------------------

/// A file of its own for each step, and DONE once it is whole; then the one before goes, as with
/// keep_last{1}.
class kept_file {
 public:
  explicit kept_file(std::string directory) : directory_(std::move(directory)) {
    ::mkdir(directory_.c_str(), 0777);
  }
  [[nodiscard]] std::string of(int step) const { return directory_ + "/state_" + std::to_string(step); }
  void done(int step) {
    const auto name = [&](int of) { return directory_ + "/DONE_" + std::to_string(of); };
    std::FILE* mark = std::fopen(name(step).c_str(), "w");
    if (mark == nullptr || std::fclose(mark) != 0) throw std::runtime_error("cannot write DONE");
    if (last_ >= 0 && (::unlink(name(last_).c_str()) != 0 || ::unlink(of(last_).c_str()) != 0))
      throw std::runtime_error("cannot remove an old state");
    last_ = step;
  }

 private:
  std::string directory_;
  int last_ = -1;
};

/// fwrite of everything in pieces of 32 MiB in the loop, then a file DONE; durable where asked.
class fwrite_saver : public saver {
 public:
  fwrite_saver(std::string directory, const bench_state& state, bool durable)
      : files_(std::move(directory)), state_(state), durable_(durable) {}
  void save(int step) override {
    durable_after.push_back(seconds_of([&] {
      const auto path = files_.of(step);
      std::FILE* file = std::fopen(path.c_str(), "wb");
      if (file == nullptr) throw std::runtime_error("cannot open " + path);
      for (std::size_t i = 0; i < state_.rows().size(); ++i)
        for (std::uint64_t at = 0; at < state_.size(i); at += piece) {
          const auto part = std::min(piece, state_.size(i) - at);
          if (std::fwrite(state_.place(i) + at, 1, part, file) != part)
            throw std::runtime_error("cannot write " + path);
        }
      if (std::fflush(file) != 0 || (durable_ && ::fdatasync(::fileno(file)) != 0) || std::fclose(file) != 0)
        throw std::runtime_error("cannot write " + path);
      files_.done(step);
    }));
  }

 private:
  static constexpr std::uint64_t piece = 32 * mebibyte;
  kept_file files_;
  const bench_state& state_;
  bool durable_;
};

/// A copy in the loop, and a std::thread that writes it and calls fdatasync.
class copying_saver : public saver {
 public:
  copying_saver(std::string directory, const bench_state& state)
      : files_(std::move(directory)), state_(state), copy_(state.bytes()) {}
  ~copying_saver() override { join(); }
  void save(int step) override {
    join();
    const auto begin = std::chrono::steady_clock::now();
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < state_.rows().size(); ++i) {
      std::memcpy(copy_.data() + at, state_.place(i), state_.size(i));
      at += state_.size(i);
    }
    running_.store(true);
    thread_ = std::thread([this, begin, step] {
      const auto path = files_.of(step);
      const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
      bool good = file >= 0;
      for (std::uint64_t done = 0; good && done < copy_.size();) {
        const auto n =
            ::write(file, copy_.data() + done, std::min<std::uint64_t>(copy_.size() - done, 32 * mebibyte));
        good = n > 0;
        if (good) done += static_cast<std::uint64_t>(n);
      }
      good = good && ::fdatasync(file) == 0 && ::close(file) == 0;
      try {
        if (good) files_.done(step);
      } catch (const std::exception&) {
        good = false;
      }
      good_ = good_ && good;
      took_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      running_.store(false);
    });
  }
  [[nodiscard]] bool busy() override { return running_.load(); }
  void finish() override {
    join();
    if (!good_) throw std::runtime_error("the twin could not write");
  }

 private:
  void join() {
    if (!thread_.joinable()) return;
    thread_.join();
    durable_after.push_back(took_);
  }
  kept_file files_;
  const bench_state& state_;
  warm_memory copy_;
  std::thread thread_;
  std::atomic<bool> running_{false};
  bool good_ = true;
  double took_ = 0;
};

// --- The table
// ---------------------------------------------------------------------------------------------------

struct mode {
  const char* name;
  std::function<std::unique_ptr<saver>(const std::string&, const bench_state&)> make;
};
const std::vector<mode>& modes() {
  static const std::vector<mode> all{
      {"plain", nullptr},
      {"synchronous",
       [](const auto& d, const auto& s) {
         return ours(d, s, cairn::no_staging{}, cairn::inline_executor{});
       }},
      {"thread", [](const auto& d, const auto& s) { return ours(d, s); }},
      {"process",
       [](const auto& d, const auto& s) {
         return ours(d, s, cairn::shared_stager{}, cairn::process_executor{});
       }},
      {"overlapped-thread", [](const auto& d, const auto& s) { return ours(d, s, cairn::overlapped{}); }},
      {"overlapped-process",
       [](const auto& d, const auto& s) {
         return ours(d, s, cairn::shared_stager{}, cairn::process_executor{}, cairn::overlapped{});
       }},
      {"synchronous-never-durable", [](const auto& d, const auto& s) { return never_durable(d, s); }},
      {"by-hand-fwrite",
       [](const auto& d, const auto& s) -> std::unique_ptr<saver> {
         return std::make_unique<fwrite_saver>(d, s, false);
       }},
      {"by-hand-fwrite-fdatasync",
       [](const auto& d, const auto& s) -> std::unique_ptr<saver> {
         return std::make_unique<fwrite_saver>(d, s, true);
       }},
      {"by-hand-copy-thread",
       [](const auto& d, const auto& s) -> std::unique_ptr<saver> {
         return std::make_unique<copying_saver>(d, s);
       }},
  };
  return all;
}

struct summary {
  std::vector<double> mean, overhead, slowest, blocked, staging, durable, disturbance, memory, after, back;
  std::vector<double> writing_cpu, skipped;
  std::vector<std::vector<double>> steps;  ///< of each round
};

double median_or_zero(std::vector<double> values) {
  return values.empty() ? 0 : samples(std::move(values)).median();
}

/// Steps after a save until one takes at most 5 % more than a plain step; the median of all saves.
double steps_until_back(const run_result& r, double plain, int every) {
  std::vector<double> counts;
  for (std::size_t save = static_cast<std::size_t>(every); save < r.steps.size();
       save += static_cast<std::size_t>(every)) {
    double count = 0;
    while (save + static_cast<std::size_t>(count) < r.steps.size() &&
           r.steps[save + static_cast<std::size_t>(count)] > 1.05 * plain)
      ++count;
    counts.push_back(count);
  }
  return median_or_zero(counts);
}

/// The steps of each mode's middle round as lines, plain first.
std::string chart_of(const std::vector<std::pair<std::string, summary>>& all, const mode_options& o) {
  static constexpr std::array<const char*, 10> colours{"#888888", "#c0392b", "#e67e22", "#8e44ad", "#2980b9",
                                                       "#27ae60", "#1c2833", "#a04000", "#b7950b", "#d35db3"};
  double most = 0;
  for (const auto& [name, s] : all)
    for (const auto& round : s.steps) most = std::max(most, *std::max_element(round.begin(), round.end()));
  const double width = 760;
  const double height = 300;
  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1060 380\" font-family=\"sans-serif\" "
         "font-size=\"12\">\n<rect width=\"1060\" height=\"380\" fill=\"white\"/>\n<text x=\"60\" y=\"20\" "
         "font-size=\"14\">Seconds of each step; a save of "
      << size_text(o.common.bytes) << " every " << o.every << " steps</text>\n";
  const auto y = [&](double seconds) { return 40 + height * (1 - seconds / most); };
  const double power = std::pow(10, std::floor(std::log10(most / 6)));
  const double unit = power * (most / 6 > 5 * power ? 10 : most / 6 > 2 * power ? 5 : 2);
  for (double at = 0; at <= most; at += unit) {
    out << "<line x1=\"60\" x2=\"" << 60 + width << "\" y1=\"" << y(at) << "\" y2=\"" << y(at)
        << "\" stroke=\"#dddddd\"/><text x=\"54\" y=\"" << y(at) + 4 << "\" text-anchor=\"end\">"
        << std::round(at * 100) / 100 << "</text>\n";
  }
  std::size_t index = 0;
  for (const auto& [name, s] : all) {
    const auto& round = s.steps[s.steps.size() / 2];
    const char* colour = colours[index % colours.size()];
    out << "<polyline fill=\"none\" stroke=\"" << colour << "\" stroke-width=\"2\" points=\"";
    for (std::size_t i = 0; i < round.size(); ++i)
      out << 60 + width * static_cast<double>(i) / static_cast<double>(round.size() - 1) << ',' << y(round[i])
          << ' ';
    out << "\"/>\n<line x1=\"835\" x2=\"860\" y1=\"" << 50 + 20 * index << "\" y2=\"" << 50 + 20 * index
        << "\" stroke=\"" << colour << "\" stroke-width=\"3\"/><text x=\"866\" y=\"" << 54 + 20 * index
        << "\">" << name << "</text>\n";
    ++index;
  }
  for (int step = o.every; step <= o.steps; step += o.every)
    out << "<text x=\"" << 60 + width * (step - 1) / (o.steps - 1) << "\" y=\"358\" text-anchor=\"middle\">"
        << step << "</text>\n";
  out << "<text x=\"440\" y=\"376\" text-anchor=\"middle\">step</text>\n</svg>\n";
  return out.str();
}

/// Seconds of the k-th step after one that ended with a save (0: that one itself), of all rounds.
std::vector<double> steps_after(const summary& s, int k, int every) {
  std::vector<double> found;
  for (const auto& round : s.steps)
    for (auto at = static_cast<std::size_t>(every - 1 + k); at < round.size();
         at += static_cast<std::size_t>(every))
      found.push_back(round[at]);
  return found;
}

/// The table as Markdown, for documents.
std::string markdown_of(const std::vector<std::pair<std::string, summary>>& all, const mode_options& o) {
  std::ostringstream out;
  out << "| | mean step | overhead | slowest step | steps/s | blocked | staging | durable after | beside a "
         "write "
         "| back after | memory | skipped |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  char line[400];
  for (const auto& [name, s] : all) {
    const bool plain = name == "plain";
    std::snprintf(line, sizeof line, "| %s | %.3f s | %.1f %% | %.3f s | %.3f |", name.c_str(),
                  samples(s.mean).median(), samples(s.overhead).median(), samples(s.slowest).median(),
                  1 / samples(s.mean).median());
    out << line;
    if (plain) {
      out << " | | | | | | |\n";
      continue;
    }
    std::snprintf(line, sizeof line, " %.2f ms | %.3f s | %.3f s | %.3f | %.0f | %.0f MiB | %.0f |\n",
                  1000 * samples(s.blocked).median(), median_or_zero(s.staging), samples(s.durable).median(),
                  median_or_zero(s.disturbance), samples(s.back).median(),
                  samples(s.memory).median() / static_cast<double>(mebibyte), median_or_zero(s.skipped));
    out << line;
  }
  out << "\nSeconds of the step that ends with a save and of those after it:\n\n| |";
  for (int k = 0; k < o.every; ++k) out << (k == 0 ? " save" : " +" + std::to_string(k)) << " |";
  out << "\n|---|";
  for (int k = 0; k < o.every; ++k) out << "---|";
  out << '\n';
  for (const auto& [name, s] : all) {
    out << "| " << name << " |";
    for (int k = 0; k < o.every; ++k) {
      std::snprintf(line, sizeof line, " %.3f |", median_or_zero(steps_after(s, k, o.every)));
      out << line;
    }
    out << '\n';
  }
  out << "\nPublished, in another setting (" << published_setting
      << "):\n\n| | overhead | staging |\n|---|---|---|\n";
  for (const auto& p : published_table) {
    std::snprintf(line, sizeof line, "| %s | %.0f %% | %s |\n", p.what, p.overhead,
                  p.staging > 0 ? (std::to_string(p.staging).substr(0, 4) + " s").c_str() : "");
    out << line;
  }
  return out.str();
}

/// Training alone in a step during which a save is written, and how long that save blocked: by thread and by
/// process in turns, so that what is compared lies a second apart. Twenty turns for each round: the noise of
/// the median of their ratios must be well below the hundredth that is asked of it, and one step differs from
/// the next by several, one copy of the state from the next by a tenth and more.
void measure_beside(report& out, training& train, const bench_state& state, const std::string& place,
                    const mode_options& o) {
  const auto step = [&] { return seconds_of([&] { train.gradient(), train.update(); }); };
  const std::unique_ptr<saver> savers[] = {
      ours(place + "/beside-thread", state),
      ours(place + "/beside-process", state, cairn::shared_stager{}, cairn::process_executor{})};
  std::vector<double> plain;
  std::vector<double> beside[2];
  std::vector<double> blocked[2];
  for (int turn = 0; turn < 20 * o.common.pairs; ++turn) {
    if (turn % 4 == 0) plain.push_back(step());
    for (int k = 0; k < 2; ++k) {
      const auto which = static_cast<std::size_t>((turn + k) % 2);
      blocked[which].push_back(seconds_of([&] { savers[which]->save(turn + 1); }));
      beside[which].push_back(step());
      savers[which]->wait();
    }
  }
  for (const auto& each : savers) each->finish();
  std::printf("\n# saves and steps beside a write, in turns\n");
  out.add("process/blocked/of-thread", make_pairs(blocked[1], blocked[0]), "s", at_most(1.1));
  const double one = samples(plain).median();
  out.add_against("thread/beside/in-turns", samples(beside[0]), "s", one);
  out.add_against("process/beside/in-turns", samples(beside[1]), "s", one);
  const auto turns = make_pairs(beside[1], beside[0]);
  out.add("process/beside/of-thread", turns, "s", at_most(1.01));
  // Of a median: 1.25 standard deviations of one ratio, by the quartiles, over the root of their number.
  const double spread = (turns.ratios.quantile(0.75) - turns.ratios.quantile(0.25)) / 1.349;
  out.add("process/beside/of-thread/standard-error",
          1.253 * spread / std::sqrt(static_cast<double>(turns.ratios.sorted.size())), "of it");
}
/// The other figures: see the beginning of this file.
void measure_readiness(report& out, const bench_state& state, const std::string& place, int rounds) {
  readiness thread;
  readiness process;
  std::vector<double> start;
  std::printf("\n# until ready, first save, start of a worker, enqueue\n");
  for (int round = 0; round < rounds; ++round) {
    thread.measure(state, false, place + "/ready-thread",
                   [](const auto& d) { return checkpointer_of(d, cairn::overlapped{}); });
    process.measure(state, true, place + "/ready-process", [](const auto& d) {
      return checkpointer_of(d, cairn::shared_stager{}, cairn::process_executor{}, cairn::overlapped{});
    });
    start.push_back(worker_start());
  }
  thread.tell(out, "thread");
  process.tell(out, "process");
  out.add_against("worker/start", samples(start), "s", 0.05, at_most(1));
}
/// A state of 10,000 tensors of one size, above that of small items.
void measure_enqueue(report& out, std::uint64_t bytes, const std::string& place, int rounds) {
  const auto rows = std::max<std::int64_t>(24, static_cast<std::int64_t>(bytes / 10'000 / 4096));
  const bench_state state(std::vector<std::int64_t>(10'000, rows));
  const auto by_thread = enqueue(state, rounds, place + "/enqueue-thread",
                                 [](const auto& d) { return checkpointer_of(d, cairn::overlapped{}); });
  const auto by_process = enqueue(state, rounds, place + "/enqueue-process", [](const auto& d) {
    return checkpointer_of(d, cairn::shared_stager{}, cairn::process_executor{}, cairn::overlapped{});
  });
  out.add_against("overlapped-thread/enqueue/10000-tensors", samples(by_thread), "s", 0.001, at_most(1));
  out.add_against("overlapped-process/enqueue/10000-tensors", samples(by_process), "s", 0.001, at_most(1));
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

/// One more run of the overlapped process mode, traced.
void trace_one_run(training& train, const bench_state& state, const std::string& place, mode_options o) {
  const auto path = o.trace.empty() ? place + "/trace.json" : o.trace;
  o.steps = 2 * o.every + 2;
  {
    traced_saver how(place + "/traced", state, cairn::trace_file(path));
    static_cast<void>(run_loop(train, &how, o, 0));
  }
  if (o.picture.empty()) return;
  const timeline trace(path);
  const auto at = std::to_string(o.every);
  // From the step that ends with the first save of the loop until training has its plain steps back.
  const double begin = trace.begin_of("step " + at);
  const double end =
      std::max(trace.end_of("save step " + at), trace.end_of("step " + std::to_string(o.every + 2)));
  write_file(o.picture, picture_of(trace, begin, end,
                                   "An overlapped save of " + size_text(o.common.bytes) +
                                       " by a worker process: what each process does"));
}

void measure_modes(const mode_options& o) {
  skips = o.skips;
  report out("bench_modes");
  const scratch place(o.common.directory);
  bench_state state(o.common.bytes, o.common.tensors / 3 * 3);
  state.fill(1);
  state.clear();
  training train(state, o);
  std::vector<std::pair<std::string, summary>> all;
  for (const auto& m : modes())
    if (o.only.empty() || m.make == nullptr ||
        std::find(o.only.begin(), o.only.end(), m.name) != o.only.end())
      all.emplace_back(m.name, summary{});
  std::printf("# %s of state, %d steps of about %.2f s (the update: %.0f %%), a save every %d, %d rounds\n",
              size_text(state.bytes()).c_str(), o.steps, o.step_seconds, 100 * train.update_share(), o.every,
              o.common.pairs);
  for (int round = 0; round < o.common.pairs; ++round) {
    double plain = 0;
    double plain_step = 0;
    for (auto& [name, s] : all) {
      const auto& m =
          *std::find_if(modes().begin(), modes().end(), [&](const auto& each) { return name == each.name; });
      const auto directory = place.path() + "/" + name + std::to_string(round);
      const double memory_before = proportional_bytes();
      auto how = m.make ? m.make(directory, state) : nullptr;
      const auto r = run_loop(train, how.get(), o, memory_before);
      how = nullptr;
      if (!m.make) plain = r.mean(), plain_step = samples(r.steps).median();
      s.mean.push_back(r.mean());
      s.overhead.push_back(100 * (r.mean() / plain - 1));
      s.slowest.push_back(r.slowest());
      s.blocked.push_back(median_or_zero(r.blocked));
      s.staging.push_back(median_or_zero(r.staging));
      s.writing_cpu.push_back(median_or_zero(r.writing_cpu));
      s.skipped.push_back(r.skipped);
      s.durable.push_back(median_or_zero(r.durable));
      for (const double step : r.beside) s.disturbance.push_back(step / plain_step);
      s.memory.push_back(r.memory);
      s.after.push_back(r.after);
      s.back.push_back(steps_until_back(r, plain_step, o.every));
      s.steps.push_back(r.steps);
      const auto clean = "rm -rf '" + directory + "'";
      if (std::system(clean.c_str()) != 0) throw std::runtime_error("cannot remove " + directory);
      ::sync();  // what a mode left in the page cache is not written at the cost of the next
    }
  }

  std::printf("\n%-26s %9s %9s %9s %10s %9s %9s %9s %6s %9s %9s %8s %8s\n", "", "mean step", "overhead",
              "slowest", "blocked", "staging", "durable", "beside", "back", "memory", "at end", "steps/s",
              "skipped");
  const auto find = [&](std::string_view name) -> summary* {
    for (auto& [each, s] : all)
      if (each == name) return &s;
    return nullptr;
  };
  for (auto& [name, s] : all)
    std::printf(
        "%-26s %7.3f s %7.1f %% %7.3f s %7.2f ms %7.3f s %7.3f s %8.3f %6.1f %6.0f MiB %7.3f s %8.3f %8.0f\n",
        name.c_str(), samples(s.mean).median(), samples(s.overhead).median(), samples(s.slowest).median(),
        1000 * samples(s.blocked).median(), median_or_zero(s.staging), samples(s.durable).median(),
        median_or_zero(s.disturbance), samples(s.back).median(),
        samples(s.memory).median() / static_cast<double>(mebibyte), samples(s.after).median(),
        1 / samples(s.mean).median(), median_or_zero(s.skipped));
  std::printf("\nseconds of the step that ends with a save, and of those after it\n%-26s", "");
  for (int k = 0; k < o.every; ++k) std::printf(" %7s", k == 0 ? "save" : ("+" + std::to_string(k)).c_str());
  for (auto& [name, s] : all) {
    std::printf("\n%-26s", name.c_str());
    for (int k = 0; k < o.every; ++k) std::printf(" %7.3f", median_or_zero(steps_after(s, k, o.every)));
  }
  std::printf("\n\npublished: %s\n", published_setting);
  for (const auto& p : published_table) {
    std::printf("%-54s %6.0f %%", p.what, p.overhead);
    if (p.staging > 0) std::printf("  staging %.2f s", p.staging);
    if (auto* s = find(p.mode)) std::printf("  (%s here: %.1f %%)", p.mode, samples(s->overhead).median());
    std::printf("\n");
  }
  std::printf("\n");
  for (auto& [name, s] : all) {
    if (name == "plain") continue;
    out.add_against(name + "/mean_step", samples(s.mean), "s", samples(find("plain")->mean).median(),
                    name.starts_with("overlapped") ? at_most(1.05) : goal{});
    out.add(name + "/blocked", samples(s.blocked), "s");
    out.add(name + "/staging", samples(s.staging), "s");
    out.add(name + "/durable", samples(s.durable), "s");
    out.add(name + "/writing-cpu", samples(s.writing_cpu), "s");
    if (!s.disturbance.empty()) out.add(name + "/beside", samples(s.disturbance), "of a plain step");
    out.add(name + "/memory", samples(s.memory), "B");
    out.add(name + "/skipped", samples(s.skipped), "saves");
    for (int k = 0; k < o.every; ++k)
      if (const auto steps = steps_after(s, k, o.every); !steps.empty())
        out.add(name + "/step+" + std::to_string(k), samples(steps), "s");
  }
  const auto pair = [&](const char* what, const char* a, const char* b, auto member, goal wanted) {
    auto* first = find(a);
    auto* second = find(b);
    if (first != nullptr && second != nullptr)
      out.add(what, make_pairs(first->*member, second->*member), "s", wanted);
  };
  pair("overlapped-thread/blocked/of-synchronous", "overlapped-thread", "synchronous", &summary::blocked,
       at_most(0.01));
  pair("overlapped-process/blocked/of-synchronous", "overlapped-process", "synchronous", &summary::blocked,
       at_most(0.01));
  pair("thread/blocked/of-synchronous", "thread", "synchronous", &summary::blocked, at_most(0.5));
  pair("process/blocked/of-thread/in-the-loop", "process", "thread", &summary::blocked, {});
  pair("synchronous-never-durable/blocked/of-fwrite-by-hand", "synchronous-never-durable", "by-hand-fwrite",
       &summary::blocked, {});
  pair("process/mean_step/of-copy-thread-by-hand", "process", "by-hand-copy-thread", &summary::mean, {});
  if (!o.chart.empty()) write_file(o.chart, chart_of(all, o));
  if (!o.table.empty()) write_file(o.table, markdown_of(all, o));
  if (!o.trace.empty() || !o.picture.empty()) trace_one_run(train, state, place.path(), o);
  if (o.figures) {
    measure_beside(out, train, state, place.path(), o);
    measure_readiness(out, state, place.path(), o.common.pairs);
    measure_enqueue(out, o.common.bytes, place.path(), 5 * o.common.pairs);  // each takes half a second
  }
  out.write(o.common.json);
}

/// With `--device cuda` among the arguments, bench_modes_cuda beside this program takes its place, and the
/// other arguments. True where there is none, which a line on stderr says.
bool cannot_hand_over(int argc, char** argv) {
  bool wanted = false;
  std::vector<char*> rest{argv[0]};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool apart = argument == "--device" && i + 1 < argc && std::string(argv[i + 1]) == "cuda";
    if (apart || argument == "--device=cuda") {
      wanted = true, i += apart ? 1 : 0;
      continue;
    }
    rest.push_back(argv[i]);
  }
  if (!wanted) return false;
  rest.push_back(nullptr);
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  ::execv((self.parent_path() / "bench_modes_cuda").c_str(), rest.data());
  std::fprintf(stderr,
               "bench_modes: there is no bench_modes_cuda beside this program; where nvcc is, configure with "
               "-DCAIRN_BUILD_CUDA_PROGRAMS=ON and build it, or run `bash tests/gpu.sh`\n");
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  cairn::worker_main(argc, argv);
  if (cannot_hand_over(argc, argv)) return 1;
  mode_options o;
  CLI::App app{"The ways of saving beside each other: what each costs a training loop", "bench_modes"};
  app.option_defaults()->always_capture_default();
  app.add_option("--bytes", o.common.bytes, "Size of the state, such as 256MiB")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--tensors", o.common.tensors, "Number of tensors in it")->check(CLI::Range(3, 1000000));
  app.add_option("--directory", o.common.directory, "Where checkpoints are written; on a disk")
      ->check(CLI::ExistingDirectory);
  app.add_option("--rounds", o.common.pairs, "Runs of each mode, in turns")->check(CLI::Range(1, 1000));
  app.add_option("--steps", o.steps, "Steps of a run")->check(CLI::Range(2, 100000));
  app.add_option("--every", o.every, "Steps between saves")->check(CLI::Range(1, 100000));
  app.add_option("--step-seconds", o.step_seconds, "Seconds of a plain step")
      ->check(CLI::Range(0.001, 100.0));
  app.add_option("--threads", o.threads, "Threads that train")->check(CLI::Range(1, 1024));
  std::string arithmetic = "products";
  app.add_option("--arithmetic", arithmetic,
                 "Forward and backward: products in cache, or a stream of the state")
      ->check(CLI::IsMember({"products", "stream"}));
  std::string when_busy = "block";
  app.add_option("--when-busy", when_busy, "A save that finds an earlier one under way: block or skip")
      ->check(CLI::IsMember({"block", "skip"}));
  std::string device = "cpu";
  app.add_option("--device", device,
                 "What trains. cuda: bench_modes_cuda beside this program runs instead, with options of its "
                 "own: --device cuda --help")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_flag("--figures,!--no-figures", o.figures, "Also: until ready, first save, worker, enqueue");
  app.add_option("--only", o.only, "Modes to measure, beside the plain loop");
  app.add_option("--json", o.common.json, "File for the figures");
  app.add_option("--chart", o.chart, "File for a picture of the steps (SVG)");
  app.add_option("--table", o.table, "File for the table in Markdown");
  app.add_option("--trace", o.trace, "File for a trace of one more run of overlapped-process");
  app.add_option("--picture", o.picture, "File for a picture of that trace (SVG)");
  try {
    app.parse(argc, argv);
    o.streams = arithmetic == "stream";
    o.skips = when_busy == "skip";
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    measure_modes(o);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_modes: %s\n", e.what());
    return 1;
  }
}
