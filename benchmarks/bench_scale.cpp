// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3 cairn::interprocess
// test: --ranks 2 --processes 2 --s3-ranks 2 --agreement 16
// What each rank asks of the store and of the others, counted, for worlds of 2 to some hundred ranks that are threads: real checkpointers over
// a file store whose system calls are counted, over a store whose calls are counted as requests, and over the tests' S3
// server, whose journal counts; what one of these costs here; and how ranks agree on what their tiers hold. benchmarks/scale.py
// makes of it what larger worlds take (docs/scale.md).
// And what ranks that are processes of this host take for it, over shared memory and a file store, by the clock.
//   bench_scale [--ranks 2,4,8,16,32,64] [--processes 2,4,8,16,32,64] [--s3-ranks 16] [--agreement 1024] [--directory DIR] [--json FILE]
#include <cairn/checkpointer.hpp>
#include <cairn/checkpointer/spread_recovery.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/stage/no_staging.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/any_store.hpp>
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/stores/s3_store.hpp>

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <support/counting_communicator.hpp>
#include <support/own_process.hpp>
#include <support/program.hpp>
#include <support/s3_access.hpp>
#include <support/s3_server.hpp>
#include <support/told_tier.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace {

using cairn_bench::samples;
using bytes = std::vector<std::byte>;

struct options {
  std::vector<int> ranks{2, 4, 8, 16, 32, 64};
  std::vector<int> processes{2, 4, 8, 16, 32, 64};
  int s3_ranks = 16;
  int agreement = 1024;
  std::string directory = ".";
  std::string json;
};

/// A look for what is not there is a poll: how many there are depends on time.
enum request : std::size_t {
  make,       // a file or object that is new
  give_name,  // a rename or link
  sync,       // an fsync, of a directory too
  make_folder,
  look,  // size, status
  open_old,
  read,
  list,    // a directory, or a page of a thousand keys
  listed,  // names in it
  remove_one,
  lock,
  poll,
  written,  // bytes
  fetched,  // bytes
  kinds
};
constexpr std::array<const char*, kinds> kind_names{"make", "name", "sync",    "mkdir",  "look",
                                                    "open", "read", "list",    "names",  "remove",
                                                    "lock", "poll", "written", "fetched"};
struct counters {
  std::array<std::atomic<std::uint64_t>, kinds> of{};
  void add(request k, std::uint64_t n = 1) noexcept { of[k].fetch_add(n, std::memory_order_relaxed); }
};

/// Counts the system calls that a server of a network file system answers. What the client answers is left out: close,
/// duplicates, writes and reads of ranges, which go into the bytes.
class counting_file_system : public cairn::posix_file_system {
 public:
  counting_file_system() = default;
  explicit counting_file_system(std::shared_ptr<counters> to) : counts_(std::move(to)) {}
  [[nodiscard]] int open_directory_at(int directory, const char* name) const {
    return told(open_old, posix_file_system::open_directory_at(directory, name));
  }
  [[nodiscard]] int open_at(int directory, const char* name, int flags, unsigned mode) const {
    const auto got = posix_file_system::open_at(directory, name, flags, mode);
    return told((flags & O_CREAT) != 0 ? make : open_old, got);
  }
  [[nodiscard]] std::int64_t pwrite(int file, const void* from, std::size_t n, std::uint64_t offset) const {
    counts_->add(written, n);
    return posix_file_system::pwrite(file, from, n, offset);
  }
  [[nodiscard]] std::int64_t pread(int file, void* to, std::size_t n, std::uint64_t offset) const {
    counts_->add(request::read);
    counts_->add(fetched, n);
    return posix_file_system::pread(file, to, n, offset);
  }
  [[nodiscard]] int sync(int file) const { return told(request::sync, posix_file_system::sync(file)); }
  [[nodiscard]] int sync_directory(int directory) const {
    return told(request::sync, posix_file_system::sync_directory(directory));
  }
  [[nodiscard]] int make_directory_at(int directory, const char* name, unsigned mode) const {
    return told(make_folder, posix_file_system::make_directory_at(directory, name, mode));
  }
  [[nodiscard]] int rename_new_at(int directory, const char* from, const char* to) const {
    return told(give_name, posix_file_system::rename_new_at(directory, from, to));
  }
  [[nodiscard]] int link_at(int directory, const char* from, const char* to) const {
    return told(give_name, posix_file_system::link_at(directory, from, to));
  }
  [[nodiscard]] int unlink_at(int directory, const char* name) const {
    return told(remove_one, posix_file_system::unlink_at(directory, name));
  }
  [[nodiscard]] int remove_directory_at(int directory, const char* name) const {
    return told(remove_one, posix_file_system::remove_directory_at(directory, name));
  }
  [[nodiscard]] int try_lock(int file) const { return told(lock, posix_file_system::try_lock(file)); }
  [[nodiscard]] int status_at(int directory, const char* name, cairn::file_status& out) const {
    return told(look, posix_file_system::status_at(directory, name, out));
  }
  [[nodiscard]] int list(int directory, std::vector<cairn::directory_entry>& entries) const {
    const auto before = entries.size();
    const auto result = posix_file_system::list(directory, entries);
    counts_->add(request::list);
    counts_->add(listed, entries.size() - before);
    return result;
  }

