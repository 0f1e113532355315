// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// uses: cairn::mpi cairn::links
// test: --bytes 4MiB --tensors 20 --pairs 1 --saves 5 --reductions 5 --overlapped 2 --ranks 2 --reduce-ranks 2
// Ranks as processes of one host: a save of replicated and sharded state against one process that saves the
// same, a load of replicated state that shares its reads against one in which every rank reads for itself
// (over shared memory and over MPI), a reduction against MPI's, what many saves leave behind, and overlapped saves
// by worker processes against those by threads, with 1, 2 and 4 ranks: until durable, and the worst that blocked,
// with how often another thread was given the processor meanwhile, and what the machine adds to as much other work;
// and collective calls over sockets, with TLS and in the clear, against those over shared memory.
//   bench_ranks [--bytes 1GiB] [--ranks 4] [--pairs 7] [--only save|load|reduce|many|overlapped|sockets] [--overlapped 100]
//     [--directory DIR] [--json FILE]
#include <cairn/checkpointer.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/stage/no_staging.hpp>
#include <cairn/stage/shared_stager.hpp>
#include <cairn/stores/file_store.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <support/program.hpp>
#include <support/rank_group.hpp>
#include <thread>
#include <utility>
#include <vector>

#ifdef CAIRN_USES_LINKS
#include <cairn/comm/socket_communicator.hpp>
#endif
#ifdef CAIRN_USES_MPI
#include <mpi.h>
#include <cairn/comm/mpi_communicator.hpp>
#endif

