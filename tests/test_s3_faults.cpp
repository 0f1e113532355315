// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3
// cost: 30
// Faults of an S3 service, one after another: each kind, at each request of a save and of a load, at the
// first, a middle, the last and at all of them. A save that is acknowledged loads; one that is not ends with
// a typed error, and what a reader then finds is all of it or nothing; a load gives the right bytes or a
// typed error.
#include <cairn/checkpointer.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/s3_store.hpp>
#include <cairn/stores/s3_url.hpp>

#include <doctest/doctest.h>
#include <support/byte_store_conformance.hpp>
#include <support/quick_clock.hpp>
#include <support/rounds.hpp>
#include <support/s3_access.hpp>
#include <support/saved_world.hpp>
#include <support/scratch_directory.hpp>

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {
using namespace cairn_test;
namespace s3 = cairn_test::s3;
using cairn::error_id;

struct bucket {
  s3::server server{s3::quick_server()};
  std::chrono::seconds timeout{20};

  /// The store as a new process opens it: no connection, nothing cached.
  [[nodiscard]] cairn::safetensors_storage<cairn::s3_store> storage() const {
    return cairn::safetensors_storage(store());
  }
  [[nodiscard]] cairn::s3_store store() const {
    auto o = s3::bucket_at(server.endpoint());
    o.checksums = cairn::s3_checksum::none;
    o.stalled_after = std::chrono::seconds(20);
    o.timeout = timeout;
    o.completion_timeout = timeout;
    return cairn::s3_store(o, s3::credentials_of(), std::make_shared<quick_clock>());
  }
};

struct small_state {
  std::vector<float> weights;
  std::vector<unsigned char> rng{1, 2, 3, 4, 5};
  double lr = 0.25;
  cairn::state_dict state;
  small_state(std::size_t size, float first) : weights(size) {
    for (std::size_t i = 0; i < size; ++i) weights[i] = first + static_cast<float>(i % 1000);
    state.tensor("weights", weights, {static_cast<std::int64_t>(size)});
    state.bytes("rng", rng);
    state.value("lr", lr);
  }
  small_state(const small_state&) = delete;
  small_state& operator=(const small_state&) = delete;
  [[nodiscard]] bool equals(const small_state& o) const {
    return weights == o.weights && rng == o.rng && lr == o.lr;
  }
};
constexpr std::size_t one_put = 3000;
constexpr std::size_t two_parts = (std::size_t{11} << 20) / 2 / sizeof(float);

/// Saves as an engine does; the error, where there is one. An exception of no type of cairn's goes on.
told_failure save(bucket& b, const small_state& what,
                  std::chrono::seconds timeout = std::chrono::seconds(5)) {
  auto storage = b.storage();
  auto writer = storage.writer();
  world_save one(writer, {&what.state}, 7);
  try {
    one.write(0);
    one.commit(cairn::deadline::in(timeout));
  } catch (const cairn::error& e) {
    writer.abort(one.context(0), std::current_exception());
    return {e.id(), e.what(), e.fields()};
  }
  return {};
}

enum class found { nothing, all_of_it };
/// What a reader without faults finds. Anything but all or nothing fails the test.
found look(bucket& b, const small_state& what) {
  auto storage = b.storage();
  auto reader = storage.reader();
  if (reader.list().empty()) return found::nothing;
  small_state loaded(what.weights.size(), -1);
  loaded.lr = 0;
  load_world(reader, 7, {&loaded.state});
  CHECK(loaded.equals(what));
  return found::all_of_it;
}

/// The first, a middle, the last one, all: so many whatever the number of requests is, which may depend on
/// what ran at once. A rule for a request that does not come is one that nothing meets.
std::vector<std::string> places(std::size_t requests) {
  if (requests <= 1) return {"1", "all"};
  const auto middle = std::max<std::size_t>(2, (requests + 1) / 2);
  return {"1", std::to_string(middle), std::to_string(std::max(middle + 1, requests)), "all"};
}

bool is_typed(const told_failure& why) {
  if (!why.id) return false;
  const auto kind = cairn::kind_of(*why.id);
  return kind == cairn::error_kind::storage || kind == cairn::error_kind::corrupt ||
         kind == cairn::error_kind::timeout || why.id == error_id::peer_lost;
}

const std::vector<std::string> writing = {
    "error status=500 code=InternalError",
    "error status=503 code=SlowDown retry_after=1",
    "error status=429 code=TooManyRequests",
    "error status=503 code=ServiceUnavailable early=1",
    "error status=400 code=RequestTimeout",
    "error status=400 code=BadDigest",
    "error status=400 code=ExpiredToken",
    "error status=403 code=AccessDenied",
    "error status=403 code=RequestTimeTooSkewed",
    "error status=404 code=NoSuchBucket",
    "error status=409 code=ConditionalRequestConflict",
    "error status=412 code=PreconditionFailed",
    "error status=501 code=NotImplemented",
    "reset_before",
    "reset_in_body",
    "reset_after",
    "lost_reply",
    "reset_in_reply",
    "hang_up",
    "error_in_200",
    "error_in_200 done=1",
    "whitespace ms=20",
    "whitespace ms=20 then=error",
    "whitespace ms=20 then=cut",
    "empty",
    "empty done=1",
    "garbage body=html",
    "garbage body=cut",
    "garbage body=bomb",
    "garbage body=nested",
    "garbage body=binary",
    "garbage body=html status=500",
    "not_done",
    "redirect status=301 region=eu-west-1",
    "redirect status=307",
    "wrong_etag",
    "no_etag",
    "delay ms=30",
    "header text=no-colon-here",
    "header text=Content-Length:~-1",
    "header text=Retry-After:~99999999999999",
};

const std::vector<std::string> reading = {
    "error status=500 code=InternalError",
    "error status=503 code=SlowDown retry_after=1",
    "error status=403 code=AccessDenied",
    "error status=404 code=NoSuchKey",
    "error status=416 code=InvalidRange",
    "reset_before",
    "reset_after",
    "reset_in_reply",
    "hang_up",
    "short_range",
    "wrong_range by=1",
    "wrong_range by=4096",
    "whole_object",
    "flip",
    "wrong_etag",
    "no_etag",
    "changed",
    "empty",
    "garbage body=html",
    "garbage body=nested",
    "garbage body=cut",
    "garbage body=html status=206",
    "error_in_200",
    "whitespace ms=20",
    "redirect status=301 region=eu-west-1",
    "redirect status=307",
    "delay ms=30",
    "header text=Content-Range:~bytes~*/*",
    "header text=Content-Length:~-1",
};

}  // namespace