 private:
  int told(request k, int result) const noexcept {
    counts_->add(result == -ENOENT ? poll : k);
    return result;
  }
  std::shared_ptr<counters> counts_ = std::make_shared<counters>();
};

/// Counts the calls of a store as the requests that an object store would get for small objects: one for each.
class counting_store {
 public:
  using cairn_role = cairn::role::store;
  class object_writer {
   public:
    void write(std::span<const cairn::write_range> parts) {
      for (const auto& p : parts) counts_->add(written, p.bytes.size());
      inner_.write(parts);
    }
    void finish() {
      counts_->add(make);
      inner_.finish();
    }

   private:
    friend counting_store;
    object_writer(cairn::memory_store::object_writer inner, std::shared_ptr<counters> to)
        : inner_(std::move(inner)), counts_(std::move(to)) {}
    cairn::memory_store::object_writer inner_;
    std::shared_ptr<counters> counts_;
  };
  counting_store(cairn::memory_store inner, std::shared_ptr<counters> to)
      : inner_(std::move(inner)), counts_(std::move(to)) {}

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t hint) {
    return object_writer(inner_.create(key, hint), counts_);
  }
  void read(std::span<const cairn::read_range> ranges) {
    counts_->add(request::read, ranges.size());
    for (const auto& r : ranges) counts_->add(fetched, r.destination.size());
    inner_.read(ranges);
  }
  void put_new(std::string_view key, std::span<const std::byte> what) {
    counts_->add(make);
    counts_->add(written, what.size());
    inner_.put_new(key, what);
  }
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> what) {
    counts_->add(make);
    counts_->add(written, what.size());
    return inner_.publish_new(key, what);
  }
  [[nodiscard]] std::optional<bytes> read_all(std::string_view key, std::uint64_t cap) {
    auto got = inner_.read_all(key, cap);
    counts_->add(got ? request::read : poll);
    if (got) counts_->add(fetched, got->size());
    return got;
  }
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) {
    const auto got = inner_.size(key);
    counts_->add(got ? look : poll);
    return got;
  }
  [[nodiscard]] std::vector<cairn::listed_object> list(std::string_view prefix) {
    auto got = inner_.list(prefix);
    counts_->add(request::list, got.size() / 1000 + 1);
    counts_->add(listed, got.size());
    return got;
  }
  void remove(std::string_view key) {
    counts_->add(remove_one);
    inner_.remove(key);
  }
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> what) {
    counts_->add(remove_one);
    return inner_.remove_if(key, what);
  }
  [[nodiscard]] std::string describe() const { return inner_.describe(); }

 private:
  cairn::memory_store inner_;
  std::shared_ptr<counters> counts_;
};

