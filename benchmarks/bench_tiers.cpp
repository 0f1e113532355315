// SPDX-License-Identifier: Apache-2.0
// test: --bytes 1MiB --tensors 10 --pairs 1
// What a local tier adds to a save of every step: overlapped saves with it against overlapped saves without it, in
// turns. Both compute the digests in the copy, into memory that is there already, and go to a store that drops their
// bytes, so that nothing but the tier differs; saves that the tier alone has stand beside them. A state whose copy
// takes no time shows what is the same for each save. With two ranks that keep copies of each other's images the same is
// compared with two that do not: what pieces, which are made beside training, cost training.
#include <cairn/cairn.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/links/thread_link.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/tiers/local_tier.hpp>

#include <stdlib.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <support/bench.hpp>
#include <support/program.hpp>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn;

/// Keeps the small objects of checkpoints, and of the data the sizes alone.
class dropping_store : public memory_store {
  struct dropped {
    std::mutex mutex;
    std::map<std::string, std::uint64_t, std::less<>> sizes;
  };

 public:
  class object_writer {
   public:
    explicit object_writer(memory_store::object_writer kept) : kept_(std::move(kept)) {}
    object_writer(std::shared_ptr<dropped> into, std::string_view key) : into_(std::move(into)), key_(key) {}
    void write(std::span<const write_range> parts) {
      if (kept_) return kept_->write(parts);
      for (const auto& part : parts) bytes_ = std::max(bytes_, part.offset + part.bytes.size());
    }
    void finish() {
      if (kept_) return kept_->finish();
      const std::lock_guard lock(into_->mutex);
      into_->sizes[key_] = bytes_;
    }

   private:
    std::optional<memory_store::object_writer> kept_;
    std::shared_ptr<dropped> into_;
    std::string key_;
    std::uint64_t bytes_ = 0;
  };
  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint) {
    if (key.ends_with(".safetensors")) return object_writer(dropped_, key);
    return object_writer(memory_store::create(key, size_hint));
  }
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) {
    const std::lock_guard lock(dropped_->mutex);
    const auto found = dropped_->sizes.find(key);
    return found != dropped_->sizes.end() ? found->second : memory_store::size(key);
  }

 private:
  std::shared_ptr<dropped> dropped_ = std::make_shared<dropped>();
};

/// A fresh directory of a tmpfs, which is removed with all that is in it.
class memory_directory {
 public:
  explicit memory_directory(const std::string& parent) : path_(parent + "/cairn-bench-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no directory can be made in " + parent);
  }
  memory_directory(const memory_directory&) = delete;
  memory_directory& operator=(const memory_directory&) = delete;
  ~memory_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

struct training_state {
  training_state(std::uint64_t bytes, int count) {
    const auto each = bytes / sizeof(float) / static_cast<std::uint64_t>(count);
    if (each == 0) throw std::runtime_error("more tensors than the state has elements");
    for (int i = 0; i < count; ++i) memory.emplace_back(each, static_cast<float>(i) + 0.5F);
    for (std::size_t i = 0; i < memory.size(); ++i)
      state.tensor("t" + std::to_string(i), memory[i], {static_cast<std::int64_t>(each)});
  }
  std::vector<std::vector<float>> memory;
  state_dict state;
};

