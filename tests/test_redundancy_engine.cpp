// SPDX-License-Identifier: Apache-2.0
// threaded
// uses: cairn::parity
// cost: 15
// Pieces that ranks make for one another beside training, whatever becomes of the link and of the others; and images of lost
// hosts that are rebuilt from what the other hosts have. Hosts are directories and failure groups, ranks have a thread each.
#include <cairn/links/thread_link.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/redundancy/lost_images.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/redundancy/redundancy_engine.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#if CAIRN_USES_PARITY + 0
#include <cairn/redundancy/parity.hpp>
#endif
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>

#include <doctest/doctest.h>
#include <support/rounds.hpp>
#include <support/scratch_directory.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {
using namespace cairn;
using cairn::detail::held_name;
using cairn_test::scratch_directory;
namespace fs = std::filesystem;

/// Long enough for any machine; a test that waits for it has failed.
deadline in_time() {
  return deadline::in(std::chrono::minutes(5));
}
constexpr run_id run{.high = 0x1234, .low = 0x5678};

std::vector<std::byte> file_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> bytes(static_cast<std::size_t>(fs::file_size(path)));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
  return bytes;
}
/// As ==, which compares byte by byte without optimisation.
bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}
[[maybe_unused]] void flip(const fs::path& path, std::uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const auto byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
  REQUIRE(file.good());
}

/// As in memory: the disk of the machine that tests is no part of any deadline.
struct quick_files : tier_files {
  void sync(const std::string&, int) override {}
};

