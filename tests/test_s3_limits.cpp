// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3
// cost: 15
//
// What an s3_store takes: memory beside the image, requests at a time, bytes for those that are wanted, and
// time for what fails. Memory is what operator new and libcurl have taken, counted in a process of its own:
// the server is in another one.
#include <cairn/storage/compressed/compressed_storage.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/any_store.hpp>
#include <cairn/stores/s3_store.hpp>
#include <cairn/system/digest.hpp>

#include <doctest/doctest.h>
#include <support/byte_store_conformance.hpp>
#include <support/codec_archetype.hpp>
#include <support/quick_clock.hpp>
#include <support/s3_access.hpp>
#include <support/saved_world.hpp>

#include <curl/curl.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace {
std::atomic<std::int64_t> taken{0};
std::atomic<std::int64_t> max_taken{0};

void count(std::size_t bytes) noexcept {
  const auto now = taken += static_cast<std::int64_t>(bytes);
  auto most = max_taken.load();
  while (now > most && !max_taken.compare_exchange_weak(most, now)) {
  }
}
void* take(std::size_t bytes) noexcept {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory != nullptr) count(::malloc_usable_size(memory));
  return memory;
}
void give_back(void* memory) noexcept {
  if (memory != nullptr) taken -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void* take_or_throw(std::size_t bytes) {
  void* memory = take(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* take_more(void* memory, std::size_t bytes) noexcept {
  void* more = take(bytes);
  if (more == nullptr || memory == nullptr) return more;
  std::memcpy(more, memory, std::min(bytes, ::malloc_usable_size(memory)));
  give_back(memory);
  return more;
}
void* take_zeros(std::size_t count_of, std::size_t bytes) noexcept {
  void* memory = bytes != 0 && count_of > SIZE_MAX / bytes ? nullptr : take(count_of * bytes);
  if (memory != nullptr) std::memset(memory, 0, count_of * bytes);
  return memory;
}
char* take_text(const char* text) noexcept {
  const auto bytes = std::strlen(text) + 1;
  auto* const copy = static_cast<char*>(take(bytes));
  if (copy != nullptr) std::memcpy(copy, text, bytes);
  return copy;
}
}  // namespace

void* operator new(std::size_t bytes) {
  return take_or_throw(bytes);
}
void* operator new[](std::size_t bytes) {
  return take_or_throw(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return take(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return take(bytes);
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete[](void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  give_back(memory);
}

namespace {
using namespace cairn_test;
namespace s3 = cairn_test::s3;
using cairn::error_id;
using std::chrono::milliseconds;

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t part = s3::smallest_part;

cairn::s3_store store_with(cairn::s3_options o,
                           std::shared_ptr<cairn::s3_clock> clock = std::make_shared<cairn::s3_clock>()) {
  return cairn::s3_store(std::move(o), s3::credentials_of(), std::move(clock));
}

// --- Memory ------------------------------------------------------------------------------------------------

constexpr std::size_t in_flight = 2;
constexpr std::size_t object_bytes = 24 * mib + 5;  // much more than what is allowed below
/// What libcurl has for each request, to send from and to receive into; and strings, lists and the like.
constexpr std::int64_t beside = in_flight * (mib + mib / 2) + 2 * mib;
constexpr std::int64_t parts_in_flight = in_flight * part;

/// The most bytes that were taken at once while this ran, beyond those of before.
template <class Work>
std::int64_t max_beyond(Work&& work) {
  const auto before = taken.load();
  max_taken = before;
  work();
  return max_taken - before;
}

struct big_state {
  explicit big_state(float value) : weights(object_bytes / sizeof(float), value) {
    all.tensor("weights", weights, {static_cast<std::int64_t>(weights.size())});
  }
  std::vector<float> weights;
  cairn::state_dict all;
};

/// What the process that is measured finds in its environment: the end point.
constexpr const char* measured_variable = "CAIRN_TEST_S3_LIMITS";
}  // namespace

TEST_CASE("the process whose memory is counted" * doctest::skip()) {
  const char* const endpoint = std::getenv(measured_variable);
  REQUIRE(endpoint != nullptr);
  ::alarm(600);
  REQUIRE(::curl_global_init_mem(CURL_GLOBAL_DEFAULT, take, give_back, take_more, take_text, take_zeros) ==
          CURLE_OK);
  auto o = s3::own_bucket_at(endpoint);
  o.in_flight = in_flight;
  o.get_bytes = part;
  const auto fresh = [&] { return store_with(o); };
  const auto some = pattern(mib + 1, 3);
  std::vector<std::byte> image(object_bytes);
  for (std::size_t at = 0; at < object_bytes; at += some.size())
    std::memcpy(image.data() + at, some.data(), std::min(some.size(), object_bytes - at));

  SUBCASE("an object from memory that lasts is sent from where it lies") {
    auto store = fresh();
    CHECK(max_beyond([&] {
            auto writer = store.create("lasting", object_bytes);
            const cairn::write_range whole{0, image};
            writer.write_stable({&whole, 1});
            writer.finish();
          }) <= beside);
    std::vector<std::byte> back(object_bytes);
    CHECK(max_beyond([&] {
            const cairn::read_range whole{"lasting", 0, back};
            store.read({&whole, 1});
          }) <= beside);
    CHECK(back == image);
  }
  SUBCASE("of an object from memory that does not last, as many parts as are in flight are copied") {
    for (const bool known : {true, false}) {
      auto store = fresh();
      const std::string key = known ? "copied" : "unknown";
      const auto most = max_beyond([&] {
        auto writer = store.create(key, known ? object_bytes : 0);
        for (std::size_t at = 0; at < object_bytes;) {
          const auto n = std::min<std::size_t>(object_bytes - at, 1'500'000);
          const cairn::write_range piece{at, std::span(image).subspan(at, n)};
          writer.write({&piece, 1});
          at += n;
        }
        writer.finish();
      });
      CHECK(most >= static_cast<std::int64_t>(part));  // it is counted at all
      // Where the size is not known, buffers grow, and are there twice while they do.
      CHECK(most <= parts_in_flight + beside + static_cast<std::int64_t>(known ? 0 : part));
      CHECK(store.size(key) == object_bytes);
    }
  }
  SUBCASE("a checkpoint: staged, not staged, compressed; and loaded into its tensors") {
    const big_state saved(1);
    for (const auto how : {staging::copied, staging::none}) {
      auto store = fresh();
      cairn::safetensors_storage storage{store};
      auto writer = storage.writer();
      world_save save(writer, {&saved.all}, how == staging::none ? 2 : 1, {1, 2}, 0, how);
      const auto written = save.image(0);  // the image itself is mapped, and not counted
      CHECK(max_beyond([&] { static_cast<void>(writer.write(save.context(0), written, soon())); }) <=
            (how == staging::none ? parts_in_flight : 0) + beside);
      if (how == staging::none) continue;
      save.commit();
      big_state loaded(0);
      auto reader = storage.reader();
      CHECK(max_beyond([&] { load_world(reader, 1, {&loaded.all}); }) <= beside);
      CHECK(loaded.weights == saved.weights);
    }
    cairn::compressed_storage storage{fresh(), codec_archetype::make()};
    auto writer = storage.writer();
    world_save save(writer, {&saved.all}, 3);
    const auto written = save.image(0);
    constexpr auto frames = static_cast<std::int64_t>(4 * cairn::compression_options{}.frame_bytes);
    CHECK(max_beyond([&] { static_cast<void>(writer.write(save.context(0), written, soon())); }) <=
          parts_in_flight + frames + beside);
  }
}

TEST_CASE("memory beyond the image is that of the parts in flight, never of the whole object") {
  s3::server server{s3::quick_server()};
  server.faults.add("delay UploadPart all ms=20");  // the sender is faster than the server
  ::setenv(measured_variable, server.endpoint().c_str(), 1);
  std::string program = "/proc/self/exe";
  std::string all = "--no-skip";
  std::string which = "-tc=the process whose memory is counted";
  char* const arguments[] = {program.data(), all.data(), which.data(), nullptr};
  ::pid_t child = 0;
  const int error = ::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ);
  ::unsetenv(measured_variable);
  REQUIRE(error == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(server.count("UploadPart") >= 5 * object_bytes / part);
}

// --- Requests, and bytes -----------------------------------------------------------------------------------

TEST_CASE("sixteen parts are under way at a time, if nothing else is said, on connections that are kept") {
  s3::server server{s3::quick_server()};
  auto o = s3::own_bucket_at(server.endpoint());
  CHECK(o.in_flight >= 16);
  o.stalled_after = std::chrono::seconds(280);  // however busy this machine is
  auto store = store_with(o);
  // None of the first sixteen is answered before all of them are there.
  server.faults.add("gather UploadPart 1-16 count=16 ms=240000");
  const auto one = pattern(part, 1);
  constexpr std::size_t parts = 18;
  {
    auto writer = store.create("object", parts * part);
    for (std::size_t i = 0; i < parts; ++i) {
      const cairn::write_range piece{i * part, one};
      writer.write_stable({&piece, 1});
    }
    writer.finish();
  }
  std::size_t at_once = 0;
  std::uint64_t connections = 0;
  for (const auto& entry : server.journal()) {
    if (entry.operation == "UploadPart") at_once = std::max(at_once, entry.in_flight);
    connections = std::max(connections, entry.connection);
  }
  CHECK(at_once >= 16);
  CHECK(connections <=
        server.count("*") - (parts - 16));  // at least the parts behind the first ones have found one
  CHECK(store.size("object") == parts * part);
}

TEST_CASE("parts that are sent from where they lie wait with their writer, not in an endless queue") {
  const auto one = pattern(part, 1);
  // The queue is the store's: of one object, or of several that are not finished.
  for (const std::size_t objects : {1U, 4U}) {
    CAPTURE(objects);
    s3::server server{s3::quick_server()};
    server.faults.add("gather UploadPart all count=1000 ms=240000");
    auto o = s3::own_bucket_at(server.endpoint());
    o.in_flight = 2;
    o.part_bytes = part;
    o.timeout = std::chrono::hours(2);
    o.stalled_after = std::chrono::seconds(280);
    const auto clock = std::make_shared<quick_clock>();
    auto store = store_with(o, clock);
    const std::size_t parts = 8 / objects;
    std::vector<decltype(store.create("", 0))> writers;
    for (std::size_t i = 0; i < objects; ++i) {
      writers.push_back(store.create("object-" + std::to_string(i), parts * part));
      writers.back().until(cairn::deadline::in(std::chrono::hours(1)));
    }
    std::size_t handed_over = 0;
    {
      const std::jthread time([&](const std::stop_token& ended) {
        while (server.count("UploadPart") < 2 && !ended.stop_requested())
          std::this_thread::sleep_for(milliseconds(1));
        clock->skipped += std::chrono::nanoseconds(std::chrono::hours(1)).count();
      });
      const auto why = failure_of([&] {
        for (; handed_over < 8; ++handed_over) {
          const cairn::write_range piece{handed_over % parts * part, one};
          writers[handed_over / parts].write_stable({&piece, 1});
        }
      });
      CHECK(why.id == error_id::timeout_write);
      CHECK(handed_over <= 4);
    }
    server.release();
  }
}

TEST_CASE("an object is begun while parts of another one are not answered") {
  s3::server server{s3::quick_server()};
  auto o = s3::own_bucket_at(server.endpoint());
  o.in_flight = 1;
  o.part_bytes = part;
  auto store = store_with(o);
  server.faults.add("gather UploadPart all count=1000 ms=10000");
  const auto one = pattern(part, 1);
  auto held = store.create("held", 2 * part);
  const cairn::write_range piece{0, one};
  held.write_stable({&piece, 1});
  for (const std::size_t bytes : {std::size_t{100}, 2 * part}) {
    CAPTURE(bytes);
    auto other = store.create("other", bytes);
    for (const auto& entry : server.journal())
      if (entry.operation == "UploadPart") CHECK(entry.ended.count() == 0);
  }
  server.release();
}

TEST_CASE("a part is sent as soon as its bytes are there, before the rest") {
  s3::server server{s3::quick_server()};
  auto store = store_with(s3::own_bucket_at(server.endpoint()));
  const auto bytes = pattern(2 * part + 7, 2);
  for (const bool lasting : {true, false}) {
    server.clear_journal();
    auto writer = store.create(lasting ? "lasting" : "copied", bytes.size());
    const auto write = [&](std::size_t begin, std::size_t end) {
      const cairn::write_range piece{begin, std::span(bytes).subspan(begin, end - begin)};
      if (lasting)
        writer.write_stable({&piece, 1});
      else
        writer.write({&piece, 1});
    };
    write(0, part + 1);
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(4);
    while (server.count("UploadPart") == 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(milliseconds(1));
    CHECK(server.count("UploadPart") == 1);
    write(part + 1, bytes.size());
    writer.finish();
    CHECK(server.count("UploadPart") == 3);
    CHECK(read_range(store, lasting ? "lasting" : "copied", 0, bytes.size()) == bytes);
  }
}

TEST_CASE("parts are as long as the object's length asks for") {
  using cairn::detail::part_bytes_for;
  constexpr std::uint64_t gib = std::uint64_t{1} << 30;
  CHECK(part_bytes_for(0, 0) == 8 * mib);
  CHECK(part_bytes_for(8 * mib, 0) == 8 * mib);
  CHECK(part_bytes_for(8 * mib + 1, 0) == 5 * mib);
  CHECK(part_bytes_for(100 * mib, 0) == 7 * mib);
  CHECK(part_bytes_for(128 * mib, 0) == 8 * mib);
  CHECK(part_bytes_for(gib, 0) == 16 * mib);
  CHECK(part_bytes_for(gib, 7 * mib) == 7 * mib);
  for (std::uint64_t bytes = 1; bytes <= 5 * 1024 * gib; bytes = bytes * 3 + 1)
    for (const std::uint64_t wanted : {std::uint64_t{0}, std::uint64_t{5 * mib}, 5 * gib}) {
      const auto each = part_bytes_for(bytes, wanted);
      CHECK(each >= 5 * mib);
      CHECK(each <= 5 * gib);
      CHECK((bytes + each - 1) / each <= 10'000);
    }
}

TEST_CASE("each range is asked for with the object's ETag, and little is fetched that nobody wants") {
  s3::server server{s3::quick_server()};
  const auto o = s3::own_bucket_at(server.endpoint());
  auto store = store_with(o);
  const auto content = pattern(6 * mib + 321, 5);
  store.put_new("object", content);
  std::mt19937_64 random(9);
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    server.clear_journal();
    std::vector<std::vector<std::byte>> memory;
    std::vector<cairn::read_range> ranges;
    const auto widest = std::size_t{1} << (6 + random() % 14);
    for (std::size_t at = random() % 1000; at < content.size() && ranges.size() < 64;) {
      const auto n = std::min<std::size_t>(content.size() - at, 1 + random() % widest);
      memory.emplace_back(n);
      ranges.push_back({"object", at, memory.back()});
      at += n + (random() % 3 == 0 ? 0 : random() % (4 * widest));
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    store.read(ranges);
    std::uint64_t wanted = 0;
    for (const auto& r : ranges) {
      wanted += r.destination.size();
      CHECK(std::equal(r.destination.begin(), r.destination.end(),
                       content.begin() + static_cast<std::ptrdiff_t>(r.offset)));
    }
    std::uint64_t fetched = 0;
    std::size_t requests = 0;
    for (const auto& entry : server.journal()) {
      if (entry.operation != "GetObject") continue;
      CHECK_FALSE(entry.range.empty());
      CHECK(entry.if_match);
      fetched += entry.bytes_out;
      ++requests;
    }
    CHECK(requests >= 1);
    CHECK(requests <= ranges.size());
    CHECK(fetched >= wanted);
    CHECK(fetched <= wanted + wanted / 20 + o.gap_bytes * ranges.size());
  }
}

TEST_CASE("neighbours are fetched by one request, in any order, and long ranges by several") {
  s3::server server{s3::quick_server()};
  auto o = s3::own_bucket_at(server.endpoint());
  o.get_bytes = mib;
  auto store = store_with(o);
  const auto content = pattern(4 * mib, 6);
  store.put_new("object", content);
  std::vector<std::byte> back(content.size());
  const auto requests_for = [&](std::vector<cairn::read_range> ranges) {
    server.clear_journal();
    store.read(ranges);
    return server.count("GetObject");
  };
  const auto at = [&](std::size_t begin, std::size_t bytes) {
    return cairn::read_range{"object", begin, std::span(back).subspan(begin, bytes)};
  };
  CHECK(requests_for({at(5'000, 100), at(0, 1'000), at(1'000, 4'000)}) == 1);
  CHECK(requests_for({at(0, 1'000), at(1'000 + o.gap_bytes, 1'000)}) == 1);
  CHECK(requests_for({at(0, 1'000), at(1'001 + o.gap_bytes, 1'000)}) == 2);
  std::fill(back.begin(), back.end(), std::byte{0});
  CHECK(requests_for({at(0, 4 * mib)}) == 4);
  CHECK(back == content);
}

TEST_CASE("resharding fetches what is wanted, and one block more for a rank's range at most") {
  s3::server server{s3::quick_server()};
  cairn::safetensors_storage storage{store_with(s3::own_bucket_at(server.endpoint()))};
  const auto rows_of = [](std::vector<float>& memory, int ranks, std::vector<cairn::state_dict>& states) {
    constexpr std::int64_t rows = 701;
    constexpr std::int64_t columns = 3001;
    memory.resize(rows * columns);
    states.resize(static_cast<std::size_t>(ranks));
    std::vector<const cairn::state_dict*> all;
    for (int r = 0; r < ranks; ++r) {
      cairn::chunk box{{rows * r / ranks, 0}, {rows * (r + 1) / ranks - rows * r / ranks, columns}};
      auto& state = states[static_cast<std::size_t>(r)];
      state.tensor(
          "w", cairn::subview(cairn::contiguous_view(memory.data(), cairn::dtype::f32, {rows, columns}), box),
          cairn::shard{{rows, columns}, box.offsets, box.sizes});
      all.push_back(&state);
    }
    return all;
  };
  std::vector<float> saved;
  std::vector<cairn::state_dict> from;
  const auto states = rows_of(saved, 2, from);
  for (std::size_t i = 0; i < saved.size(); ++i) saved[i] = static_cast<float>(i % 65521);
  auto writer = storage.writer();
  world_save(writer, states, 1).run();
  for (const int ranks : {1, 3, 5}) {
    CAPTURE(ranks);
    std::vector<float> loaded;
    std::vector<cairn::state_dict> to;
    const auto wanted_states = rows_of(loaded, ranks, to);
    std::fill(loaded.begin(), loaded.end(), 0.0F);
    auto reader = storage.reader();
    server.clear_journal();
    load_world(reader, 1, wanted_states);
    CHECK(loaded == saved);
    std::uint64_t fetched = 0;
    for (const auto& entry : server.journal()) {
      if (entry.operation != "GetObject" || entry.range.empty()) continue;
      CHECK(entry.if_match);
      fetched += entry.bytes_out;
    }
    const auto wanted = saved.size() * sizeof(float);
    CHECK(fetched >= wanted);
    CHECK(fetched <= wanted + wanted / 20 + cairn::digest_block_bytes * static_cast<std::size_t>(ranks));
  }
}

// --- Time --------------------------------------------------------------------------------------------------

/// Every random number is the same.
struct fixed_chance : quick_clock {
  explicit fixed_chance(double value) : chance(value) {}
  [[nodiscard]] double random() noexcept override { return chance; }
  double chance;
};

TEST_CASE("pauses: uniform below a bound that doubles, no shorter than the service asks for") {
  using cairn::detail::jittered;
  const milliseconds first(100);
  const milliseconds longest(20'000);
  for (std::size_t retries = 0; retries < 70; ++retries) {
    const auto bound = retries < 8 ? first * (1 << retries) : longest;
    CHECK(jittered(first, longest, retries, 0) == std::chrono::nanoseconds(0));
    CHECK(jittered(first, longest, retries, 0.5) == std::chrono::nanoseconds(bound) / 2);
    CHECK(jittered(first, longest, retries, 0.999) < bound);
  }
  s3::server server{s3::quick_server()};
  const auto waited = [&](const std::string& rule, double chance) {
    const auto clock = std::make_shared<fixed_chance>(chance);
    auto store = store_with(s3::own_bucket_at(server.endpoint()), clock);
    server.faults.add(rule);
    const auto begun = clock->now();
    store.put_new("object", pattern(100));
    const auto took = clock->now() - begun;
    server.faults.clear();
    store.remove("object");
    return took;
  };
  // Halves of 100, 200, 400 and 800 ms.
  CHECK(waited("error PutObject 1-4 status=500 code=InternalError", 0.5) >= milliseconds(749));
  CHECK(waited("error PutObject 1-2 status=503 code=SlowDown retry_after=7", 0) >= milliseconds(13'999));
  CHECK(waited("error PutObject 1-2 status=429 code=TooManyRequests retry_after=11", 0) >=
        milliseconds(21'999));
}

TEST_CASE("an answer that drips is given up, and asked for again on another connection") {
  s3::server server{s3::quick_server()};
  auto o = s3::own_bucket_at(server.endpoint());
  const auto content = pattern(100'000, 7);
  store_with(o).put_new("object", content);
  o.stalled_after = std::chrono::seconds(2);
  auto store = store_with(o, std::make_shared<quick_clock>());
  server.clear_journal();
  server.faults.add("slow GetObject first rate=100");
  CHECK(read_range(store, "object", 0, content.size()) == content);
  CHECK(server.count("GetObject") >= 2);
  const auto journal = server.journal();
  CHECK(journal.back().connection != journal.front().connection);
}

TEST_CASE("retries of all requests together take tokens, which come back at their rate") {
  s3::server server{s3::quick_server()};
  auto o = s3::own_bucket_at(server.endpoint());
  o.retry_burst = 3;
  o.retry_rate = 2;
  o.max_attempts = 100;
  const auto clock = std::make_shared<fixed_chance>(0);
  auto store = store_with(o, clock);
  server.faults.add("error PutObject 1-13 status=500 code=InternalError");
  const auto begun = clock->now();
  store.put_new("object", pattern(100));
  CHECK(server.count("PutObject") == 14);
  // Ten retries for which no token was left, two in a second.
  CHECK(clock->now() - begun >= milliseconds(4'999));
}

TEST_CASE("a request that keeps failing ends by its deadline or its attempts, with the server's answer") {
  s3::server server{s3::quick_server()};
  server.faults.add("error PutObject all status=503 code=ServiceUnavailable");
  auto o = s3::own_bucket_at(server.endpoint());
  o.max_attempts = 4;
  auto store = store_with(o, std::make_shared<quick_clock>());
  auto why = failure_of([&] { store.put_new("object", pattern(100)); });
  CHECK(why.id == error_id::storage_unavailable);
  CHECK(server.count("PutObject") == 4);
  CHECK(why.fields.got.find("503 ServiceUnavailable") != std::string::npos);
  CHECK(why.fields.got.find("after 4 attempts") != std::string::npos);

  // With a second at least between two attempts, half a minute is over long before these.
  o.max_attempts = 1'000'000;
  o.timeout = std::chrono::seconds(30);
  o.first_pause = o.max_pause = std::chrono::seconds(1);
  auto patient = store_with(o, std::make_shared<fixed_chance>(1));
  server.clear_journal();
  why = failure_of([&] { patient.put_new("object", pattern(100)); });
  CHECK(why.id == error_id::storage_unavailable);
  CHECK(server.count("PutObject") >= 1);
  CHECK(server.count("PutObject") <= 31);
}

TEST_CASE("a refusal behind a request without an answer does not say that nothing was written") {
  for (const std::string refusal : {"status=403 code=AccessDenied", "status=507 code=InsufficientStorage"})
    for (const std::string first : {"reset_after", "lost_reply"}) {
      CAPTURE(refusal);
      CAPTURE(first);
      s3::server server{s3::quick_server()};
      server.faults.add(first + " PutObject first");
      server.faults.add("error PutObject 2+ " + refusal);
      server.faults.add("error HeadObject all status=403 code=AccessDenied");
      auto store = store_with(s3::own_bucket_at(server.endpoint()), std::make_shared<quick_clock>());
      auto why = failure_of([&] { store.put_new("object", pattern(100)); });
      CHECK(why.id == error_id::storage_unavailable);
      CHECK(why.text.find("may still be carried out") != std::string::npos);
      why = failure_of([&] { store.put_new("other", pattern(100)); });
      CHECK(why.id == (refusal.find("403") != std::string::npos ? error_id::storage_permission
                                                                : error_id::storage_no_space));
    }
}

TEST_CASE("times without an end give up nothing") {
  s3::server server{s3::quick_server()};
  auto o = s3::own_bucket_at(server.endpoint());
  o.timeout = o.completion_timeout = o.connect_timeout = o.max_pause = std::chrono::milliseconds::max();
  o.stalled_after = std::chrono::seconds::max();
  auto store = store_with(o, std::make_shared<quick_clock>());
  server.faults.add("error PutObject first status=503 code=ServiceUnavailable");
  store.put_new("object", pattern(100));
  CHECK(server.count("PutObject") == 2);
}

TEST_CASE(
    "a service that asks to slow down gets half as many requests at a time, and then one more and more") {
  cairn::detail::request_window window(16);
  window.slow_down(window.epoch());
  CHECK(window.limit() == 8);
  window.slow_down(window.epoch() - 1);  // of a request that began before the last time
  CHECK(window.limit() == 8);
  for (int i = 0; i < 7; ++i) window.success();
  CHECK(window.limit() == 8);
  window.success();
  CHECK(window.limit() == 9);
  for (int i = 0; i < 20; ++i) window.slow_down(window.epoch());
  CHECK(window.limit() == 1);
  for (int i = 0; i < 1000; ++i) window.success();
  CHECK(window.limit() == 16);
}

TEST_CASE("what waits for an answer, or behind unanswered requests, gives up at the save's deadline") {
  std::vector<float> weights(4 * part / sizeof(float), 1);
  cairn::state_dict state;
  state.tensor("weights", weights, {static_cast<std::int64_t>(weights.size())});
  const auto bytes = std::as_bytes(std::span(weights));
  for (const std::string what : {"copied", "lasting", "save", "end", "small", "link", "link: look",
                                 "link: begin", "link: read", "link: empty"}) {
    CAPTURE(what);
    auto rules = s3::quick_server();
    rules.objects.copies = what != "link: read";
    s3::server server{rules};
    const bool links = what.starts_with("link");
    const std::string request = what == "link"                             ? "UploadPartCopy"
                                : what == "link: look"                     ? "HeadObject"
                                : what == "link: begin"                    ? "CreateMultipartUpload"
                                : what == "link: read"                     ? "GetObject"
                                : what == "end"                            ? "CompleteMultipartUpload"
                                : what == "small" || what == "link: empty" ? "PutObject"
                                                                           : "UploadPart";
    const std::size_t at_once = (links && what != "link") || what == "end" || what == "small" ? 1 : 2;
    const auto data = what == "small" ? bytes.first(1000) : what == "link: empty" ? bytes.first(0) : bytes;
    if (links) {
      const cairn::any_store before{
          store_with(s3::own_bucket_at(server.endpoint()), std::make_shared<quick_clock>())};
      auto writer = before.create("there", data.size());
      const cairn::write_range whole{0, data};
      writer.write({&whole, 1});
      writer.finish();
    }
    server.clear_journal();
    server.faults.add("stall " + request + " all");
    auto o = s3::own_bucket_at(server.endpoint());
    o.in_flight = 2;
    o.part_bytes = part;
    o.timeout = std::chrono::hours(2);
    o.stalled_after = std::chrono::seconds(280);
    const auto clock = std::make_shared<quick_clock>();
    cairn::any_store store{store_with(o, clock)};
    const auto until = cairn::deadline::in(std::chrono::hours(1));
    told_failure why;
    {
      // Time goes on once all requests that may are under way.
      const std::jthread time([&](const std::stop_token& ended) {
        while (server.count(request) < at_once && !ended.stop_requested())
          std::this_thread::sleep_for(milliseconds(1));
        clock->skipped += std::chrono::nanoseconds(std::chrono::hours(1)).count();
      });
      why = failure_of([&] {
        if (what == "save") {
          cairn::safetensors_storage storage{store};
          auto writer = storage.writer();
          world_save(writer, {&state}, 1).write(0, until);
          return;
        }
        if (links) return store.link("there", "object", until);
        auto writer = store.create("object", data.size());
        writer.until(until);
        const cairn::write_range whole{0, data};
        what == "lasting" ? writer.write_stable({&whole, 1}) : writer.write({&whole, 1});
        writer.finish();
      });
    }
    CHECK(why.id == error_id::timeout_write);
    CHECK(why.fields.file.find("s3://bucket/") == 0);
    CHECK(server.count(request) >= at_once);
    CHECK(server.count("CompleteMultipartUpload") == (what == "end" ? 1 : 0));
    CHECK(store.list("").size() == (links ? 1 : 0));
    CHECK(store.leftovers("").empty());
  }
}

TEST_CASE(
    "an upload that the service does not let go of delays its writer by seconds, not by the time of a "
    "request") {
  for (const bool conflict : {false, true}) {
    CAPTURE(conflict);
    s3::server server{s3::quick_server()};
    server.faults.add(conflict
                          ? "error CompleteMultipartUpload all status=409 code=ConditionalRequestConflict"
                          : "stall UploadPart all");
    server.faults.add("stall AbortMultipartUpload all");
    auto o = s3::own_bucket_at(server.endpoint());
    o.timeout = std::chrono::hours(2);
    o.stalled_after = std::chrono::seconds(280);
    const auto clock = std::make_shared<quick_clock>();
    cairn::any_store store{store_with(o, clock)};
    const std::vector<std::byte> data(std::size_t{11} << 20);
    std::atomic<bool> over = false, late = false;
    told_failure why;
    {
      const std::jthread time([&] {
        const auto skip_after = [&](const char* request, std::size_t count, std::chrono::nanoseconds time) {
          while (server.count(request) < count && !over) std::this_thread::sleep_for(milliseconds(1));
          clock->skipped += time.count();
        };
        skip_after(conflict ? "AbortMultipartUpload" : "UploadPart", 1, std::chrono::hours(1));
        skip_after("AbortMultipartUpload", conflict ? 2 : 1, std::chrono::seconds(11));
        for (int i = 0; i < 20'000 && !over; ++i) std::this_thread::sleep_for(milliseconds(1));
        late = !over;
        clock->skipped += std::chrono::nanoseconds(std::chrono::hours(3)).count();
      });
      why = failure_of([&] {
        auto writer = store.create("object", data.size());
        writer.until(cairn::deadline::in(std::chrono::hours(1)));
        const cairn::write_range whole{0, data};
        writer.write_stable({&whole, 1});
        writer.finish();
      });
      over = true;
    }
    CHECK(why.id == error_id::timeout_write);
    CHECK_FALSE(late);
  }
}

TEST_CASE(
    "an object that took the place of a shorter one is read whole, though the store remembers that one") {
  s3::server server{s3::quick_server()};
  const auto o = s3::own_bucket_at(server.endpoint());
  cairn::any_store store{store_with(o, std::make_shared<quick_clock>())};
  cairn::any_store other{store_with(o, std::make_shared<quick_clock>())};
  const std::vector<std::byte> longer(20, std::byte{7});
  for (cairn::any_store* writer : {&other, &store}) {
    store.put_new("k", std::vector<std::byte>(10, std::byte{1}));
    (void)store.list("");
    other.remove("k");
    writer->put_new("k", longer);
    std::vector<std::byte> got(longer.size());
    const cairn::read_range all{"k", 0, got};
    store.read({&all, 1});
    CHECK(got == longer);
    store.remove("k");
  }
}
