// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// cost: 10
//
// persist{.writers_at_once = n}: a rank writes its data when the record of the rank n before it is there.
#include <doctest/doctest.h>

#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors_writer.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/tiers/local_tier.hpp>
#include <support/faulty_store.hpp>
#include <support/process_ranks.hpp>
#include <support/scratch_directory.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

void cairn_test_before_main(int argc, char** argv) {
  cairn::worker_main(argc, argv);
}

namespace {
using cairn_test::process_ranks;
using cairn_test::rank_end;
using cairn_test::rank_process;
using cairn_test::scratch_directory;
using cairn_test::store_call;
using cairn_test::store_faults;

enum word : std::size_t { first_writes, second_writes };

struct job {
  scratch_directory store;
  scratch_directory memory = scratch_directory("/dev/shm");
  std::int32_t writers_at_once = 1;
  std::int32_t ranks_per_file = 1;
};

void expect(bool is, const std::string& what) {
  if (!is) throw std::runtime_error("not so: " + what);
}

/// Calls body(checkpointer, state) on a rank whose checkpointer saves to `store` and has these parts, too.
template <class Store, class Body, class... Parts>
void on_rank(const job& how, rank_process& me, Store store, Body&& body, Parts... parts) {
  constexpr std::int64_t elements = 1 << 18;
  std::vector<float> part(elements, static_cast<float>(me.rank()));
  cairn::state_dict state;
  state.tensor("part", part, cairn::shard{{elements * me.size()}, {elements * me.rank()}});
  cairn::any_checkpointer ckpt(cairn::checkpointer{
      cairn::safetensors_storage{std::move(store),
                                 cairn::commit_options{.ranks_per_file = how.ranks_per_file}},
      cairn::local_tier{how.memory.path() + "/tier"},
      cairn::persist{.every = 1, .writers_at_once = how.writers_at_once, .strict = true},
      cairn::shared_memory_communicator("turns" + std::to_string(::getppid()), me.rank(), me.size()),
      cairn::checkpointer_options{.timeout = std::chrono::minutes(2), .quiet = true}, std::move(parts)...});
  body(ckpt, state);
}

/// In nanoseconds.
struct times {
  std::int64_t made = 0;
  std::int64_t written = 0;  ///< for the last time
};
/// Of the rank's file with this extension.
times times_of(const job& of, std::int32_t rank, std::string_view kind) {
  auto begin = std::to_string(rank);
  begin = "rank-" + std::string(5 - begin.size(), '0') + begin + ".";
  std::vector<std::string> found;
  for (const auto& each : std::filesystem::recursive_directory_iterator(of.store.path()))
    if (each.path().filename().string().starts_with(begin) && each.path().extension() == kind)
      found.push_back(each.path().string());
  REQUIRE(found.size() == 1);
  struct statx s {};
  REQUIRE(::statx(AT_FDCWD, found[0].c_str(), 0, STATX_BTIME | STATX_MTIME, &s) == 0);
  REQUIRE((s.stx_mask & STATX_BTIME) != 0);
  const auto in_ns = [](const statx_timestamp& t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; };
  return {in_ns(s.stx_btime), in_ns(s.stx_mtime)};
}

void check_all_good(const std::vector<rank_end>& ends) {
  for (const auto& each : ends) CHECK_MESSAGE(each.good(), each.text());
}

TEST_CASE("ranks write in turns, by threads, by worker processes, and where they share files") {
  for (const bool worker : {false, true})
    for (const std::int32_t per_file : {1, 2}) {
      CAPTURE(worker);
      CAPTURE(per_file);
      job how;
      how.writers_at_once = 2, how.ranks_per_file = per_file;
      process_ranks ranks(6);
      check_all_good(ranks.run([&](rank_process& me) {
        const auto save = [](cairn::any_checkpointer& ckpt, cairn::state_dict& state) {
          ckpt.save(state, 1).wait();
          ckpt.close();
        };
        const cairn::file_store store(how.store.path());
        if (worker)
          on_rank(how, me, store, save, cairn::process_executor{}, cairn::overlapped{});
        else
          on_rank(how, me, store, save);
      }));
      for (std::int32_t rank = 2; rank < ranks.size(); rank += per_file) {
        CAPTURE(rank);
        const auto before = times_of(how, rank - 2, per_file == 1 ? ".record" : ".safetensors");
        CHECK(times_of(how, rank, ".safetensors").made >= before.written);
      }
    }
}

TEST_CASE("a rank whose write fails ends the wait of those after it, and the next save is whole") {
  job how;
  process_ranks ranks(3);
  check_all_good(ranks.run([&](rank_process& me) {
    const auto faults = std::make_shared<store_faults>();
    if (me.rank() == 0) faults->fail_at(store_call::create, 0);
    const cairn_test::faulty_store store(cairn::file_store(how.store.path()), faults);
    on_rank(how, me, store, [&](cairn::any_checkpointer& ckpt, cairn::state_dict& state) {
      const auto failed = ckpt.save(state, 1);
      bool timed_out = false;
      bool threw = false;
      try {
        failed.wait();
      } catch (const cairn::error& e) {
        threw = true, timed_out = e.id() == cairn::error_id::timeout_write;
      }
      expect(threw, "the save fails");
      expect(!timed_out, "it fails long before its timeout");
      try {
        ckpt.save(state, 2).wait();
      } catch (const cairn::error&) {
        ckpt.save(state, 3)
            .wait();  // strict: save() throws once what kept the one before from being committed
      }
      ckpt.close();
    });
  }));
}

TEST_CASE("a rank that dies in its turn ends the wait of those after it") {
  job how;
  process_ranks ranks(3);
  ranks.kill_at(0, "create");
  const auto ends = ranks.run([&](rank_process& me) {
    const auto faults = std::make_shared<store_faults>();
    faults->add({.kind = store_call::create, .key_contains = ".safetensors", .action = [&](std::string_view) {
                   me.point("create");
                 }});
    const cairn_test::faulty_store store(cairn::file_store(how.store.path()), faults);
    on_rank(how, me, store, [&](cairn::any_checkpointer& ckpt, cairn::state_dict& state) {
      try {
        ckpt.save(state, 1).wait();
        expect(false, "no checkpoint lacks a rank");
      } catch (const cairn::error& e) {
        expect(e.id() != cairn::error_id::timeout_write, "the loss is noticed long before the timeout");
      }
      expect(faults->triggered() == 0, "no rank writes out of turn");
    });
  });
  CHECK(ends[0].killed());
  CHECK_MESSAGE(ends[1].good(), ends[1].text());
  CHECK_MESSAGE(ends[2].good(), ends[2].text());
}

TEST_CASE("close() lets all ranks write at once") {
  for (const bool overlapped : {false, true}) {
    CAPTURE(overlapped);
    job how;
    process_ranks ranks(2);
    check_all_good(ranks.run([&](rank_process& me) {
      const auto faults = std::make_shared<store_faults>();
      faults->add(
          {.kind = store_call::create, .key_contains = ".safetensors", .action = [&](std::string_view) {
             me.word(me.rank() == 0 ? first_writes : second_writes) = 1;
             if (me.rank() == 0) me.await(second_writes, 1);
           }});
      const cairn_test::faulty_store store(cairn::file_store(how.store.path()), faults);
      const auto save = [&](cairn::any_checkpointer& ckpt, cairn::state_dict& state) {
        const auto one = ckpt.save(state, 1);
        me.await(first_writes, 1);
        expect(me.rank() != 1 || faults->triggered() == 0, "rank 1 waits for rank 0's record");
        ckpt.close();
        expect(one.committed(), "the save is committed");
      };
      if (overlapped)
        on_rank(how, me, store, save, cairn::overlapped{});
      else
        on_rank(how, me, store, save);
    }));
  }
}

/// One rank's write of a save of a large world, whose time advances only while it waits.
class one_of_many final : public cairn::detail::simulated_waits {
 public:
  static constexpr std::int32_t ranks = 16'384;
  static constexpr std::int32_t writers = 16;