namespace {

using cairn::deadline;
using cairn_bench::at_least;
using cairn_bench::at_most;
using cairn_bench::rank_group;
using cairn_bench::samples;
using bytes = std::vector<std::byte>;

struct options {
  std::uint64_t bytes = std::uint64_t{1} << 30;
  int tensors = 200;
  int ranks = 4;
  int pairs = 7;
  int reduce_ranks = 8;
  std::uint64_t reduce_bytes = 100 << 10;
  int reductions = 300;
  int saves = 1000;
  int overlapped = 100;
  std::string only;
  std::string directory = ".";
  std::string json;
};

deadline ample() {
  return deadline::in(std::chrono::minutes(10));
}
std::string fresh_job() {
  static int count = 0;
  return "bench-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

// --- A save

void add(cairn::state_dict& state, const std::string& prefix, const cairn_bench::bench_state& memory,
         int part, int parts) {
  constexpr auto columns = cairn_bench::bench_state::columns;
  for (std::size_t i = 0; i < memory.rows().size(); ++i) {
    const auto rows = memory.rows()[i];
    auto* data = reinterpret_cast<float*>(memory.place(i));
    const auto name = prefix + memory.name(i);
    if (parts == 0)
      state.tensor(name, data, {rows, columns});
    else
      state.tensor(name, data, cairn::shard{{rows * parts, columns}, {rows * part, 0}, {rows, columns}});
  }
}

/// Ranks over whatever carries messages.
class any_transport {
 public:
  using cairn_role = cairn::role::communicator;
  template <class C>
    requires(!std::same_as<C, any_transport>)
  explicit any_transport(C transport) : held_(std::make_unique<holder<C>>(std::move(transport))) {}

  [[nodiscard]] int rank() const { return held_->rank(); }
  [[nodiscard]] int size() const { return held_->size(); }
  void send(int to, std::span<const std::byte> message, deadline until) { held_->send(to, message, until); }
  [[nodiscard]] bytes receive(int from, deadline until) { return held_->receive(from, until); }

 private:
  struct held {
    virtual ~held() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    virtual void send(int to, std::span<const std::byte> message, deadline until) = 0;
    [[nodiscard]] virtual bytes receive(int from, deadline until) = 0;
  };
  template <class C>
  struct holder final : held {
    explicit holder(C from) : transport(std::move(from)) {}
    [[nodiscard]] int rank() const override { return transport.rank(); }
    [[nodiscard]] int size() const override { return transport.size(); }
    void send(int to, std::span<const std::byte> message, deadline until) override {
      transport.send(to, message, until);
    }
    [[nodiscard]] bytes receive(int from, deadline until) override { return transport.receive(from, until); }
    C transport;
  };
  std::unique_ptr<held> held_;
};

/// One composition for all: the compiler takes its time for each.
auto make_checkpointer(const std::string& directory, any_transport transport,
                       cairn::read_sharing sharing = cairn::read_sharing::on) {
  return cairn::checkpointer{cairn::file_store{directory}, cairn::no_staging{},
                             cairn::keep_last(2),          sharing,
                             std::move(transport),         cairn::checkpointer_options{.quiet = true}};
}
auto make_checkpointer(const std::string& directory, const std::string& job, int rank, int size) {
  return make_checkpointer(directory, any_transport(cairn::shared_memory_communicator{job, rank, size}));
}

/// Bytes of the data files below, by rank.
std::map<std::string, std::uint64_t> data_bytes(const std::string& directory) {
  std::map<std::string, std::uint64_t> sizes;
  for (const auto& each : std::filesystem::recursive_directory_iterator(directory)) {
    const auto name = each.path().filename().string();
    if (each.is_regular_file() && name.ends_with(".safetensors") && name.starts_with("rank-"))
      sizes[name.substr(0, name.find('.'))] += each.file_size();
  }
  return sizes;
}
void remove_steps(const std::string& directory) {
  for (const auto& each : std::filesystem::directory_iterator(directory))
    if (each.is_directory()) std::filesystem::remove_all(each.path());
}

void bench_save(const options& o, cairn_bench::report& report) {
  const cairn_bench::scratch place(o.directory);
  const auto many = place.path() + "/ranks";
  const auto one = place.path() + "/one";
  std::filesystem::create_directories(many);
  std::filesystem::create_directories(one);

  // The ranks see the parent's memory, each its part of it: the replicated state is there once.
  cairn_bench::bench_state replicated(o.bytes, o.tensors);
  cairn_bench::bench_state whole(o.bytes, o.tensors);
  replicated.fill(1);
  whole.fill(2);
  std::deque<cairn_bench::bench_state> shards;
  for (int rank = 0; rank < o.ranks; ++rank) {
    shards.emplace_back(o.bytes / static_cast<std::uint64_t>(o.ranks), o.tensors);
    shards.back().fill(static_cast<std::uint64_t>(rank) + 3);
  }
  std::uint64_t total = replicated.bytes();
  for (const auto& each : shards) total += each.bytes();

  const auto saver = [&](const std::string& directory, const std::string& job, int size) {
    return [&, directory, job, size](int rank) {
      auto state = std::make_shared<cairn::state_dict>();
      add(*state, "replicated.", replicated, 0, 0);
      add(*state, "sharded.", size == 1 ? whole : shards[static_cast<std::size_t>(rank)], rank, size);
      auto ckpt = std::make_shared<decltype(make_checkpointer(directory, job, rank, size))>(
          make_checkpointer(directory, job, rank, size));
      ckpt->resume(*state);
      return [state, ckpt](int turn, int, std::array<double, 8>&) { ckpt->save(*state, turn).wait(); };
    };
  };
  rank_group ranks(o.ranks, saver(many, fresh_job(), o.ranks));
  rank_group single(1, saver(one, fresh_job(), 1));
  const auto measured = [&](rank_group& group, const std::string& directory, std::uint64_t size) {
    remove_steps(many);
    remove_steps(one);
    ::sync();
    const auto seconds = group.turn();
    if (data_bytes(directory).empty()) throw std::runtime_error("nothing was saved");
    return static_cast<double>(size) / seconds;
  };
  const auto ours = [&] { return measured(ranks, many, total); };
  const auto twin = [&] { return measured(single, one, replicated.bytes() + whole.bytes()); };
  ours();  // plans
  const auto sizes = data_bytes(many);
  twin();
  const auto size = cairn_bench::size_text(o.bytes);
  const auto name = "save/" + std::to_string(o.ranks) + "_ranks/replicated=" + size + "/sharded=" + size;
  report.add(name + "/twin=1_process", cairn_bench::interleaved_pairs(ours, twin, o.pairs), "B/s",
             at_least(0.9));

  std::uint64_t written = 0;
  std::uint64_t least = ~std::uint64_t{0};
  std::uint64_t most = 0;
  for (const auto& [rank, n] : sizes) {
    written += n;
    least = std::min(least, n);
    most = std::max(most, n);
  }
  if (sizes.size() != static_cast<std::size_t>(o.ranks)) throw std::runtime_error("a rank wrote nothing");
  report.add_against(name + "/written", samples({static_cast<double>(written)}), "B",
                     static_cast<double>(total), at_most(1.01));
  const double allowed =
      std::max(0.05 * static_cast<double>(written) / o.ranks, static_cast<double>(cairn_bench::mebibyte));
  report.add_against(name + "/imbalance", samples({static_cast<double>(most - least)}), "B", allowed,
                     at_most(1));
}

#ifdef CAIRN_USES_MPI
/// Runs this program by mpirun, as so many ranks; visit(line) for what it prints.
template <class Visit>
void for_each_line_of_mpi(int ranks, const std::string& arguments, Visit&& visit) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto command = std::string("mpirun ") + (::geteuid() == 0 ? "--allow-run-as-root " : "") +
                       "--oversubscribe --bind-to none -n " + std::to_string(ranks) + " '" + self + "' " +
                       arguments;
  std::FILE* out = ::popen(command.c_str(), "r");
  if (out == nullptr) throw std::runtime_error("mpirun cannot be started");
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), out) != nullptr) visit(line.data());
  ::pclose(out);
}
#endif