/// A job whose hosts have a rank and a tier each. Its saves are what a local tier would hold of them.
class job {
 public:
  explicit job(int hosts) : group(hosts), slots(static_cast<std::size_t>(hosts)) {
    for (int rank = 0; rank < hosts; ++rank) {
      groups.push_back("host-" + std::to_string(rank));
      fs::create_directory(tier(rank));
      links.emplace_back(group.link(rank));
    }
  }
  [[nodiscard]] int ranks() const { return static_cast<int>(groups.size()); }
  [[nodiscard]] std::string tier(int rank) const {
    return (fs::path(scratch.path()) / ("host-" + std::to_string(rank))).string();
  }
  [[nodiscard]] std::vector<std::string> tiers_without(const std::set<int>& lost) const {
    std::vector<std::string> left;
    for (int rank = 0; rank < ranks(); ++rank)
      if (!lost.contains(rank)) left.push_back(tier(rank));
    return left;
  }
  void start(const any_redundancy& by, redundancy_options options = {}) {
    if (options.files == nullptr) options.files = std::make_shared<quick_files>();
    engines.clear();
    for (int rank = 0; rank < ranks(); ++rank)
      engines.push_back(std::make_unique<redundancy_engine>(links[static_cast<std::size_t>(rank)], by, groups,
                                                            tier(rank), options));
  }
  /// Save n of a rank, in a file with a header, one item, and what makes the image a whole number of pages.
  [[nodiscard]] held_image made(int rank, std::uint64_t n, std::int32_t slot = 0) const {
    const auto step = static_cast<std::int64_t>(10 * n);
    const held_name name{.run = from,
                         .attempt = attempt_of(from, step, n),
                         .plan_digest = 77,
                         .step = step,
                         .world_size = ranks(),
                         .rank = rank,
                         .slot = slot};
    auto image = std::make_shared<std::vector<std::byte>>(image_bytes(rank));
    // Other parts of the same random words, which take long to make without optimisation.
    constexpr std::size_t parts = 16'384;
    static const auto words = [] {
      std::vector<std::uint64_t> made((std::size_t{3} << 20) / sizeof(std::uint64_t) + parts);
      std::mt19937_64 random(1);
      for (auto *to = made.data(), *end = to + made.size(); to != end; ++to) *to = random();
      return made;
    }();
    const auto part = (n * 1000 + static_cast<std::uint64_t>(rank)) % parts;
    REQUIRE(image->size() <= (words.size() - parts) * sizeof(std::uint64_t));
    std::memcpy(image->data(), words.data() + part, image->size());
    cairn::record r;
    r.run = from, r.attempt = name.attempt, r.step = step, r.rank = rank, r.world_size = ranks(),
    r.plan_digest = 77;
    const auto item = std::span<const std::byte>(*image).subspan(800, image->size() - 1000);
    r.files = {{.bytes = 800 + item.size()}};
    for (std::size_t at = 0; at < item.size(); at += digest_block_bytes)
      r.blocks.push_back(
          digest(item.subspan(at, std::min<std::size_t>(digest_block_bytes, item.size() - at))));
    r.items = {{.key = {.name = 1, .box = 2},
                .file = 0,
                .offset = 800,
                .bytes = item.size(),
                .digest = digest_of_blocks(r.blocks),
                .first_block = 0}};
    manifest plan;
    plan.plan_digest = 77;
    plan.content.world_size = ranks();
    for (int each = 0; each < ranks(); ++each) plan.records.push_back({.rank = each, .files = 1});
    return {.bytes = *image,
            .digests = r.blocks,
            .description = detail::encode_held(name, {.begins = {0}, .record = encode_record(r)}),
            .plan = encode_manifest(plan),
            .memory = image};
  }
  /// The same, held in the tier of the rank's host, which keeps two saves and what somebody still has.
  held_image held(int rank, std::uint64_t n) {
    auto& own = slots[static_cast<std::size_t>(rank)];
    std::map<std::int64_t, held_name> there;
    for (const auto& each : detail::names_in_tier(tier(rank)))
      if (const auto name = detail::parse_held_name(each); name && name->rank == rank)
        there[name->step] = *name;
    if (const auto before = there.find(static_cast<std::int64_t>(10 * n)); before != there.end()) {
      auto image = made(rank, n, before->second.slot);
      CHECK(same_bytes(file_bytes(fs::path(tier(rank)) / detail::slot_name(rank, before->second.slot)),
                       image.bytes));
      own[before->second.slot] = image.memory;
      return image;
    }
    tier_files files;
    std::set<std::int32_t> taken;
    int newer = 0;
    for (auto name = there.rbegin(); name != there.rend(); ++name)
      if (++newer <= 2 || !own[name->second.slot].expired())
        taken.insert(name->second.slot);
      else
        files.remove(tier(rank) + "/" + detail::to_string(name->second));
    std::int32_t slot = 0;
    while (taken.contains(slot) || !own[slot].expired()) ++slot;
    auto image = made(rank, n, slot);
    own[slot] = image.memory;
    files.put(tier(rank) + "/" + detail::slot_name(rank, slot), image.bytes);
    for (const auto& name : {detail::plan_name(77), detail::second_plan_name(77)})
      files.put(tier(rank) + "/" + name, image.plan);
    files.put(tier(rank) + "/" + detail::to_string(detail::name_of(image)), image.description);
    return image;
  }
  [[nodiscard]] std::size_t image_bytes(int rank) const {
    return small ? 20'480 : (std::size_t{5} << 19) + static_cast<std::size_t>(rank) * 4096 * 5;
  }
  redundancy_engine& engine(int rank) { return *engines[static_cast<std::size_t>(rank)]; }
  /// All hold a save, and wait for its end.
  std::vector<redundancy_report> save(std::uint64_t n) {
    for (int rank = 0; rank < ranks(); ++rank) engine(rank).hold(held(rank, n));
    return reports(n);
  }
  std::vector<redundancy_report> reports(std::uint64_t n) {
    std::vector<redundancy_report> all;
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto report = engine(rank).wait(n, in_time());
      REQUIRE(report);
      all.push_back(*report);
    }
    return all;
  }
  void check_redundant(std::uint64_t n) {
    for (const auto& report : reports(n)) {
      CHECK(report.why.empty());
      REQUIRE(report.state == redundancy_state::redundant);
    }
  }

  bool small = false;
  run_id from = run;
  scratch_directory scratch;
  thread_link_group group;
  std::vector<std::string> groups;
  std::vector<any_peer_link> links;
  std::vector<std::map<std::int32_t, std::weak_ptr<const void>>> slots;  // who still has what lies there
  std::vector<std::unique_ptr<redundancy_engine>> engines;
};

std::optional<surviving_step> newest(const std::vector<std::string>& tiers, const any_redundancy& by) {
  std::vector<std::string> damaged;
  const auto steps = find_surviving_steps(tiers, by, damaged);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step)
    if (step->missing.empty()) return *step;
  return std::nullopt;
}

