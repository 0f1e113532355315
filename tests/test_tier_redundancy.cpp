// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// uses: cairn::parity
// cost: 8
// Jobs whose hosts have each a local tier of its own, and keep pieces of one another's images: what is lost with a host is
// rebuilt from what the others have, and resume() reads it. Ranks are threads, hosts are directories.
#include <cairn/cairn.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/links/thread_link.hpp>
#include <cairn/redundancy/lost_images.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/local_tier.hpp>
#if CAIRN_USES_PARITY + 0
#include <cairn/redundancy/parity.hpp>
#endif

#include <doctest/doctest.h>
#include <support/counting_communicator.hpp>
#include <support/on_all_ranks.hpp>
#include <support/process_ranks.hpp>
#include <support/sanitized.hpp>
#include <support/scratch_directory.hpp>
#include <support/small_disk.hpp>
#include <support/tier_archetype.hpp>
#include <support/told_tier.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {
using namespace cairn;
using cairn_test::on_all_ranks;
using cairn_test::scratch_directory;
namespace fs = std::filesystem;

constexpr int ranks = 4;

/// Large, odd and small tensors, which the ranks divide among them.
struct model {
  std::vector<std::vector<float>> tensors;
  state_dict state;
  model() {
    for (std::size_t i = 0; i < 40; ++i)
      tensors.emplace_back(i == 0 ? 700'001 : i % 4 == 0 ? 60'001 + i : 3 + i * 17);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      state.tensor("t" + std::to_string(i), tensors[i], {static_cast<std::int64_t>(tensors[i].size())});
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;
  void train(std::int64_t step) {
    // By pointers: without optimisation, what vectors do takes most of the time.
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto number = i * 7 + static_cast<std::size_t>(step) * 13;
      for (auto *to = tensors[i].data(), *end = to + tensors[i].size(); to != end; ++to, number += 31)
        *to = static_cast<float>(number % 10'007);
    }
  }
};

/// Hosts with their directories, in the order of ranks: rank 3 shares the host of rank 2 where there are three.
struct hosts {
  explicit hosts(int of) : count(of) {}
  [[nodiscard]] int of_rank(int rank) const { return std::min(rank, count - 1); }
  [[nodiscard]] std::string name(int host) const { return memory.path() + "/host-" + std::to_string(host); }
  [[nodiscard]] std::string store() const { return disk.path() + "/store"; }
  [[nodiscard]] std::string left() const { return memory.path() + "/left"; }
  /// What is in memory, but for what nobody made.
  [[nodiscard]] bool empty() const { return fs::is_empty(memory.path()); }
  scratch_directory memory{"/dev/shm"};
  scratch_directory disk;
  int count;
};

/// The job of a rank, until a closure that is given its checkpointer returns.
template <class R, class Body>
void as_rank(const hosts& on, int rank, R by, const thread_group& group, const thread_link_group& links,
             const Body& body) {
  by.failure_group = on.name(on.of_rank(rank));
  checkpointer ckpt{file_store{on.store()},
                    local_tier{on.name(on.of_rank(rank)), {.copy = {.threads = 1}}},
                    persist{.every = 1000},
                    std::move(by),
                    links,
                    group.communicator(rank),
                    checkpointer_options{.peer_timeout = std::chrono::minutes(2), .quiet = true}};
  model m;
  static_cast<void>(ckpt.resume(m.state));
  body(ckpt, m);
}

/// Copies what the hosts that are left have to one place, rebuilds there what was lost, and resumes it.
template <class R>
void check_rebuilt(const hosts& on, const R& by, int lost, std::int64_t step) {
  const fs::path whole = on.left() + "-whole";
  std::vector<std::string> left;
  std::vector<std::int32_t> lost_ranks;
  for (int rank = 0; rank < ranks; ++rank)
    if (on.of_rank(rank) == lost) lost_ranks.push_back(rank);
  fs::create_directory(whole);
  for (int host = 0; host < on.count; ++host) {
    const auto from = on.left() + "/" + std::to_string(host);
    if (host == lost) continue;
    left.push_back(from);
    fs::copy(from, whole, fs::copy_options::recursive | fs::copy_options::skip_existing);
  }
  std::vector<std::string> notes;
  const auto steps = find_surviving_steps(left, any_redundancy(by), notes);
  REQUIRE_FALSE(steps.empty());
  // A newer one that not all ranks came to hold is there as well.
  std::size_t last = steps.size();
  while (last > 1 && !steps[last - 1].missing.empty()) --last;
  const auto& newest = steps[last - 1];
  CHECK(newest.which.step == step);
  CHECK(newest.lost == lost_ranks);
  CHECK(newest.missing == "");
  rebuild_lost_images(left, any_redundancy(by), newest, whole.string(), notes);
  CHECK(notes.empty());

  const thread_group group(2);  // another number of ranks
  std::atomic<int> right{0};
  on_all_ranks(2, [&](int rank) {
    model m;
    model wanted;
    wanted.train(step);
    checkpointer ckpt{file_store{on.store()}, local_tier{whole.string()}, group.communicator(rank),
                      checkpointer_options{.quiet = true}};
    right += ckpt.resume(m.state) == step && m.tensors == wanted.tensors;
  });
  CHECK(right == 2);
  fs::remove_all(whole);
}

/// Counts warnings that have a word.
class warning_with {
 public:
  using cairn_role = role::observer;
  warning_with(std::string word, std::atomic<int>& count) : word_(std::move(word)), count_(&count) {}
  void observe(const observation& what) noexcept {
    if (what.kind == observation::event::warning && what.text.find(word_) != std::string_view::npos)
      ++*count_;
  }