TEST_CASE("whatever a service does while a checkpoint is saved: acknowledged means that it loads") {
  bucket b;
  std::size_t scripts = 0;
  std::size_t passed_over = 0;
  std::size_t acknowledged = 0;
  std::size_t failed = 0;
  const auto longer = rounds(1) != 1;
  for (const auto size : {one_put, two_parts}) {
    const small_state what(size, 1);
    b.server.objects().clear();
    b.server.clear_journal();
    REQUIRE_FALSE(save(b, what, std::chrono::minutes(2)).id.has_value());
    std::map<std::string, std::size_t> requests;
    for (const auto& entry : b.server.journal()) ++requests[entry.operation];
    for (const auto& [operation, count] : requests) {
      // What the large save has in common with the small one is tried there.
      const bool of_parts = operation.find("Multipart") != std::string::npos || operation == "UploadPart";
      if (of_parts != (size == two_parts)) continue;
      for (const auto& kind : writing) {
        for (const auto& place : places(count)) {
          // A short run takes one in six, of each kind and each request.
          if (!longer && passed_over++ % 6 != 0) continue;
          const auto space = kind.find(' ');
          const auto rule = kind.substr(0, space) + " " + operation + " " + place +
                            (space == std::string::npos ? "" : kind.substr(space));
          CAPTURE(rule);
          b.server.objects().clear();
          b.server.faults.add(rule);
          const auto begun = std::chrono::steady_clock::now();
          const auto why = save(b, what);
          const auto took = std::chrono::steady_clock::now() - begun;
          b.server.faults.clear();
          CHECK(took < std::chrono::seconds(180));
          CAPTURE(why.text);
          const auto there = look(b, what);
          if (why.id) {
            CHECK(is_typed(why));
            ++failed;
          } else {
            CHECK(there == found::all_of_it);
            ++acknowledged;
          }
          CHECK(why.text.find(s3::credentials{}.secret_key) == std::string::npos);
          ++scripts;
        }
      }
    }
  }
  MESSAGE(scripts, " scripts: ", acknowledged, " saves acknowledged, ", failed, " failed");
  CHECK(scripts >= 150);
  // Where an answer is late, and by how many attempts, is not the same each time: wide bounds.
  CHECK(acknowledged > scripts / 5);
  CHECK(failed > 5);
}

