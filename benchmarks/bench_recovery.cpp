// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess cairn::links
// uses: cairn::parity
// test: --bytes 4MiB --image-bytes 1MiB --chain-bytes 1MiB --pairs 1 --kills 1
// How fast a job is there again.
//   local: resume() of what a tier of this host holds, against a parallel copy of the same bytes, with and without digests.
//   partner, parity: a host is lost with its tier; its image is made again from what the others keep, against the same
//     bytes over the same communicator alone, and ISA-L alone. Ranks are processes, hosts are directories, the network is
//     the loopback.
//   chain: 8 processes as 4 hosts that save every step; one rank is killed, or a host with its tier. The others go on in
//     their processes, with new checkpointers; those that were killed are started again. From the kill until all ranks hold
//     the next step, part by part:
//       detect      until the last rank that is left knows
//       end         until the last of them has given its checkpointer up
//       start       until all ranks have met, with new checkpointers
//       agree       resume() until the state is read: what there is, which step, what is lost is made again
//       read        the state
//       first step  until that step is held
//   goodput: only with --goodput MINUTES. The same job, with steps of --step-seconds, in which a device would compute; every 30 s
//     a rank is killed, or a host with its tier. How many steps all ranks hold at the end, against as many as they make in that
//     time when nobody disturbs them. A step is lost that all ranks held, and that is computed again.
#include <cairn/cairn.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/comm/socket_communicator.hpp>
#include <cairn/links/tls_link.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/tiers/local_tier.hpp>
#if CAIRN_USES_PARITY + 0
#include <isa-l.h>
#include <cairn/redundancy/parity.hpp>
#endif

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <support/own_process.hpp>
#include <support/program.hpp>
#include <support/rank_group.hpp>
#include <support/twins.hpp>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn;
using cairn_bench::mebibyte;
namespace fs = std::filesystem;

struct recovery_options {
  std::uint64_t bytes = std::uint64_t{512} << 20;
  std::uint64_t image_bytes = std::uint64_t{128} << 20;
  std::uint64_t chain_bytes = std::uint64_t{16} << 20;
  int pairs = 7;
  int kills = 3;
  double goodput_minutes = 0;
  double step_seconds = 0.5;
  std::uint64_t seed = 1;
  std::string only;
  std::string memory = "/dev/shm";
  std::string json;
};

/// A fresh directory of a tmpfs, which is removed with all that is in it by the process that made it.
class memory_directory {
 public:
  explicit memory_directory(const std::string& parent)
      : path_(parent + "/cairn-bench-XXXXXX"), owner_(::getpid()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no directory can be made in " + parent);
  }
  memory_directory(const memory_directory&) = delete;
  memory_directory& operator=(const memory_directory&) = delete;
  ~memory_directory() {
    std::error_code ignored;
    if (::getpid() == owner_) fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string host(int number) const { return path_ + "/host-" + std::to_string(number); }
  [[nodiscard]] std::string store() const { return path_ + "/store"; }
  [[nodiscard]] std::string meeting(const std::string& name) const { return path_ + "/meet/" + name; }

 private:
  std::string path_;
  ::pid_t owner_;
};

deadline ample() {
  return deadline::in(std::chrono::minutes(10));
}
checkpointer_options quiet() {
  return {.peer_timeout = std::chrono::minutes(2), .max_restarts = 0, .quiet = true};
}

/// What a load took, without finding what to load.
class told_load {
 public:
  using cairn_role = role::observer;
  explicit told_load(double& seconds) : seconds_(&seconds) {}
  void observe(const observation& what) noexcept {
    if (what.kind == observation::event::loaded) *seconds_ = what.load->seconds;
  }

