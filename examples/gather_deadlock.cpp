// SPDX-License-Identifier: Apache-2.0
// test: @DIR@ --deadline 5
// expect: as expected: the gather waited, cairn did not
//
// Why a save of shards needs no collective call: what becomes of one rank that comes to the save alone, with
// a save that gathers on rank 0 (written here, as many trainers do it), and with cairn's. Ranks are threads.
#include <CLI/CLI.hpp>
#include <cairn/cairn.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t numbers = 100'000;  // of all ranks together, a part on each

struct settings {
  std::string directory;
  int ranks = 4;
  double seconds = 2;  // a wait for ranks that do not come ends after so long
  [[nodiscard]] std::chrono::nanoseconds patience() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  }
};

constexpr auto ample = std::chrono::minutes(5);  // for waits that are not what this is about

using clock_type = std::chrono::steady_clock;
double milliseconds_since(clock_type::time_point begin) {
  return std::chrono::duration<double, std::milli>(clock_type::now() - begin).count();
}

/// Opens a latch at the end of a scope, also when that is left by an exception: nobody waits for ever.
class opener {
 public:
  explicit opener(std::latch& one) : latch_(one) {}
  opener(const opener&) = delete;
  opener& operator=(const opener&) = delete;
  ~opener() { open(); }
  void open() {
    if (!std::exchange(opened_, true)) latch_.count_down();
  }

 private:
  std::latch& latch_;
  bool opened_ = false;
};

/// Runs body(communicator) on a thread for each rank; throws what the first rank that failed threw.
template <class Body>
void on_each_rank(int ranks, Body body) {
  const cairn::thread_group group(ranks);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(group.communicator(rank));
        } catch (...) {
          thrown[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
  }
  for (const auto& each : thrown)
    if (each) std::rethrow_exception(each);
}

/// The numbers before those of this rank.
std::int64_t first_of(int rank, int ranks) {
  return numbers * rank / ranks;
}
std::vector<float> shard_of(int rank, int ranks) {
  const auto count = first_of(rank + 1, ranks) - first_of(rank, ranks);
  return std::vector<float>(static_cast<std::size_t>(count), static_cast<float>(rank));
}

void train(std::vector<float>& shard) {
  for (auto& number : shard) number -= 0.01f * number;
}

// --- A save that gathers
// -------------------------------------------------------------------------------------

/// Collective: every rank sends its shard to rank 0, which writes all of them and tells the others.
void gather_save(cairn::thread_communicator& comm, const std::vector<float>& shard, const std::string& path,
                 cairn::deadline until) {
  if (comm.rank() != 0) {
    comm.send(0, std::as_bytes(std::span(shard)), until);
    static_cast<void>(comm.receive(0, until));
    return;
  }
  std::ofstream file(path, std::ios::binary);
  const auto write = [&](std::span<const std::byte> bytes) {
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  write(std::as_bytes(std::span(shard)));
  for (int rank = 1; rank < comm.size(); ++rank) write(comm.receive(rank, until));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
  for (int rank = 1; rank < comm.size(); ++rank) comm.send(rank, {}, until);
}

/// True if rank 0 waited for the others until its deadline.
bool tell_of_gathering(const settings& chosen) {
  std::printf("A save that gathers: each rank sends its shard to rank 0, which writes them.\n");
  bool waited = false;
  std::latch others_may_end(1);
  on_each_rank(chosen.ranks, [&](cairn::thread_communicator comm) {
    const auto shard = shard_of(comm.rank(), comm.size());
    const auto path = chosen.directory + "/gathered.bin";
    if (comm.rank() != 0) {
      gather_save(comm, shard, path, cairn::deadline::in(ample));
      others_may_end.wait();  // alive, but not in the save: in a step of its own
      return;
    }
    const opener at_end(others_may_end);
    auto begin = clock_type::now();
    gather_save(comm, shard, path, cairn::deadline::in(ample));
    std::printf("  all ranks come         saved in %.1f ms\n", milliseconds_since(begin));
    begin = clock_type::now();
    try {
      gather_save(comm, shard, path, cairn::deadline::in(chosen.patience()));
    } catch (const cairn::timeout_error& e) {
      waited = clock_type::now() - begin >= chosen.patience();
      std::printf(
          "  rank 0 comes alone     training stood still for %.1f s, until the deadline (MPI_Gather has "
          "none), "
          "and nothing is saved:\n                         %s\n",
          milliseconds_since(begin) / 1000, e.what());
    }
  });
  return waited;
}

// --- cairn's save
// --------------------------------------------------------------------------------------------

/// A communicator that counts what is sent: any type with these members is one.
class counting_communicator {
 public:
  using cairn_role = cairn::role::communicator;
  counting_communicator(cairn::thread_communicator comm, int& sent) : comm_(std::move(comm)), sent_(&sent) {}
  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] int size() const { return comm_.size(); }
  void send(int to, std::span<const std::byte> bytes, cairn::deadline until) {
    ++*sent_;
    comm_.send(to, bytes, until);
  }
  [[nodiscard]] std::vector<std::byte> receive(int from, cairn::deadline until) {
    return comm_.receive(from, until);
  }

 private:
  cairn::thread_communicator comm_;
  int* sent_;
};