/// Seconds of one save.
struct cost {
  double blocked = 0;  ///< save()
  double copied = 0;   ///< until before_update() has returned
  double held = 0;     ///< until the tier holds it
  double cpu = 0;      ///< of all threads, until the save has ended
};
/// One step of a kind of saving, each with a checkpointer of its own.
template <class Checkpointer>
cost save_step(Checkpointer& ckpt, const state_dict& state, std::int64_t step, bool held) {
  cost c;
  const auto cpu = process_cpu_now();
  save_handle save;
  c.held = cairn_bench::seconds_of([&] {
    c.copied = cairn_bench::seconds_of([&] {
      c.blocked = cairn_bench::seconds_of([&] { save = ckpt.save(state, step); });
      ckpt.before_update();
    });
    if (held) save.wait_held();
  });
  save.wait();
  static_cast<void>(save.wait_redundant());
  c.cpu = static_cast<double>(process_cpu_now() - cpu) * 1e-9;
  return c;
}
using costs = std::vector<cost>;
std::vector<double> of(const costs& all, double cost::*what) {
  std::vector<double> values;
  for (const auto& c : all) values.push_back(c.*what);
  return values;
}
std::string size_text(std::uint64_t bytes) {
  for (const auto& [unit, name] : {std::pair{std::uint64_t{1} << 30, "GiB"},
                                   {std::uint64_t{1} << 20, "MiB"},
                                   {std::uint64_t{1} << 10, "KiB"}})
    if (bytes >= unit && bytes % unit == 0) return std::to_string(bytes / unit) + name;
  return std::to_string(bytes) + "B";
}

struct tier_options {
  std::uint64_t bytes = std::uint64_t{256} << 20;
  std::uint64_t small_bytes = std::uint64_t{64} << 10;
  int tensors = 200;
  int threads = 2;
  int pairs = 15;
  std::string memory = "/dev/shm";
  std::string json;
};

void measure(cairn_bench::report& out, const tier_options& o, std::uint64_t bytes, int tensors) {
  training_state t(bytes, tensors);
  const memory_directory place(o.memory);
  const checkpointer_options same{.checksum_in_writer = false, .quiet = true};
  const host_copy_options copy{.threads = o.threads};
  checkpointer plain{dropping_store{}, heap_stager({}, host_copy(copy)), overlapped{}, keep_last{1}, same};
  checkpointer both{dropping_store{}, local_tier{place.path() + "/both", {.copy = copy}}, overlapped{},
                    keep_last{1}, same};
  checkpointer alone{dropping_store{},
                     local_tier{place.path() + "/alone", {.copy = copy}},
                     persist{.every = UINT64_MAX},
                     overlapped{},
                     keep_last{1},
                     same};
  plain.prepare(t.state), both.prepare(t.state), alone.prepare(t.state);

  std::array<costs, 3> turns;
  constexpr int warm = 8;  // each image was filled once, plans are cached
  for (std::int64_t step = 0; step < warm + o.pairs; ++step) {
    std::array<cost, 3> now;
    for (std::size_t k = 0; k < 3; ++k) switch ((k + static_cast<std::size_t>(step)) % 3) {
        case 0:
          now[0] = save_step(plain, t.state, step, false);
          break;
        case 1:
          now[1] = save_step(both, t.state, step, true);
          break;
        default:
          now[2] = save_step(alone, t.state, step, true);
      }
    for (std::size_t k = 0; k < 3 && step >= warm; ++k) turns[k].push_back(now[k]);
  }
  plain.close(), both.close(), alone.close();

  const auto size = size_text(bytes);
  const auto compare = [&](const std::string& name, const costs& ours) {
    const auto row = [&](const std::string& what, double cost::*value, cairn_bench::goal wanted = {}) {
      out.add(name + "/" + size + "/" + what, cairn_bench::make_pairs(of(ours, value), of(turns[0], value)),
              "s", wanted);
    };
    row("save() blocks", &cost::blocked);
    // Beside no copy it is the difference that counts.
    const auto wanted = bytes >= std::uint64_t{64} << 20 ? cairn_bench::at_most(1.05) : cairn_bench::goal{};
    row("until training may go on", &cost::copied, wanted);
    row("processor time", &cost::cpu, wanted);
    // Until it is held, against until it is copied: what holding takes after the copy.
    out.add(name + "/" + size + "/until held",
            cairn_bench::make_pairs(of(ours, &cost::held), of(ours, &cost::copied)), "s");
  };
  compare("tier and store vs store", turns[1]);
  compare("tier alone vs store", turns[2]);
}