/// Rebuilds all that is lost in the first tier that is left, and compares it with what was held.
std::vector<std::string> check_rebuilt(job& of, const std::set<int>& lost, const any_redundancy& by,
                                       std::uint64_t n) {
  const auto left = of.tiers_without(lost);
  const auto step = newest(left, by);
  REQUIRE(step);
  CHECK(step->which.step == static_cast<std::int64_t>(10 * n));
  CHECK(step->lost == std::vector<std::int32_t>(lost.begin(), lost.end()));
  const auto into = fs::path(of.scratch.path()) / "new";
  fs::remove_all(into);
  fs::create_directory(into);
  std::vector<std::string> notes;
  rebuild_lost_images(left, by, *step, into.string(), notes);
  auto with_new = left;
  with_new.push_back(into.string());
  const auto again = newest(with_new, by);
  REQUIRE(again);
  CHECK(again->which == step->which);
  CHECK(again->lost.empty());
  CHECK(fs::exists(into / detail::plan_name(77)));
  for (const int rank : lost) {
    const auto wanted = of.made(rank, n);
    CHECK(same_bytes(file_bytes(into / detail::slot_name(rank, 0)), wanted.bytes));
    const auto was = detail::name_of(wanted);
    auto name = was;
    name.slot = 0;
    const auto record = detail::decode_held(file_bytes(into / detail::to_string(name)), name, "rebuilt");
    CHECK(record.record == detail::decode_held(wanted.description, was, "held").record);
  }
  return notes;
}

TEST_CASE("partner copies: one host of each pair may be lost") {
  const any_redundancy by(partner_copies{});
  job of(5);  // a pair, and three in a ring
  of.start(by);
  for (const auto& report : of.save(1)) {
    REQUIRE(report.state == redundancy_state::redundant);
    CHECK(report.kept_bytes >= of.image_bytes(0));
    CHECK(report.fetched_bytes == report.kept_bytes);
  }
  for (int lost = 0; lost < 5; ++lost) CHECK(check_rebuilt(of, {lost}, by, 1).empty());
  const auto& pair = of.engine(0).set().size() == 2 ? of.engine(0).set() : of.engine(1).set();
  const auto& ring = of.engine(0).set().size() == 2 ? of.engine(1).set() : of.engine(0).set();
  check_rebuilt(of, {std::min(pair[0], ring[1]), std::max(pair[0], ring[1])}, by, 1);

  // Both of a pair: the step is told as lost, by a sentence with their names.
  std::vector<std::string> damaged;
  const auto steps = find_surviving_steps(of.tiers_without({pair[0], pair[1]}), by, damaged);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].missing.find("rank " + std::to_string(pair[0])) != std::string::npos);
  std::vector<std::string> notes;
  CHECK_THROWS_AS(
      rebuild_lost_images(of.tiers_without({pair[0], pair[1]}), by, steps[0], of.tier(ring[0]), notes),
      peer_error);

  of.engines.clear();
  of.start(by);
  for (int rank = 0; rank < 5; ++rank) of.engine(rank).remove_pieces();
  for (int rank = 0; rank < 5; ++rank)
    for (const auto& each : detail::names_in_tier(of.tier(rank))) {
      CHECK_FALSE(detail::parse_kept_name(each));
      CHECK_FALSE(detail::rank_of_piece_name(each));
    }
}