// --- A load

/// What one rank of a load does, again and again: everything, by itself or sharing what it reads.
class loading_rank {
 public:
  /// `transport()`: one for each of the two ways.
  template <class Transport>
  loading_rank(const options& o, const std::string& directory, Transport&& transport)
      : expected_(o.bytes, o.tensors),
        memory_(o.bytes, o.tensors),
        alone_(make_checkpointer(directory, transport(), cairn::read_sharing::off)),
        shared_(make_checkpointer(directory, transport(), cairn::read_sharing::on)) {
    expected_.fill(1);
    add(state_, "replicated.", memory_, 0, 0);
  }
  /// Both ways, compared with what was saved; brings memory and plans into place.
  void check() {
    for (const bool shared : {false, true}) {
      memory_.clear();
      load(shared);
      for (std::size_t i = 0; i < memory_.rows().size(); ++i)
        if (std::memcmp(memory_.place(i), expected_.place(i), memory_.size(i)) != 0)
          throw std::runtime_error("a load brought other bytes than were saved");
    }
  }
  /// The bytes that this rank read.
  double load(bool shared) {
    return static_cast<double>((shared ? shared_ : alone_).load(state_, 1).bytes_read);
  }

 private:
  using checkpointer = decltype(make_checkpointer({}, std::declval<any_transport>()));
  cairn_bench::bench_state expected_;
  cairn_bench::bench_state memory_;
  checkpointer alone_;
  checkpointer shared_;
  cairn::state_dict state_;
};

/// Seconds of loads, and the bytes that all ranks read in the last one: alone and shared.
struct load_costs {
  std::vector<double> seconds[2];
  double bytes[2] = {0, 0};
};
/// `one(shared)`: a load from a cold cache by all ranks; adds to the costs.
template <class One>
void in_turns(int pairs, One&& one) {
  for (int i = 0; i < pairs; ++i)
    for (const bool shared : {i % 2 == 0, i % 2 != 0}) one(shared);
}
void tell(const options& o, const std::string& transport, const load_costs& costs,
          cairn_bench::report& report) {
  const cairn_bench::bench_state state(o.bytes, o.tensors);
  const auto name = "load_cold/replicated/" + std::to_string(o.ranks) + "_ranks/" + transport;
  const auto size = "/" + cairn_bench::size_text(o.bytes);
  report.add_against(name + "/alone/read" + size, samples({costs.bytes[0]}), "B",
                     static_cast<double>(state.bytes()));
  report.add_against(name + "/shared/read" + size, samples({costs.bytes[1]}), "B",
                     static_cast<double>(state.bytes()), at_most(1.01));
  report.add(name + "/shared_against_alone" + size,
             cairn_bench::make_pairs(costs.seconds[1], costs.seconds[0]), "s");
}
void make_all_cold(const cairn_bench::scratch& place) {
  for (const auto& path : place.files()) cairn_bench::make_cold(path);
}

