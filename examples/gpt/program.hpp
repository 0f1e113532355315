// SPDX-License-Identifier: Apache-2.0
/// The program that trains, from its options to its end, for any Platform: what computes, and how its memory
/// is saved. train_gpt.cpp and train_gpt_cuda.cu are this with theirs.
#pragma once

#include <CLI/CLI.hpp>
#include <cairn/cairn.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/comm/single_process.hpp>
#include <cairn/execute/worker_main.hpp>
#include <cairn/manage/stop_signal.hpp>
#ifdef CAIRN_USES_MPI
#include <cairn/comm/mpi_communicator.hpp>
#endif
#ifdef CAIRN_USES_LINKS
#include <cairn/comm/socket_communicator.hpp>
#endif

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <ratio>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "../tools/store.hpp"
#include "group.hpp"
#include "killing_store.hpp"
#include "launcher.hpp"
#include "mpi_session.hpp"
#include "trainer.hpp"

namespace gpt {

enum class save_mode { synchronous, thread, process, overlapped_thread, overlapped_process, direct };
inline bool writes_in_process(save_mode mode) {
  return mode == save_mode::process || mode == save_mode::overlapped_process;
}
inline bool overlaps(save_mode mode) {
  return mode == save_mode::overlapped_thread || mode == save_mode::overlapped_process;
}

/// Where saves are held beside the store.
struct tier_settings {
  std::string directory;      ///< empty: nowhere
  std::uint64_t persist = 1;  ///< each so many-th save goes on to the store
  int partner_copies = 0;     ///< ranks keep copies of each so many-th save of their partners; 0: of none
  int hosts = 0;              ///< that the ranks of this machine play; 0: it is one
  int killed_host = -1;       ///< where one of them is to be killed

  /// The host of a rank, by its name; empty where this machine is one.
  std::string host_of(int rank, int ranks) const {
    return hosts == 0 ? "" : "host-" + std::to_string(rank * hosts / ranks);
  }
  std::string directory_of(int rank, int ranks) const {
    return hosts == 0 ? directory : directory + "/" + host_of(rank, ranks);
  }
};

struct run_options {
  std::uint64_t steps = 100;
  std::size_t ranks = 4;
  bool mpi = false;
  bool sockets = false;
  started_rank started;
  std::uint64_t timeout = 300;
  double lost_after = 10, stopped_after = 0;  // seconds
  std::uint64_t every = 20;
  std::string checkpoints = "checkpoints";
  std::vector<std::string> text;
  save_mode mode = save_mode::overlapped_process;
  tier_settings tier;
  std::size_t keep = 3;
  bool announces = false;
  double hours_between_failures = 0;
  std::string losses;
  std::uint64_t kill_before_release = 0, kill_after_release = 0;
  std::size_t sample = 0;
  training_settings training;
};

/// How a process ends that saved and stopped because a signal asked it to: EX_TEMPFAIL, "try again later". Who
/// started it does that, or not.
constexpr int stopped_status = 75;

using store_type = killing_store<tools::store_type>;

struct checkpointer_settings {
  cairn::keep_last keep;
  cairn::checkpointer_options waits;
};
/// What all ways to save are told.
inline checkpointer_settings settings_of(const run_options& options) {
  const std::chrono::seconds timeout(options.timeout);
  const std::chrono::duration<double, std::ratio<3600>> between_failures(options.hours_between_failures);
  return {
      .keep = cairn::keep_last(options.keep == 0 ? std::numeric_limits<std::size_t>::max() : options.keep),
      .waits = {.timeout = timeout,
                .peer_timeout = timeout,
                .announce_run = options.announces,
                .mean_time_between_failures =
                    std::chrono::duration_cast<std::chrono::nanoseconds>(between_failures)}};
}

inline double milliseconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

/// What the first rank prints: a line for each step and save, and each loss to a file.
class journal {
 public:
  explicit journal(const std::string& losses) {
    if (losses.empty()) return;
    file_.reset(std::fopen(losses.c_str(), "w"));
    if (!file_) throw std::runtime_error("cannot write " + losses + "; give another file with --losses");
  }
  static void begin(std::size_t parameters, std::size_t bytes, std::size_t ranks,
                    const training_settings& training) {
    std::printf("%zu parameters, %zu bytes of text, %zu rank%s, %zu micro-batches of %zu tokens in a step\n",
                parameters, bytes, ranks, ranks == 1 ? "" : "s", training.micro_batches,
                training.shape.context);
    std::fflush(stdout);
  }
  void step(std::uint64_t step, double loss, double milliseconds) {
    std::printf("step %4llu  loss %.4f  %6.1f ms\n", static_cast<unsigned long long>(step), loss,
                milliseconds);
    std::fflush(stdout);
    if (!file_) return;
    std::fprintf(file_.get(), "%llu %a\n", static_cast<unsigned long long>(step), loss);
    std::fflush(file_.get());  // what was printed is there even if the process is killed
  }
  static void stall(std::uint64_t step, double save, double before_update) {
    std::printf("save %4llu  stalled training for %.2f ms (save %.2f, before_update %.2f)\n",
                static_cast<unsigned long long>(step), save + before_update, save, before_update);
    std::fflush(stdout);
  }