 private:
  std::string word_;
  std::atomic<int>* count_;
};

/// What the ranks do in step with each other; a rank that fails leaves the others to go on.
class in_step {
 public:
  explicit in_step(std::barrier<>& together) : together_(together) {}
  in_step(const in_step&) = delete;
  in_step& operator=(const in_step&) = delete;
  ~in_step() { together_.arrive_and_drop(); }
  void meet() { together_.arrive_and_wait(); }

 private:
  std::barrier<>& together_;
};

template <class R>
void check_lost_and_rebuilt(const R& by, int host_count) {
  const hosts on(host_count);
  const thread_group group(ranks);
  const thread_link_group links(ranks);
  std::barrier together(ranks);
  std::atomic<int> wrong{0};
  on_all_ranks(ranks, [&](int rank) {
    in_step step_by_step(together);
    as_rank(on, rank, by, group, links, [&](auto& ckpt, model& m) {
      for (std::int64_t step = 1; step <= 6; ++step) {
        m.train(step);
        const auto save = ckpt.save(m.state, step);
        save.wait_held();
        // The first that is held, and each third one.
        const bool due = step == 1 || step % 3 == 0;
        const bool is = save.wait_redundant(std::chrono::minutes(2));
        const auto report = save.report();
        wrong += is != due || save.redundant() != due || (report.redundant_seconds > 0) != due ||
                 (report.piece_bytes > 0) != due;
      }
      step_by_step.meet();
      if (rank == 0) {
        fs::create_directory(on.left());
        for (int host = 0; host < on.count; ++host)
          fs::copy(on.name(host), on.left() + "/" + std::to_string(host), fs::copy_options::recursive);
      }
      step_by_step.meet();
      ckpt.close();
    });
  });
  CHECK(wrong == 0);
  for (int host = 0; host < on.count; ++host) CHECK_FALSE(fs::exists(on.name(host)));
  fs::remove_all(on.store());  // close() has written the last save there
  for (int lost = 0; lost < on.count; ++lost) {
    CAPTURE(lost);
    check_rebuilt(on, by, lost, 6);
  }
}

// survives: link-breaks
TEST_CASE("a link that breaks costs the pieces of a save, and no step") {
  const hosts on(ranks);
  const thread_group group(ranks);
  const thread_link_group links(ranks);
  std::barrier together(ranks);
  std::atomic<int> redundant{0};
  on_all_ranks(ranks, [&](int rank) {
    in_step step_by_step(together);
    as_rank(on, rank, partner_copies{}, group, links, [&](auto& ckpt, model& m) {
      for (std::int64_t step = 1; step <= 8; ++step) {
        m.train(step);
        if (step == 3 && rank == 0)
          for (int from = 0; from < ranks; ++from)
            for (int to = 0; to < ranks; ++to)
              if (from != to) links.disturb(from, to, {.what = link_fault::kind::cut});
        step_by_step.meet();
        const auto save = ckpt.save(m.state, step);
        save.wait_held();
        const bool is = save.wait_redundant(std::chrono::minutes(2));
        redundant += step == 8 && is;
        step_by_step.meet();
      }
      ckpt.close();
    });
  });
  CHECK(redundant == ranks);
  for (int host = 0; host < on.count; ++host) CHECK_FALSE(fs::exists(on.name(host)));
}

// survives: links-slow
TEST_CASE("links that are silent or slow cost pieces, and neither a step nor training") {
  const hosts on(ranks);
  const thread_group group(ranks);
  const thread_link_group links(ranks);
  std::barrier together(ranks);
  std::atomic<int> redundant{0};
  std::atomic<int> wrong{0};
  const auto disturb = [&](link_fault::kind odd, link_fault::kind even) {
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to)
        if (from != to)
          links.disturb(from, to, {.what = (from + to) % 2 != 0 ? odd : even, .bytes_per_second = 1000});
  };
  on_all_ranks(ranks, [&](int rank) {
    in_step step_by_step(together);
    as_rank(on, rank, partner_copies{.every = 1}, group, links, [&](auto& ckpt, model& m) {
      save_handle disturbed;
      for (std::int64_t step = 1; step <= 6; ++step) {
        m.train(step);
        step_by_step.meet();
        if (rank == 0 && step == 3) disturb(link_fault::kind::half_open, link_fault::kind::slow);
        if (step == 5) {
          wrong += disturbed.wait_redundant(std::chrono::minutes(2));
          step_by_step.meet();
          if (rank == 0) disturb(link_fault::kind::none, link_fault::kind::none);
        }
        step_by_step.meet();
        const auto save = ckpt.save(m.state, step);
        save.wait_held();  // whatever the links do
        if (step == 3) disturbed = save;
        if (step == 3 || step == 4) continue;
        const bool is = save.wait_redundant(std::chrono::minutes(2));
        redundant += step == 6 && is;
        wrong += step < 3 && !is;
      }
      step_by_step.meet();
      ckpt.close();
    });
  });
  CHECK(wrong == 0);
  CHECK(redundant == ranks);
  for (int host = 0; host < on.count; ++host) CHECK_FALSE(fs::exists(on.name(host)));
}