  explicit one_of_many(std::int32_t rank, cairn::any_store s)
      : store(std::move(s)),
        writer(store, cairn::commit_options{}),
        protocol_(store, cairn::commit_options{}) {
    context.run = {1, 2}, context.step = 1, context.attempt = cairn::attempt_of(context.run, 1, 1);
    context.rank = rank, context.world_size = ranks, context.writers_at_once = writers;
  }
  /// Writes; `failed`: an image that was given up.
  void write(bool failed = false) {
    cairn::save_plan plan;
    cairn::write_item item;
    item.name = "a", item.type = cairn::dtype::u8, item.global = {4}, item.box = {{0}, {4}}, item.bytes = 4;
    plan.items.push_back(item);
    const std::uint64_t sizes[] = {4};
    const auto layout = std::make_shared<cairn::image_layout>(writer.layout(plan, sizes, context.rank));
    const auto control = std::make_shared<cairn::image_control>();
    std::vector<std::uint64_t> digests(static_cast<std::size_t>(layout->blocks));
    std::vector<std::byte> bytes(static_cast<std::size_t>(layout->bytes));
    if (failed)
      control->fail();
    else
      control->advance(layout->bytes), control->release();
    const cairn::staged_image image(layout, control, bytes, digests, false, nullptr);
    cairn::detail::current_simulated_waits = this;
    try {
      (void)writer.write(context, image, cairn::deadline::never());
    } catch (...) {
      cairn::detail::current_simulated_waits = nullptr;
      throw;
    }
    cairn::detail::current_simulated_waits = nullptr;
  }
  /// When the turn of a rank ends: each one writes for a second.
  [[nodiscard]] static std::chrono::nanoseconds end_of(std::int32_t rank) {
    return std::chrono::seconds(rank / writers + 1);
  }
  void put_record(std::int32_t rank) {
    auto c = context;
    c.rank = rank;
    cairn::record r;
    cairn::detail::identify(r, c);
    store.put_new(record_of(rank), cairn::encode_record(r));
  }
  [[nodiscard]] std::string record_of(std::int32_t rank) const {
    return cairn::record_key(1, rank, context.attempt, protocol_.placement(context));
  }