 private:
  struct close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, close> file_;
};

template <class Platform>
std::optional<std::int64_t> resume(typename Platform::checkpointer_type& checkpointer,
                                   typename Platform::state_type& state, const std::string& url) {
  try {
    return checkpointer.resume(state.dict());
  } catch (const cairn::plan_error& error) {
    throw std::runtime_error("the checkpoints in " + url +
                             " are of another model; give the options that it was trained with, or another "
                             "place with --store: " +
                             error.what());
  }
}

/// Trains from the newest checkpoint, or from the beginning, to the last step, or to the one after which any
/// rank is asked to stop, and returns it: it is saved. journal: of the first rank alone.
template <class Platform>
std::uint64_t train(const run_options& options, group& others, typename Platform::trainer_type& run,
                    typename Platform::state_type& state, typename Platform::checkpointer_type& checkpointer,
                    const cairn::stop_signal& stop, kill_switch* kill, journal* journal) {
  std::uint64_t step = 0;
  if (const auto newest = resume<Platform>(checkpointer, state, options.checkpoints)) {
    step = static_cast<std::uint64_t>(*newest);
    state.restored(step);
    if (journal) {
      std::printf("resumed from the checkpoint of step %llu\n", static_cast<unsigned long long>(step));
      std::fflush(stdout);
    }
  }

  std::uint64_t saved = 0;  // the step of a save whose whole stall is not known yet; 0: none
  double save_stall = 0;
  cairn::save_handle last;
  const auto before_update = [&] {
    const double waited = milliseconds_of([&] { checkpointer.before_update(); });
    if (saved != 0 && journal) journal->stall(saved, save_stall, waited);
    return std::exchange(saved, 0);
  };
  for (bool stopping = false; step < options.steps && !stopping;) {
    double loss = 0;
    double milliseconds = milliseconds_of([&] { loss = run.accumulate(step); });
    const std::uint64_t released = before_update();
    milliseconds += milliseconds_of([&] { run.update(step); });
    ++step;
    if (journal) journal->step(step, loss, milliseconds);
    if (kill && kill->moment() == kill_moment::after_release && released == kill->step()) {
      last.wait_released();     // where a stream waits for the copies, the host has not
      last.wait_handed_over();  // from here on this process is not needed for it
      if (last.committed()) throw std::runtime_error("the save in which to be killed is committed already");
      kill->kill(others);
    }
    stopping = checkpointer.any_rank(stop.requested());  // the same answer on all ranks
    if (step % options.every == 0 || step == options.steps || stopping) {
      // What a lost host costs depends on the save before: that it is redundant, as it mostly is by then.
      if (kill && step == kill->step() && options.tier.killed_host >= 0 &&
          !last.wait_redundant(std::chrono::seconds(options.timeout)))
        throw std::runtime_error("the save before that in which to be killed did not become redundant");
      state.collect(step);
      checkpointer.annotate({{"loss", loss}});
      save_stall =
          milliseconds_of([&] { last = checkpointer.save(state.dict(), static_cast<std::int64_t>(step)); });
      if (kill && kill->moment() == kill_moment::before_release && step == kill->step()) kill->kill(others);
      saved = step;
    }
  }
  before_update();  // nothing changes any more, but the last save may still be copying
  checkpointer.close();
  return step;
}

/// Tells the exception that is being handled; the status that the process ends with.
inline int complain(const char* program, std::size_t rank) {
  std::fflush(stdout);
  try {
    throw;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: rank %zu: memory ran out; make the model smaller, or give fewer ranks\n",
                 program, rank);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: rank %zu: %s\n", program, rank, error.what());
  }
  return 1;
}