TEST_CASE("whatever a service does while a checkpoint is loaded: the right bytes or a typed error") {
  bucket b;
  const small_state what(one_put * 40, 1);
  REQUIRE_FALSE(save(b, what, std::chrono::minutes(2)).id.has_value());
  const auto load = [&](small_state& into) {
    return failure_of([&] {
      auto storage = b.storage();
      auto reader = storage.reader();
      if (reader.list().empty()) cairn::fail(error_id::storage_not_committed, "no step is listed");
      load_world(reader, 7, {&into.state});
    });
  };
  b.server.clear_journal();
  {
    small_state loaded(what.weights.size(), -1);
    REQUIRE_FALSE(load(loaded).id.has_value());
  }
  std::map<std::string, std::size_t> requests;
  for (const auto& entry : b.server.journal()) ++requests[entry.operation];
  CHECK(requests["GetObject"] > 1);
  std::size_t scripts = 0;
  std::size_t passed_over = 0;
  std::size_t right = 0;
  for (const auto& [operation, count] : requests)
    for (const auto& kind : reading)
      for (const auto& place : places(count)) {
        if (rounds(1) == 1 && passed_over++ % 3 != 0) continue;
        const auto space = kind.find(' ');
        const auto rule = kind.substr(0, space) + " " + operation + " " + place +
                          (space == std::string::npos ? "" : kind.substr(space));
        CAPTURE(rule);
        b.server.faults.add(rule);
        small_state loaded(what.weights.size(), -1);
        const auto why = load(loaded);
        b.server.faults.clear();
        CAPTURE(why.text);
        if (why.id) {
          CHECK(is_typed(why));
        } else {
          CHECK(loaded.equals(what));
          ++right;
        }
        ++scripts;
      }
  MESSAGE(scripts, " scripts: ", right, " loads went well");
  CHECK(scripts >= (cairn_test::long_run() ? 150 : 70));
  CHECK(right > scripts / 10);
}

TEST_CASE(
    "an object that comes damaged, cut or empty once is read again, and no checkpoint is set aside for it") {
  for (const std::string_view key : {"manifest.cairn", ".record", ".safetensors"})
    for (const std::string_view kind : {"flip", "empty", "reset_in_reply"}) {
      CAPTURE(key);
      CAPTURE(kind);
      bucket b;
      small_state trained(one_put, 1);
      const auto open = [&] {
        return cairn::checkpointer{b.storage(), cairn::checkpointer_options{.quiet = true}};
      };
      {
        auto c = open();
        static_cast<void>(c.resume(trained.state));
        for (const std::int64_t step : {1, 2}) c.save(trained.state, step).wait();
        c.close();
      }
      b.server.faults.add(std::string(kind) + " GetObject 1 key=" + std::string(key) + " done=1 no_length=1");
      {
        small_state loaded(one_put, -1);
        auto c = open();
        CHECK(c.resume(loaded.state) == 2);
        CHECK(loaded.equals(trained));
        c.close();
      }
      b.server.faults.clear();
      CHECK(open().list() == std::vector<std::int64_t>{1, 2});
    }
}

TEST_CASE("a manifest that was set aside keeps its files, though one answer has it damaged") {
  for (const std::string_view kind : {"flip", "empty", "reset_in_reply"}) {
    CAPTURE(kind);
    bucket b;
    small_state trained(one_put, 1);
    const auto files = [&] {
      std::size_t found = 0;
      for (const auto& o : b.store().list("step-00000002"))
        found += o.key.ends_with(".safetensors") || o.key.ends_with(".record");
      return found;
    };
    const auto open = [&] {
      return cairn::checkpointer{b.storage(), cairn::checkpointer_options{.quiet = true}};
    };
    {
      auto c = open();
      static_cast<void>(c.resume(trained.state));
      for (const std::int64_t step : {1, 2}) c.save(trained.state, step).wait();
      REQUIRE(c.quarantine(2));
      c.close();
    }
    REQUIRE(files() == 2);
    b.server.faults.add(std::string(kind) + " GetObject 1 key=manifest.damaged.0 done=1 no_length=1");
    {
      auto c = open();
      CHECK(c.resume(trained.state) == 1);
      c.save(trained.state, 2).wait();
      c.close();
    }
    b.server.faults.clear();
    CHECK(files() == 4);
  }
}