#ifdef CAIRN_USES_MPI
/// A program of mpirun, which loads from `--load-from`: the seconds of each load on a line of rank 0.
int mpi_loader(const options& o, const std::string& directory) {
  int threads = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &threads);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  {
    loading_rank one(o, directory, [] { return any_transport(cairn::mpi_communicator(MPI_COMM_WORLD)); });
    one.check();
    in_turns(o.pairs, [&](bool shared) {
      MPI_Barrier(MPI_COMM_WORLD);
      if (rank == 0)
        for (const auto& file : std::filesystem::recursive_directory_iterator(directory))
          if (file.is_regular_file()) cairn_bench::make_cold(file.path());
      MPI_Barrier(MPI_COMM_WORLD);
      const double begin = MPI_Wtime();
      const double own = one.load(shared);
      MPI_Barrier(MPI_COMM_WORLD);
      const double seconds = MPI_Wtime() - begin;
      double all = 0;
      MPI_Reduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
      if (rank == 0) std::printf("load %d %.9f %.0f\n", shared ? 1 : 0, seconds, all);
    });
  }
  MPI_Finalize();
  return 0;
}
#endif

void bench_load(const options& o, cairn_bench::report& report) {
  const cairn_bench::scratch place(o.directory);
  {
    cairn_bench::bench_state saved(o.bytes, o.tensors);
    saved.fill(1);
    cairn::state_dict state;
    add(state, "replicated.", saved, 0, 0);
    rank_group one(1, [&, job = fresh_job()](int) {
      return [&, job](int, int, std::array<double, 8>&) {
        make_checkpointer(place.path(), job, 0, 1).save(state, 1).wait();
      };
    });
    one.turn();
  }
  {
    const std::string jobs[] = {fresh_job(), fresh_job()};
    rank_group ranks(o.ranks, [&](int rank) {
      auto one = std::make_shared<loading_rank>(o, place.path(), [&, next = 0]() mutable {
        return any_transport(cairn::shared_memory_communicator{jobs[next++], rank, o.ranks});
      });
      one->check();
      return [one](int, int shared, std::array<double, 8>& told) { told[0] = one->load(shared != 0); };
    });
    load_costs costs;
    in_turns(o.pairs, [&](bool shared) {
      make_all_cold(place);
      costs.seconds[shared].push_back(ranks.turn(shared ? 1 : 0));
      costs.bytes[shared] = 0;
      for (int rank = 0; rank < o.ranks; ++rank)
        costs.bytes[shared] += ranks.told(0, static_cast<std::size_t>(rank));
    });
    tell(o, "shared_memory", costs, report);
  }
#ifdef CAIRN_USES_MPI
  load_costs costs;
  for_each_line_of_mpi(o.ranks,
                       "--load-from '" + place.path() + "' --bytes " + std::to_string(o.bytes) +
                           " --tensors " + std::to_string(o.tensors) + " --pairs " + std::to_string(o.pairs),
                       [&](const char* line) {
                         int shared = 0;
                         double seconds = 0;
                         double read = 0;
                         if (std::sscanf(line, "load %d %lf %lf", &shared, &seconds, &read) != 3) return;
                         costs.seconds[shared & 1].push_back(seconds);
                         costs.bytes[shared & 1] = read;
                       });
  if (std::cmp_not_equal(costs.seconds[0].size(), o.pairs) ||
      std::cmp_not_equal(costs.seconds[1].size(), o.pairs))
    throw std::runtime_error("the loads over MPI failed");
  tell(o, "mpi", costs, report);
#endif
}

// --- A reduction

bytes add_floats(bytes left, const bytes& right) {
  auto* to = reinterpret_cast<float*>(left.data());
  const auto* from = reinterpret_cast<const float*>(right.data());
  for (std::size_t i = 0; i < std::min(left.size(), right.size()) / sizeof(float); ++i) to[i] += from[i];
  return left;
}