// survives: lost-before-held
TEST_CASE("a host that is lost before it holds a save leaves the one before, which is redundant") {
  const hosts on(ranks);
  const thread_group group(ranks);
  const thread_link_group links(ranks);
  std::barrier together(ranks);
  constexpr int lost = 1;
  std::atomic<int> wrong{0};
  on_all_ranks(ranks, [&](int rank) {
    in_step step_by_step(together);
    as_rank(on, rank, partner_copies{}, group, links, [&](auto& ckpt, model& m) {
      for (std::int64_t step = 1; step <= 3; ++step) {
        m.train(step);
        const auto save = ckpt.save(m.state, step);
        save.wait_held();
        wrong += !save.wait_redundant(std::chrono::minutes(2));
      }
      step_by_step.meet();  // all of them know that it is
      if (rank == lost) return;
      m.train(4);
      const auto save = ckpt.save(m.state, 4);
      save.wait_held();
      wrong += save.wait_redundant(std::chrono::minutes(2));
    });  // ends as one that was killed does: nothing is closed
    if (rank == lost) fs::remove_all(on.name(lost));
  });
  CHECK(wrong == 0);
  fs::create_directory(on.left());
  for (int host = 0; host < on.count; ++host)
    if (host != lost)
      fs::copy(on.name(host), on.left() + "/" + std::to_string(host), fs::copy_options::recursive);
  check_rebuilt(on, partner_copies{}, lost, 3);
}