/// The exception was told.
struct told_failure {};

/// One rank from its beginning to its end; returns the status of its process.
/// @param connect gives a communicator of the ranks, for one use: what two parts of the program say to their
/// like on the other ranks must not mix. All ranks call it in the same order
template <class Platform>
int run_rank(const run_options& options, std::size_t rank,
             const std::function<any_communicator(const std::string& use)>& connect) {
  try {
    // Never destroyed, not even by exit(): batch systems send their signals more than once.
    static const cairn::stop_signal& stop = *new cairn::stop_signal{SIGTERM, SIGUSR1};
    group others(connect("training"), std::chrono::seconds(options.timeout));
    const text source = text::read(options.text);
    typename Platform::trainer_type run(options.training, source, others);
    typename Platform::state_type state(run);
    std::unique_ptr<journal> lines;
    if (rank == 0) {
      lines = std::make_unique<journal>(options.losses);
      lines->begin(run.net().parameters().size(), source.size(), others.size(), options.training);
    }
    std::shared_ptr<kill_switch> kill;
    if (options.kill_before_release != 0 || options.kill_after_release != 0)
      kill = std::make_shared<kill_switch>(
          std::max(options.kill_before_release, options.kill_after_release),
          options.kill_before_release != 0 ? kill_moment::before_release : kill_moment::after_release,
          writes_in_process(options.mode));
    const tier_settings& tier = options.tier;
    if (tier.killed_host >= 0)
      kill->only_host(tier.host_of(static_cast<int>(rank), static_cast<int>(others.size())) ==
                      "host-" + std::to_string(tier.killed_host));
    auto checkpointer = Platform::make_checkpointer(
        options, store_type(tools::open_store(options.checkpoints), kill), connect("saving"), run);
    std::uint64_t step = 0;
    try {
      try {
        step = train<Platform>(options, others, run, state, checkpointer, stop, kill.get(), lines.get());
      } catch (const cairn::error& error) {
        others.give_up(error);
        throw;
      }
    } catch (...) {
      // Now, not later: the checkpointer ends only when its last save has, and that may wait for a rank that
      // is gone. It ends as one that an exception passes: its last save is given up, and nobody wonders why.
      complain(Platform::program, rank);
      throw told_failure();
    }
    if (step < options.steps) {
      if (lines)
        std::printf("asked to stop: step %llu is saved, and the same command goes on from it\n",
                    static_cast<unsigned long long>(step));
      return stopped_status;
    }
    if (!lines) return 0;
    if (kill)
      throw std::runtime_error("the run ended without a save of step " + std::to_string(kill->step()) +
                               ", in which it was to be killed");
    const double held_out = evaluate(run.net(), source);
    std::printf("step %llu held-out loss %.4f (%a)\n", static_cast<unsigned long long>(step), held_out,
                held_out);
    if (options.sample > 0)
      std::printf("%s\n", sample(run.net(), run.generator(), "The ", options.sample).c_str());
    return 0;
  } catch (const told_failure&) {
    return 1;
  } catch (...) {
    return complain(Platform::program, rank);
  }
}

/// A rank of a job that this program started on this host.
template <class Platform>
int run_started(const run_options& options) {
  const started_rank& self = options.started;
  const cairn::shared_memory_options waits{.timeout = std::chrono::seconds(options.timeout)};
  return run_rank<Platform>(options, static_cast<std::size_t>(self.rank), [&](const std::string& use) {
    return any_communicator(cairn::shared_memory_communicator(self.job + "." + use, self.rank,
                                                              static_cast<int>(options.ranks), waits));
  });
}