  bool wait(std::chrono::nanoseconds pause, cairn::deadline until) override {
    now += pause, ++waits;
    for (auto rank = context.rank % writers; rank < context.rank; rank += writers)
      if (now >= end_of(rank) && !store.size(record_of(rank))) put_record(rank);
    return !passed(until);
  }
  bool passed(cairn::deadline until) const override { return until.left() <= now; }
  void try_again(std::function<bool()>) override {}

  cairn::any_store store;
  cairn::safetensors_writer_base writer;
  cairn::save_context context;
  std::chrono::nanoseconds now{0};
  int waits = 0;

 private:
  cairn::commit_protocol protocol_;
};

TEST_CASE("in a large world turns follow each other at once, and ranks far from theirs ask seldom") {
  for (const std::int32_t rank : {4'000, 4'005, 4'010, 4'015}) {
    one_of_many job(rank, cairn::any_store(cairn::memory_store()));
    job.write();
    const auto due = one_of_many::end_of(rank - one_of_many::writers);
    CHECK(job.now >= due);
    CHECK(job.now < due + std::chrono::milliseconds(100));
    CHECK(job.waits < 1'000);
  }
}

TEST_CASE("a rank whose image was given up does not wait for its turn to say so") {
  one_of_many job(4'000, cairn::any_store(cairn::memory_store()));
  CHECK_THROWS(job.write(true));
  CHECK(job.waits == 0);
}

TEST_CASE("a rank in whose wait the attempt ends says why it ended, where the record that it reads is gone") {
  const auto faults = std::make_shared<store_faults>();
  const cairn::memory_store objects;
  one_of_many job(one_of_many::writers,
                  cairn::any_store(cairn_test::faulty_store<cairn::memory_store>(objects, faults)));
  job.put_record(0);
  faults->add({.kind = store_call::read, .key_contains = ".record", .action = [&](std::string_view key) {
                 auto other = objects;
                 other.remove(key);
                 const cairn::detail::step_objects step{cairn::any_store(objects)};
                 step.require_mark(
                     1, job.context.attempt,
                     cairn::make_failure(cairn::error_id::storage_no_space, "rank 7 is out of space"));
               }});
  try {
    job.write();
    FAIL("it writes");
  } catch (const cairn::error& e) {
    CHECK(e.message().find("rank 7 is out of space") != std::string::npos);
  }
}

TEST_CASE("a negative number of writers is refused") {
  const scratch_directory store;
  const scratch_directory memory("/dev/shm");
  try {
    cairn::checkpointer ckpt{cairn::file_store{store.path()}, cairn::local_tier{memory.path() + "/tier"},
                             cairn::persist{.writers_at_once = -1}};
    FAIL("it is taken");
  } catch (const cairn::usage_error& e) {
    CHECK(e.id() == cairn::error_id::usage_bad_option);
    CHECK(e.fields().got == "-1");
  }
}
}  // namespace