/// Runs `body(rank)` in a thread for each rank, with small stacks. @throws what the first of them threw
void on_all_ranks(int ranks, const std::function<void(int)>& body) {
  struct one {
    const std::function<void(int)>* body;
    int rank;
    std::exception_ptr thrown;
  };
  std::vector<one> all;
  for (int r = 0; r < ranks; ++r) all.push_back({&body, r, nullptr});
  pthread_attr_t how;
  pthread_attr_init(&how);
  pthread_attr_setstacksize(&how, std::size_t{1} << 20);
  std::vector<pthread_t> threads;
  for (auto& each : all) {
    pthread_t made{};
    if (pthread_create(
            &made, &how,
            [](void* p) -> void* {
              auto& self = *static_cast<one*>(p);
              try {
                (*self.body)(self.rank);
              } catch (...) {
                self.thrown = std::current_exception();
              }
              return nullptr;
            },
            &each) != 0)
      throw std::runtime_error("no thread for a rank");
    threads.push_back(made);
  }
  pthread_attr_destroy(&how);
  for (const auto t : threads) pthread_join(t, nullptr);
  for (const auto& each : all)
    if (each.thrown) std::rethrow_exception(each.thrown);
}

double processor_now(clockid_t which) {
  timespec t{};
  clock_gettime(which, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

constexpr std::array<const char*, 6> operations{"begin", "first_save", "save", "list", "remove", "resume"};

/// What ranks did in each operation.
struct counted_world {
  /// [operation][rank] of requests; then messages and bytes of messages.
  std::vector<std::vector<std::array<std::uint64_t, kinds + 2>>> of;
  std::array<double, operations.size()> seconds{};
  std::array<double, operations.size()> processor{};
};

struct world_parts {
  std::function<cairn::any_store(int rank, std::shared_ptr<counters>)> store;
};

/// A job that begins, saves twice, lists, removes its first checkpoint, ends, and resumes.
counted_world count(int ranks, const world_parts& parts) {
  const auto n = static_cast<std::size_t>(ranks);
  counted_world world;
  world.of.assign(operations.size(), std::vector<std::array<std::uint64_t, kinds + 2>>(n));
  std::vector<std::shared_ptr<counters>> counts;
  std::vector<std::shared_ptr<cairn_test::message_counts>> messages;
  for (std::size_t r = 0; r < n; ++r) {
    counts.push_back(std::make_shared<counters>());
    messages.push_back(std::make_shared<cairn_test::message_counts>());
  }
  // Two groups of ranks: the second one resumes.
  cairn::thread_group first(ranks), second(ranks);
  std::barrier all(ranks);
  on_all_ranks(ranks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::array<std::uint64_t, kinds + 2> before{};
    double began = 0, used = 0;
    const auto now = [&] {
      std::array<std::uint64_t, kinds + 2> all_of{};
      for (std::size_t k = 0; k < kinds; ++k) all_of[k] = counts[r]->of[k].load();
      all_of[kinds] = messages[r]->sent.load();
      all_of[kinds + 1] = messages[r]->sent_bytes.load();
      return all_of;
    };
    const auto part = [&](std::size_t operation, auto&& work) {
      all.arrive_and_wait();
      before = now();
      if (rank == 0) {
        began = processor_now(CLOCK_MONOTONIC);
        used = processor_now(CLOCK_PROCESS_CPUTIME_ID);
      }
      work();
      const auto after = now();
      for (std::size_t k = 0; k < after.size(); ++k) world.of[operation][r][k] = after[k] - before[k];
      all.arrive_and_wait();
      if (rank != 0) return;
      world.seconds[operation] = processor_now(CLOCK_MONOTONIC) - began;
      world.processor[operation] = processor_now(CLOCK_PROCESS_CPUTIME_ID) - used;
    };
    const std::int64_t rows = 16;
    std::vector<float> shard(static_cast<std::size_t>(rows) * 64, static_cast<float>(rank));
    std::vector<float> shared(4096, 1.0F);
    double lr = 0.1;
    cairn::state_dict state;
    state.tensor("shard", shard.data(), cairn::shard{{rows * ranks, 64}, {rows * rank, 0}, {rows, 64}});
    state.tensor("shared", shared.data(), {4096});
    state.value("lr", lr);
    const auto make = [&](cairn::thread_group& group) {
      return cairn::checkpointer{
          parts.store(rank, counts[r]), cairn::inline_executor{}, cairn::no_staging{},
          cairn::any_communicator(cairn_test::counting_communicator(group.communicator(rank), messages[r])),
          cairn::checkpointer_options{.quiet = true}};
    };
    using job = decltype(make(first));
    std::optional<job> ckpt;
    part(0, [&] {
      ckpt.emplace(make(first));
      ckpt->prepare(state);
    });
    part(1, [&] { ckpt->save(state, 1).wait(); });
    part(2, [&] { ckpt->save(state, 2).wait(); });
    part(3, [&] {
      if (ckpt->list().size() != 2) throw std::runtime_error("a checkpoint is missing");
    });
    part(4, [&] { ckpt->remove(1); });
    ckpt->close();
    all.arrive_and_wait();
    ckpt.reset();
    ckpt.emplace(make(second));
    part(5, [&] {
      if (ckpt->resume(state) != 2) throw std::runtime_error("the job did not resume");
    });
    ckpt->close();
    all.arrive_and_wait();
  });
  return world;
}

/// Of rank 0 of so many processes: the seconds of a save until it is committed, of a listing, and of a resume; of each rank,
/// `bytes` are written. Medians of seven.
std::vector<double> clocked(int ranks, const std::string& directory) {
  return cairn_bench::in_own_process([&]() -> std::vector<double> {
    const auto job = "bench-scale-" + std::to_string(::getpid());
    std::vector<pid_t> others;
    int rank = 0;
    for (int r = 1; r < ranks && rank == 0; ++r) {
      const auto pid = ::fork();
      cairn_bench::check_io(pid >= 0, "fork");
      if (pid == 0)
        rank = r;
      else
        others.push_back(pid);
    }
    if (rank != 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<double> medians;
    try {
      std::vector<float> shard(16384, 1.0F);
      cairn::state_dict state;
      state.tensor("shard", shard.data(), cairn::shard{{256 * ranks, 64}, {256 * rank, 0}, {256, 64}});
      std::vector<double> saves, lists, resumes;
      double message = 0;
      {
        cairn::collectives all{cairn::any_communicator(cairn::shared_memory_communicator(job, rank, ranks))};
        const auto until = cairn::deadline::in(std::chrono::minutes(5));
        all.barrier(until);
        constexpr int times = 200;
        // Up the tree and down again, one message for each level.
        const auto took = cairn_bench::seconds_of([&] {
          for (int i = 0; i < times; ++i) all.barrier(until);
        });
        message = took / times / 2;
        all.barrier(until);
      }
      const auto at_0 = [](auto& ckpt, auto&& work) {
        static_cast<void>(ckpt.list());  // all are here
        return cairn_bench::seconds_of(work);
      };
      for (int life = 0; life < 7; ++life) {
        cairn::checkpointer ckpt{cairn::any_store(cairn::file_store(directory)),
                                 cairn::inline_executor{},
                                 cairn::no_staging{},
                                 cairn::any_communicator(cairn::shared_memory_communicator(
                                     job + "-" + std::to_string(life), rank, ranks)),
                                 cairn::keep_last(2),
                                 cairn::checkpointer_options{.quiet = true}};
        resumes.push_back(at_0(ckpt, [&] { static_cast<void>(ckpt.resume(state)); }));
        ckpt.save(state, 2 * life + 1).wait();
        saves.push_back(at_0(ckpt, [&] { ckpt.save(state, 2 * life + 2).wait(); }));
        lists.push_back(at_0(ckpt, [&] { static_cast<void>(ckpt.list()); }));
        ckpt.close();
      }
      resumes.erase(resumes.begin());  // there was nothing yet
      medians = {samples(saves).median(), samples(lists).median(), samples(resumes).median(), message};
    } catch (const std::exception& e) {
      std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
      if (rank != 0) ::_exit(1);
    }
    if (rank != 0) ::_exit(0);
    for (const auto pid : others) ::waitpid(pid, nullptr, 0);
    return medians;
  });
}

/// What one small thing costs here, done by so many threads at once: a file that is written, made durable and given its
/// name, as a store publishes it; and a file that is looked up and read.
void tell_prices(cairn_bench::report& report, const std::string& directory) {
  for (const int threads : {1, 4, 16, 64}) {
    const cairn_bench::scratch place(directory);
    cairn::file_store store(place.path() + "/prices");
    const int each = threads < 16 ? 50 : 20;
    const std::vector<std::byte> small(400);
    const auto name = "price/threads=" + std::to_string(threads) + "/";
    const auto run = [&](const char* what, auto&& work) {
      const auto took = cairn_bench::seconds_of([&] {
        on_all_ranks(threads, [&](int t) {
          for (int i = 0; i < each; ++i) work("step/" + std::to_string(t) + "-" + std::to_string(i));
        });
      });
      report.add(name + what, took / (each * threads), "s");
    };
    store.put_new("step/first", small);
    run("publish", [&](const std::string& key) { store.put_new(key, small); });
    run("look", [&](const std::string& key) { static_cast<void>(store.size(key)); });
    run("fetch", [&](const std::string& key) { static_cast<void>(store.read_all(key, 1000)); });
    run("remove", [&](const std::string& key) { store.remove(key); });
  }
}

/// Of each kind: what rank 0 did, the mean of the others, and the most of one of them.
void tell(cairn_bench::report& report, const std::string& store, int ranks, const counted_world& world) {
  for (std::size_t o = 0; o < operations.size(); ++o) {
    const auto name = store + "/" + operations[o] + "/ranks=" + std::to_string(ranks) + "/";
    for (std::size_t k = 0; k < kinds + 2; ++k) {
      const auto what = std::string(k < kinds ? kind_names[k] : k == kinds ? "messages" : "message_bytes");
      double others = 0, most = 0;
      for (std::size_t r = 1; r < world.of[o].size(); ++r) {
        others += static_cast<double>(world.of[o][r][k]);
        most = std::max(most, static_cast<double>(world.of[o][r][k]));
      }
      if (world.of[o][0][k] == 0 && most == 0) continue;
      const auto count = static_cast<double>(std::max<std::size_t>(world.of[o].size() - 1, 1));
      report.add(name + "rank_0/" + what, static_cast<double>(world.of[o][0][k]), "1");
      report.add(name + "others/" + what, others / count, "1");
      report.add(name + "most/" + what, most, "1");
    }
    report.add(name + "wall", world.seconds[o], "s");
    report.add(name + "processor", world.processor[o], "s");
  }
}

// --- Agreement on what the tiers hold

/// What a rank used of a processor for it, and what it sent.
void agree(cairn_bench::report& report, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<double> processor(n);
  std::vector<double> messages(n), sent(n);
  cairn::thread_group group(ranks);
  cairn::memory_store store;
  std::barrier all(ranks);
  on_all_ranks(ranks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto counts = std::make_shared<cairn_test::message_counts>();
    cairn::collectives ranks_of{
        cairn::any_communicator(cairn_test::counting_communicator(group.communicator(rank), counts))};
    cairn::safetensors_storage storage{store};
    cairn_test::told_recovery recovery(storage, rank, ranks, ranks_of);
    all.arrive_and_wait();
    const auto before = processor_now(CLOCK_THREAD_CPUTIME_ID);
    const auto found = recovery.survey(cairn::deadline::in(std::chrono::minutes(10)));
    processor[r] = processor_now(CLOCK_THREAD_CPUTIME_ID) - before;
    messages[r] = static_cast<double>(counts->sent.load());
    sent[r] = static_cast<double>(counts->sent_bytes.load());
    if (found.size() != 4 || found.back().step != 103) throw std::runtime_error("the ranks did not agree");
    all.arrive_and_wait();
  });
  const auto name = "agreement/ranks=" + std::to_string(ranks) + "/";
  const auto all_ranks = samples(processor);
  // Down the tree each rank works when its parent has; the deepest chain is rank 0's work and that of one rank after it.
  report.add_against(name + "critical_path", samples({processor[0] + all_ranks.quantile(0.9)}), "s", 0.050,
                     ranks == 1024 ? cairn_bench::at_most(1) : cairn_bench::goal{});
  report.add(name + "rank_0", processor[0], "s");
  report.add(name + "others", all_ranks, "s");
  report.add_against(name + "messages_of_rank_0", samples({messages[0]}), "1",
                     std::ceil(std::log2(static_cast<double>(ranks))), cairn_bench::at_most(1));
  report.add(name + "messages_of_others", samples(messages), "1");
  report.add(name + "bytes_of_rank_0", sent[0], "B");
}

void run(const options& o) {
  cairn_bench::report report("requests and messages of ranks, counted");
  for (const int ranks : o.processes) {  // while this process has one thread
    const cairn_bench::scratch place(o.directory);
    const auto took = clocked(ranks, place.path() + "/run");
    const auto name = "processes/ranks=" + std::to_string(ranks) + "/";
    report.add(name + "save", took.at(0), "s");
    report.add(name + "list", took.at(1), "s");
    report.add(name + "resume", took.at(2), "s");
    report.add(name + "messages_one_way", took.at(3), "s");
  }
  tell_prices(report, o.directory);
  for (const int ranks : o.ranks) {
    const cairn_bench::scratch place(o.directory);
    using store = cairn::basic_file_store<counting_file_system>;
    tell(report, "file", ranks, count(ranks, {[&](int, std::shared_ptr<counters> to) {
                                        return cairn::any_store(store(place.path() + "/run", {},
                                                                      counting_file_system(std::move(to))));
                                      }}));
    const cairn::memory_store shared;
    tell(report, "object", ranks, count(ranks, {[&](int, std::shared_ptr<counters> to) {
                                          return cairn::any_store(counting_store(shared, std::move(to)));
                                        }}));
    if (ranks > o.s3_ranks) continue;
    namespace s3 = cairn_test::s3;
    s3::server server{s3::quick_server()};
    std::map<std::string, std::size_t> requests;
    static_cast<void>(count(ranks, {[&](int, std::shared_ptr<counters>) {
                              return cairn::any_store(cairn::s3_store(s3::own_bucket_at(server.endpoint()),
                                                                      s3::credentials_of()));
                            }}));
    for (const auto& each : server.journal()) ++requests[each.operation + (each.status == 404 ? "/404" : "")];
    for (const auto& [operation, times] : requests)
      report.add("s3/ranks=" + std::to_string(ranks) + "/" + operation, static_cast<double>(times), "1");
  }
  for (int ranks = 16; ranks <= o.agreement; ranks *= 4) agree(report, ranks);
  report.write(o.json);
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"What each rank asks of the store and of the others, counted", "bench_scale"};
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", o.ranks, "Sizes of worlds")->delimiter(',')->check(CLI::Range(2, 4096));
  app.add_option("--processes", o.processes, "Numbers of processes")
      ->delimiter(',')
      ->check(CLI::Range(2, 1024));
  app.add_option("--s3-ranks", o.s3_ranks, "The largest world over the S3 server");
  app.add_option("--agreement", o.agreement,
                 "The largest world that agrees on what its tiers hold; takes 3 GB for 1024 ranks")
      ->check(CLI::Range(16, 1024));
  app.add_option("--directory", o.directory, "Where checkpoints are written, on a disk");
  app.add_option("--json", o.json, "File for the figures");
  return cairn_bench::run_program(app, argc, argv, [&] { run(o); });
}
