// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3
// cost: 20
//
// What requests an s3_store makes of a service, and when: of round trips no more than it must, of a length that
// fits what the service shows, and a second one where the first is slow beside the others.
#include <cairn/checkpointer.hpp>
#include <cairn/manage/compare.hpp>
#include <cairn/manage/copy.hpp>
#include <cairn/manage/export_safetensors.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/stores/s3_store.hpp>
#include <cairn/system/backoff.hpp>

#include <doctest/doctest.h>
#include <support/byte_store_conformance.hpp>
#include <support/own_server.hpp>
#include <support/s3_access.hpp>
#include <support/saved_world.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {
using namespace cairn_test;
namespace s3 = cairn_test::s3;
using cairn::error_id;

constexpr std::size_t mib = std::size_t{1} << 20;

cairn::s3_store store_at(const cairn::s3_options& o) {
  return cairn::s3_store(o, s3::credentials_of());
}

/// An object of 20 MiB, read in requests of one.
struct read_bucket {
  read_bucket() { store.put_new("object", bytes); }

  void read(std::size_t first, std::size_t count, std::span<std::byte> into) {
    const cairn::read_range range{"object", first * mib, into.first(count * mib)};
    store.read({&range, 1});
  }
  [[nodiscard]] bool right(std::size_t first, std::size_t count, std::span<const std::byte> got) const {
    return std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(count * mib),
                      bytes.begin() + static_cast<std::ptrdiff_t>(first * mib));
  }
  /// In twentieths of a hedge: what it may still spend, as long as that stays below its limit of 80.
  [[nodiscard]] std::int64_t credit() const {
    const auto t = store.traffic();
    return 20 + static_cast<std::int64_t>(t.reads) - 20 * static_cast<std::int64_t>(t.hedges);
  }
  /// Reads until it knows how long an answer takes, and may ask for two ranges again, however busy the machine is.
  void get_to_know() {
    std::vector<std::byte> into(mib);
    for (std::size_t i = 0; i < 20 || (credit() < 40 && i < 5000); ++i) read(i % 20, 1, into);
    REQUIRE(credit() >= 40);
  }

  s3::server server{s3::quick_server()};
  cairn::s3_store store = [this] {
    auto o = s3::own_bucket_at(server.endpoint());
    o.get_bytes = mib;
    o.part_bytes = 32 * mib;
    return store_at(o);
  }();
  const std::vector<std::byte> bytes = pattern(20 * mib, 7);
};

}  // namespace

TEST_CASE("a long object is looked up while its upload begins: both take one round trip") {
  s3::server server{s3::quick_server()};
  auto store = store_at(s3::own_bucket_at(server.endpoint()));
  const auto bytes = pattern(11 * mib + 5, 3);
  // Neither is answered before the other one is there.
  server.faults.add("gather HeadObject first count=2 ms=60000");
  server.faults.add("gather CreateMultipartUpload first count=2 ms=60000");
  {
    auto writer = store.create("object", bytes.size());
    const auto journal = server.journal();
    CHECK(
        std::any_of(journal.begin(), journal.end(), [](const auto& entry) { return entry.in_flight == 2; }));
    const cairn::write_range whole{0, bytes};
    writer.write_stable({&whole, 1});
    writer.finish();
  }
  CHECK(store.read_all("object", 1u << 30) == bytes);

  // What stands there is told at once, as ever, and nothing of the upload stays.
  CHECK(failure_of([&] { static_cast<void>(store.create("object", bytes.size())); }).id ==
        error_id::storage_exists);
  CHECK(server.objects().uploads() == 0);
  CHECK(store.read_all("object", 1u << 30) == bytes);

  // So it is where the upload is refused.
  server.faults.add("error CreateMultipartUpload 1+ status=403 code=AccessDenied");
  CHECK(failure_of([&] { static_cast<void>(store.create("object", bytes.size())); }).id ==
        error_id::storage_exists);
  CHECK(failure_of([&] { static_cast<void>(store.create("other", bytes.size())); }).id ==
        error_id::storage_permission);
}