 private:
  double* seconds_;
};

socket_communicator meet(const memory_directory& place, const std::string& name, int rank, int ranks,
                         socket_protection protect) {
  return socket_communicator(socket_job::in_file(place.meeting(name), rank, ranks),
                             {.protection = protect, .address = "127.0.0.1"});
}

/// A rank of a job on several hosts, of which each has a directory. One composition for all: the compiler takes its time for
/// each.
template <class Redundancy>
auto make_rank(const memory_directory& place, int host, socket_communicator ranks, int keep,
               std::uint64_t persist_every, Redundancy by, double& read) {
  by.every = 1;
  by.failure_group = place.host(host);
  return checkpointer{file_store{place.store()},
                      local_tier{place.host(host), {.keep = keep, .copy = {.threads = 1}}},
                      persist{.every = persist_every},
                      keep_last(1),
                      std::move(by),
                      tls_links{{.address = "127.0.0.1"}},
                      std::move(ranks),
                      told_load(read),
                      overlapped{},
                      quiet()};
}

/// One tensor of a rank's own, in memory that is there.
class rank_state {
 public:
  rank_state(std::uint64_t bytes, int rank, int ranks) : memory_(bytes) {
    memory_.fill(static_cast<std::uint64_t>(rank) + 1);
    const auto elements = static_cast<std::int64_t>(bytes / sizeof(float));
    // In pieces, as layers are.
    constexpr std::int64_t pieces = 16;
    for (std::int64_t i = 0; i < pieces; ++i) {
      const auto begin = elements * i / pieces, count = elements * (i + 1) / pieces - begin;
      state_.tensor("layer." + std::to_string(i), reinterpret_cast<float*>(memory_.data()) + begin,
                    shard{{count * ranks}, {count * rank}, {count}});
    }
  }
  [[nodiscard]] const state_dict& state() const noexcept { return state_; }
  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return memory_.size(); }
  void clear() { std::memset(memory_.data(), 0, memory_.size()); }
  void train(std::uint64_t step) {
    for (std::uint64_t i = 0; i < memory_.size(); i += 4096) memory_.data()[i] = static_cast<std::byte>(step);
  }

 private:
  cairn_bench::warm_memory memory_;
  state_dict state_;
};

/// A file of a tier, as memory.
class mapped_file {
 public:
  explicit mapped_file(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat s {};
    if (file < 0 || ::fstat(file, &s) != 0) throw std::runtime_error("cannot open " + path);
    bytes_ = static_cast<std::size_t>(s.st_size);
    memory_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    ::close(file);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;
  ~mapped_file() { ::munmap(memory_, bytes_); }
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(memory_), bytes_};
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};
/// The largest file of a directory whose name begins so.
std::string file_in(const std::string& directory, const std::string& begin) {
  std::string found;
  std::uintmax_t most = 0;
  for (const auto& e : fs::directory_iterator(directory))
    if (e.path().filename().string().starts_with(begin) && e.file_size() > most)
      most = e.file_size(), found = e.path().string();
  if (found.empty()) throw std::runtime_error("nothing begins with " + begin + " in " + directory);
  return found;
}