#ifdef CAIRN_USES_MPI
/// A program of mpirun: seconds of an all-reduce and of a reduce, on a line of rank 0.
int mpi_rank(const options& o) {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int count = static_cast<int>(o.reduce_bytes / sizeof(float));
  std::vector<float> in(static_cast<std::size_t>(count), 1.0F);
  std::vector<float> out(in.size());
  const auto measure = [&](auto call) {
    for (int i = 0; i < o.reductions / 10 + 1; ++i) call();
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < o.reductions; ++i) call();
    MPI_Barrier(MPI_COMM_WORLD);
    return (MPI_Wtime() - begin) / o.reductions;
  };
  const double all =
      measure([&] { MPI_Allreduce(in.data(), out.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
  const bool good = out[0] == static_cast<float>(size);
  const double one =
      measure([&] { MPI_Reduce(in.data(), out.data(), count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); });
  if (rank == 0 && good) std::printf("seconds %.9f %.9f\n", all, one);
  MPI_Finalize();
  return 0;
}

/// {all-reduce, reduce} of a fresh world of MPI.
std::pair<double, double> seconds_of_mpi(const options& o) {
  std::pair<double, double> seconds{0, 0};
  const auto arguments = "--mpi-rank --reduce-bytes " + std::to_string(o.reduce_bytes) + " --reductions " +
                         std::to_string(o.reductions);
  for_each_line_of_mpi(o.reduce_ranks, arguments, [&](const char* line) {
    static_cast<void>(std::sscanf(line, "seconds %lf %lf", &seconds.first, &seconds.second));
  });
  if (!(seconds.first > 0)) throw std::runtime_error("the reduction of MPI failed: mpirun " + arguments);
  return seconds;
}
#endif

void bench_reduce(const options& o, cairn_bench::report& report) {
  const auto size = static_cast<std::size_t>(o.reduce_bytes);
  const auto job = fresh_job();
  rank_group ranks(o.reduce_ranks, [&](int rank) {
    auto all =
        std::make_shared<cairn::collectives>(cairn::shared_memory_communicator{job, rank, o.reduce_ranks});
    return [&, all](int, int, std::array<double, 8>& told) {
      bytes in(size);
      for (std::size_t i = 0; i + sizeof(float) <= size; i += sizeof(float)) {
        const float x = 1;
        std::memcpy(in.data() + i, &x, sizeof x);
      }
      bytes out;
      const auto call = [&] { out = all->tree_reduce_broadcast(in, add_floats, ample()); };
      for (int i = 0; i < o.reductions / 10 + 1; ++i) call();
      all->barrier(ample());
      const auto begin = deadline::clock::now();
      for (int i = 0; i < o.reductions; ++i) call();
      all->barrier(ample());
      told[0] = cairn::seconds_since(begin) / o.reductions;
      float sum = 0;
      std::memcpy(&sum, out.data(), sizeof sum);
      if (sum != static_cast<float>(all->size())) throw std::runtime_error("the sum is wrong");
    };
  });
  const auto ours = [&] {
    ranks.turn();
    return ranks.told(0);
  };
  const auto name =
      "tree_reduce_broadcast/" + std::to_string(o.reduce_ranks) + "_ranks/" + std::to_string(size) + "B";
#ifdef CAIRN_USES_MPI
  std::vector<double> mine;
  std::vector<double> all;
  std::vector<double> one;
  for (int i = 0; i < o.pairs; ++i) {
    if (i % 2 == 0) mine.push_back(ours());
    const auto theirs = seconds_of_mpi(o);
    all.push_back(theirs.first);
    one.push_back(theirs.second);
    if (i % 2 != 0) mine.push_back(ours());
  }
  report.add(name + "/twin=MPI_Allreduce", cairn_bench::make_pairs(mine, all), "s", at_most(3));
  report.add(name + "/twin=MPI_Reduce", cairn_bench::make_pairs(mine, one), "s", at_most(3));
#else
  report.add(name, cairn_bench::measure(o.pairs, ours), "s");
#endif
}

#ifdef CAIRN_USES_LINKS
// --- Collective calls over sockets and over shared memory

/// Each turn of a kind: 0, a barrier; 1, a reduction of reduce_bytes; 2, a broadcast of 8 MiB. Tells the seconds of one call.
auto collective_caller(const options& o, const std::shared_ptr<cairn::collectives>& all) {
  return [&o, all](int, int kind, std::array<double, 8>& told) {
    const bytes in(kind == 1   ? static_cast<std::size_t>(o.reduce_bytes)
                   : kind == 2 ? std::size_t{8} << 20
                               : 0);
    const auto call = [&] {
      if (kind == 0)
        all->barrier(ample());
      else if (kind == 1)
        static_cast<void>(all->tree_reduce_broadcast(in, add_floats, ample()));
      else
        static_cast<void>(all->broadcast(0, in, ample()));
    };
    const int calls = kind == 2 ? o.reductions / 10 + 1 : o.reductions;
    for (int i = 0; i < calls / 10 + 1; ++i) call();
    all->barrier(ample());
    const auto begin = deadline::clock::now();
    for (int i = 0; i < calls; ++i) call();
    all->barrier(ample());
    told[0] = cairn::seconds_since(begin) / calls;
  };
}

void bench_sockets(const options& o, cairn_bench::report& report) {
  const cairn_bench::scratch place(o.directory);
  const auto job = fresh_job();
  rank_group shared(o.ranks, [&](int rank) {
    return collective_caller(
        o, std::make_shared<cairn::collectives>(cairn::shared_memory_communicator{job, rank, o.ranks}));
  });
  const auto over_sockets = [&](const char* name, cairn::socket_protection protection) {
    return [&, path = place.path() + "/" + name, protection](int rank) {
      cairn::socket_communicator made{cairn::socket_job::in_file(path, rank, o.ranks),
                                      {.protection = protection}};
      return collective_caller(o, std::make_shared<cairn::collectives>(std::move(made)));
    };
  };
  rank_group tls(o.ranks, over_sockets("tls", cairn::socket_protection::encrypted));
  rank_group plain(o.ranks, over_sockets("plain", cairn::socket_protection::plaintext));
  const char* const kinds[] = {"barrier", "tree_reduce_broadcast", "broadcast_8MiB"};
  for (int kind = 0; kind < 3; ++kind) {
    const auto seconds_of = [&](rank_group& group) {
      return [&group, kind] {
        group.turn(kind);
        return group.told(0);
      };
    };
    const auto name = std::string(kinds[kind]) + "/" + std::to_string(o.ranks) + "_ranks/sockets=";
    const auto twin = "/twin=shared_memory";
    report.add(name + "tls" + twin,
               cairn_bench::interleaved_pairs(seconds_of(tls), seconds_of(shared), o.pairs), "s");
    report.add(name + "plaintext" + twin,
               cairn_bench::interleaved_pairs(seconds_of(plain), seconds_of(shared), o.pairs), "s");
  }
}
#endif

// --- Overlapped saves by a thread of each rank, and by a worker process of each

template <class... Policies>
auto overlapped_checkpointer(const std::string& directory, any_transport transport, Policies... policies) {
  return cairn::checkpointer{cairn::file_store{directory}, cairn::overlapped{},
                             cairn::keep_last(1),          std::move(policies)...,
                             std::move(transport),         cairn::checkpointer_options{.quiet = true}};
}

/// How often another thread was given the processor of the calling one so far, which could have gone on.
long preempted() {
  rusage use{};
  ::getrusage(RUSAGE_THREAD, &use);
  return use.ru_nivcsw;
}

/// What the machine adds to 50 us of work that reads 16 places of memory that nobody has touched for a while, as a
/// save() does: seconds.
double machine_adds(const cairn_bench::bench_state& memory) {
  constexpr double work = 50e-6;
  constexpr std::size_t places = 16;
  const auto begin = deadline::clock::now();
  unsigned sum = 0;
  for (std::size_t i = 0; i < places; ++i)
    sum += std::to_integer<unsigned>(*(memory.place(0) + memory.bytes() / places * i));
  cairn_bench::keep(sum);
  while (cairn::seconds_since(begin) < work) {
  }
  return cairn::seconds_since(begin) - work;
}

/// Each rank has its part of o.bytes. A turn is one save: told are the seconds that training was blocked, and those
/// until it was committed. Training between save() and before_update() is a pause: ranks here are more than cores.
void bench_overlapped(const options& o, int size, cairn_bench::report& report) {
  const cairn_bench::scratch place(o.directory);
  std::deque<cairn_bench::bench_state> shards;
  for (int rank = 0; rank < size; ++rank) {
    shards.emplace_back(o.bytes / static_cast<std::uint64_t>(size), o.tensors);
    shards.back().fill(static_cast<std::uint64_t>(rank) + 1);
  }
  const auto group = [&](const std::string& name, auto... policies) {
    std::filesystem::create_directories(place.path() + "/" + name);
    return rank_group(size, [&, job = fresh_job(), name](int rank) {
      auto state = std::make_shared<cairn::state_dict>();
      add(*state, "sharded.", shards[static_cast<std::size_t>(rank)], rank, size);
      auto made = overlapped_checkpointer(place.path() + "/" + name,
                                          any_transport(cairn::shared_memory_communicator{job, rank, size}),
                                          decltype(policies)()...);
      auto ckpt = std::make_shared<decltype(made)>(std::move(made));
      ckpt->resume(*state);
      return [state, ckpt, &memory = shards[static_cast<std::size_t>(rank)], pass = 0.5](
                 int turn, int, std::array<double, 8>& told) mutable {
        cairn::save_handle handle;
        const auto before_save = preempted();
        told[0] = cairn_bench::seconds_of([&] { handle = ckpt->save(*state, turn); });
        told[2] = static_cast<double>(preempted() - before_save);
        std::this_thread::sleep_for(std::chrono::duration<double>(pass));
        const auto before_update = preempted();
        told[0] += cairn_bench::seconds_of([&] { ckpt->before_update(); });
        told[2] += static_cast<double>(preempted() - before_update);
        handle.wait();
        const auto r = handle.report();
        told[1] = r.committed_seconds;
        told[3] = r.before_update_seconds;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        told[4] = machine_adds(memory);
        pass = 2 * r.copying.seconds + 0.05;
      };
    });
  };
  auto threads = group("thread");
  auto processes = group("process", cairn::shared_stager{}, cairn::process_executor{});
  std::vector<double> blocked[2];
  std::vector<double> undisturbed[2];  // of each rank's save in which the scheduler took no processor from it
  std::vector<double> preemptions[2];  // of the rank that was blocked longest
  std::vector<double> waits[2];        // of that rank, for the rest of the copy
  std::vector<double> durable[2];
  std::vector<double> machine[2];
  for (int turn = -2; turn < o.overlapped; ++turn)
    for (int k = 0; k < 2; ++k) {
      const auto which = static_cast<std::size_t>((turn + 2 + k) % 2);
      auto& ranks = which == 0 ? threads : processes;
      ranks.turn();
      if (turn < 0) continue;  // plans, buffers and workers are there then
      std::size_t longest = 0;
      double last = 0;
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank) {
        if (ranks.told(0, rank) > ranks.told(0, longest)) longest = rank;
        machine[which].push_back(ranks.told(4, rank));
        if (!(ranks.told(2, rank) > 0)) undisturbed[which].push_back(ranks.told(0, rank));
        last = std::max(last, ranks.told(1, rank));
      }
      blocked[which].push_back(ranks.told(0, longest));
      preemptions[which].push_back(ranks.told(2, longest));
      waits[which].push_back(ranks.told(3, longest));
      durable[which].push_back(last);
    }
  const auto name = "overlapped/" + std::to_string(size) + "_ranks/" + cairn_bench::size_text(o.bytes);
  report.add(name + "/process/durable/of-thread", cairn_bench::make_pairs(durable[1], durable[0]), "s",
             at_most(1.1));
  for (std::size_t which = 0; which < 2; ++which) {
    const auto by = name + (which == 0 ? "/thread" : "/process");
    const auto all = samples(blocked[which]);
    report.add_against(by + "/blocked", all, "s", 1e-4, at_most(1));
    const auto worst =
        std::max_element(blocked[which].begin(), blocked[which].end()) - blocked[which].begin();
    const auto of = by + "/blocked/worst-of-" + std::to_string(o.overlapped);
    report.add_against(of, samples({all.sorted.back()}), "s", 1e-4, at_most(1));
    // What is the machine's and what is cairn's: a rank that another thread pushes aside waits for that one.
    report.add(of + "/preemptions", preemptions[which][static_cast<std::size_t>(worst)], "");
    report.add(of + "/machine-adds-to-50us", samples(machine[which]).sorted.back(), "s");
    report.add(of + "/waited-for-the-copy", waits[which][static_cast<std::size_t>(worst)], "s");
    if (!undisturbed[which].empty())
      report.add_against(of + "/not-preempted", samples({samples(undisturbed[which]).sorted.back()}), "s",
                         1e-4, at_most(1));
    report.add(by + "/blocked/preempted-saves",
               static_cast<double>(o.overlapped) * size - static_cast<double>(undisturbed[which].size()), "");
  }
}

// --- Many saves

std::size_t entries(const char* path) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(path)) ++count;
  return count;
}
double pss_bytes() {
  std::ifstream table("/proc/self/smaps_rollup");
  for (std::string line; std::getline(table, line);)
    if (line.starts_with("Pss:")) return std::stod(line.substr(4)) * 1024;
  return 0;
}