TEST_CASE("thirty in a hundred requests meet a fault: no save is acknowledged that does not load") {
  bucket b;
  b.timeout = std::chrono::minutes(10);  // on a clock whose pauses take no time
  // Faults of a service that still works; faults that last are among the scripts above.
  std::vector<std::string> passing;
  for (const auto* kind : {"error * all status=500 code=InternalError",
                           "error * all status=503 code=SlowDown retry_after=1",
                           "error * all status=503 code=SlowDown early=1",
                           "error * all status=429 code=TooManyRequests",
                           "error * all status=502 code=BadGateway",
                           "error * all status=400 code=RequestTimeout",
                           "reset_before * all",
                           "reset_in_body * all",
                           "reset_after * all",
                           "lost_reply * all",
                           "reset_in_reply * all",
                           "hang_up * all",
                           "error_in_200 * all",
                           "error_in_200 PutObject all done=1",
                           "error_in_200 CompleteMultipartUpload all done=1",
                           "whitespace CompleteMultipartUpload all ms=5",
                           "whitespace CompleteMultipartUpload all ms=5 then=error",
                           "whitespace CompleteMultipartUpload all ms=5 then=cut",
                           "empty PutObject all done=1",
                           "empty * all",
                           "garbage * all body=html",
                           "garbage * all body=nested",
                           "garbage * all body=html status=500",
                           "delay * all ms=5"})
    passing.emplace_back(kind);
  auto all = passing;
  for (const auto& kind : writing) {
    const auto space = kind.find(' ');
    all.push_back(kind.substr(0, space) + " * all" + (space == std::string::npos ? "" : kind.substr(space)));
  }
  const auto saves = cairn_test::long_run() ? 500u : 30u;
  unsigned acknowledged = 0;
  unsigned failed = 0;
  unsigned right = 0;
  std::size_t requests = 0;
  std::size_t met = 0;
  for (unsigned i = 0; i < saves; ++i) {
    CAPTURE(i);
    const small_state what(i % 8 == 7 ? two_parts : one_put, static_cast<float>(i));
    b.server.objects().clear();
    b.server.clear_journal();
    b.server.faults.at_random(30, i, i % 5 == 4 ? all : passing);
    const auto why = save(b, what);
    b.server.faults.clear();
    for (const auto& entry : b.server.journal()) {
      ++requests;
      met += entry.fault.empty() ? 0 : 1;
    }
    CAPTURE(why.text);
    const auto there = look(b, what);
    CHECK(why.text.find(s3::credentials{}.secret_key) == std::string::npos);
    if (why.id) {
      CHECK(is_typed(why));
      ++failed;
      continue;
    }
    CHECK(there == found::all_of_it);
    ++acknowledged;
    b.server.faults.at_random(30, i, passing);
    small_state loaded(what.weights.size(), -1);
    const auto lost = failure_of([&] {
      auto storage = b.storage();
      auto reader = storage.reader();
      load_world(reader, 7, {&loaded.state});
    });
    b.server.faults.clear();
    CAPTURE(lost.text);
    if (lost.id) {
      CHECK(is_typed(lost));
    } else {
      CHECK(loaded.equals(what));
      ++right;
    }
  }
  MESSAGE(saves, " saves, ", requests, " requests, ", met, " faults: ", acknowledged,
          " acknowledged, all of which load, ", failed, " failed; ", right, " loads among faults went well");
  CHECK(acknowledged + failed == saves);
  CHECK(met > requests / 10);
  CHECK(acknowledged > saves / 4);
}

struct any_in_files {
  scratch_directory directory;
  cairn::any_store make() { return cairn::any_store{cairn::file_store{directory.path() + "/new"}}; }
};
TEST_CASE_TEMPLATE_INVOKE(byte_store_conformance, any_in_files);

TEST_CASE(
    "stores are opened by URL, and URLs that say something else are refused without repeating secrets") {
  scratch_directory directory;
  bucket b;
  const s3::credentials key;
  ::setenv("AWS_ACCESS_KEY_ID", key.access_key.c_str(), 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", key.secret_key.c_str(), 1);
  ::unsetenv("AWS_SESSION_TOKEN");
  for (const auto& url :
       {directory.path() + "/plain", "file:" + directory.path() + "/a", "file://" + directory.path() + "/b",
        "s3://bucket/team/run?region=us-east-1&endpoint=" + b.server.endpoint()}) {
    CAPTURE(url);
    cairn::safetensors_storage storage{cairn::open_store(url)};
    auto writer = storage.writer();
    auto reader = storage.reader();
    const small_state what(one_put, 1);
    world_save(writer, {&what.state}, 7).run();
    small_state loaded(one_put, -1);
    load_world(reader, 7, {&loaded.state});
    CHECK(loaded.equals(what));
  }
  for (const auto& key_there : b.server.objects().keys("bucket")) CHECK(key_there.starts_with("team/run/"));
  for (const std::string url :
       {"", "file:", "file://host/path", "http://a/b", "s3:bucket", "s3://", "s3://ab",
        "s3://user:word@bucket/x", "s3://bucket/x?region", "s3://bucket/x?color=red",
        "s3://bucket/x?dialect=french", "s3://bucket/../x", "s3://bucket/a//b",
        "s3://bucket/x?endpoint=ftp://a", "s3://bucket/x?endpoint=https://u:word@host"}) {
    CAPTURE(url);
    const auto why = failure_of([&] { static_cast<void>(cairn::open_store(url)); });
    REQUIRE(why.id.has_value());
    CHECK(cairn::kind_of(*why.id) == cairn::error_kind::usage);
    CHECK(why.text.find("word") == std::string::npos);
  }
}