void need(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

// --- What this host's tier holds

void measure_local(cairn_bench::report& out, const recovery_options& o) {
  const auto numbers = cairn_bench::in_own_process([&] {
    const memory_directory place(o.memory);
    rank_state mine(o.bytes, 0, 1);
    double read = 0;
    const auto make = [&] {
      return checkpointer{file_store{place.store()}, local_tier{place.path() + "/tier", {.keep = 1}},
                          persist{.every = UINT64_MAX}, told_load(read), quiet()};
    };
    {
      auto ckpt = make();
      ckpt.save(mine.state(), 1).wait_held();
    }
    std::vector<std::byte> saved(mine.data(), mine.data() + mine.bytes());
    // A killed job leaves the image that was filled; the others are not touched.
    std::optional<mapped_file> image;
    for (const auto& e : fs::directory_iterator(place.path() + "/tier"))
      if (e.path().filename().string().starts_with("held."))
        image.emplace(place.path() + "/tier/slot-00000." + e.path().extension().string().substr(1));
    need(image && image->bytes().size() >= mine.bytes(), "the image is not there");
    const auto source = image->bytes().first(static_cast<std::size_t>(mine.bytes()));
    const auto threads = static_cast<int>(detail::load_threads());
    const std::span<const std::byte> pieces[] = {source};
    std::vector<std::uint64_t> digests;
    std::vector<double> results, reads;
    const auto resume = [&] {
      auto ckpt = make();
      const auto seconds =
          cairn_bench::seconds_of([&] { need(ckpt.resume(mine.state()) == 1, "no step 1"); });
      reads.push_back(read);
      return seconds;
    };
    mine.clear();
    static_cast<void>(resume());
    need(std::memcmp(mine.data(), saved.data(), saved.size()) == 0, "other bytes were loaded");
    reads.clear();
    const auto timed = cairn_bench::interleaved(
        o.pairs, resume, [&] { cairn_bench::copy_pieces(pieces, mine.data(), threads, nullptr); },
        [&] { cairn_bench::copy_pieces(pieces, mine.data(), threads, &digests); });
    for (const auto& each : timed) results.insert(results.end(), each.begin(), each.end());
    results.insert(results.end(), reads.begin(), reads.end());
    return results;
  });
  const auto series = [&](std::size_t which) {
    const auto count = static_cast<std::size_t>(o.pairs);
    return cairn_bench::rates(o.bytes, {numbers.begin() + static_cast<std::ptrdiff_t>(which * count),
                                        numbers.begin() + static_cast<std::ptrdiff_t>((which + 1) * count)});
  };
  const auto name = "local/" + cairn_bench::size_text(o.bytes);
  out.add(name + "/resume() vs copy", cairn_bench::make_pairs(series(0), series(1)), "B/s",
          cairn_bench::at_least(0.8));
  out.add(name + "/the read alone vs copy", cairn_bench::make_pairs(series(3), series(1)), "B/s");
  out.add(name + "/resume() vs copy with digests", cairn_bench::make_pairs(series(0), series(2)), "B/s");
  out.add(name + "/copy with digests vs copy", cairn_bench::make_pairs(series(2), series(1)), "B/s");
}

// --- What others keep for a host that was lost

/// A rank of a job whose hosts have one rank each. Rank 0's host is lost in each turn.
template <class Redundancy>
class lost_host {
 public:
  enum kind { save, rebuild, link, computed };
  lost_host(const memory_directory& place, const recovery_options& o, Redundancy by,
            socket_protection protect, int rank, int ranks)
      : place_(place),
        by_(std::move(by)),
        protect_(protect),
        rank_(rank),
        ranks_(ranks),
        mine_(o.image_bytes, rank, ranks),
        twin_(meet(place_, "twin", rank_, ranks_, protect_)) {}

  void turn(int number, int what, std::array<double, 8>& told) {
    switch (what) {
      case save: {
        auto ckpt = make("save");
        const auto saved = ckpt.save(mine_.state(), 1);
        saved.wait();
        need(saved.wait_redundant(std::chrono::minutes(5)), "there are no pieces");
        static_cast<void>(ckpt.any_rank(false));
        break;
      }
      case rebuild: {
        if (rank_ == 0) fs::remove_all(place_.host(0));
        auto ckpt = make("turn-" + std::to_string(number));
        mine_.train(7);  // what it would do without the load
        together();
        const auto begin = steady_now();
        need(ckpt.resume(mine_.state()) == 1, "no step 1");
        const auto seconds = static_cast<double>(steady_now() - begin) * 1e-9;
        told[0] = seconds;
        told[1] = seconds - read_;
        break;
      }
      case link: {
        // Who keeps the image, or each that gives a part of it, sends as many bytes as it would.
        if (rank_ != 0 && source_ == nullptr)
          source_ = std::make_unique<mapped_file>(file_in(place_.host(rank_), "slot-"));
        together();
        const auto begin = steady_now();
        const auto bytes = mine_.bytes();
        for (std::uint64_t at = 0; at < bytes; at += message)
          for (int from = 1; from <= senders(); ++from) {
            const auto part = std::min<std::uint64_t>(message, bytes - at);
            if (rank_ == from)
              twin_.communicator().send(
                  0, source_->bytes().subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(part)),
                  ample());
            else if (rank_ == 0)
              need(twin_.communicator().receive(from, ample()).size() == part, "a message is short");
          }
        told[0] = static_cast<double>(steady_now() - begin) * 1e-9;
        break;
      }
      default:
#if CAIRN_USES_PARITY + 0
        if (rank_ == 0) {
          if (sums_ == nullptr) sums_ = std::make_unique<cairn_bench::warm_memory>(mine_.bytes() * 4);
          const auto begin = steady_now();
          constexpr std::uint64_t unit = 32768;
          for (std::uint64_t at = 0; at + unit <= mine_.bytes(); at += unit) {
            void* parts[4];
            for (std::uint64_t i = 0; i < 4; ++i) parts[i] = sums_->data() + i * mine_.bytes() + at;
            need(::xor_gen(4, unit, parts) == 0, "xor_gen refuses");
          }
          told[0] = static_cast<double>(steady_now() - begin) * 1e-9;
        }
#endif
        break;
    }
    together();
  }

 private:
  static constexpr std::uint64_t message = std::uint64_t{8} << 20;
  [[nodiscard]] int senders() const { return ranks_ == 2 ? 1 : ranks_ - 1; }
  void together() { twin_.barrier(ample()); }
  [[nodiscard]] auto make(const std::string& meeting) {
    return make_rank(place_, rank_, meet(place_, meeting, rank_, ranks_, protect_), 1, UINT64_MAX, by_,
                     read_);
  }

  const memory_directory& place_;
  Redundancy by_;
  socket_protection protect_;
  int rank_;
  int ranks_;
  double read_ = 0;
  rank_state mine_;
  collectives twin_;
  std::unique_ptr<mapped_file> source_;
  std::unique_ptr<cairn_bench::warm_memory> sums_;
};