#if CAIRN_USES_PARITY + 0
TEST_CASE("parity: any two hosts of six may be lost, and a wrong block beside one") {
  const any_redundancy by(parity{.data = 4, .losses = 2});
  job of(6);
  of.start(by);
  for (const auto& report : of.save(1)) {
    REQUIRE(report.state == redundancy_state::redundant);
    CHECK(report.kept_bytes <= of.image_bytes(5) / 2 + 4096);
    // Parts of the others, and the rest of the blocks at their ends.
    CHECK(report.fetched_bytes <= 2 * of.image_bytes(5) + 2 * 4 * 2 * digest_block_bytes);
  }
  for (int a = 0; a < 6; ++a)
    for (int b = a + 1; b < 6; ++b) CHECK(check_rebuilt(of, {a, b}, by, 1).empty());

  // Bits of an image that is left, in all that others are made of: found, and made up for.
  for (std::uint64_t at = 50'000; at < of.image_bytes(3); at += 100'000)
    flip(fs::path(of.tier(3)) / detail::slot_name(3, 0), at);
  CHECK_FALSE(check_rebuilt(of, {0}, by, 1).empty());
  // Its own image can be made again as well.
  auto step = newest(of.tiers_without({}), by);
  REQUIRE(step);
  step->lost = {3};
  const auto into = fs::path(of.scratch.path()) / "repaired";
  fs::create_directory(into);
  std::vector<std::string> notes;
  rebuild_lost_images(of.tiers_without({}), by, *step, into.string(), notes);
  CHECK(same_bytes(file_bytes(into / detail::slot_name(3, 0)), of.made(3, 1).bytes));
  fs::copy_file(into / detail::slot_name(3, 0), fs::path(of.tier(3)) / detail::slot_name(3, 0),
                fs::copy_options::overwrite_existing);

  // A bit of a piece; and the record of another one.
  for (const auto& each : detail::names_in_tier(of.tier(4)))
    if (detail::rank_of_piece_name(each)) flip(fs::path(of.tier(4)) / each, 200'000);
  static_cast<void>(check_rebuilt(of, {0}, by, 1));
  for (const auto& each : detail::names_in_tier(of.tier(5)))
    if (detail::parse_kept_name(each)) flip(fs::path(of.tier(5)) / each, 90);
  std::vector<std::string> damaged;
  const auto steps = find_surviving_steps(of.tiers_without({0}), by, damaged);
  REQUIRE(steps.size() == 1);
  CHECK(damaged.size() == 1);
  // What another redundancy made is refused.
  const any_redundancy other(parity{.data = 5, .losses = 1});
  damaged.clear();
  CHECK(find_surviving_steps(of.tiers_without({0}), other, damaged)[0].missing.find("another redundancy") !=
        std::string::npos);
}
#endif

/// What is tested of pieces in general.
any_redundancy usual() {
#if CAIRN_USES_PARITY + 0
  return any_redundancy(parity{.data = 3, .losses = 1});
#else
  return any_redundancy(partner_copies{});
#endif
}

TEST_CASE(
    "of every few saves one gets pieces, and the image of the newest of them stays until there is a newer "
    "one") {
  auto by = usual();
  by.every = 2;
  job of(4);
  of.start(by);
  CHECK_FALSE(of.engine(0).is_due(3));
  CHECK(of.engine(0).is_due(2));
  of.save(1);  // the first, such as one that was resumed
  of.check_redundant(1);
  std::vector<std::weak_ptr<const void>> first;
  for (int rank = 0; rank < 4; ++rank) {
    auto image = of.held(rank, 2);
    first.push_back(image.memory);
    of.engine(rank).hold(std::move(image));
  }
  of.check_redundant(2);
  for (const auto& each : first) CHECK_FALSE(each.expired());
  of.engine(0).hold(of.held(0, 3));
  CHECK_FALSE(of.engine(0).report(3));
  of.save(4);
  of.check_redundant(4);
  for (const auto& each : first) CHECK(each.expired());
  check_rebuilt(of, {2}, by, 4);
}

TEST_CASE("newest wins: saves that not all members have come to are passed over") {
  const auto by = usual();
  job of(4);
  of.start(by);
  for (const std::uint64_t n : {1u, 2u, 3u}) of.engine(0).hold(of.held(0, n));
  for (int rank = 1; rank < 4; ++rank) of.engine(rank).hold(of.held(rank, 3));
  of.check_redundant(3);
  for (const std::uint64_t n : {1u, 2u})
    CHECK(of.engine(0).wait(n, in_time())->state == redundancy_state::superseded);
  check_rebuilt(of, {1}, by, 3);
}

TEST_CASE("a save that some ranks never hold is given up by those that have their pieces of it") {
  const any_redundancy by(partner_copies{});
  job of(6);
  of.start(by);
  of.save(1);
  of.check_redundant(1);
  // One set makes its pieces, and waits for the others.
  const auto set = of.engine(4).set();
  for (const int rank : set) of.engine(rank).hold(of.held(rank, 2));
  for (int rank = 0; rank < of.ranks(); ++rank)
    if (std::find(set.begin(), set.end(), rank) == set.end()) of.engine(rank).hold(of.held(rank, 3));
  for (const int rank : set) CHECK(of.engine(rank).wait(2, in_time())->state != redundancy_state::redundant);
  for (const int rank : set) of.engine(rank).hold(of.held(rank, 3));
  of.check_redundant(3);
  check_rebuilt(of, {1}, by, 3);
}

TEST_CASE("the same saves of two runs do not meet") {
  const auto by = usual();
  job of(4);
  of.start(by);
  of.save(1);
  of.check_redundant(1);
  of.from = {.high = 0x4321, .low = 0x8765};
  of.save(1);
  of.check_redundant(1);
}

TEST_CASE("a link that breaks costs the pieces of one save") {
  const auto by = usual();
  job of(4);
  of.start(by);
  of.save(1);
  of.check_redundant(1);
  of.group.disturb(1, of.engine(1).set()[0] == 1 ? of.engine(1).set()[1] : of.engine(1).set()[0],
                   {.what = link_fault::kind::cut, .after = 1 << 19});
  const auto reports = of.save(2);
  const auto& set = of.engine(1).set();
  for (const int rank : set) CHECK(reports[static_cast<std::size_t>(rank)].state == redundancy_state::failed);
  CHECK(reports[1].why.find("rank") != std::string::npos);
  // Whoever is lost now: what was redundant before is.
  for (int lost = 0; lost < 4; ++lost)
    if (std::find(set.begin(), set.end(), lost) != set.end()) {
      std::vector<std::string> damaged;
      const auto steps = find_surviving_steps(of.tiers_without({lost}), by, damaged);
      const auto one =
          std::find_if(steps.begin(), steps.end(), [](const auto& s) { return s.which.step == 10; });
      REQUIRE(one != steps.end());
      CHECK(one->missing.empty());
    }
  of.save(3);
  of.check_redundant(3);
  check_rebuilt(of, {1}, by, 3);
}

TEST_CASE("a peer that does not answer any more, and one that is gone") {
  const auto by = usual();
  job of(4);
  of.start(by, {.timeout = std::chrono::milliseconds(600), .block_timeout = std::chrono::milliseconds(200)});
  const auto set = of.engine(1).set();
  const int other = set[0] == 1 ? set[1] : set[0];
  of.group.disturb(1, other, {.what = link_fault::kind::half_open, .after = 0});
  auto reports = of.save(1);
  for (const int rank : set) CHECK(reports[static_cast<std::size_t>(rank)].state == redundancy_state::failed);

  // The next run of the job, with the link as it should be.
  of.engines.clear();
  of.group.disturb(1, other, {});
  of.start(by);
  of.save(2);
  of.check_redundant(2);

  of.group.lose(other);
  for (int rank = 0; rank < 4; ++rank)
    if (rank != other) of.engine(rank).hold(of.held(rank, 3));
  for (const int rank : set)
    if (rank != other) CHECK(of.engine(rank).wait(3, in_time())->state == redundancy_state::failed);
  std::vector<std::string> damaged;
  const auto left = of.tiers_without({other});
  const auto steps = find_surviving_steps(left, by, damaged);
  const auto two = std::find_if(steps.begin(), steps.end(), [](const auto& s) { return s.which.step == 20; });
  REQUIRE(two != steps.end());
  CHECK(two->missing.empty());
}

TEST_CASE("an image that is not what its digests say is found before it is in any piece") {
  const auto by = usual();
  job of(4);
  of.start(by);
  for (int rank = 0; rank < 4; ++rank) {
    auto image = of.held(rank, 1);
    if (rank == 2) {
      auto wrong = std::make_shared<std::vector<std::byte>>(image.bytes.begin(), image.bytes.end());
      for (auto& b : *wrong) b ^= std::byte{1};
      image.bytes = *wrong;
      image.memory = wrong;
    }
    of.engine(rank).hold(std::move(image));
  }
  const auto reports = of.reports(1);
  bool told = false;
  for (const int rank : of.engine(2).set()) {
    CHECK(reports[static_cast<std::size_t>(rank)].state == redundancy_state::failed);
    told = told || reports[static_cast<std::size_t>(rank)].why.find("rank 2") != std::string::npos;
  }
  CHECK(told);
  // No record of a piece was made of it that is whole.
  of.save(2);
  of.check_redundant(2);
  check_rebuilt(of, {2}, by, 2);
}

/// Fails at a rename, as a process that dies there.
struct failing_files final : quick_files {
  std::atomic<bool> fails{false};
  void rename(const std::string& from, const std::string& to) override {
    if (fails) fail(error_id::storage_io, "the disk is gone");
    tier_files::rename(from, to);
  }
};

TEST_CASE(
    "a piece that cannot be kept costs its set the pieces of that save, and nothing that was kept before") {
  const auto by = usual();
  job of(4);
  const auto files = std::make_shared<failing_files>();
  of.start(by);
  of.engines[3] = nullptr;
  of.engines[3] = std::make_unique<redundancy_engine>(of.links[3], by, of.groups, of.tier(3),
                                                      redundancy_options{.files = files});
  of.save(1);
  of.check_redundant(1);
  files->fails = true;
  const auto reports = of.save(2);
  for (const int rank : of.engine(3).set())
    CHECK(reports[static_cast<std::size_t>(rank)].state == redundancy_state::failed);
  CHECK(reports[3].why.find("the disk is gone") != std::string::npos);
  for (const int lost : of.engine(3).set()) {
    std::vector<std::string> damaged;
    const auto steps = find_surviving_steps(of.tiers_without({lost}), by, damaged);
    const auto one =
        std::find_if(steps.begin(), steps.end(), [](const auto& s) { return s.which.step == 10; });
    REQUIRE(one != steps.end());
    CHECK(one->missing.empty());
  }
  files->fails = false;
  of.save(3);
  of.check_redundant(3);
}

TEST_CASE("of the image of the newest redundant save what the tier has is kept, and no bytes in memory") {
  job of(2);
  of.small = true;
  of.start(any_redundancy(partner_copies{}));
  std::weak_ptr<const void> pin_before;
  for (std::uint64_t n = 1; n <= 3; ++n) {
    CAPTURE(n);
    std::weak_ptr<const void> memory;
    std::weak_ptr<const void> pin;
    for (int rank = 0; rank < 2; ++rank) {
      auto image = of.held(rank, n);
      if (rank == 0) {
        memory = image.memory;
        auto kept = std::make_shared<int>();
        pin = kept;
        image.pin = std::move(kept);
      }
      of.engine(rank).hold(std::move(image));
    }
    of.check_redundant(n);
    CHECK(memory.expired());
    CHECK_FALSE(pin.expired());
    CHECK(pin_before.expired());
    pin_before = pin;
  }
}
TEST_CASE("pieces of an earlier run stay until newer ones are complete") {
  const auto by = usual();
  job of(4);
  of.start(by);
  of.save(1);
  of.check_redundant(1);
  of.engines.clear();
  of.start(by);
  check_rebuilt(of, {0}, by, 1);
  of.save(2);
  of.check_redundant(2);
  for (int rank = 0; rank < 4; ++rank) {
    int records = 0;
    for (const auto& each : detail::names_in_tier(of.tier(rank)))
      records += detail::parse_kept_name(each).has_value();
    CHECK(records == 1);
  }
  check_rebuilt(of, {0}, by, 2);
}

TEST_CASE("a save is redundant where what an earlier run left cannot be removed, which is tried again") {
  struct keeping_files final : quick_files {
    std::atomic<bool> keeps{false};
    void remove(const std::string& path) override {
      const auto name = detail::parse_kept_name(fs::path(path).filename().string());
      if (keeps && name && name->step == 10) fail(error_id::storage_io, "the disk refuses", {.file = path});
      quick_files::remove(path);
    }
  };
  const auto by = usual();
  job of(4);
  of.start(by);
  of.save(1);
  of.check_redundant(1);
  const auto files = std::make_shared<keeping_files>();
  of.start(by, {.files = files});
  const auto kept_of_first = [&](int rank) {
    const auto names = detail::names_in_tier(of.tier(rank));
    return std::count_if(names.begin(), names.end(), [](const auto& each) {
      const auto name = detail::parse_kept_name(each);
      return name && name->step == 10;
    });
  };
  files->keeps = true;
  for (std::uint64_t n = 2; n <= 3; ++n) {
    of.save(n);
    of.check_redundant(n);
    check_rebuilt(of, {0}, by, n);
    for (int rank = 0; rank < 4; ++rank) CHECK(kept_of_first(rank) == 1);
  }
  files->keeps = false;
  of.save(4);
  of.check_redundant(4);
  for (int rank = 0; rank < 4; ++rank) CHECK(kept_of_first(rank) == 0);
}

TEST_CASE("an engine refuses what cannot be") {
  job of(4);
  const auto with = [&](const any_redundancy& by, const std::vector<std::string>& groups) {
    return redundancy_engine(of.links[0], by, groups, of.tier(0)).set().size();
  };
  CHECK_THROWS_WITH_AS(with(any_redundancy(partner_copies{}), {"a", "a", "a", "b"}),
                       doctest::Contains("group 'a' has 3 of the 4 ranks"), usage_error);
  CHECK_THROWS_AS(with(any_redundancy(partner_copies{}), {"a", "b"}), usage_error);
  CHECK_THROWS_AS(with(any_redundancy(partner_copies{.every = 0}), of.groups), usage_error);
  CHECK(with(any_redundancy(partner_copies{}), of.groups) == 2);
}

TEST_CASE("an engine ends while its save waits for others") {
  job of(4);
  of.start(usual());
  of.engine(0).hold(of.held(0, 1));
  of.engines.clear();
  CHECK(detail::names_in_tier(of.tier(0)).size() > 2);
}

TEST_CASE("once a step is redundant, one is that survives any host, whatever links and hosts do") {
  std::mt19937_64 random(29);
  const any_redundancy pairs(partner_copies{});
#if CAIRN_USES_PARITY + 0
  const any_redundancy sets(
      parity{.data = 2, .losses = 1});  // two sets of three: what one agrees on, the other must know
#else
  const any_redundancy sets = pairs;
#endif
  for (const auto* by : {&pairs, &sets}) {
    job of(6);
    of.small = true;
    of.start(*by);
    std::uint64_t newest_redundant = 0;
    const auto note = [&](std::uint64_t n) {
      bool any = false;
      for (int rank = 0; rank < of.ranks(); ++rank)
        any = any || of.engine(rank).wait(n, in_time())->state == redundancy_state::redundant;
      if (any) newest_redundant = std::max(newest_redundant, n);
    };
    for (std::uint64_t n = 1; n <= cairn_test::rounds(25, 40); ++n) {
      CAPTURE(n);
      const auto any_rank = [&] {
        return static_cast<int>(random() % static_cast<std::uint64_t>(of.ranks()));
      };
      if (random() % 2 == 0)
        of.group.disturb(any_rank(), any_rank(),
                         {.what = link_fault::kind::cut, .after = random() % 200'000});
      for (int rank = 0; rank < of.ranks(); ++rank) of.engine(rank).hold(of.held(rank, n));
      if (random() % 3 == 0) {  // the next save, wherever the ranks are with this one
        ++n;
        for (int rank = 0; rank < of.ranks(); ++rank) of.engine(rank).hold(of.held(rank, n));
      }
      const int lost = any_rank();
      const bool dies = random() % 3 == 0;
      if (dies) of.group.lose(lost);
      if (n > 1 && of.engine(lost).report(n - 1)) note(n - 1);
      note(n);
      // Were this the end of the job, and of any host:
      const auto step = newest(of.tiers_without({lost}), *by);
      if (newest_redundant != 0) {
        REQUIRE(step);
        REQUIRE(step->which.step >= static_cast<std::int64_t>(10 * newest_redundant));
      }
      if (!dies) continue;
      // It is, and its host comes back empty.
      of.engines.clear();
      of.slots[static_cast<std::size_t>(lost)].clear();
      fs::remove_all(of.tier(lost));
      fs::create_directory(of.tier(lost));
      for (int a = 0; a < of.ranks(); ++a)
        for (int b = 0; b < of.ranks(); ++b) of.group.disturb(a, b, {});
      for (int rank = 0; rank < of.ranks(); ++rank) {
        of.links[static_cast<std::size_t>(rank)] =
            any_peer_link(thread_link_group(1).link(0));  // the old one ends
        of.links[static_cast<std::size_t>(rank)] = any_peer_link(of.group.link(rank));
      }
      of.start(*by);
      if (!step) continue;
      std::vector<std::string> notes;
      rebuild_lost_images(of.tiers_without({lost}), *by, *step, of.tier(lost), notes);
      const auto resumed = static_cast<std::uint64_t>(step->which.step / 10);
      for (int rank = 0; rank < of.ranks(); ++rank) of.engine(rank).hold(of.held(rank, resumed));
      of.check_redundant(resumed);
      newest_redundant = resumed;
    }
    CHECK(newest_redundant > 0);
  }
}

}  // namespace