TEST_CASE(
    "to agree on what is held, rank 0 sends a message for each doubling of the ranks, and no rank more than "
    "two others") {
  for (const int size : {1, 2, 16, 64, 256}) {
    CAPTURE(size);
    thread_group group(size);
    memory_store store;
    std::vector<std::shared_ptr<cairn_test::message_counts>> counts;
    for (int rank = 0; rank < size; ++rank) counts.push_back(std::make_shared<cairn_test::message_counts>());
    on_all_ranks(size, [&](int rank) {
      collectives all{any_communicator(cairn_test::counting_communicator(
          group.communicator(rank), counts.at(static_cast<std::size_t>(rank))))};
      safetensors_storage storage{store};
      // Without a deadline no rank says that it waits: the counts are exact.
      const auto found = cairn_test::told_recovery(storage, rank, size, all).survey(deadline::never());
      if (found.size() != 4 || found.back().step != 103) throw std::runtime_error("the ranks did not agree");
    });
    std::uint64_t sent = 0;
    for (const auto& each : counts) sent += each->sent;
    CHECK(counts[0]->sent == std::bit_width(static_cast<unsigned>(size - 1)));
    CHECK(sent == 2U * static_cast<unsigned>(size - 1));
  }
}

TEST_CASE("what cannot be is refused on all ranks, with the group that has too many of them") {
  const hosts on(ranks);
  const thread_group group(2);
  const thread_link_group links(2);
  std::atomic<int> refused{0};
  on_all_ranks(2, [&](int rank) {
    try {
      checkpointer ckpt{file_store{on.store()},
                        local_tier{on.name(0)},
                        partner_copies{.failure_group = "rack 7"},
                        links,
                        group.communicator(rank),
                        checkpointer_options{.quiet = true}};
    } catch (const usage_error& e) {
      refused += std::string(e.what()).find("rack 7") != std::string::npos;
    }
  });
  CHECK(refused == 2);
}