void bench_many(const options& o, cairn_bench::report& report) {
  const cairn_bench::scratch place(o.directory);
  const auto job = fresh_job();
  rank_group ranks(2, [&](int rank) {
    return [&, rank](int, int, std::array<double, 8>& told) {
      // Memory of others in /dev/shm is counted too: measure on a quiet host.
      std::vector<float> weights(4096);
      cairn::state_dict state;
      state.tensor("weights", weights, {4096});
      auto ckpt = make_checkpointer(place.path(), job, rank, 2);
      auto saves = [&, next = 0](int count) mutable {
        for (int i = 0; i < count; ++i) {
          weights[0] = static_cast<float>(next);
          ckpt.save(state, ++next).wait();
        }
      };
      saves(20);
      const std::array<double, 4> before{pss_bytes(), static_cast<double>(entries("/proc/self/fd")),
                                         static_cast<double>(entries("/proc/self/task")),
                                         static_cast<double>(entries("/dev/shm"))};
      const auto begin = deadline::clock::now();
      saves(o.saves);
      told[0] = cairn::seconds_since(begin) / o.saves;
      const std::array<double, 4> after{pss_bytes(), static_cast<double>(entries("/proc/self/fd")),
                                        static_cast<double>(entries("/proc/self/task")),
                                        static_cast<double>(entries("/dev/shm"))};
      for (std::size_t i = 0; i < after.size(); ++i) told[i + 1] = after[i] - before[i];
      told[5] = before[0];
    };
  });
  ranks.turn();
  const auto name = "many_saves/2_ranks/" + std::to_string(o.saves);
  report.add(name + "/seconds_each", ranks.told(0), "s");
  report.add(name + "/pss", ranks.told(5), "B");
  report.add(name + "/more_pss", ranks.told(1), "B");
  report.add(name + "/more_descriptors", ranks.told(2), "");
  report.add(name + "/more_threads", ranks.told(3), "");
  report.add(name + "/more_in_dev_shm", ranks.told(4), "");
}

}  // namespace