TEST_CASE("the service copies an object itself, in parts; where it cannot, its bytes are sent once more") {
  s3::server server{s3::quick_server()};
  auto o = s3::own_bucket_at(server.endpoint());
  o.part_bytes = 5 * mib;
  auto store = store_at(o);
  const auto bytes = pattern(12 * mib + 5, 3);
  write_object(store, "object", bytes);
  const auto sent = [&] {
    std::uint64_t all = 0;
    for (const auto& entry : server.journal()) all += entry.bytes_in;
    return all;
  };
  server.clear_journal();
  store.link("object", "linked");
  CHECK(server.count("UploadPartCopy") == 3);
  CHECK(server.count("UploadPart") == 0);
  CHECK(sent() < mib);
  CHECK(store.read_all("linked", 1u << 30) == bytes);
  CHECK(server.objects().uploads() == 0);

  // A part that fails leaves nothing; nor does an object that went meanwhile.
  server.faults.add("error UploadPartCopy 2 status=403 code=AccessDenied");
  CHECK(failure_of([&] { store.link("object", "other"); }).id == error_id::storage_permission);
  server.faults.add("error UploadPartCopy 1+ status=404 code=NoSuchKey");
  CHECK(failure_of([&] { store.link("object", "other"); }).id == error_id::storage_not_found);
  CHECK_FALSE(store.size("other").has_value());
  CHECK(server.objects().uploads() == 0);
  CHECK(failure_of([&] { store.link("object", "linked"); }).id == error_id::storage_exists);

  auto rules = s3::quick_server();
  rules.objects.copies = false;
  s3::server plain{rules};
  auto there = store_at(s3::own_bucket_at(plain.endpoint()));
  write_object(there, "object", bytes);
  there.link("object", "linked");
  CHECK(there.read_all("linked", 1u << 30) == bytes);
  CHECK(plain.objects().uploads() == 0);
}