/// Runs body(checkpointer, state, shard, sent) on each rank: a resumed checkpointer, and the count of all
/// messages.
template <class Body>
void with_cairn(const settings& chosen, std::chrono::nanoseconds patience, Body body) {
  on_each_rank(chosen.ranks, [&](cairn::thread_communicator comm) {
    const int rank = comm.rank();
    int sent = 0;
    auto shard = shard_of(rank, chosen.ranks);
    cairn::state_dict state;
    state.tensor("weights", shard, cairn::shard{{numbers}, {first_of(rank, chosen.ranks)}});
    cairn::checkpointer ckpt{cairn::file_store{chosen.directory + "/checkpoints"},
                             counting_communicator(std::move(comm), sent),
                             cairn::checkpointer_options{.patience = patience, .quiet = true}};
    const auto step = ckpt.resume(state).value_or(0);  // all ranks plan together
    body(ckpt, state, shard, step, sent);
  });
}

/// A save that rank 0 begins while no other rank is in one.
template <class Checkpointer>
cairn::save_handle save_alone(Checkpointer& ckpt, const cairn::state_dict& state, std::vector<float>& shard,
                              std::int64_t step, const int& sent) {
  const int before = sent;
  const auto begin = clock_type::now();
  auto handle = ckpt.save(state, step);
  const double returned = milliseconds_since(begin);
  const int messages = sent - before;
  for (int update = 0; update < 100; ++update) train(shard);
  std::printf("save() returned after %.1f ms and %d messages; 100 updates were trained since\n", returned,
              messages);
  if (messages != 0) throw std::runtime_error("a save with a cached plan has sent messages");
  return handle;
}

/// True if what rank 0 began alone is committed once the others have come.
bool tell_of_late_ranks(const settings& chosen) {
  bool as_said = false;
  std::latch others_may_come(1);
  with_cairn(chosen, ample, [&](auto& ckpt, auto& state, auto& shard, auto step, auto& sent) {
    ckpt.save(state, ++step).wait();
    if (ckpt.rank() != 0) {
      others_may_come.wait();
      ckpt.save(state, ++step).wait();
      return;
    }
    opener come(others_may_come);
    std::printf("  all ranks come         step %lld is committed\n  rank 0 comes first     ",
                static_cast<long long>(step));
    auto handle = save_alone(ckpt, state, shard, ++step, sent);
    const bool too_early = handle.committed();
    come.open();
    handle.wait();
    as_said = !too_early && handle.committed();
    std::printf("                         step %lld is committed once the others have come\n",
                static_cast<long long>(step));
  });
  return as_said;
}

/// True if what rank 0 began alone is given up at the deadline, and the error names the ranks that did not
/// come.
bool tell_of_missing_ranks(const settings& chosen) {
  bool as_said = false;
  std::latch others_may_end(1);
  with_cairn(chosen, chosen.patience(), [&](auto& ckpt, auto& state, auto& shard, auto step, auto& sent) {
    if (ckpt.rank() != 0) {
      others_may_end.wait();
      static_cast<void>(ckpt.list());  // a collective call: the ranks are still together
      return;
    }
    opener end(others_may_end);
    std::printf("  rank 0 comes alone     ");
    auto handle = save_alone(ckpt, state, shard, step + 1, sent);
    try {
      handle.wait();
    } catch (const cairn::peer_error& e) {
      as_said = e.id() == cairn::error_id::peer_lost && e.fields().rank == 1;
      std::printf(
          "                         at its deadline the save is given up, and names who is missing:\n");
      std::printf("                         %s\n", e.what());
    }
    end.open();
    const auto steps = ckpt.list();
    as_said = as_said && !steps.empty() && steps.back() == step;
    std::printf("                         step %lld can be loaded as before\n", static_cast<long long>(step));
  });
  return as_said;
}

}  // namespace

int main(int argc, char** argv) {
  settings chosen;
  CLI::App app{
      "Shows what becomes of a rank that comes to a save alone: with a save that gathers on rank 0, and with "
      "cairn's.",
      "gather_deadlock"};
  app.add_option("directory", chosen.directory, "where both saves write")->required();
  app.add_option("--ranks", chosen.ranks, "number of ranks (default 4)")->check(CLI::Range(2, 64));
  app.add_option("--deadline", chosen.seconds, "seconds until a wait is given up (default 2)")
      ->check(CLI::Range(0.1, 600.0));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    std::filesystem::create_directories(chosen.directory);
    const bool waited = tell_of_gathering(chosen);
    std::printf(
        "cairn's save: each rank writes its shard and a record; rank 0 publishes the manifest when all "
        "records "
        "are there.\n");
    const bool committed = tell_of_late_ranks(chosen);
    const bool named = tell_of_missing_ranks(chosen);
    if (!waited || !committed || !named) {
      std::printf("not as expected: %s\n", waited ? "cairn's save" : "the gather");
      return 1;
    }
    std::printf("as expected: the gather waited, cairn did not\n");
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "gather_deadlock: %s\n", e.what());
    return 1;
  }
}