int main(int argc, char** argv) {
  cairn::worker_main(argc, argv);
  options o;
  bool mpi = false;
  std::string load_from;
  CLI::App app{"Measures ranks that are processes of one host", "bench_ranks"};
  app.option_defaults()->always_capture_default();
  app.add_option("--bytes", o.bytes, "Size of the replicated and of the sharded state, such as 256MiB")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--tensors", o.tensors, "Number of tensors in each")->check(CLI::Range(1, 1000000));
  app.add_option("--ranks", o.ranks, "Processes that save, or load")->check(CLI::Range(1, 64));
  app.add_option("--pairs", o.pairs, "Turns of ours and the twin")->check(CLI::Range(1, 1000));
  app.add_option("--reduce-ranks", o.reduce_ranks, "Processes that reduce")->check(CLI::Range(1, 64));
  app.add_option("--reduce-bytes", o.reduce_bytes, "Bytes that they reduce")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--reductions", o.reductions, "Reductions in each turn")->check(CLI::Range(1, 1000000));
  app.add_option("--saves", o.saves, "Saves, for what they leave behind")->check(CLI::Range(1, 1000000));
  app.add_option("--overlapped", o.overlapped, "Overlapped saves of each way")->check(CLI::Range(1, 100000));
  app.add_option("--only", o.only, "One part alone")
      ->check(CLI::IsMember({"save", "load", "reduce", "many", "overlapped", "sockets"}));
  app.add_option("--directory", o.directory,
                 "Where checkpoints are written, in a fresh directory that is removed at the end; on a disk")
      ->check(CLI::ExistingDirectory);
  app.add_option("--json", o.json,
                 "File for the figures: an array of {name, value, unit, against, ratio, ...}");
  app.add_flag("--mpi-rank", mpi, "What mpirun starts")->group("");
  app.add_option("--load-from", load_from, "What mpirun starts")->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
#ifdef CAIRN_USES_MPI
    if (mpi) return mpi_rank(o);
    if (!load_from.empty()) return mpi_loader(o, load_from);
#endif
    cairn_bench::report report("ranks");
    if (o.only.empty() || o.only == "reduce") bench_reduce(o, report);
#ifdef CAIRN_USES_LINKS
    if (o.only.empty() || o.only == "sockets") bench_sockets(o, report);
#endif
    if (o.only.empty() || o.only == "many") bench_many(o, report);
    if (o.only.empty() || o.only == "save") bench_save(o, report);
    if (o.only.empty() || o.only == "load") bench_load(o, report);
    if (o.only.empty() || o.only == "overlapped")
      for (const int ranks : {1, 2, 4}) bench_overlapped(o, ranks, report);
    report.write(o.json);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_ranks: %s\n", e.what());
    return 1;
  }
}