TEST_CASE(
    "tensors in device memory are refused with what to write instead, and those in pinned memory are "
    "redundant") {
  const hosts on(ranks);
  const thread_group group(ranks);
  const thread_link_group links(ranks);
  std::atomic<int> refused{0};
  std::atomic<int> redundant{0};
  on_all_ranks(ranks, [&](int rank) {
    as_rank(on, rank, partner_copies{}, group, links, [&](auto& ckpt, model& m) {
      state_dict device;
      auto view = contiguous_view(m.tensors[0].data(), dtype::f32, {700'001});
      view.space = memory_space::device, view.device = 0;
      device.tensor("weights", view);
      try {
        static_cast<void>(ckpt.save(device, 1));
      } catch (const usage_error& e) {
        refused += std::string(e.what()).find("leave the tier out and pass cuda::pinned_stager") !=
                   std::string::npos;
      }
      state_dict pinned;
      view.space = memory_space::pinned, view.device = -1;
      pinned.tensor("weights", view);
      const auto save = ckpt.save(pinned, 2);
      save.wait_held();
      redundant += save.wait_redundant(std::chrono::minutes(2));
      ckpt.close();
    });
  });
  CHECK(refused == ranks);
  CHECK(redundant == ranks);
}

TEST_CASE("prepare() asks for the room of pieces as well as of images, and counts what is there") {
  constexpr std::int64_t elements = 500'000;
  const scratch_directory disk;
  // Both ranks have 6 images of 2 MB here, and 2 pieces as large.
  const auto resumes = [&](const cairn_test::small_disk& memory, const char* store, bool saves) {
    const thread_group group(2);
    const thread_link_group links(2);
    std::atomic<int> refused{0};
    std::atomic<int> redundant{0};
    std::barrier together(2);
    on_all_ranks(2, [&](int rank) {
      in_step step_by_step(together);
      std::vector<float> w(elements);
      state_dict state;
      state.tensor("w", w, shard{{2 * elements}, {rank * elements}});
      checkpointer ckpt{file_store{disk.path() + store},
                        local_tier{memory.path() + "/tier", {.copy = {.threads = 1}}},
                        persist{.every = 1000},
                        partner_copies{.failure_group = std::to_string(rank)},
                        links,
                        group.communicator(rank),
                        checkpointer_options{.peer_timeout = std::chrono::minutes(2), .quiet = true}};
      try {
        static_cast<void>(ckpt.resume(state));
      } catch (const error& e) {
        refused += std::string(e.what()).find("needs room for two pieces") != std::string::npos;
        return;
      }
      if (saves) redundant += ckpt.save(state, 1).wait_redundant(std::chrono::minutes(2));
      step_by_step.meet();  // whoever ends tells the others nothing more
    });
    CHECK(redundant == (saves ? 2 - refused : 0));
    return refused == 0;
  };
  {
    const cairn_test::small_disk memory("size=28m");
    if (!memory.mounted()) return;
    CHECK_FALSE(resumes(memory, "/small", true));
  }
  const cairn_test::small_disk memory("size=36m");
  CHECK(resumes(memory, "/large", true));
  CHECK(resumes(memory, "/large", false));
}
TEST_CASE(
    "where there is no memory for a piece, or on a disk for the image, the save goes without, and says why") {
  if (CAIRN_TEST_ADDRESS_SANITIZED) return;  // which takes all addresses
  for (const bool on_disk : {false, true}) {
    CAPTURE(on_disk);
    const scratch_directory where(on_disk ? nullptr : "/dev/shm");
    cairn_test::process_ranks one(1);
    const auto place = where.path();
    const auto ends = one.run([=](cairn_test::rank_process&) {
      const memory_store store;
      const thread_group group(2);
      const thread_link_group links(2);
      std::barrier together(2);
      std::atomic<int> told{0};
      std::atomic<int> wrong{0};
      const auto limit_addresses = [](std::uint64_t more) {
        unsigned long pages = 0;
        std::FILE* status = std::fopen("/proc/self/statm", "r");
        if (status == nullptr || std::fscanf(status, "%lu", &pages) != 1) std::abort();
        std::fclose(status);
        rlimit limit{};
        ::getrlimit(RLIMIT_AS, &limit);
        limit.rlim_cur = more == 0 ? limit.rlim_max : rlim_t{pages} * 4096 + more;
        if (::setrlimit(RLIMIT_AS, &limit) != 0) std::abort();
      };
      on_all_ranks(2, [&](int rank) {
        std::vector<float> few(1000);
        std::vector<float> many(std::size_t{2} << 20);
        state_dict small;
        small.tensor("few", few, shard{{2000}, {rank * 1000}});
        state_dict large;
        large.tensor("many", many, shard{{std::int64_t{4} << 20}, {rank * (std::int64_t{2} << 20)}});
        checkpointer ckpt{
            store,
            local_tier{place + "/host-" + std::to_string(rank), {.keep = 1, .copy = {.threads = 1}}},
            persist{.every = 1000},
            partner_copies{.failure_group = std::to_string(rank)},
            links,
            group.communicator(rank),
            warning_with("RLIMIT_AS", told),
            checkpointer_options{.peer_timeout = std::chrono::minutes(2), .quiet = true}};
        in_step step_by_step(together);
        ckpt.prepare(large);
        std::int64_t step = 0;
        const auto save = [&](const state_dict& state, bool redundant) {
          const auto saved = ckpt.save(state, ++step);
          saved.wait_held();
          wrong += saved.wait_redundant(std::chrono::minutes(2)) != redundant;
        };
        for (int warm = 0; warm < 3; ++warm) save(small, true);
        step_by_step.meet();
        if (rank == 0) limit_addresses(std::uint64_t{6} << 20);  // a piece has 8 MiB
        step_by_step.meet();
        save(large, false);
        step_by_step.meet();
        if (rank == 0) limit_addresses(0);
        step_by_step.meet();
        save(large, true);
        ckpt.close();
      });
      if (wrong != 0 || told == 0)
        throw std::runtime_error(std::to_string(wrong) + " saves ended otherwise, " + std::to_string(told) +
                                 " warnings name the limit");
    });
    CHECK_MESSAGE(ends[0].good(), ends[0].text());
  }
}
TEST_CASE("with a tier on a disk a rank has no image in memory for pieces once its save is redundant") {
  if (CAIRN_TEST_ADDRESS_SANITIZED) return;  // which keeps what is freed
  const scratch_directory disk;
  cairn_test::process_ranks one(1);
  const auto place = disk.path();
  const auto ends = one.run([=](cairn_test::rank_process&) {
    constexpr std::int64_t elements = std::int64_t{10} << 20;  // beyond what malloc() keeps
    constexpr std::uint64_t bytes = elements * sizeof(float);
    const memory_store store;
    const thread_group group(2);
    const thread_link_group links(2);
    std::barrier together(2);
    std::atomic<int> wrong{0};
    const auto anonymous = [] {
      std::ifstream status("/proc/self/status");
      std::uint64_t kib = 0;
      for (std::string line; std::getline(status, line);)
        if (line.starts_with("RssAnon:")) kib = std::stoull(line.substr(8));
      return kib << 10;
    };
    on_all_ranks(2, [&](int rank) {
      std::vector<float> w(elements);
      state_dict state;
      state.tensor("w", w, shard{{2 * elements}, {rank * elements}});
      checkpointer ckpt{
          store,
          local_tier{place + "/host-" + std::to_string(rank), {.keep = 1, .copy = {.threads = 1}}},
          persist{.every = 1000},
          partner_copies{.failure_group = std::to_string(rank)},
          links,
          group.communicator(rank),
          checkpointer_options{.peer_timeout = std::chrono::minutes(2), .quiet = true}};
      in_step step_by_step(together);
      ckpt.prepare(state);
      step_by_step.meet();
      const auto before = anonymous();
      step_by_step.meet();
      for (std::int64_t step = 1; step <= 2; ++step) {
        const auto save = ckpt.save(state, step);
        save.wait_held();
        wrong += !save.wait_redundant(std::chrono::minutes(2));
        step_by_step.meet();
        wrong += anonymous() > before + bytes;
        step_by_step.meet();
      }
      ckpt.close();
    });
    if (wrong != 0)
      throw std::runtime_error(std::to_string(wrong) + " saves ended otherwise, or left images");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}

TEST_CASE("redundancy needs of a tier what the concept names, and asks it in its order") {
  const scratch_directory place;
  const thread_group group(2);
  const thread_link_group links(2);
  std::atomic<int> right{0};
  on_all_ranks(2, [&](int rank) {
    const auto asked = std::make_shared<std::vector<std::string>>();
    {
      checkpointer ckpt{file_store{place.path() + "/store"},
                        cairn_test::spread_tier_archetype::make(asked, place.path()),
                        persist{.every = 2},
                        partner_copies{.failure_group = std::to_string(rank)},
                        links,
                        group.communicator(rank),
                        checkpointer_options{.peer_timeout = std::chrono::minutes(2), .quiet = true}};
      model m;
      static_cast<void>(ckpt.resume(m.state));
      for (std::int64_t step = 1; step <= 2; ++step) {
        const auto save = ckpt.save(m.state, step);
        save.wait();
        right += save.committed() == (step == 2) && !save.wait_redundant(std::chrono::minutes(2));
      }
      ckpt.close();
    }
    right += asked->at(0) == "spread" && asked->at(1) == "open " + std::to_string(rank) &&
             asked->back() == "end" &&
             (rank != 0) != (std::find(asked->begin(), asked->end(), "survey") != asked->end());
  });
  CHECK(right == 6);
}

TEST_CASE("each host that is lost is rebuilt from what its partners keep") {
  check_lost_and_rebuilt(partner_copies{.every = 3}, 4);
}
TEST_CASE("a host with two ranks is rebuilt from copies on two others") {
  check_lost_and_rebuilt(partner_copies{.every = 3}, 3);
}
#if CAIRN_USES_PARITY + 0
TEST_CASE("each host that is lost is rebuilt from parity") {
  check_lost_and_rebuilt(parity{.data = 3, .losses = 1, .every = 3}, 4);
}
#endif

}  // namespace