template <class Redundancy>
void measure_lost(cairn_bench::report& out, const recovery_options& o, const std::string& name, Redundancy by,
                  int ranks, socket_protection protect, double wanted) {
  using rank_of = lost_host<Redundancy>;
  const memory_directory place(o.memory);
  fs::create_directory(place.path() + "/meet");
  fs::permissions(place.path() + "/meet", fs::perms::owner_all);
  cairn_bench::rank_group group(ranks, [&](int rank) {
    auto own = std::make_shared<rank_of>(place, o, by, protect, rank, ranks);
    return [own](int turn, int kind, std::array<double, 8>& told) { own->turn(turn, kind, told); };
  });
  group.turn(rank_of::save);
  group.turn(rank_of::rebuild);
  group.turn(rank_of::link);
  const bool computes = ranks > 2;
  std::array<std::vector<double>, 3> seconds;
  const auto rebuild = [&] {
    group.turn(rank_of::rebuild);
    seconds[0].push_back(group.told(0)), seconds[1].push_back(group.told(1));
  };
  const auto twin = [&] {
    group.turn(rank_of::link);
    const auto link = group.told(0);
    if (computes) group.turn(rank_of::computed);
    seconds[2].push_back(computes ? std::max(link, group.told(0)) : link);
  };
  for (int i = 0; i < o.pairs; ++i) {
    if (i % 2 == 0) rebuild();
    twin();
    if (i % 2 != 0) rebuild();
  }
  const auto rates = [&](std::size_t i) { return cairn_bench::rates(o.image_bytes, seconds[i]); };
  const auto row = name + "/" + cairn_bench::size_text(o.image_bytes) +
                   (protect == socket_protection::encrypted ? "/encrypted" : "/plaintext");
  const std::string against = computes ? " vs the slower of link and ISA-L" : " vs link";
  out.add(row + "/image rebuilt" + against, cairn_bench::make_pairs(rates(1), rates(2)), "B/s",
          cairn_bench::at_least(wanted));
  out.add(row + "/resume()" + against, cairn_bench::make_pairs(rates(0), rates(2)), "B/s");
}

// --- The chain

constexpr int chain_ranks = 8;
constexpr int chain_hosts = 4;

/// What the processes of the chain tell; times are of steady_now().
struct chain_words {
  struct of_rank {
    std::atomic<std::int64_t> held{-1};       ///< the newest step that this rank holds
    std::atomic<std::int64_t> resumed{-1};    ///< the step with which it went on
    std::atomic<std::int64_t> detected{0};    ///< when it knew that a rank is gone
    std::atomic<std::int64_t> ended{0};       ///< when it had given its checkpointer up
    std::atomic<std::int64_t> built{0};       ///< when it had its checkpointer
    std::atomic<std::int64_t> loaded{0};      ///< when resume() returned
    std::atomic<std::int64_t> first_held{0};  ///< when it held its first step
    std::atomic<double> read{0};              ///< seconds of resume() in which the state was read
  };
  std::array<of_rank, chain_ranks> ranks;
  std::atomic<int> life{0};  ///< how often the ranks have been asked to meet
};