/// Two ranks, as threads, whose saves of every step are held, and copied to each other or not. Of rank 0; its processor time is
/// that of both.
void measure_copies(cairn_bench::report& out, const tier_options& o) {
  const memory_directory place(o.memory);
  const thread_group plain_group(2);
  const thread_group copies_group(2);
  const thread_link_group links(2);
  const dropping_store plain_store;
  const dropping_store copies_store;
  std::barrier together(2);
  std::array<costs, 2> turns;
  const auto rank_body = [&](int rank) {
    training_state t(o.bytes / 2, o.tensors);
    const checkpointer_options same{.checksum_in_writer = false, .quiet = true};
    const host_copy_options copy{.threads = o.threads};
    const auto own = place.path() + "/host-" + std::to_string(rank);
    checkpointer plain{plain_store,
                       local_tier{place.path() + "/plain", {.copy = copy}},
                       persist{.every = UINT64_MAX},
                       plain_group.communicator(rank),
                       overlapped{},
                       same};
    checkpointer copies{copies_store,
                        local_tier{own, {.copy = copy}},
                        persist{.every = UINT64_MAX},
                        partner_copies{.failure_group = own},
                        links,
                        copies_group.communicator(rank),
                        overlapped{},
                        same};
    plain.prepare(t.state), copies.prepare(t.state);
    constexpr int warm = 10;
    for (std::int64_t step = 0; step < warm + o.pairs; ++step)
      for (std::size_t k = 0; k < 2; ++k) {
        const bool copied = (k + static_cast<std::size_t>(step)) % 2 != 0;
        together.arrive_and_wait();
        const auto now =
            copied ? save_step(copies, t.state, step, true) : save_step(plain, t.state, step, true);
        if (rank == 0 && step >= warm) turns[copied].push_back(now);
      }
    together.arrive_and_wait();
    plain.close(), copies.close();
  };
  std::exception_ptr failure;
  {
    const std::jthread other([&] {
      try {
        rank_body(1);
      } catch (...) {
        failure = std::current_exception();
        together.arrive_and_drop();
      }
    });
    try {
      rank_body(0);
    } catch (...) {
      together.arrive_and_drop();
      throw;
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  const auto row = [&](const std::string& what, double cost::*value, cairn_bench::goal wanted = {}) {
    out.add("partner copies vs tiers alone/" + size_text(o.bytes) + "/" + what,
            cairn_bench::make_pairs(of(turns[1], value), of(turns[0], value)), "s", wanted);
  };
  row("save() blocks", &cost::blocked);
  row("until training may go on", &cost::copied, cairn_bench::at_most(1.05));
  row("until held", &cost::held);
  row("processor time", &cost::cpu);
}
}  // namespace

int main(int argc, char** argv) {
  tier_options o;
  CLI::App app{"A local tier under overlapped saves of every step, against the same saves without it",
               "bench_tiers"};
  app.option_defaults()->always_capture_default();
  app.add_option("--bytes", o.bytes, "Size of the state, such as 256MiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{4096}, std::uint64_t{1} << 40));
  app.add_option("--small-bytes", o.small_bytes, "Size of one tensor whose copy takes no time; 0: none")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--tensors", o.tensors, "Number of tensors in it")->check(CLI::Range(1, 1'000'000));
  app.add_option("--threads", o.threads, "Copy threads of both")->check(CLI::Range(1, 256));
  app.add_option("--pairs", o.pairs, "Turns of all")->check(CLI::Range(1, 10'000));
  app.add_option("--memory", o.memory, "A directory of a tmpfs, with room for twelve images of the state")
      ->check(CLI::ExistingDirectory);
  app.add_option("--json", o.json,
                 "File for the figures: an array of {name, value, unit, against, ratio, ...}");
  return cairn_bench::run_program(app, argc, argv, [&] {
    cairn_bench::report out("tiers");
    measure(out, o, o.bytes, o.tensors);
    if (o.small_bytes != 0) measure(out, o, o.small_bytes, 1);
    measure_copies(out, o);
    out.write(o.json);
  });
}