TEST_CASE("frozen items in a bucket are copied by the service: the trainer sends what changed") {
  s3::server server{s3::quick_server()};
  std::vector<float> weights(500'000, 0.5F), adapter(1000);
  const auto store = store_at(s3::own_bucket_at(server.endpoint()));
  {
    cairn::state_dict state;
    state.tensor("weights", weights, {500'000}, cairn::frozen);
    state.tensor("adapter", adapter, {1000});
    cairn::checkpointer ckpt{store, cairn::checkpointer_options{.quiet = true}};
    ckpt.save(state, 1).wait();
    server.clear_journal();
    adapter[7] = 2;
    const auto save = ckpt.save(state, 2);
    save.wait();
    CHECK(save.report().linked_bytes > 2'000'000);
    std::uint64_t all = 0;
    for (const auto& entry : server.journal()) all += entry.bytes_in;
    CHECK(all < 100'000);
  }
  // Each step stands alone, whoever looks: the one that has the bytes first goes.
  cairn::checkpointer{store, cairn::checkpointer_options{.quiet = true}}.remove(1);
  const cairn::safetensors_storage storage{store};
  auto reader = storage.reader();
  CHECK(cairn::verify_checkpoint(reader, 2).good());
  const cairn::safetensors_storage other{cairn::memory_store{}};
  auto from = store;
  CHECK(cairn::copy_checkpoint(from, other, 2).ended == cairn::copy_report::outcome::copied);
  cairn::readable_checkpoint here{storage.reader(), 2}, there{other.reader(), 2};
  CHECK(cairn::compare_checkpoints(here, there, {.values = true}).equal());
  cairn::memory_store model;
  CHECK(cairn::export_safetensors(reader, 2, model).tensors == 2);
  cairn::state_dict back;
  std::vector<float> loaded(500'000), learnt(1000);
  back.tensor("weights", loaded, {500'000});
  back.tensor("adapter", learnt, {1000});
  cairn::checkpointer{store, cairn::checkpointer_options{.quiet = true}}.load(back, 2);
  CHECK(loaded == weights);
  CHECK(learnt == adapter);
}

TEST_CASE(
    "a resume asks a few questions, however many checkpoints there are, and those at once that it can") {
  s3::server server{s3::quick_server()};
  const auto where = s3::own_bucket_at(server.endpoint());
  const cairn::checkpointer_options quiet{.quiet = true};
  std::vector<float> weights(100, 1.0F), loaded(100);
  cairn::state_dict saved, state;
  saved.tensor("weights", weights, {100});
  state.tensor("weights", loaded, {100});
  int steps = 0;
  SUBCASE("one checkpoint") {
    steps = 1;
  }
  SUBCASE("several") {
    steps = 12;
  }
  {
    cairn::checkpointer trainer{store_at(where), quiet};
    for (int step = 1; step <= steps; ++step) trainer.save(saved, step).wait();
  }
  // None of these is answered before all of its group are there. First what tells of writers that live or died, and notes.
  server.faults.add("gather ListMultipartUploads first count=3 ms=60000");
  server.faults.add("gather ListObjectsV2 1-2 count=3 ms=60000");
  // A record, and the length of the data file.
  server.faults.add("gather GetObject first key=.record count=2 ms=60000");
  server.faults.add("gather HeadObject first key=.safetensors count=2 ms=60000");
  constexpr std::size_t groups = 2;
  server.clear_journal();
  {
    cairn::checkpointer ckpt{store_at(where), quiet};
    CHECK(ckpt.resume(state) == steps);
    CHECK(loaded == weights);
    std::string sequence;
    std::size_t requests = 0, gathered = 0;
    for (const auto& entry : server.journal()) {
      if (entry.operation == "HeadBucket") continue;  // opens a connection beside the others
      ++requests;
      if (entry.fault == "gather") ++gathered;
      sequence += "\n" + entry.operation + " " + (entry.key.empty() ? entry.prefix : entry.key);
    }
    INFO(sequence);
    CHECK(server.count("ListMultipartUploads") == 2);  // who lives; and who removes, once the lease is shown
    CHECK(server.count("ListObjectsV2") == 3);
    CHECK(requests <= 12);
    CHECK(gathered == 5);
    CHECK(requests - gathered + groups <= 9);  // one after another
  }

  // What is beside a checkpoint is asked for anew, and what that changes is listed anew.
  auto store = store_at(where);
  store.put_new(cairn::aborted_key(1, 7), {});
  store.put_new(cairn::data_key(100, 0, 8, 0), {});
  server.faults.clear();
  server.clear_journal();
  cairn::checkpointer next{store, quiet};
  CHECK(next.resume(state) == steps);
  CHECK_FALSE(store.size(cairn::aborted_key(1, 7)));
  CHECK_FALSE(store.size(cairn::data_key(100, 0, 8, 0)));
  CHECK(server.count("ListObjectsV2") > 3);
}

TEST_CASE(
    "uploads below several prefixes are found by one request, or by one for each where others have many") {
  auto options = s3::quick_server();
  options.objects.page = 5;
  s3::server server{options};
  auto where = s3::own_bucket_at(server.endpoint());
  auto store = store_at(where);
  std::vector<std::unique_ptr<cairn::s3_store::object_writer>> writers;
  const auto begin = [&](const std::string& key) {
    writers.push_back(std::make_unique<cairn::s3_store::object_writer>(store.show(key)));
  };
  begin("lease-1"), begin("step-00000001/x");
  static constexpr std::string_view prefixes[] = {"step-", "lease-"};
  const auto all = [&] {
    auto other = store_at(where);
    std::vector<std::string> found;
    server.clear_journal();
    for (const auto& object : other.unfinished(prefixes))
      if (object.lives) found.push_back(object.key.substr(0, object.key.find('.')));
    return found;
  };
  const std::vector<std::string> expected{"lease-1", "step-00000001/x"};
  CHECK(all() == expected);
  CHECK(server.count("ListMultipartUploads") == 1);
  for (int i = 0; i < 20; ++i) begin("other-" + std::to_string(i));
  CHECK(all() == expected);
  CHECK(server.count("ListMultipartUploads") == 3);
}

TEST_CASE("a resume finds connections open, which were opened while it listed the steps") {
  s3::server server{s3::quick_server()};
  auto o = s3::own_bucket_at(server.endpoint());
  o.in_flight = 8;
  o.get_bytes = o.part_bytes = 5 * mib;
  std::vector<float> weights(10 * mib), loaded(10 * mib);
  std::copy_n(std::begin({1.0F, 2.0F, 3.0F}), 3, weights.begin());
  cairn::state_dict saved, state;
  saved.tensor("weights", weights, {static_cast<std::int64_t>(weights.size())});
  state.tensor("weights", loaded, {static_cast<std::int64_t>(loaded.size())});
  cairn::checkpointer{store_at(o), cairn::checkpointer_options{.quiet = true}}.save(saved, 1).wait();

  for (const bool refused : {false, true}) {
    CAPTURE(refused);
    if (refused) {
      server.faults.add("error HeadBucket all status=403 code=AccessDenied");
    } else {  // the manifest is not there before all connections are
      server.faults.add("gather HeadBucket all count=8 ms=240000");
      server.faults.add("gather GetObject first count=8 ms=240000 key=manifest");
    }
    server.clear_journal();
    {
      cairn::checkpointer ckpt{store_at(o), cairn::checkpointer_options{.quiet = true}};
      CHECK(ckpt.resume(state) == 1);
      CHECK(loaded == weights);
    }
    std::set<std::uint64_t> before;
    std::size_t ranges = 0;
    for (const auto& entry : server.journal()) {
      if (entry.operation == "GetObject" && !entry.range.empty()) {
        ++ranges;
        if (!refused) CHECK(before.contains(entry.connection));
      } else {
        before.insert(entry.connection);
      }
    }
    CHECK(ranges >= 4);
    CHECK(server.count("HeadBucket") == 7);
    server.faults.clear();
    std::fill(loaded.begin(), loaded.end(), 0.0F);
  }
}

TEST_CASE(
    "many objects go by one request for a thousand; what it refuses is told, where there is none they go "
    "singly") {
  std::vector<std::string> keys;
  for (int i = 0; i < 1100; ++i) keys.push_back("step-00000001/ranks-00000/rank-" + std::to_string(i));
  auto options = s3::quick_server();
  options.objects.locked = "rank-77";
  s3::server server{options};
  auto where = s3::own_bucket_at(server.endpoint());
  where.prefix = "team & co/";
  const cairn::any_store store{store_at(where)};
  const auto fill = [&] {
    for (const auto& key : keys) server.objects().put_behind_the_back("bucket", where.prefix + key, "x");
  };
  fill();
  const auto why = failure_of([&] { static_cast<void>(store.remove_all(keys)); });
  CHECK(why.id == error_id::storage_permission);
  CHECK(why.fields.file.find("rank-77") != std::string::npos);
  CHECK(server.count("DeleteObjects") == 1);
  server.objects().rules.locked = "";
  CHECK(store.remove_all(keys));
  CHECK(server.count("DeleteObjects") == 3);
  CHECK(server.objects().keys("bucket").empty());

  fill();  // an answer that leaves some out says nothing of them
  server.objects().rules.unheard = "rank-77";
  CHECK(store.remove_all(keys));
  CHECK(server.objects().keys("bucket").empty());

  // A refusal of one request says nothing of the next.
  for (const char* refusal :
       {"status=400 code=MalformedXML", "status=403 code=AccessDenied", "status=404 code=NoSuchKey"}) {
    CAPTURE(refusal);
    fill();
    server.clear_journal();
    server.faults.add("error DeleteObjects first " + std::string(refusal));
    CHECK(store.remove_all(keys));
    CHECK(server.objects().keys("bucket").empty());
    CHECK(server.count("DeleteObjects") == 2);
    server.faults.clear();
  }

  fill();
  SUBCASE("not implemented") {
    server.faults.add("error DeleteObjects all status=501 code=NotImplemented");
  }
  SUBCASE("no such method") {
    server.faults.add("error DeleteObjects all status=405 code=MethodNotAllowed");
  }
  CHECK(store.remove_all(keys));
  CHECK(server.objects().keys("bucket").empty());
  server.clear_journal();
  CHECK(store.remove_all(std::span(keys).first(3)));
  CHECK(server.count("DeleteObjects") == 0);  // it is known now
  CHECK(server.count("DeleteObject") == 3);
}

TEST_CASE(
    "in a bucket what stays as it is is found and copied by the service, and a refresh asks for what "
    "changed") {
  s3::server server{s3::quick_server()};
  const auto store = store_at(s3::own_bucket_at(server.endpoint()));
  std::vector<float> weights(5 * mib / sizeof(float), 0.5F), adapter(20'000);
  cairn::state_dict state;
  state.tensor("weights", weights, {static_cast<std::int64_t>(weights.size())});
  state.tensor("adapter", adapter, {20'000});
  cairn::checkpointer ckpt{store, cairn::checkpointer_options{.link_unchanged = true, .quiet = true}};
  const auto train = [&](std::int64_t step) {
    adapter[0] = static_cast<float>(step);
    const auto save = ckpt.save(state, step);
    save.wait();
    return save.report().linked_bytes;
  };
  CHECK(train(1) == 0);
  CHECK(train(2) == 0);  // found, and written apart
  server.clear_journal();
  CHECK(train(3) >= 5 * mib);
  CHECK(server.count("UploadPartCopy") > 0);
  const auto moved = [&](auto which) {
    std::uint64_t all = 0;
    for (const auto& entry : server.journal()) all += entry.*which;
    return all;
  };
  CHECK(moved(&s3::journal_entry::bytes_in) < 300'000);

  std::vector<float> here(weights.size()), learnt(adapter.size());
  cairn::state_dict there;
  there.tensor("weights", here, {static_cast<std::int64_t>(here.size())});
  there.tensor("adapter", learnt, {20'000});
  cairn::checkpointer reads{store, cairn::read_only{}, cairn::checkpointer_options{.quiet = true}};
  CHECK(reads.refresh(there).blocks_equal == 0);
  weights[3 * mib / sizeof(float) + 7] = 4;  // a change brings it back
  CHECK(train(4) == 0);
  server.clear_journal();
  const auto report = reads.refresh(there);
  CHECK(report.step == 4);
  CHECK(report.blocks == 6);
  CHECK(report.blocks_equal == 4);
  CHECK(moved(&s3::journal_entry::bytes_out) < mib + 300'000);
  CHECK(here == weights);
  CHECK(learnt == adapter);
  for (const std::int64_t gone : {1, 2, 4}) ckpt.remove(gone);
  auto reader = cairn::safetensors_storage{store}.reader();
  CHECK(cairn::verify_checkpoint(reader, 3).good());
}

TEST_CASE("who follows a run in a bucket asks for what is newer, however much is there") {
  auto server_options = s3::quick_server();
  server_options.objects.page = 20;
  s3::server server{server_options};
  auto store = store_at(s3::own_bucket_at(server.endpoint()));
  std::vector<float> weights(100, 1);
  cairn::state_dict state;
  state.tensor("weights", weights, {100});
  const cairn::checkpointer_options quiet{.quiet = true};
  cairn::checkpointer trainer{store, quiet};
  for (const std::int64_t step : {1, 2, 3}) trainer.save(state, step).wait();
  // As many files beside the steps as ranks leave that need a hundred pages.
  const auto put_many = [&](const std::string& step) {
    for (const char* directory : {"/ranks-00000/", "/ranks-00256/"})
      for (int i = 0; i < 1'000; ++i)
        server.objects().put_behind_the_back("bucket", step + directory + std::to_string(10'000 + i), "");
  };
  put_many("step-00000001");
  cairn::checkpointer ckpt{store, quiet};
  const auto looks_once = [&](std::int64_t after) {
    auto looks = std::make_shared<int>(0);
    return ckpt.follow({.after = after, .stop = [looks] { return ++*looks == 1; }});
  };
  auto steps = looks_once(3);
  server.clear_journal();
  CHECK(!steps.next());
  CHECK(steps.why() == cairn::follow_end::stopped);
  CHECK(server.count("ListObjectsV2") == 2);         // what is behind step 3, and the marks in it
  CHECK(server.count("ListMultipartUploads") == 1);  // who lives
  CHECK(server.journal().size() == 4);               // and its manifest

  // A key that may only read does not see who lives.
  server.faults.add("error ListMultipartUploads all status=403 code=AccessDenied");
  auto reads = ckpt.follow({.after = 3, .timeout = std::chrono::nanoseconds(0)});
  CHECK(!reads.next());
  CHECK(reads.why() == cairn::follow_end::timed_out);
  server.faults.clear();

  SUBCASE("the files of a save that is under way cost nothing") {
    put_many("step-00000004");
    auto meanwhile = looks_once(3);
    server.clear_journal();
    CHECK(!meanwhile.next());
    CHECK(server.count("ListObjectsV2") <= 5);
  }
  SUBCASE("nor do those of newer steps") {
    for (const char* step : {"step-00000002", "step-00000003", "step-00000004"}) put_many(step);
    auto behind = looks_once(1);
    server.clear_journal();
    CHECK(behind.next() == 3);
    CHECK(server.count("ListObjectsV2") <= 8);
  }
  SUBCASE("a step that a mark ended is none, though its manifest came late") {
    const auto attempt =
        cairn::decode_manifest(store.read_all(cairn::manifest_key(3), mib).value(), "").attempt;
    store.put_new(cairn::aborted_key(3, attempt), {});
    CHECK(trainer.list().size() == 3);  // it is complete
    auto complete = looks_once(3);
    CHECK(!complete.next());
    for (const auto& key : store.keys("step-00000003/", 2))
      if (key != cairn::manifest_key(3) && key != cairn::aborted_key(3, attempt)) store.remove(key);
    CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2});
    auto none = looks_once(3);
    CHECK(none.next() == 2);
  }
  trainer.save(state, 5).wait();
  CHECK(steps.next() == 5);
  trainer.remove(5);
  CHECK(steps.next() != 5);  // the run went back
}

TEST_CASE("a bucket shows that a trainer lives: no request more for a save, and one behind the last") {
  s3::server server{s3::quick_server()};
  auto store = store_at(s3::own_bucket_at(server.endpoint()));
  std::vector<float> weights(100, 1);
  cairn::state_dict state;
  state.tensor("weights", weights, {100});
  const cairn::checkpointer_options quiet{.quiet = true};
  cairn::checkpointer trainer{store, cairn::checkpointer_options{.announce_run = true, .quiet = true}};
  server.faults.add("error CreateMultipartUpload all status=403 code=AccessDenied");
  trainer.save(state, 0).wait();
  CHECK(server.objects().uploads() == 0);
  server.faults.clear();
  trainer.save(state, 1).wait();  // what failed is tried again
  CHECK(server.objects().uploads() == 1);
  server.clear_journal();
  trainer.save(state, 2).wait();
  CHECK(server.count("CreateMultipartUpload") == 0);
  CHECK(server.objects().uploads() == 1);
  cairn::checkpointer ckpt{store, cairn::read_only{}, quiet};
  int asked = 0;
  auto steps = ckpt.follow({.gone_after = std::chrono::nanoseconds(0), .stop = [&] {
                              if (++asked == 3) trainer.close();
                              return false;
                            }});
  CHECK(steps.next() == 2);
  CHECK(!steps.next());
  CHECK(asked >= 3);
  CHECK(steps.why() == cairn::follow_end::trainer_ended);
  CHECK(server.objects().uploads() == 0);
}

TEST_CASE("keys behind one are those of a listing, however deep and wherever it begins") {
  auto options = s3::quick_server();
  options.objects.page = 5;
  s3::server server{options};
  auto store = store_at(s3::own_bucket_at(server.endpoint()));
  std::vector<std::string> all;
  for (const char* directory : {"a/", "b/", "b/x/", "b/y/", "c/"})
    for (int i = 10; i < 22; ++i) all.push_back("of/" + std::string(directory) + std::to_string(i));
  for (const auto& key : all) server.objects().put_behind_the_back("bucket", key, "");
  for (const std::string prefix : {"", "of/", "of/b", "of/b/"})
    for (std::size_t parts = 1; parts <= 4; ++parts)
      for (const std::string after :
           {"of/", "of/a/15", "of/b/", "of/b/15", "of/b/x/15", "of/b/~", "of/b0", "of/~"}) {
        CAPTURE(prefix);
        CAPTURE(parts);
        CAPTURE(after);
        auto expected = store.keys(prefix, parts);
        std::erase_if(expected, [&](const auto& key) { return key <= after; });
        CHECK(store.keys_after(prefix, after, parts) == expected);
      }
}

TEST_CASE("an object of another length than create() was given is written nevertheless") {
  s3::server server{s3::quick_server()};
  auto store = store_at(s3::own_bucket_at(server.endpoint()));
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, 5 * mib, 5 * mib + 1, 11 * mib}) {
    for (const std::uint64_t told : {std::uint64_t{0}, std::uint64_t{100}, std::uint64_t{40 * mib}}) {
      CAPTURE(size);
      CAPTURE(told);
      const auto key = "object-" + std::to_string(size) + "-" + std::to_string(told);
      const auto bytes = pattern(size, 3);
      auto writer = store.create(key, told);
      const cairn::write_range whole{0, bytes};
      writer.write_stable({&whole, 1});
      writer.finish();
      CHECK(store.read_all(key, 1u << 30) == bytes);
    }
    CHECK(server.objects().uploads() == 0);
  }
  // Nor does anything stay of one that is given up before its first byte.
  { const auto writer = store.create("given-up", 40 * mib); }
  CHECK(server.objects().uploads() == 0);
  CHECK_FALSE(store.size("given-up"));
}

TEST_CASE("how long a read is: each connection has its share, but waiting is a small part of its time") {
  using cairn::detail::s3_request_bytes;
  constexpr auto all = std::uint64_t{1} << 40;
  // As AWS describes itself: 30 ms, 80 MB/s.
  CHECK(s3_request_bytes(0.03, 80e6, all, 16) == 10 * mib);
  CHECK(s3_request_bytes(0.03, 80e6, 64 * mib, 16) == 4 * mib);
  CHECK(s3_request_bytes(0.03, 80e6, 16 * mib, 16) == 3 * mib);
  // Near and quick: as many as run at once.
  CHECK(s3_request_bytes(0.0002, 2e9, 16 * mib, 16) == mib);
  CHECK(s3_request_bytes(0.0002, 2e9, all, 16) == 8 * mib);
  // Far and slow: 50 ms, 25 MB/s.
  CHECK(s3_request_bytes(0.05, 25e6, 64 * mib, 16) == 4 * mib);
  CHECK(s3_request_bytes(0.05, 25e6, all, 16) == 8 * mib);
  // Where a request is dear, few long ones.
  CHECK(s3_request_bytes(0.2, 500e6, 64 * mib, 16) == 16 * mib);
  CHECK(s3_request_bytes(0.2, 500e6, all, 16) == 32 * mib);
  // One alone is not cut below what it would be for all.
  CHECK(s3_request_bytes(0.03, 80e6, 8 * mib, 1) == 8 * mib);
  CHECK(s3_request_bytes(0.03, 80e6, 0, 0) == 3 * mib);

  cairn::detail::s3_pace pace;
  CHECK(pace.request_bytes(all, 16) == 10 * mib);  // nothing is known
  CHECK_FALSE(pace.slow_after(mib));
  using namespace std::chrono_literals;
  for (int i = 0; i < 20; ++i) pace.answered(200ms, 50 * mib, 100ms);
  CHECK(pace.request_bytes(all, 16) == 32 * mib);
  CHECK(pace.slow_after(50 * mib) == 900ms);
  for (int i = 0; i < 15; ++i) pace.answered(1s, 1 * mib, 10s);  // a few that are slow change nothing
  CHECK(pace.slow_after(50 * mib) == 900ms);
  for (int i = 0; i < 32; ++i) pace.answered(1ms, 50 * mib, 10ms);
  CHECK(pace.slow_after(50 * mib) == 250ms);
}

TEST_CASE("the store and the report of a load give the chosen request sizes and the requests") {
  s3::server server{s3::quick_server()};
  auto store = store_at(s3::own_bucket_at(server.endpoint()));
  CHECK(store.traffic().reads == 0);
  CHECK(store.traffic().request_bytes == 10 * mib);
  CHECK(store.describe().find("at a time") == std::string::npos);
  std::vector<float> weights(10 * mib, 1.5f);
  cairn::state_dict state;
  state.tensor("weights", weights, {static_cast<std::int64_t>(weights.size())});
  cairn::checkpointer ckpt{store, cairn::checkpointer_options{.quiet = true}};
  ckpt.save(state, 1).wait();
  std::fill(weights.begin(), weights.end(), 0.0f);
  server.clear_journal();
  const auto report = ckpt.load(state, 1);
  CHECK(std::all_of(weights.begin(), weights.end(), [](float f) { return f == 1.5f; }));
  const auto t = store.traffic();
  CHECK(report.stages.requests >= 2);  // of 32 MiB at most
  CHECK(report.stages.requests <= t.reads);
  CHECK(report.stages.hedges <= t.hedges);
  CHECK(t.hedges_won <= t.hedges);
  CHECK(20 * t.hedges <= 20 + t.reads);
  CHECK(t.latency > 0);
  CHECK(t.bytes_per_second > 0);
  CHECK(t.request_bytes >= 8 * mib);
  CHECK(t.request_bytes <= 32 * mib);
  CHECK(store.describe().find("16 at a time") != std::string::npos);
  std::size_t ranges = 0;
  for (const auto& entry : server.journal())
    if (entry.key.find("safetensors") != std::string::npos && !entry.range.empty()) ++ranges;
  CHECK(ranges >= report.stages.requests - report.stages.hedges);
  ckpt.close();
}

TEST_CASE("where nothing answers the wish for a connection, another one is tried") {
  full_port full([](cairn::detail::file_descriptor connected) {
    char some[4096];
    if (::recv(connected.get(), some, sizeof some, 0) <= 0) return;  // nobody's request
    constexpr std::string_view absent =
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    static_cast<void>(!::send(connected.get(), absent.data(), absent.size(), MSG_NOSIGNAL));
  });
  auto store = store_at(s3::own_bucket_at("http://127.0.0.1:" + std::to_string(full.port())));
  std::exception_ptr thrown;
  bool found = true;
  std::jthread asks([&] {
    try {
      found = store.size("object").has_value();
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  std::set<unsigned> asked;
  for (const auto until = cairn::deadline::in(std::chrono::seconds(20));
       asked.size() < 4 && cairn::detail::sleep_for(std::chrono::milliseconds(5), until);)
    asked.merge(full.asking());
  CHECK(asked.size() == 4);
  full.open();
  asks.join();
  CHECK_NOTHROW(thrown ? std::rethrow_exception(thrown) : void());
  CHECK(!found);
}

TEST_CASE("a range whose answer never comes is asked for again, and that answer is taken") {
  read_bucket b;
  b.get_to_know();
  const auto before = b.store.traffic();
  b.server.faults.add("stall GetObject first ms=600000");
  std::vector<std::byte> into(mib);
  b.read(5, 1, into);
  CHECK(b.right(5, 1, into));
  const auto t = b.store.traffic();
  CHECK(t.reads == before.reads + 2);
  CHECK(t.hedges == before.hedges + 1);
  CHECK(t.hedges_won == before.hedges_won + 1);
}

TEST_CASE("a range that comes by drops is taken from the second answer, and nothing comes later") {
  read_bucket b;
  b.get_to_know();
  b.server.faults.add("slow GetObject first rate=20000");
  std::vector<std::byte> into(3 * mib);
  const cairn::read_range ranges[] = {{"object", mib, std::span(into).first(mib / 2)},
                                      {"object", mib + mib / 2 + 1000, std::span(into).last(mib / 4)}};
  b.store.read(ranges);  // one request, with a gap in it
  const auto part = [&](std::size_t at, std::size_t n) {
    return std::equal(b.bytes.begin() + static_cast<std::ptrdiff_t>(at),
                      b.bytes.begin() + static_cast<std::ptrdiff_t>(at + n),
                      n == mib / 2 ? into.begin() : into.end() - static_cast<std::ptrdiff_t>(n));
  };
  CHECK(part(mib, mib / 2));
  CHECK(part(mib + mib / 2 + 1000, mib / 4));
  CHECK(b.store.traffic().hedges_won >= 1);
  std::fill(into.begin(), into.end(), std::byte{});
  std::vector<std::byte> other(20 * mib);
  b.read(0, 20, other);
  CHECK(b.right(0, 20, other));
  CHECK(std::all_of(into.begin(), into.end(), [](std::byte x) { return x == std::byte{}; }));
}

TEST_CASE("repeated requests stay within their budget, whatever is slow") {
  read_bucket b;
  b.get_to_know();
  b.server.faults.add("stall GetObject 1-12 ms=2000");
  std::vector<std::byte> into(10 * mib);
  b.read(3, 10, into);
  CHECK(b.right(3, 10, into));
  CHECK(b.credit() >= 0);
}

TEST_CASE("a second request that fails does no harm to the first") {
  read_bucket b;
  b.get_to_know();
  const auto before = b.store.traffic();
  b.server.clear_journal();
  const auto refused = [&] {
    const auto journal = b.server.journal();
    return std::count_if(journal.begin(), journal.end(),
                         [](const auto& entry) { return entry.code == "AccessDenied"; });
  };
  // The first is answered once the second was refused.
  b.server.faults.add("gather GetObject 1 count=2 ms=60000");
  b.server.faults.add("error GetObject 2 status=403 code=AccessDenied");
  std::atomic<bool> over{false};
  std::thread holds([&] {
    while (!over.load() && refused() == 0) std::this_thread::yield();
    b.server.release();
  });
  std::vector<std::byte> into(mib);
  const auto failure = [&]() -> std::string {
    try {
      b.read(5, 1, into);
    } catch (const std::exception& e) {
      return e.what();
    }
    return {};
  }();
  over.store(true);
  holds.join();
  CHECK(failure == "");
  CHECK(b.right(5, 1, into));
  CHECK(refused() == 1);
  CHECK(b.store.traffic().hedges == before.hedges + 1);
  CHECK(b.store.traffic().hedges_won == before.hedges_won);
}

TEST_CASE("where both requests fail, the read does, and at once") {
  read_bucket b;
  b.get_to_know();
  b.server.faults.add("stall GetObject 1 ms=3000");
  b.server.faults.add("error GetObject 2+ status=403 code=AccessDenied");
  std::vector<std::byte> into(mib);
  CHECK(failure_of([&] { b.read(5, 1, into); }).id == error_id::storage_permission);
}

TEST_CASE("what a listing of steps costs does not depend on how many ranks have saved them") {
  auto options = s3::quick_server();
  options.objects.page = 10;
  std::vector<std::size_t> requests;
  for (const int ranks : {40, 80}) {
    s3::server server{options};
    auto store = store_at(s3::own_bucket_at(server.endpoint()));
    std::vector<std::string> all, manifests;
    for (const char* step : {"step-00000001/", "step-00000002/", "step-00000003/"}) {
      manifests.push_back(std::string(step) + "manifest");
      all.push_back(manifests.back());
      for (const char* directory : {"ranks-00000/", "ranks-00256/"})
        for (int i = 100; i < 100 + ranks / 2; ++i)
          all.push_back(std::string(step) + directory + "rank-" + std::to_string(i));
    }
    for (const auto& key : all) store.put_new(key, {});
    store.put_new("other", {});
    server.clear_journal();
    CHECK(store.keys("step-", 2) == manifests);
    requests.push_back(server.count("ListObjectsV2"));
    CHECK(store.keys("step-", SIZE_MAX) == all);
    CHECK(store.keys("step-00000002/", 3).size() == static_cast<std::size_t>(ranks) + 1);
    CHECK(store.keys("step-", 1).empty());
    CHECK(store.keys("", 1) == std::vector<std::string>{"other"});
    CHECK(store.list("step-00000003/ranks-00256/").size() == static_cast<std::size_t>(ranks) / 2);
  }
  CHECK(requests.at(0) == requests.at(1));
  CHECK(requests.at(0) <= 5);
}

TEST_CASE("the coordinator of a large world looks for several records at once") {
  s3::server server{s3::quick_server()};
  auto store = store_at(s3::own_bucket_at(server.endpoint()));
  const cairn::commit_protocol protocol{cairn::any_store(store), {.block_ranks = 16}};
  const auto context = [](std::int32_t rank) {
    return cairn::save_context{.run = {11, 12}, .step = 5, .attempt = 7, .rank = rank, .world_size = 17};
  };
  for (std::int32_t rank = 0; rank < 17; ++rank) {
    cairn::record own;
    protocol.publish(context(rank), own);
  }
  // The first rank of the second block is alone in it.
  CHECK(failure_of([&] { protocol.await_commit(context(16), cairn::deadline::in({})); }).id ==
        error_id::timeout_commit);
  // None is answered before all are there.
  server.faults.add("gather HeadObject 1-8 count=8 ms=60000");
  server.clear_journal();
  cairn::metadata content;
  content.world_size = 17;
  protocol.commit(context(0), content, soon());
  std::size_t most = 0;
  for (const auto& entry : server.journal())
    if (entry.operation == "HeadObject") most = std::max(most, entry.in_flight);
  CHECK(most == 8);
}