/// A rank that mpirun started.
template <class Platform>
int run_with_mpi([[maybe_unused]] const run_options& options, [[maybe_unused]] bool ranks_given) {
#ifdef CAIRN_USES_MPI
  const mpi_session mpi;
  const auto ranks = static_cast<std::size_t>(mpi.size());
  if (ranks_given && ranks != options.ranks) {
    if (mpi.rank() == 0)
      std::fprintf(stderr, "%s: mpirun started %zu ranks and --ranks says %zu; leave --ranks away\n",
                   Platform::program, ranks, options.ranks);
    return 2;
  }
  const int status =
      run_rank<Platform>(options, static_cast<std::size_t>(mpi.rank()), [&](const std::string&) {
        // Each is a duplicate of its own.
        return any_communicator(cairn::mpi_communicator(
            MPI_COMM_WORLD, cairn::deadline::in(std::chrono::seconds(options.timeout))));
      });
  if (status != 0 && status != stopped_status) mpi.abort(status);
  return status;
#else
  std::fprintf(stderr,
               "%s: this build has no MPI: start it without mpirun and with --ranks N, or install MPI "
               "(Debian and Ubuntu: apt-get install libopenmpi-dev openmpi-bin), configure again and build\n",
               Platform::program);
  return 1;
#endif
}

/// A rank that torchrun or srun started, on any host.
template <class Platform>
int run_with_sockets([[maybe_unused]] const run_options& options, [[maybe_unused]] bool ranks_given) {
#ifdef CAIRN_USES_LINKS
  const auto job_for = [](const std::string& use) {
    const std::string name = "train_gpt." + use;
    return std::getenv("SLURM_PROCID") != nullptr && std::getenv("MASTER_PORT") == nullptr
               ? cairn::socket_job::slurm(name)
               : cairn::socket_job::torchrun(name);
  };
  const cairn::socket_job self = job_for("");
  if (ranks_given && static_cast<std::size_t>(self.size) != options.ranks) {
    std::fprintf(stderr, "%s: %d ranks were started and --ranks says %zu; leave --ranks away\n",
                 Platform::program, self.size, options.ranks);
    return 2;
  }
  const auto seconds = [](double count) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(count));
  };
  const cairn::socket_options waits{.timeout = std::chrono::seconds(options.timeout),
                                    .lost_after = seconds(options.lost_after),
                                    .stopped_after = seconds(options.stopped_after)};
  return run_rank<Platform>(options, static_cast<std::size_t>(self.rank), [&](const std::string& use) {
    return any_communicator(cairn::socket_communicator(job_for(use), waits));
  });
#else
  std::fprintf(stderr,
               "%s: this build has no sockets: install OpenSSL (Debian and Ubuntu: apt-get install "
               "libssl-dev), configure again and build\n",
               Platform::program);
  return 1;
#endif
}

/// Accepts whole numbers from least to most.
inline CLI::Validator between(std::uint64_t least, std::uint64_t most) {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  return CLI::Validator(
      [=](std::string& text) {
        std::uint64_t number = 0;
        const char* const end = text.data() + text.size();
        const auto parsed = std::from_chars(text.data(), end, number);
        const bool fine = parsed.ec == std::errc() && parsed.ptr == end && number >= least && number <= most;
        return fine ? std::string() : "must be a number from " + range + ", not " + text;
      },
      range);
}

/// Turns a name into the number of the mode.
inline std::string mode_of(std::string& text) {
  const std::vector<std::string> names{
      "sync", "thread", "process", "overlapped-thread", "overlapped-process", "direct"};
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end())
    return "must be sync, thread, process, overlapped-thread, overlapped-process or direct, not " + text;
  text = std::to_string(found - names.begin());
  return {};
}

