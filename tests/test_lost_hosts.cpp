// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// uses: cairn::parity
// cost: 20
// Jobs on several hosts that are started again after some of them were lost: resume() takes the newest step that is left in
// memory, rebuilds what is lost, reads what lies on other hosts from there, and refuses what is damaged. Ranks are threads,
// hosts are directories, and a host is lost when its directory is.
#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/links/thread_link.hpp>
#include <cairn/redundancy/image_rebuilds.hpp>
#include <cairn/redundancy/lost_images.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/held_store.hpp>
#include <cairn/tiers/local_tier.hpp>
#include <cairn/tiers/spread_images.hpp>
#if CAIRN_USES_PARITY + 0
#include <cairn/redundancy/parity.hpp>
#endif

#include <doctest/doctest.h>
#include <support/dying_communicator.hpp>
#include <support/no_more_files.hpp>
#include <support/on_all_ranks.hpp>
#include <support/scratch_directory.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {
using namespace cairn;
using cairn_test::dying_communicator;
using cairn_test::on_all_ranks;
using cairn_test::scratch_directory;
namespace fs = std::filesystem;

/// A tensor in shards of uneven sizes, one that all ranks have, a value, and bytes of each rank's own.
struct model {
  std::int64_t elements;
  std::vector<float> part;
  std::vector<float> whole = std::vector<float>(50'001);
  std::int64_t value = -1;
  std::vector<std::byte> own = std::vector<std::byte>(3000);
  std::int64_t first;
  int rank;
  state_dict state;
  model(int of, int world, bool with_own, std::int64_t of_all = 700'003)
      : elements(of_all), first(elements * of / world), rank(of) {
    part.resize(static_cast<std::size_t>(elements * (of + 1) / world - first));
    state.tensor("part", part, shard{{elements}, {first}});
    state.tensor("whole", whole, {static_cast<std::int64_t>(whole.size())});
    state.value("value", value);
    if (with_own) state.bytes("own", own, per_rank);
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;
  void train(std::int64_t step) {
    // By pointers: without optimisation, what vectors do takes most of the time.
    auto number = step * 7919 + first;
    for (auto *to = part.data(), *end = to + part.size(); to != end; ++to)
      *to = static_cast<float>(number++ % 65521);
    number = step * 31;
    for (auto *to = whole.data(), *end = to + whole.size(); to != end; ++to)
      *to = static_cast<float>(number++ % 65521);
    value = step * 3;
    for (std::size_t i = 0; i < own.size(); ++i)
      own[i] =
          static_cast<std::byte>(static_cast<std::size_t>(step) * 5 + i + static_cast<std::size_t>(rank) * 7);
  }
  [[nodiscard]] bool is(std::int64_t step, int world, bool with_own) const {
    model wanted(rank, world, with_own, elements);
    wanted.train(step);
    return part == wanted.part && whole == wanted.whole && value == wanted.value &&
           (!with_own || own == wanted.own);
  }
};

enum class how { copies, parity, parity_of_two };

/// What the ranks of a run tell.
struct run_result {
  std::optional<std::int64_t> resumed;
  bool from_tier = false;
  std::string sources;
  int right = 0;  // ranks whose state was that of the step
  int passed_over = 0;
  int warned = 0;
  std::string warning;  // the last
};
class told_events {
 public:
  using cairn_role = role::observer;
  told_events(run_result& to, std::mutex& mutex) : to_(&to), mutex_(&mutex) {}
  void observe(const observation& what) noexcept {
    const std::lock_guard lock(*mutex_);
    using event = observation::event;
    if (what.kind == event::fell_back) ++to_->passed_over;
    if (what.kind == event::warning) ++to_->warned, (to_->warning += what.text) += "\n";
    if (what.kind == event::loaded && what.rank == 0)
      to_->from_tier = what.load->from_tier, to_->sources = what.load->sources;
  }

 private:
  run_result* to_;
  std::mutex* mutex_;
};

/// What does not get through any more: images to rank 2, which makes no piece then, and votes for what all hold.
struct lost_offers {
  std::atomic<bool> images{false};
  std::atomic<bool> votes{false};
};
class link_without_some {
 public:
  link_without_some(thread_link inner, std::shared_ptr<const lost_offers> lost)
      : inner_(std::move(inner)), lost_(std::move(lost)) {}
  [[nodiscard]] int rank() const noexcept { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept { return inner_.size(); }
  void offer(const offer_key& key, std::span<const std::span<const std::byte>> parts) {
    inner_.offer(key, parts);
  }
  void withdraw(const offer_key& key, deadline until) noexcept { inner_.withdraw(key, until); }
  std::uint64_t await_offer(int peer, const offer_key& key, deadline until) {
    if (lost_->votes && key.name == "cairn.held.vote")
      fail(error_id::peer_lost, "nothing gets through", {.rank = peer});
    return inner_.await_offer(peer, key, until);
  }
  std::uint64_t fetch(int peer, const offer_key& key, std::span<const fetch_range> ranges, deadline until) {
    if (lost_->images && key.name == "cairn.image" && rank() == 2)
      fail(error_id::peer_lost, "nothing gets through", {.rank = peer});
    return inner_.fetch(peer, key, ranges, until);
  }
  [[nodiscard]] bool is_gone(int peer) const noexcept { return inner_.is_gone(peer); }

 private:
  thread_link inner_;
  std::shared_ptr<const lost_offers> lost_;
};
struct links_without_some {
  using cairn_role = role::link;
  thread_link_group group;
  std::shared_ptr<const lost_offers> lost;
  [[nodiscard]] link_without_some connect(collectives& job, deadline until) const {
    return {group.connect(job, until), lost};
  }
};

/// Puts what it receives where its caller wants it, whenever it may.
class landing_communicator {
 public:
  using cairn_role = role::communicator;
  /// `landed` counts; null: nothing lands.
  landing_communicator(dying_communicator inner, std::shared_ptr<std::atomic<int>> landed)
      : inner_(std::move(inner)), landed_(std::move(landed)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void send(int to, std::span<const std::byte> bytes, deadline until) { inner_.send(to, bytes, until); }
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until) {
    return inner_.receive(from, until);
  }
  [[nodiscard]] borrowed_message borrow_into(int from, std::size_t first, std::span<std::byte> rest,
                                             deadline until) {
    borrowed_message message{inner_.receive(from, until), {}};
    if (landed_ == nullptr || message.sent.size() != first + rest.size()) return message;
    std::copy(message.sent.begin() + static_cast<std::ptrdiff_t>(first), message.sent.end(), rest.begin());
    message.sent.resize(first);
    message.landed = true;
    ++*landed_;
    return message;
  }

 private:
  dying_communicator inner_;
  std::shared_ptr<std::atomic<int>> landed_;
};
static_assert(LandsMessages<landing_communicator>);

/// The hosts of a job, by name, and its store.
struct job {
  scratch_directory memory{"/dev/shm"};
  scratch_directory disk;
  std::vector<std::string> hosts;  // of each rank
  how by = how::copies;
  std::uint64_t persist_every = 1000;
  bool with_own = false;
  std::int64_t elements = 700'003;
  int keep = 2;
  int every = 1;
  std::shared_ptr<lost_offers> lost_on_way = std::make_shared<lost_offers>();
  bool on_disk = false;
  int dies = -1;  // a rank, after so many messages
  int messages = 0;
  std::int64_t cleaned_after = -1;           // the step after which all files of all tiers are removed
  std::shared_ptr<std::atomic<int>> landed;  // messages that came where they belong; null: none may

  [[nodiscard]] std::string tier(const std::string& host) const {
    return (on_disk ? disk : memory).path() + "/" + host;
  }
  void lose(const std::string& host) const { fs::remove_all(tier(host)); }
  [[nodiscard]] any_checkpointer make(int rank, const thread_group& group, const thread_link_group& links,
                                      run_result& result, std::mutex& mutex) const {
    const auto& host = hosts[static_cast<std::size_t>(rank)];
    const auto with = [&](auto redundancy) {
      redundancy.failure_group = host;
      return any_checkpointer(checkpointer{
          file_store{disk.path() + "/store"}, local_tier{tier(host), {.keep = keep, .copy = {.threads = 1}}},
          persist{.every = persist_every}, std::move(redundancy), links_without_some{links, lost_on_way},
          landing_communicator(
              dying_communicator(group.communicator(rank), rank == dies ? messages : 1'000'000), landed),
          told_events(result, mutex),
          checkpointer_options{.peer_timeout = std::chrono::minutes(2), .max_restarts = 0, .quiet = true}});
    };
#if CAIRN_USES_PARITY + 0
    if (by == how::parity) return with(parity{.data = 3, .losses = 1, .every = 1});
    if (by == how::parity_of_two) return with(parity{.data = 2, .losses = 2, .every = 1});
#endif
    return with(partner_copies{.every = every});
  }
  /// Resumes, trains until `until` steps are done, and ends without close(), as a job does whose processes are killed; all of
  /// its saves have their pieces then.
  run_result run(std::int64_t until, bool close = false) const {
    const int world = static_cast<int>(hosts.size());
    const thread_group group(world);
    const thread_link_group links(world);
    run_result result;
    std::mutex mutex;
    on_all_ranks(world, [&](int rank) {
      model m(rank, world, with_own, elements);
      auto ckpt = make(rank, group, links, result, mutex);
      const auto step = ckpt.resume(m.state);
      {
        const std::lock_guard lock(mutex);
        if (rank == 0) result.resumed = step;
        result.right += !step || m.is(*step, world, with_own);
      }
      for (auto s = step.value_or(0) + 1; s <= until; ++s) {
        m.train(s);
        const auto save = ckpt.save(m.state, s);
        save.wait();  // also for the store, where it goes there
        const bool redundant = save.wait_redundant(std::chrono::minutes(2));
        // The first one after that may go without, where its plan is not in its place again yet.
        if (redundant == lost_on_way->images && s != cleaned_after + 1)
          throw std::runtime_error("step " + std::to_string(s) + " has no pieces, or should have none");
        if (cleaned_after < 0 || s < cleaned_after) continue;
        // One that went without would begin the next one before the others.
        static_cast<void>(ckpt.any_rank(false));
        if (rank == 0 && s == cleaned_after)
          for (const auto& each : hosts)
            for (const auto& e : fs::directory_iterator(tier(each))) fs::remove(e.path());
        static_cast<void>(ckpt.any_rank(false));
      }
      static_cast<void>(ckpt.any_rank(false));  // nobody ends before all have come so far
      if (close) ckpt.close();
    });
    return result;
  }
};
std::vector<std::string> names_of(int hosts, int ranks) {
  std::vector<std::string> names;
  for (int r = 0; r < ranks; ++r) names.push_back("host" + std::to_string(r * hosts / ranks));
  return names;
}
std::string left_in(const std::string& directory) {
  std::string all;
  for (const auto& e : fs::recursive_directory_iterator(directory)) all += e.path().string() + "\n";
  return all;
}
void flip(const std::string& path, ::off_t at) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(file >= 0);
  unsigned char byte = 0;
  REQUIRE(::pread(file, &byte, 1, at) == 1);
  byte ^= 4;
  REQUIRE(::pwrite(file, &byte, 1, at) == 1);
  ::close(file);
}
/// The files of a host whose name begins so.
int count_of(const std::string& tier, const std::string& begin) {
  int count = 0;
  for (const auto& e : fs::directory_iterator(tier)) count += e.path().filename().string().starts_with(begin);
  return count;
}
/// The record of the newest image, or the newest piece, of a rank on a host.
std::optional<detail::held_name> newest(const std::string& tier, int rank, bool piece) {
  std::optional<detail::held_name> found;
  for (const auto& e : fs::directory_iterator(tier)) {
    const auto text = e.path().filename().string();
    const auto name = piece ? detail::parse_kept_name(text) : detail::parse_held_name(text);
    if (name && name->rank == rank && (!found || name->step > found->step)) found = name;
  }
  return found;
}

// survives: host-lost-redundant
TEST_CASE("each host that is lost costs no step") {
  for (int lost = 0; lost < 4; ++lost) {
    CAPTURE(lost);
    job j;
    j.with_own = true;
    j.hosts = names_of(4, 4);
    const auto first = j.run(3);
    CHECK_FALSE(first.resumed);
    j.lose("host" + std::to_string(lost));
    const auto again = j.run(5);
    CHECK(again.resumed == 3);
    CHECK(again.right == 4);
    CHECK(again.from_tier);
    CHECK(again.sources.find("rank " + std::to_string(lost)) != std::string::npos);
    // The step that was rebuilt, and those that follow, survive another host.
    j.lose("host" + std::to_string((lost + 2) % 4));
    const auto last = j.run(6, true);
    CHECK(last.resumed == 5);
    CHECK(last.right == 4);
    CHECK(left_in(j.memory.path()) == "");
  }
}

TEST_CASE("an image that comes where it belongs is the one that was lost") {
  job j;
  j.with_own = true;
  j.hosts = names_of(4, 4);
  j.landed = std::make_shared<std::atomic<int>>(0);
  j.run(3);
  for (int lost = 0; lost < 4; ++lost) {
    CAPTURE(lost);
    j.lose("host" + std::to_string(lost));
    const auto again = j.run(4 + lost);
    CHECK(again.resumed == 3 + lost);
    CHECK(again.right == 4);
    CHECK(again.warned == 0);
    CHECK(j.landed->exchange(0) > 0);
  }
}

// survives: host-lost-redundant, hosts-changed
TEST_CASE("two ranks of each host, and a host less: others have what was lost, and what lies elsewhere") {
  job j;
  j.hosts = names_of(4, 8);
  j.run(3);
  j.lose("host1");
  j.hosts = {"host0", "host0", "host2", "host2", "host3", "host3"};
  const auto six = j.run(5);
  CHECK(six.resumed == 3);
  CHECK(six.right == 6);
  CHECK(six.from_tier);
  // Hosts swapped, and two that are new.
  j.hosts = {"host3", "host9", "host2", "host8", "host0", "host0", "host2", "host3"};
  const auto eight = j.run(6);
  CHECK(eight.resumed == 5);
  CHECK(eight.right == 8);
  CHECK(eight.from_tier);
  j.lose("host9");
  // Of ranks that were killed there in the middle of a write, and are on other hosts now.
  for (const auto* each : {"/new-piece-3", "/new-00001"}) std::ofstream(j.tier("host0") + each) << "half";
  const auto last = j.run(7, true);
  CHECK(last.resumed == 6);
  CHECK(last.right == 8);
  CHECK(left_in(j.memory.path()) == "");
}
#if CAIRN_USES_PARITY + 0
// survives: host-lost-redundant
TEST_CASE("a host with two ranks is rebuilt from parity, also by fewer ranks") {
  job j;
  j.by = how::parity;
  j.hosts = names_of(4, 8);
  j.run(3);
  j.lose("host2");
  j.hosts = names_of(4, 4);
  const auto again = j.run(4);
  CHECK(again.resumed == 3);
  CHECK(again.right == 4);
  CHECK(again.from_tier);
}
#endif

TEST_CASE("pieces of saves that never became redundant do not pile up, and those that all ranks have stay") {
  job j;
  j.hosts = names_of(4, 4);
  j.run(2);
  j.lost_on_way->images = true;
  for (std::int64_t until = 4; until <= 12; until += 2) {
    const auto again = j.run(until);
    CHECK(again.resumed == until - 2);
    fs::remove_all(j.disk.path() + "/store");  // it took a save of each run: older ones need no pieces then
    for (const auto& host : j.hosts) {
      // Of the redundant step, of the one that was resumed, and of two new ones.
      CHECK(count_of(j.tier(host), "piece-") <= 4);
      CHECK(count_of(j.tier(host), "kept.") <= 4);
      bool is_held = false;
      bool is_kept = false;
      for (const auto& e : fs::directory_iterator(j.tier(host))) {
        const auto name = e.path().filename().string();
        if (const auto held = detail::parse_held_name(name)) is_held = is_held || held->step == 2;
        if (const auto kept = detail::parse_kept_name(name)) is_kept = is_kept || kept->step == 2;
      }
      CHECK(is_held);
      CHECK(is_kept);
    }
  }
  j.lost_on_way->images = false;
  j.lose("host1");
  const auto last = j.run(14);
  CHECK(last.resumed >= 2);
  CHECK(last.right == 4);
  for (const auto& host : j.hosts) CHECK(count_of(j.tier(host), "kept.") <= 2);  // of this run alone
}

TEST_CASE("ranks that never learn whether all hold a save say so once, and what to do") {
  job j;
  j.hosts = names_of(4, 4);
  j.every = 1000;
  j.lost_on_way->votes = true;
  const thread_group group(4);
  const thread_link_group links(4);
  run_result result;
  std::mutex mutex;
  // Others come, too: on a busy machine a link that takes long is warned of.
  const auto times_told = [&] {
    constexpr std::string_view what = "does not know whether all ranks hold them";
    int times = 0;
    for (auto at = result.warning.find(what); at != std::string::npos; at = result.warning.find(what, at + 1))
      ++times;
    return times;
  };
  on_all_ranks(4, [&](int rank) {
    model m(rank, 4, false);
    auto ckpt = j.make(rank, group, links, result, mutex);
    static_cast<void>(ckpt.resume(m.state));
    const auto told = [&] {
      const std::lock_guard lock(mutex);
      return times_told() > 0;
    };
    std::int64_t step = 0;
    do ckpt.save(m.state, ++step).wait_held();
    while (!ckpt.any_rank(told()) && step < 500);
  });
  CHECK(times_told() >= 1);
  CHECK(times_told() <= 4);  // of each rank one
  CHECK(result.warning.find("ports") != std::string::npos);
}

// survives: clocks-apart
TEST_CASE("hosts whose clocks are apart have the newest step") {
  job j;
  j.hosts = names_of(4, 4);
  j.run(3);
  for (const auto& [host, minutes] : {std::pair("host0", 10), std::pair("host1", -10)})
    for (const auto& e : fs::directory_iterator(j.tier(host)))
      fs::last_write_time(e.path(), e.last_write_time() + std::chrono::minutes(minutes));
  j.lose("host2");
  const auto again = j.run(5);
  CHECK(again.resumed == 3);
  CHECK(again.right == 4);
  CHECK(again.from_tier);
}

// survives: too-many-hosts
TEST_CASE(
    "where more hosts are lost than may be, the newest step that the store has is taken, and nothing of "
    "two") {
  job j;
  j.persist_every = 2;
  j.hosts = names_of(4, 4);
  j.run(3);
  for (const auto* host : {"host0", "host1", "host2"}) j.lose(host);
  const auto again = j.run(4);
  CHECK(again.resumed == 2);
  CHECK(again.right == 4);
  CHECK_FALSE(again.from_tier);
  CHECK_MESSAGE(
      again.warning.find("step 3 in the local tiers cannot be completed: no local tier has the images "
                         "of ranks 0, 1, 2") != std::string::npos,
      again.warning);
  // Step 3 of the host that was left is not taken for one of the new run.
  j.lose("host1");
  const auto last = j.run(5);
  CHECK(last.resumed == 4);
  CHECK(last.right == 4);
}

/// What a start says that ends with an error of this type.
template <class Error>
std::string refusal(const job& j) {
  try {
    j.run(0);
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}
// survives: too-many-hosts
TEST_CASE(
    "where more hosts are lost than may be and the store has nothing, the start ends with what the tiers "
    "hold, and nothing is given up") {
  job j;
  j.hosts = names_of(4, 4);
  j.run(3);
  for (const auto* host : {"host0", "host1", "host2"}) fs::rename(j.tier(host), j.tier(host) + ".away");
  const auto why = refusal<storage_error>(j);
  for (const auto* part : {"storage.nothing_loads", "step 3", "images of ranks 0, 1, 2", "to begin anew"})
    CHECK_MESSAGE(why.find(part) != std::string::npos, why);
  SUBCASE("the hosts come back") {
    for (const auto* host : {"host0", "host1", "host2"}) {
      j.lose(host);
      fs::rename(j.tier(host) + ".away", j.tier(host));
    }
    const auto again = j.run(4);
    CHECK(again.resumed == 3);
    CHECK(again.right == 4);
    CHECK(again.from_tier);
  }
  SUBCASE("the job begins anew on purpose") {
    for (const auto& host : j.hosts) j.lose(host);
    CHECK_FALSE(j.run(1).resumed);
  }
}
TEST_CASE("a first save that not all ranks came to hold is no reason not to begin anew") {
  job j;
  j.hosts = names_of(4, 4);
  j.run(1);
  j.lose("host1");
  for (const auto& host : j.hosts) {  // nor had they made pieces of it
    if (host == "host1") continue;
    std::vector<fs::path> pieces;
    for (const auto& e : fs::directory_iterator(j.tier(host)))
      if (e.path().filename().string().starts_with("kept.")) pieces.push_back(e.path());
    CHECK(pieces.size() == 1);
    for (const auto& each : pieces) fs::remove(each);
  }
  const auto again = j.run(2);
  CHECK_FALSE(again.resumed);
  CHECK_MESSAGE(again.warning.find("step 1 in the local tiers cannot be completed") != std::string::npos,
                again.warning);
  CHECK(j.run(3).resumed == 2);
}
#if CAIRN_USES_PARITY + 0
/// Ranks of which each keeps a copy for another one in a ring, or parity: a pair with copies could be taken for either.
int ranks_with(how by) {
  return by == how::copies ? 3 : 4;
}
// survives: other-redundancy
TEST_CASE("another redundancy than the job had ends the start where it is needed, with the one that it had") {
  for (const auto had : {how::copies, how::parity}) {
    CAPTURE(static_cast<int>(had));
    const int ranks = ranks_with(had);
    job j;
    j.by = had;
    j.persist_every = 2;
    j.hosts = names_of(ranks, ranks);
    j.run(3);
    j.lose("host2");
    j.by = had == how::copies ? how::parity : how::copies;
    const auto why = refusal<usage_error>(j);
    for (const auto* part : {"usage.bad_option", "step 3", "from step 2",
                             had == how::copies ? "which was partner_copies{}" : "which was parity{3, 1}"})
      CHECK_MESSAGE(why.find(part) != std::string::npos, why);
    j.by = had;
    const auto again = j.run(4);
    CHECK(again.resumed == 3);
    CHECK(again.right == ranks);
    CHECK(again.from_tier);
  }
}
TEST_CASE("a job may have another redundancy than it had where no piece of what it resumes is needed") {
  for (const auto had : {how::copies, how::parity}) {
    CAPTURE(static_cast<int>(had));
    const int ranks = ranks_with(had);
    const auto other = had == how::copies ? how::parity : how::copies;
    {
      job j;
      j.by = had;
      j.hosts = names_of(ranks, ranks);
      j.run(3);
      j.by = other;
      const auto again = j.run(4);
      CHECK(again.resumed == 3);
      CHECK(again.right == ranks);
      CHECK(again.from_tier);
      j.lose("host2");
      const auto last = j.run(5);
      CHECK(last.resumed == 4);
      CHECK(last.right == ranks);
    }
    job j;
    j.by = had;
    j.persist_every = 1;  // the store has what the tiers have
    j.hosts = names_of(ranks, ranks);
    j.run(3);
    j.by = other;
    j.lose("host2");
    const auto again = j.run(4);
    CHECK(again.resumed == 3);
    CHECK(again.right == ranks);
    CHECK_FALSE(again.from_tier);
  }
}
#endif
TEST_CASE("where somebody removes all files of all tiers, saves that come later survive a lost host") {
  job j;
  j.hosts = names_of(2, 4);
  j.cleaned_after = 2;
  j.run(5);
  j.lose("host1");
  const auto again = j.run(6);
  CHECK(again.resumed == 5);
  CHECK(again.right == 4);
  CHECK(again.from_tier);
}
// survives: no-redundancy
TEST_CASE("a job that is started without the redundancy that it needs ends, and nothing is given up") {
  for (const bool stored : {true, false}) {
    CAPTURE(stored);
    job j;
    j.persist_every = stored ? 2 : 1000;
    j.hosts = names_of(2, 2);
    j.run(3);
    j.lose("host1");
    std::string why;
    try {
      model m(0, 1, false);
      checkpointer ckpt{file_store{j.disk.path() + "/store"}, local_tier{j.tier("host0"), {.keep = 2}},
                        persist{.every = 1000}, checkpointer_options{.max_restarts = 0, .quiet = true}};
      static_cast<void>(ckpt.resume(m.state));
    } catch (const usage_error& e) {
      why = e.what();
    }
    for (const auto* part : {"usage.bad_option", "step 3", stored ? "from step 2" : "begin anew", "scavenge"})
      CHECK_MESSAGE(why.find(part) != std::string::npos, why);
    const auto again = j.run(4);
    CHECK(again.resumed == 3);
    CHECK(again.right == 2);
    CHECK(again.from_tier);
  }
}
// survives: nothing-to-write
TEST_CASE("a rank that had nothing to write is lost with its host, and costs no step") {
  for (const bool on_disk : {false, true})
    for (const auto* lost : {"host0", "host1"}) {
      CAPTURE(on_disk);
      CAPTURE(lost);
      job j;
      j.on_disk = on_disk;
      j.hosts = names_of(2, 2);
      // Rank 0 alone has something.
      const auto run = [&](std::int64_t until) {
        const thread_group group(2);
        const thread_link_group links(2);
        run_result result;
        std::mutex mutex;
        on_all_ranks(2, [&](int rank) {
          std::vector<float> w(100'003);
          state_dict state;
          if (rank == 0) state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
          auto ckpt = j.make(rank, group, links, result, mutex);
          const auto step = ckpt.resume(state);
          if (rank == 0) result.resumed = step;
          if (rank == 0) result.right = !step || w == std::vector<float>(w.size(), static_cast<float>(*step));
          for (auto s = step.value_or(0) + 1; s <= until; ++s) {
            std::fill(w.begin(), w.end(), static_cast<float>(s));
            const auto save = ckpt.save(state, s);
            save.wait();
            if (!save.wait_redundant(std::chrono::minutes(2)))
              throw std::runtime_error("step " + std::to_string(s) + " has no pieces");
          }
          static_cast<void>(ckpt.any_rank(false));  // nobody ends before all have come so far
        });
        return result;
      };
      run(3);
      j.lose(lost);
      const auto again = run(4);
      CHECK(again.resumed == 3);
      CHECK(again.right == 1);
      CHECK(again.from_tier);
      CHECK_MESSAGE(again.warned == 0, again.warning);
    }
}

// survives: bit-flipped-on-hosts
TEST_CASE("a bit that flipped in an image is found, and the image is rebuilt, or another step is taken") {
  int older = 0;
  for (const auto* lost : {"", "host0", "host2", "host3"}) {
    CAPTURE(lost);
    job j;
    j.persist_every = 2;
    j.hosts = names_of(4, 4);
    j.run(3);
    const auto name = newest(j.tier("host1"), 1, false);
    REQUIRE(name);
    flip(j.tier("host1") + "/" + detail::slot_name(1, name->slot), 4096 + 200'000);
    if (*lost != 0) j.lose(lost);
    const auto again = j.run(4);
    CHECK(again.right == 4);
    CHECK(again.warned + again.passed_over > 0);
    CHECK(again.from_tier);
    // Without the host of its partner nothing is left that its image could be made of; pieces of step 2 are.
    older += again.resumed == 2;
    CHECK((again.resumed == 2 || again.resumed == 3));
  }
  CHECK(older == 1);
}
// survives: bit-flipped-on-hosts, piece-flipped
TEST_CASE(
    "a bit that flipped in what a rank keeps for another, or in a record, costs nothing that another source "
    "has") {
  enum class in { record, piece, piece_record, plan };
  for (const auto where : {in::record, in::piece, in::piece_record, in::plan}) {
    CAPTURE(static_cast<int>(where));
    job j;
    j.persist_every = 2;
    j.hosts = names_of(4, 4);
    j.run(3);
    for (int host = 0; host < 4; ++host) {
      const auto tier = j.tier("host" + std::to_string(host));
      const auto image = newest(tier, host, false);
      const auto piece = newest(tier, host, true);
      REQUIRE(image);
      REQUIRE(piece);
      if (where == in::record && host == 1) flip(tier + "/" + to_string(*image), 200);
      if (where == in::piece) flip(tier + "/" + detail::piece_name(host, piece->slot), 300'000);
      if (where == in::piece_record) flip(tier + "/" + detail::kept_record_name(*piece), 100);
      if (where == in::plan) flip(tier + "/" + detail::plan_name(image->plan_digest), 100);
    }
    // Without a loss nobody needs the pieces.
    const auto again = j.run(4);
    CHECK(again.right == 4);
    CHECK(again.resumed == 3);
    CHECK(again.from_tier);
  }
}
/// The system refuses to read the file from then on, as it does where a disk fails: no link is followed.
void make_unreadable(const std::string& path) {
  fs::rename(path, path + ".aside");
  fs::create_symlink(path + ".aside", path);
}
TEST_CASE("a file that the system cannot read costs no more than one that is damaged") {
  for (const bool piece : {false, true}) {
    CAPTURE(piece);
    job j;
    j.persist_every = 2;
    j.hosts = names_of(4, 4);
    j.run(3);
    const auto name = newest(j.tier("host1"), 1, piece);
    REQUIRE(name);
    make_unreadable(j.tier("host1") + "/" + (piece ? detail::kept_record_name(*name) : to_string(*name)));
    const auto again = j.run(4);
    CHECK(again.resumed == 3);
    CHECK(again.right == 4);
    CHECK(again.from_tier);
    CHECK(again.warned > 0);
  }
}
TEST_CASE(
    "a place without the plan of a save, which comes after the image, is told of only where no other has "
    "it") {
  job j;
  j.persist_every = 2;
  j.hosts = names_of(4, 4);
  j.run(3);
  const auto lose_plan = [&](int host) {
    const auto tier = j.tier("host" + std::to_string(host));
    const auto image = newest(tier, host, false);
    REQUIRE(image);
    fs::remove(tier + "/" + detail::plan_name(image->plan_digest));
    fs::remove(tier + "/" + detail::second_plan_name(image->plan_digest));
  };
  // As where the process is killed between the two.
  lose_plan(2);
  SUBCASE("nothing is lost") {
    const auto again = j.run(4);
    CHECK(again.right == 4);
    CHECK(again.resumed == 3);
    CHECK(again.from_tier);
    CHECK_MESSAGE(again.warned == 0, again.warning);
  }
  SUBCASE("nor where an image must be rebuilt there") {
    j.lose("host1");
    const auto again = j.run(4);
    CHECK(again.right == 4);
    CHECK(again.resumed == 3);
    CHECK_MESSAGE(again.warned == 0, again.warning);
  }
  SUBCASE("all of them are lost") {
    for (const int host : {0, 1, 3}) lose_plan(host);
    std::vector<std::string> tiers, notes;
    for (int host = 0; host < 4; ++host) tiers.push_back(j.tier("host" + std::to_string(host)));
    for (const auto& step : find_surviving_steps(tiers, any_redundancy(partner_copies{}), notes))
      CHECK(step.missing == "none of the tiers has its plan");
    const auto again = j.run(4);
    CHECK(again.right == 4);
    CHECK(again.resumed == 2);
    CHECK(again.warned > 0);
    CHECK_MESSAGE(again.warning.find("no local tier has its plan any more") != std::string::npos,
                  again.warning);
  }
}
TEST_CASE("where an image cannot be rebuilt for want of room, the start ends, and the step stays") {
  job j;
  j.persist_every = 2;
  j.hosts = names_of(4, 4);
  j.run(3);
  j.lose("host2");
  {
    // A file of an image would be larger than the process may make one.
    ::rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const ::rlimit small{.rlim_cur = 256 << 10, .rlim_max = before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    std::string why;
    try {
      j.run(0);
    } catch (const storage_error& e) {
      why = e.what();
    }
    static_cast<void>(::setrlimit(RLIMIT_FSIZE, &before));
    static_cast<void>(std::signal(SIGXFSZ, handler));
    CHECK(why.find("make room there and start again") != std::string::npos);
  }
  const auto again = j.run(4);
  CHECK(again.resumed == 3);
  CHECK(again.right == 4);
}
/// Nothing that is rebuilt of this rank can be held on this host: something else is where its record would be written.
std::string refuse_rebuilt(const job& j, const std::string& host, int rank) {
  const auto path = j.tier(host) + "/new-rebuilt-" + std::to_string(rank);
  fs::create_directories(path);
  return path;
}
// survives: rebuild-refused
TEST_CASE("where a host fails while it takes an image that is rebuilt, another one takes it") {
  job j;
  j.persist_every = 2;
  j.hosts = names_of(4, 4);
  j.run(3);
  j.lose("host2");
  SUBCASE("its record") {
    refuse_rebuilt(j, "host2", 2);
  }
  SUBCASE("the plan, which it gets first") {
    fs::create_directories(j.tier("host2") + "/new-plan-of-others");
  }
  const auto again = j.run(4);
  CHECK(again.resumed == 3);
  CHECK(again.right == 4);
  CHECK(again.from_tier);
  CHECK(again.warned > 0);
}
// survives: rebuild-refused
TEST_CASE("where no host takes an image that is rebuilt, the start ends, and the step stays") {
  job j;
  j.persist_every = 2;
  j.hosts = names_of(4, 4);
  j.run(3);
  j.lose("host2");
  std::vector<std::string> refused;
  for (const auto& host : j.hosts) refused.push_back(refuse_rebuilt(j, host, 2));
  CHECK_THROWS_AS(j.run(0), storage_error);
  for (const auto& each : refused) fs::remove(each);
  const auto again = j.run(4);
  CHECK(again.resumed == 3);
  CHECK(again.right == 4);
}
TEST_CASE("what a limit of open files hides is not taken for missing") {
  job j;
  j.hosts = names_of(2, 2);
  j.run(2);
  const auto tier = j.tier("host0");
  std::vector<std::string> damaged;
  auto saves = detail::survey_images(tier, damaged);
  detail::redundancy_rebuilder rebuilder(any_redundancy(partner_copies{}));
  rebuilder.survey(tier, saves, damaged);
  REQUIRE_FALSE(saves.empty());
  const auto sources = rebuilder.sources(tier, saves.back());
  const auto name = newest(tier, 0, false);
  REQUIRE(name);
  auto alone = *name;
  alone.world_size = 1;  // as a job of one host looks at it
  using kind = rebuild_range::kind;
  const rebuild_range image{.rank = 0, .what = kind::image, .begin = 0, .bytes = 4096};
  {
    const cairn_test::no_more_files limit;
    CHECK_THROWS_AS((void)sources->bytes(image), storage_error);
    CHECK_THROWS_AS((void)sources->bytes({.rank = 0, .what = kind::record}), storage_error);
    CHECK_THROWS_AS((void)detail::complete_saves(tier, {&alone, 1}, damaged), storage_error);
  }
  CHECK(damaged.empty());
  CHECK(sources->bytes(image) == 4096);
}
// survives: piece-flipped
TEST_CASE("a piece with a flipped bit is not used, and an older step is taken that loads") {
  job j;
  SUBCASE("") {}
  SUBCASE("it comes where it would belong") {
    j.landed = std::make_shared<std::atomic<int>>(0);
  }
  j.persist_every = 2;
  j.hosts = names_of(4, 4);
  j.run(3);
  for (int host = 0; host < 4; ++host) {
    const auto tier = j.tier("host" + std::to_string(host));
    flip(tier + "/" + detail::piece_name(host, newest(tier, host, true).value().slot), 300'000);
  }
  j.lose("host3");
  const auto again = j.run(4);
  CHECK(again.right == 4);
  CHECK(again.resumed == 2);
  CHECK(again.warned + again.passed_over > 0);
  if (j.landed != nullptr) CHECK(*j.landed > 0);
}

#if CAIRN_USES_PARITY + 0
// survives: piece-flipped, bit-flipped-on-hosts
TEST_CASE("parity for two losses survives a lost host and a source that is damaged or cannot be read") {
  enum class of { piece, image, unreadable_piece, unreadable_image };
  for (const auto which : {of::piece, of::image, of::unreadable_piece, of::unreadable_image}) {
    CAPTURE(static_cast<int>(which));
    job j;
    j.by = how::parity_of_two;
    j.hosts = names_of(4, 4);
    j.run(3);
    j.lose("host0");
    const bool piece = which == of::piece || which == of::unreadable_piece;
    const auto tier = j.tier("host2");
    const auto slot = newest(tier, 2, piece).value().slot;
    const auto path = tier + "/" + (piece ? detail::piece_name(2, slot) : detail::slot_name(2, slot));
    if (which == of::piece || which == of::image)
      for (const ::off_t at : {10'000, 300'000}) flip(path, 4096 + at);
    else
      make_unreadable(path);
    const auto again = j.run(4);
    CHECK(again.right == 4);
    CHECK(again.resumed == 3);
    CHECK(again.from_tier);
    CHECK(again.warned > 0);
  }
}
TEST_CASE("an image that is rebuilt by parity asks for no more bytes than it is made of") {
  job j;
  j.by = how::parity;
  j.elements = 5'000'011;  // images of several blocks
  j.hosts = names_of(4, 4);
  j.run(2);
  j.lose("host1");
  detail::redundancy_rebuilder rebuilder(any_redundancy(parity{.data = 3, .losses = 1}));
  std::vector<std::string> damaged;
  std::vector<surveyed_save> all;
  for (const int host : {0, 2, 3}) {
    const auto tier = j.tier("host" + std::to_string(host));
    auto saves = detail::survey_images(tier, damaged);
    rebuilder.survey(tier, saves, damaged);
    add_survey(all, saves);
  }
  REQUIRE_FALSE(all.empty());
  const auto& save = all.back();
  std::vector<std::unique_ptr<rebuild_sources>> sources;
  for (const int host : {0, 2, 3})
    sources.push_back(rebuilder.sources(j.tier("host" + std::to_string(host)), save));
  const auto rebuild = rebuilder.begin(j.tier("host0"), save, 1);
  std::uint64_t asked = 0;
  while (!rebuild->is_whole()) {
    const auto wanted = rebuild->next(std::uint64_t{1} << 20);
    std::vector<std::vector<std::byte>> memory(wanted.size());
    std::vector<std::span<const std::byte>> parts(wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      asked += wanted[i].bytes;
      for (const auto& source : sources) {
        memory[i].resize(static_cast<std::size_t>(source->bytes(wanted[i])));
        if (source->read(wanted[i], memory[i])) parts[i] = memory[i];
        if (!parts[i].empty()) break;
      }
    }
    rebuild->take(parts);
  }
  CHECK(rebuild->finish().empty());
  CHECK(damaged.empty());
  const auto name = newest(j.tier("host0"), 1, false);
  REQUIRE(name);
  const auto bytes = fs::file_size(j.tier("host0") + "/" + detail::slot_name(1, name->slot));
  CHECK(bytes > 5'000'000);
  CHECK(asked <= 3 * bytes);
}
#endif

// survives: killed-in-recovery
TEST_CASE("a rank that is killed in the middle of a recovery leaves what the next one finds") {
  job j;
  j.hosts = names_of(4, 4);
  j.run(3);
  j.lose("host2");
  int killed = 0;
  for (int messages = 20; messages <= 130; messages += 10) {
    j.dies = messages % 20 == 0 ? 1 : 2;  // one that has what is lost, or the one that rebuilds it
    j.messages = messages;
    try {
      const auto again = j.run(0);  // it resumes, and ends
      CHECK(again.resumed == 3);
    } catch (const error&) {
      ++killed;
    }
  }
  CHECK(killed >= 2);
  j.dies = -1;
  const auto last = j.run(4);
  CHECK(last.resumed == 3);
  CHECK(last.right == 4);
}
TEST_CASE("what a job left on hosts is one store, with images rebuilt that were lost or are damaged") {
  job j;
  j.hosts = names_of(4, 4);
  j.run(3);
  const auto name = newest(j.tier("host1"), 1, false);
  REQUIRE(name);
  flip(j.tier("host1") + "/" + detail::slot_name(1, name->slot), 4096 + 200'000);
  const any_redundancy by(partner_copies{});
  std::vector<std::string> left;
  for (int host = 0; host < 4; ++host) left.push_back(j.tier("host" + std::to_string(host)));
  std::vector<std::string> notes;
  const auto before = find_surviving_steps(left, by, notes);
  REQUIRE_FALSE(before.empty());
  CHECK(before.back().lost.empty());
  CHECK(before.back().which.runs.has_value());  // who it descends from
  CHECK(give_up_damaged_images(left, before.back()).size() == 1);
  const auto step = find_surviving_steps(left, by, notes).back();
  CHECK(step.which.step == 3);
  CHECK(step.lost == std::vector<std::int32_t>{1});
  CHECK_THROWS_AS((void)surviving_store(left, step), corrupt_error);
  rebuild_lost_images(left, by, step, left.front(), notes);
  safetensors_reader reader(surviving_store(left, step));
  auto whole = reader.open(3, reader.fetch(3));
  CHECK(reader.verify(whole, deadline::in(std::chrono::minutes(1))) > 2'000'000);
}
TEST_CASE("an image whose record the system cannot read is given up as a damaged one is") {
  job j;
  j.hosts = names_of(2, 2);
  j.run(2);
  const any_redundancy by(partner_copies{});
  const std::vector<std::string> left{j.tier("host0"), j.tier("host1")};
  std::vector<std::string> notes;
  const auto before = find_surviving_steps(left, by, notes);
  REQUIRE_FALSE(before.empty());
  const auto name = newest(left[1], 1, false);
  REQUIRE(name);
  make_unreadable(left[1] + "/" + to_string(*name));
  CHECK(give_up_damaged_images(left, before.back()).size() == 1);
  CHECK(find_surviving_steps(left, by, notes).back().lost == std::vector<std::int32_t>{1});
}
// survives: other-job
TEST_CASE("the tier of another job on one host ends the start, with its name, and stays") {
  job j;
  j.hosts = names_of(2, 2);
  j.run(2);
  job other;
  other.hosts = names_of(2, 2);
  other.run(1);
  for (const bool older : {false, true}) {
    CAPTURE(older);
    if (older) {  // the first line of a directory says in which format it is
      const auto file = j.tier("host1") + "/job";
      fs::remove(file);
      std::ofstream(file) << "cairn local tier 1\n" << j.disk.path() << "/store\n";
    } else {
      fs::rename(j.tier("host1"), j.tier("aside"));
      fs::copy(other.tier("host1"), j.tier("host1"), fs::copy_options::recursive);
    }
    CHECK_THROWS_AS(j.run(3), usage_error);
    CHECK(newest(j.tier("host0"), 0, false)->step == 2);
    j.lose("host1");
    if (!older) fs::rename(j.tier("aside"), j.tier("host1"));
  }
  const auto again = j.run(3);
  CHECK(again.resumed == 2);
  CHECK(again.right == 2);
}

}  // namespace