class chain {
 public:
  explicit chain(const recovery_options& o) : o_(o), place_(o.memory) {
    void* memory =
        ::mmap(nullptr, sizeof(chain_words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    words_ = new (memory) chain_words;
    fs::create_directory(place_.path() + "/meet");
    fs::permissions(place_.path() + "/meet", fs::perms::owner_all);
  }
  chain(const chain&) = delete;
  chain& operator=(const chain&) = delete;
  ~chain() { end_all(); }

  void measure(cairn_bench::report& out) {
    start();
    for (const bool whole_host : {false, true}) {
      fault_times times;
      for (int i = 0; i < o_.kills; ++i) {
        await_step(least(&chain_words::of_rank::resumed) + 6);
        times.add(disturb(2 * ((i + 1) % chain_hosts) + 1, whole_host));
      }
      times.tell(out, "chain/" + job_text(), whole_host);
    }
    end_all();
  }

  /// `minutes` with a fault every 30 s, after a thirtieth of that without.
  void measure_goodput(cairn_bench::report& out) {
    step_seconds_ = o_.step_seconds;
    std::mt19937_64 random(o_.seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
    start();
    await_step(4);
    const auto pass = [&](std::int64_t until) {
      while (steady_now() < until) {
        need(nobody_ended(), "a rank ended");
        ::usleep(2000);
      }
    };
    constexpr double second = 1e9;
    const auto length = static_cast<std::int64_t>(o_.goodput_minutes * 60 * second);
    /// From the moment at which all hold a step to that at which they hold another: steps a second.
    const auto at_a_step = [&] {
      const auto step = least(&chain_words::of_rank::held);
      await_step(step + 1);
      return std::pair(step + 1, steady_now());
    };
    const auto [first, since] = at_a_step();
    pass(since + std::max(length / 30, std::int64_t{10'000'000'000}));
    const auto [last, until] = at_a_step();
    const auto undisturbed =
        static_cast<double>(last - first) / (static_cast<double>(until - since) / second);

    std::array<fault_times, 2> times;
    constexpr std::int64_t between = 30'000'000'000;
    for (std::int64_t at = until + between / 2; at < until + length; at += between) {
      pass(at + below(1000) * std::int64_t{1'000'000});
      const bool whole_host = below(2) == 0;
      const auto took = disturb(below(chain_ranks), whole_host);
      times[whole_host ? 1 : 0].add(took);
      std::fprintf(stderr, "%5.0f s: %s; %.2f s, %.0f steps lost\n",
                   static_cast<double>(steady_now() - until) / second, whole_host ? "a host" : "a rank",
                   took.back(), took.front());
    }
    pass(until + length);
    const auto end = steady_now();
    const auto done = least(&chain_words::of_rank::held) - last;
    end_all();
    const auto name = "goodput/" + job_text();
    for (const bool whole_host : {false, true})
      if (!times[whole_host ? 1 : 0].empty()) times[whole_host ? 1 : 0].tell(out, name, whole_host);
    out.add_against(name + "/steps done, against an undisturbed run",
                    cairn_bench::samples({static_cast<double>(done)}), "",
                    undisturbed * static_cast<double>(end - until) / second, cairn_bench::at_least(0.977));
  }

 private:
  void end_all() {
    for (const auto pid : pids_)
      if (pid > 0) ::kill(pid, SIGKILL);
    for (auto& pid : pids_)
      if (pid > 0) ::waitpid(std::exchange(pid, 0), nullptr, 0);
  }
  /// What became of one fault: how many steps were lost, then the seconds of each part, then of all.
  using fault = std::array<double, 8>;
  class fault_times {
   public:
    void add(const fault& one) {
      for (std::size_t i = 0; i < one.size(); ++i) parts_[i].push_back(one[i]);
    }
    [[nodiscard]] bool empty() const { return parts_[0].empty(); }
    void tell(cairn_bench::report& out, const std::string& job, bool whole_host) const {
      const auto name = job + "/" + (whole_host ? "a host and its tier" : "one rank") + "/";
      constexpr std::array names{"detect", "end", "start", "agree", "read", "first step", "all"};
      for (std::size_t i = 0; i < names.size(); ++i)
        out.add(name + names[i], cairn_bench::samples(parts_[i + 1]), "s");
      out.add_against(name + "steps lost", cairn_bench::samples(parts_[0]), "", 1, cairn_bench::at_most(1));
    }

   private:
    std::array<std::vector<double>, 8> parts_;
  };
  [[nodiscard]] std::string job_text() const {
    return "8 processes of " + cairn_bench::size_text(o_.chain_bytes) + " as 4 hosts";
  }
  /// Kills a rank, or its host with the tier, and waits until all hold the next step.
  fault disturb(int rank, bool whole_host) {
    const int host = rank / 2;
    std::int64_t newest = INT64_MAX;  // that all ranks had
    const auto killed = steady_now();
    for (const int each : {2 * host, 2 * host + 1})
      if (whole_host || each == rank) ::kill(pids_[static_cast<std::size_t>(each)], SIGKILL);
    for (const auto& r : words_->ranks) newest = std::min(newest, r.held.load());
    for (const int each : {2 * host, 2 * host + 1})
      if (whole_host || each == rank)
        ::waitpid(std::exchange(pids_[static_cast<std::size_t>(each)], 0), nullptr, 0);
    const auto all_ended = [&] {
      for (std::size_t i = 0; i < pids_.size(); ++i)
        if (pids_[i] > 0 && words_->ranks[i].ended == 0) return false;
      return true;
    };
    await("the ranks that are left do not end", all_ended);
    const auto ended = std::max(killed, most(&chain_words::of_rank::ended));
    const auto told = std::max(killed, most(&chain_words::of_rank::detected));
    if (whole_host) fs::remove_all(place_.host(host));
    const auto again = steady_now();
    start();
    await_step(0);
    const auto& w = *words_;
    double read = 0;
    for (const auto& r : w.ranks) read = std::max(read, r.read.load());
    const auto built = most(&chain_words::of_rank::built);
    const auto loaded = most(&chain_words::of_rank::loaded);
    const auto first = most(&chain_words::of_rank::first_held);
    const auto seconds = [](std::int64_t from, std::int64_t to) {
      return static_cast<double>(to - from) * 1e-9;
    };
    return {static_cast<double>(newest - least(&chain_words::of_rank::resumed)),
            seconds(killed, told),
            seconds(told, ended),
            seconds(again, built),
            seconds(built, loaded) - read,
            read,
            seconds(loaded, first),
            seconds(killed, ended) + seconds(again, first)};
  }
  /// Asks all ranks to meet, and starts those that have no process.
  void start() {
    for (auto& r : words_->ranks) r.held = -1, r.resumed = -1, r.detected = 0, r.ended = 0, r.first_held = 0;
    ++words_->life;
    std::fflush(nullptr);
    for (int rank = 0; rank < chain_ranks; ++rank) {
      if (pids_[static_cast<std::size_t>(rank)] > 0) continue;
      const auto pid = ::fork();
      need(pid >= 0, "no process for a rank");
      if (pid > 0) {
        pids_[static_cast<std::size_t>(rank)] = pid;
        continue;
      }
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        rank_state mine(o_.chain_bytes, rank, chain_ranks);
        for (;;) {
          const int life = words_->life;
          train(rank, life, mine);
          words_->ranks[static_cast<std::size_t>(rank)].ended = steady_now();
          while (words_->life == life) ::usleep(500);
        }
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
      }
      ::_exit(1);
    }
  }
  /// Saves every step, and goes on from the newest, until another rank is gone.
  void train(int rank, int life, rank_state& mine) {
    auto& word = words_->ranks[static_cast<std::size_t>(rank)];
    struct somebody_is_gone {};
    try {
      auto ranks = meet(place_, std::to_string(life), rank, chain_ranks, socket_protection::encrypted);
      const auto watch = ranks.watch_peers();
      const auto look = [&] {
        for (int each = 0; each < chain_ranks; ++each)
          if (watch->is_gone(each)) throw somebody_is_gone();
      };
      double read = 0;
      auto ckpt = make_rank(place_, rank / 2, std::move(ranks), 2, 10, partner_copies{}, read);
      word.built = steady_now();
      try {
        auto step = ckpt.resume(mine.state()).value_or(0);
        word.read = read;
        word.loaded = steady_now();
        word.resumed = step;
        save_handle before;
        for (++step;; ++step) {
          // What a device would compute. Meanwhile the step before becomes redundant.
          const auto computed = steady_now() + static_cast<std::int64_t>(step_seconds_ * 1e9);
          if (before.valid()) {
            before.wait_held();
            if (word.first_held == 0) word.first_held = steady_now();
            word.held = step - 1;
          }
          for (std::int64_t left = 0; (left = computed - steady_now()) > 0;) {
            ::usleep(
                static_cast<::useconds_t>(std::min(left / 1000, std::int64_t{look_every.count()} * 1000)));
            look();
          }
          // So a lost host costs one step at most.
          if (before.valid()) static_cast<void>(before.wait_redundant(std::chrono::seconds(10)));
          static_cast<void>(ckpt.any_rank(false));  // as the sum of gradients
          ckpt.before_update();
          mine.train(static_cast<std::uint64_t>(step));
          before = ckpt.save(mine.state(), step);
        }
      } catch (...) {
        word.detected = steady_now();
        throw;
      }
    } catch (const somebody_is_gone&) {
    } catch (const peer_error&) {
    } catch (const timeout_error&) {
    }
  }
  template <class Word>
  [[nodiscard]] std::int64_t least(Word word) const {
    std::int64_t found = INT64_MAX;
    for (const auto& r : words_->ranks) found = std::min(found, (r.*word).load());
    return found;
  }
  template <class Word>
  [[nodiscard]] std::int64_t most(Word word) const {
    std::int64_t found = INT64_MIN;
    for (const auto& r : words_->ranks) found = std::max(found, (r.*word).load());
    return found;
  }
  /// All ranks hold this step, or a later one.
  void await_step(std::int64_t step) {
    await("the job does not come to its next step",
          [&] { return least(&chain_words::of_rank::held) >= step; });
  }
  template <class Condition>
  void await(const char* otherwise, Condition holds) {
    const auto until = deadline::in(std::chrono::minutes(2));
    while (!holds()) {
      need(!until.passed(), otherwise);
      need(nobody_ended(), "a rank ended");
      ::usleep(1000);
    }
  }

  [[nodiscard]] bool nobody_ended() const {
    return std::all_of(pids_.begin(), pids_.end(),
                       [](auto pid) { return pid == 0 || ::waitpid(pid, nullptr, WNOHANG) == 0; });
  }

  /// How often a rank looks who is gone while its device computes.
  static constexpr std::chrono::milliseconds look_every{5};

  const recovery_options& o_;
  double step_seconds_ = 0.02;
  memory_directory place_;
  chain_words* words_ = nullptr;
  std::array<::pid_t, chain_ranks> pids_{};
};
}  // namespace

int main(int argc, char** argv) {
  recovery_options o;
  CLI::App app{
      "How fast a job is there again: from the tier of its host, from what other hosts keep, and from a kill "
      "to "
      "the next step",
      "bench_recovery"};
  app.option_defaults()->always_capture_default();
  const auto size = [&](const char* name, std::uint64_t& value, const char* what) {
    app.add_option(name, value, what)
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(std::uint64_t{1} << 20, std::uint64_t{1} << 40));
  };
  size("--bytes", o.bytes, "Size of a state in the tier of one host");
  size("--image-bytes", o.image_bytes, "Size of an image that is lost");
  size("--chain-bytes", o.chain_bytes, "Size of the state of each of eight processes");
  app.add_option("--pairs", o.pairs, "Turns of ours and the hand-written twin")->check(CLI::Range(1, 1000));
  app.add_option("--kills", o.kills, "Kills of a rank, and of a host")->check(CLI::Range(1, 1000));
  app.add_option("--goodput", o.goodput_minutes,
                 "Nothing but a run of so many minutes with a fault every 30 s")
      ->check(CLI::Range(0.5, 1e5));
  app.add_option("--step-seconds", o.step_seconds, "What a device takes for a step of that run")
      ->check(CLI::Range(0.001, 1e3));
  app.add_option("--seed", o.seed, "Of the faults of that run");
  app.add_option("--only", o.only, "One part alone")
      ->check(CLI::IsMember({"local", "partner", "parity", "chain"}));
  app.add_option("--memory", o.memory, "A directory of a tmpfs, with room for eighteen images")
      ->check(CLI::ExistingDirectory);
  app.add_option("--json", o.json,
                 "File for the figures: an array of {name, value, unit, against, ratio, ...}");
  return cairn_bench::run_program(app, argc, argv, [&] {
    cairn_bench::report out("recovery");
    const auto wanted = [&](const char* part) {
      return o.goodput_minutes == 0 && (o.only.empty() || o.only == part);
    };
    if (wanted("local")) measure_local(out, o);
    for (const auto protect : {socket_protection::plaintext, socket_protection::encrypted}) {
      if (wanted("partner")) measure_lost(out, o, "partner", partner_copies{}, 2, protect, 0.8);
#if CAIRN_USES_PARITY + 0
      if (wanted("parity"))
        measure_lost(out, o, "parity of 3 + 1", parity{.data = 3, .losses = 1}, 4, protect, 0.7);
#endif
    }
    if (wanted("chain")) chain(o).measure(out);
    if (o.goodput_minutes > 0) chain(o).measure_goodput(out);
    out.write(o.json);
  });
}