/// main(). The caller has called worker_main().
template <class Platform>
int train_main(int argc, char** argv) {
  run_options options;
  model_config& shape = options.training.shape;
  CLI::App app{
      "Trains a small byte-level GPT on text files, data-parallel, with sharded optimizer state, and saves\n"
      "checkpoints as it goes. Started again, it goes on from the newest one, on any number of ranks, with\n"
      "the same losses bit for bit. Each rank is a process; `mpirun -n N " +
          std::string(Platform::program) +
          " ...` works as well. Asked to stop by SIGTERM or SIGUSR1, it saves and ends with status " +
          std::to_string(stopped_status) + ".",
      Platform::program};
  app.footer(tools::url_help);
  app.option_defaults()->always_capture_default();
  app.add_option("--steps", options.steps, "train until this many updates are done")
      ->check(between(1, 1000000000));
  const CLI::Option* const ranks =
      app.add_option("--ranks", options.ranks, "ranks, each a process on this host; 1: this process")
          ->check(between(1, 1024));
  app.add_flag("--mpi", options.mpi,
               "the ranks are those of MPI, one for each process that mpirun started; found out by itself\n"
               "where mpirun says so to its processes");
  app.add_flag(
         "--sockets", options.sockets,
         "the ranks are processes on any hosts, which torchrun or srun started, or who sets RANK,\n"
         "WORLD_SIZE, MASTER_ADDR and MASTER_PORT; all have the same secret in CAIRN_JOB_KEY or in the file\n"
         "that CAIRN_JOB_KEY_FILE names")
      ->excludes("--mpi");
  app.add_option("--timeout", options.timeout, "seconds that a rank waits for another one")
      ->check(between(1, 1000000));
  app.add_option("--lost-after", options.lost_after,
                 "with --sockets: seconds without an answer after which a host is lost")
      ->check(CLI::Range(0.5, 1e6));
  app.add_option(
         "--stopped-after", options.stopped_after,
         "with --sockets: seconds without a word after which a process on a host that answers is lost;\n"
         "0: never")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--every", options.every, "save after this many steps, and at the end")
      ->check(between(1, 1000000000));
  app.add_option("--store,--checkpoints", options.checkpoints,
                 "where the checkpoints are: a directory, file:PATH or s3://BUCKET/PREFIX?...")
      ->option_text("URL=checkpoints");
  app.add_option("--text", options.text,
                 "files to learn from, or directories of files (default: /usr/share/common-licenses)")
      ->check(CLI::ExistingPath)
      ->option_text("PATH ...");
  app.add_option("--layers", shape.layers, "blocks of the model")->check(between(1, 1000));
  app.add_option("--width", shape.width, "width of the model, a multiple of the heads")
      ->check(between(1, 65536));
  app.add_option("--heads", shape.heads, "attention heads")->check(between(1, 1024));
  app.add_option("--context", shape.context, "bytes that the model sees")->check(between(1, 65536));
  app.add_option("--micro-batches", options.training.micro_batches,
                 "micro-batches of a step, a multiple of the ranks")
      ->check(between(1, 65536));
  app.add_option("--seed", options.training.seed, "seed of weights and data");
  app.add_option("--learning-rate", options.training.learning_rate, "of the first step")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--mode", options.mode,
                 "how to save: sync (write, then go on), thread or process (copy, then go on; a thread or a "
                 "process of\n"
                 "its own writes), overlapped-thread or overlapped-process (copy while the next step "
                 "computes), direct\n"
                 "(a thread writes from training memory while it does)")
      ->transform(CLI::Validator(mode_of, "", "mode"))
      ->option_text("sync|thread|process|overlapped-thread|overlapped-process|direct=overlapped-process");
  app.add_option(
         "--tier", options.tier.directory,
         "hold each save in this directory of a tmpfs, memory that outlives the processes, or of a disk of\n"
         "this host; needs an overlapped --mode. What is held is gone on from, if it is newer than the store")
      ->option_text("DIRECTORY");
  app.add_option("--persist", options.tier.persist, "with --tier: each so many-th save goes on to the store")
      ->check(between(1, 1000000000));
  app.add_option(
         "--partner-copies", options.tier.partner_copies,
         "with --tier: ranks keep copies of each so many-th save of ranks of other hosts, so that one host\n"
         "may be lost; 0: of none")
      ->check(between(0, 1000000000));
  app.add_option(
         "--hosts", options.tier.hosts,
         "with --tier: the ranks that this program starts play so many hosts, each with a tier of its own\n"
         "in DIRECTORY, which exists; 0: this host is one")
      ->check(between(0, 1024));
  app.add_option("--keep", options.keep, "checkpoints to keep; 0: all");
  app.add_flag("--announce", options.announces,
               "show that this run lives, so that evaluate --follow knows at once when it has ended or died");
  app.add_option("--failures-every", options.hours_between_failures,
                 "hours between failures of the job: each save then suggests how often to save; 0: not known")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--losses", options.losses,
                 "write step and loss (as a hexadecimal float) of each step to this file");
  app.add_option("--sample", options.sample, "let the model write this many bytes at the end");
  app.add_option(
      "--kill-before-release", options.kill_before_release,
      "end all ranks with SIGKILL in the save of this step, while it is still being copied; 0: never\n"
      "(for trying out recovery, as the next one)");
  app.add_option(
      "--kill-after-release", options.kill_after_release,
      "end all ranks with SIGKILL in the save of this step: after training went on, before the checkpoint\n"
      "exists; 0: never. Processes that write for them live on, and commit it");
  app.add_option(
      "--kill-host", options.tier.killed_host,
      "with --kill-before-release and --hosts: end the ranks of this host alone, the first of which is 0,\n"
      "with the processes that write for them, once the save before is redundant");
  // What the launcher says to the processes that it starts; not for users.
  app.add_option("--rank", options.started.rank)->group("");
  app.add_option("--job", options.started.job)->group("");
  app.add_option("--launcher", options.started.launcher)->group("");
  try {
    app.parse(argc, argv);
    options.mpi = options.started.rank < 0 && !options.sockets && (options.mpi || started_by_mpi());
    if (!options.mpi && !options.sockets && options.training.micro_batches % options.ranks != 0)
      throw CLI::ValidationError("--micro-batches",
                                 "must be a multiple of --ranks " + std::to_string(options.ranks));
    if (shape.width % shape.heads != 0)
      throw CLI::ValidationError("--width", "must be a multiple of --heads " + std::to_string(shape.heads));
    const auto check_kill = [&](const char* option, std::uint64_t kill, bool fits, const char* needs) {
      if (kill == 0) return;
      if (kill >= options.steps || kill % options.every != 0)
        throw CLI::ValidationError(option, "must be a multiple of --every and less than --steps");
      if (!fits) throw CLI::ValidationError(option, needs);
    };
    check_kill("--kill-before-release", options.kill_before_release, overlaps(options.mode),
               "needs an overlapped --mode: else save() returns after the release");
    check_kill("--kill-after-release", options.kill_after_release,
               options.mode != save_mode::synchronous && options.mode != save_mode::direct,
               "needs a --mode that copies");
    if (const std::string why = Platform::refuses(options); !why.empty())
      throw CLI::ValidationError("--mode", why);
    const tier_settings& tier = options.tier;
    if (!tier.directory.empty() && !overlaps(options.mode))
      throw CLI::ValidationError("--tier", "needs an overlapped --mode");
    if (tier.directory.empty() && (tier.partner_copies != 0 || tier.hosts != 0))
      throw CLI::ValidationError("--tier", "is needed by --partner-copies and --hosts");
    if (tier.killed_host >= 0 &&
        (tier.killed_host >= tier.hosts || options.kill_before_release == 0 || tier.partner_copies == 0))
      throw CLI::ValidationError(
          "--kill-host", "needs --kill-before-release, --partner-copies and --hosts, which is greater");
    if (options.kill_before_release != 0 && options.kill_after_release != 0)
      throw CLI::ValidationError("--kill-before-release", "a run can be killed once only");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    if (options.started.rank >= 0) {
      begin_rank(options.started);
      return run_started<Platform>(options);
    }
    if (options.mpi) return run_with_mpi<Platform>(options, ranks->count() > 0);
    if (options.sockets) return run_with_sockets<Platform>(options, ranks->count() > 0);
    if (options.ranks == 1)
      return run_rank<Platform>(options, 0,
                                [](const std::string&) { return any_communicator(cairn::single_process{}); });
    const std::chrono::seconds grace(std::min<std::uint64_t>(options.timeout, 10));
    launcher job(argv[0], {argv + 1, argv + argc}, static_cast<int>(options.ranks), grace);
    std::printf("the ranks are processes %s\n", job.text().c_str());
    std::fflush(stdout);
    return job.wait();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", Platform::program, error.what());
    return 1;
  }
}

}  // namespace gpt
