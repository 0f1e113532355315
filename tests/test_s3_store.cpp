// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3
// cost: 40
//
// The S3 store against moto, an implementation that shares nothing with ours; the signer against AWS's
// published examples and against botocore.
#include <cairn/checkpointer.hpp>
#include <cairn/manage/compare.hpp>
#include <cairn/manage/import_safetensors.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/safetensors_files.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/s3_store.hpp>

#include "support/byte_store_conformance.hpp"
#include "support/faulty_store.hpp"
#include "support/moto.hpp"
#include "support/quick_clock.hpp"
#include "support/rounds.hpp"
#include "support/s3_access.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using cairn_test::pattern;

cairn::s3_credential_source credentials() {
  return cairn::s3_credential_source::fixed({"moto", "moto-secret", "", 0});
}
cairn::s3_options on_moto(const std::string& prefix) {
  cairn::s3_options o;
  o.bucket = "checkpoints";
  o.prefix = prefix;
  o.endpoint = cairn_test::moto_server::shared().endpoint();
  o.region = "us-east-1";
  o.stalled_after = std::chrono::seconds(60);
  return o;
}

struct s3_on_moto {
  static std::string next() {
    static std::atomic<int> n{0};
    return "suite-" + std::to_string(n++) + "/";
  }
  cairn::s3_store store{on_moto(next()), credentials()};
  cairn::s3_store make() { return store; }
};

namespace s3 = cairn_test::s3;
using cairn_test::quick_clock;

s3::server_options strict(const s3::object_rules& rules = {}) {
  s3::server_options o;
  o.objects = rules;
  o.signatures.accepted = {{"AKIDEXAMPLE", "the-secret-of-the-tests", ""}};
  return o;
}
const cairn::s3_credentials strict_key{"AKIDEXAMPLE", "the-secret-of-the-tests", "", 0};

cairn::s3_options on(const s3::server& server) {
  return s3::bucket_at(server.endpoint());
}
cairn::s3_store quick(const s3::server& server,
                      std::shared_ptr<quick_clock> clock = std::make_shared<quick_clock>()) {
  return cairn::s3_store(on(server), cairn::s3_credential_source::fixed(strict_key), std::move(clock));
}

struct s3_strict {
  s3::server server{strict()};
  cairn::s3_store store{on(server), cairn::s3_credential_source::fixed(strict_key)};
  cairn::s3_store make() { return store; }
};
/// Bucket in the host's name, few entries a page, no checksums, ETags that are no MD5.
struct s3_plain {
  static s3::object_rules rules() {
    s3::object_rules r;
    r.page = 2;
    r.checksums = false;
    r.opaque_etags = true;
    return r;
  }
  s3::server server{strict(rules())};
  cairn::s3_store store = [this] {
    auto o = on(server);
    o.endpoint = "http://localhost:" + std::to_string(server.port());
    o.addressing = cairn::s3_addressing::virtual_host;
    o.prefix = "a prefix/with=odd+(characters)/";
    return cairn::s3_store(o, cairn::s3_credential_source::fixed(strict_key));
  }();
  cairn::s3_store make() { return store; }
};

const cairn::s3_credentials aws_example{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                        "", 0};
constexpr std::int64_t aws_time = 1369353600;  // 2013-05-24T00:00:00Z

std::string aws_signature(std::string_view method, std::string_view path, const cairn::name_values& query,
                          cairn::name_values headers, std::string_view body) {
  headers.emplace_back("Host", "examplebucket.s3.amazonaws.com");
  const auto hash = cairn::detail::sha256_text(body);
  const auto all =
      cairn::sigv4_signer("us-east-1").sign({method, path, &query, &headers, hash}, aws_example, aws_time);
  const auto& authorization = all.back().second;
  return authorization.substr(authorization.rfind('=') + 1);
}

}  // namespace

TEST_CASE("signatures are those of the S3 documentation's examples") {
  CHECK(aws_signature("GET", "/test.txt", {}, {{"Range", "bytes=0-9"}}, "") ==
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  CHECK(aws_signature(
            "PUT", "/test%24file.text", {},
            {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
            "Welcome to Amazon S3.") == "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  CHECK(aws_signature("GET", "/", {{"lifecycle", ""}}, {}, "") ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  CHECK(aws_signature("GET", "/", {{"prefix", "J"}, {"max-keys", "2"}}, {}, "") ==
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

std::string unpacked(std::string_view text) {
  std::string out;
  for (std::size_t i = 1; i + 1 < text.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  return out;
}

TEST_CASE("signatures are botocore's, for sixty nasty keys and for chance; such keys are written and read") {
  const auto command =
      "'" + cairn_test::python() + "' '" + cairn_test::source_dir() + "/tests/python/botocore_signatures.py'";
  std::FILE* const lines = ::popen(command.c_str(), "r");
  REQUIRE(lines != nullptr);
  s3::server server{strict()};
  auto options = on(server);
  cairn::detail::s3_client client(options, cairn::s3_credential_source::fixed(strict_key),
                                  std::make_shared<cairn::s3_clock>());
  std::vector<char> line(1u << 16);
  int tried = 0;
  while (std::fgets(line.data(), static_cast<int>(line.size()), lines) != nullptr) {
    std::istringstream words(line.data());
    std::string method, key, hash, signature, token, word;
    std::int64_t epoch = 0;
    words >> method >> key >> epoch >> hash >> signature >> token;
    key = unpacked(key);
    CAPTURE(key);
    cairn::name_values query;
    cairn::name_values headers{{"host", "bucket.example.com"}};
    auto* into = &query;
    while (words >> word) {
      if (word == "--") {
        into = &headers;
        continue;
      }
      const auto equals = word.find('=');
      into->emplace_back(unpacked(word.substr(0, equals)), unpacked(word.substr(equals + 1)));
    }
    const auto path = "/" + cairn::detail::percent_encoded(key, true);
    auto who = strict_key;
    who.session_token = unpacked(token);
    const auto all =
        cairn::sigv4_signer("us-east-1").sign({method, path, &query, &headers, hash}, who, epoch);
    const auto& authorization = all.back().second;
    CHECK(authorization.substr(authorization.rfind('=') + 1) == signature);
    if (++tried > 60) continue;
    const auto bytes = pattern(key.size(), static_cast<std::uint64_t>(tried));
    CHECK(client.put(key, {bytes}) == cairn::detail::s3_client::put_result::stands);
    CHECK(client.get_all(key, 2'000) == bytes);
  }
  CHECK(::pclose(lines) == 0);
  CHECK(tried == 260);
  CHECK(server.objects().keys("bucket").size() == 60);
}

TEST_CASE("checksums are those of RFC 3720") {
  const std::vector<std::byte> zeros(32);
  std::vector<std::byte> ascending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<std::byte>(i);
  const auto of = [](std::span<const std::byte> b) { return cairn::detail::crc32c({&b, 1}); };
  CHECK(of(zeros) == 0x8A9136AAu);
  CHECK(of(ascending) == 0x46DD794Eu);
  const auto bytes = pattern(1001);
  CHECK(of(bytes) == ~cairn::detail::crc32c_by_table(~0u, bytes));
  CHECK(cairn::detail::checksum_text(0x46DD794Eu) == "Rt15Tg==");
}

TEST_CASE("a big object is uploaded in several parts, copied or sent from where they lie") {
  cairn::s3_store store{on_moto("big/"), credentials()};
  const auto bytes = pattern((18u << 20) + 777, 3);
  for (const bool lasting : {false, true}) {
    const std::string key = lasting ? "lasting" : "copied";
    auto writer = store.create(key, bytes.size());
    for (std::size_t at = 0; at < bytes.size();) {
      const auto n = std::min<std::size_t>(bytes.size() - at, 3'000'000);
      const cairn::write_range part{at, std::span(bytes).subspan(at, n)};
      if (lasting)
        writer.write_stable({&part, 1});
      else
        writer.write({&part, 1});
      at += n;
    }
    CHECK_FALSE(store.size(key));
    CHECK(store.leftovers("").empty());
    writer.finish();
    CHECK(store.leftovers("").empty());
    CHECK(store.size(key) == bytes.size());
    CHECK(cairn_test::read_range(store, key, 0, bytes.size()) == bytes);
  }
}

TEST_CASE("moto keeps what is asked of encryption and class, and confirms it") {
  auto o = on_moto("encrypted/");
  o.encryption = cairn::s3_encryption::sse_kms;
  o.kms_key = "a-key";
  o.kms_context = {{"team", "7"}};
  o.storage_class = "STANDARD_IA";
  o.bucket_owner = "123456789012";  // moto's own account
  o.requester_pays = true;
  o.part_bytes = s3::smallest_part;
  cairn::s3_store store{o, credentials()};
  const auto bytes = pattern((6u << 20) + 77, 4);
  CHECK(store.publish_new("small", pattern(10)));
  auto writer = store.create("large", bytes.size());
  const cairn::write_range whole{0, bytes};
  writer.write_stable({&whole, 1});
  writer.finish();
  CHECK(store.read_all("large", 1u << 30) == bytes);
  cairn::detail::s3_client client(on_moto(""), credentials(), std::make_shared<cairn::s3_clock>());
  for (const std::string key : {"encrypted/small", "encrypted/large"}) {
    CAPTURE(key);
    const auto call = client.run({.method = "HEAD", .key = key});
    CHECK(call->header("x-amz-server-side-encryption") == "aws:kms");
    CHECK(call->header("x-amz-server-side-encryption-aws-kms-key-id") == "a-key");
    CHECK(call->header("x-amz-storage-class") == "STANDARD_IA");
  }
}

TEST_CASE(
    "moto's bucket with versions: a removed object is gone, reported as kept, and can be written again") {
  cairn::detail::s3_client client(on_moto(""), credentials(), std::make_shared<cairn::s3_clock>());
  auto o = on_moto("run/");
  o.bucket = "with-versions";
  o.exclusive = cairn::s3_exclusive::assumed;  // else the probe is removed first
  auto once = o;
  once.max_attempts = 1;  // an answer about a bucket has no ETag, so that the client would ask again
  cairn::detail::s3_client bucket(once, credentials(), std::make_shared<cairn::s3_clock>());
  const std::string rule =
      "<VersioningConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Status>"
      "Enabled</Status></VersioningConfiguration>";
  for (const bool make : {true, false}) {
    cairn::detail::s3_request r{.method = "PUT", .key = ""};
    if (!make) r.query = {{"versioning", ""}};
    bucket.set_body(r, {make ? std::span<const std::byte>() : std::as_bytes(std::span(rule))}, false);
    CHECK(bucket.run(std::move(r))->status == 200);
  }
  cairn::s3_store store{o, credentials()};
  CHECK(store.publish_new("step-00000001/manifest.cairn", pattern(10)));
  CHECK_FALSE(store.publish_new("step-00000001/manifest.cairn", pattern(11)));
  CHECK_FALSE(store.keeps_removed());
  store.remove("step-00000001/manifest.cairn");
  CHECK(store.keeps_removed());
  CHECK_FALSE(store.size("step-00000001/manifest.cairn"));
  CHECK(store.list("").empty());
  CHECK(store.publish_new("step-00000001/manifest.cairn", pattern(12)));
  CHECK(store.read_all("step-00000001/manifest.cairn", 100) == pattern(12));
}

TEST_CASE("moto's token service gives a web identity credentials that sign") {
  const std::pair<const char*, std::string> variables[] = {
      {"AWS_ENDPOINT_URL_STS", cairn_test::moto_server::shared().endpoint()},
      {"AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/trainer"},
      {"AWS_WEB_IDENTITY_TOKEN_FILE", cairn_test::source_dir() + "/tests/support/moto_server.py"}};
  for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
  const auto source = cairn::s3_credential_source::web_identity();
  const auto got = source.get();
  CHECK(got.access_key.starts_with("ASIA"));
  CHECK_FALSE(got.session_token.empty());
  CHECK(got.expires > static_cast<std::int64_t>(std::time(nullptr)) + 600);
  cairn::s3_store store{on_moto("identity/"), source};
  CHECK(store.publish_new("object", pattern(10)));
  CHECK(store.read_all("object", 100) == pattern(10));
  for (const auto& [name, value] : variables) ::unsetenv(name);
}

/// What one fault did to a request. A typed error is right, any other exception is not.
template <class Call>
std::optional<cairn::error_id> attempt(Call call) {
  const auto began = std::chrono::steady_clock::now();
  std::optional<cairn::error_id> failure;
  try {
    call();
  } catch (const cairn::error& e) {
    failure = e.id();
    CHECK(std::string(e.what()).find(strict_key.secret_key) == std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(120));
  return failure;
}

// KIND with its words, and whether a request that meets it once must succeed all the same.
struct fault_kind {
  const char* kind;
  const char* words;
  bool overcome;
};
constexpr fault_kind anywhere[] = {{"error", "status=500 code=InternalError", true},
                                   {"error", "status=503 code=SlowDown retry_after=7", true},
                                   {"error", "status=503 code=SlowDown early=1", true},
                                   {"error", "status=429 code=TooManyRequests", true},
                                   {"error", "status=408 code=RequestTimeout", true},
                                   {"error", "status=502 code=BadGateway", true},
                                   {"error", "status=403 code=AccessDenied", false},
                                   {"error", "status=400 code=InvalidRequest", false},
                                   {"reset_before", "", true},
                                   {"reset_after", "", true},
                                   {"lost_reply", "", true},
                                   {"hang_up", "", true},
                                   {"redirect", "status=301 region=eu-west-9", false},
                                   {"redirect", "status=307", false},
                                   {"header", "text=x-odd-header", true}};
constexpr fault_kind of_bodies[] = {{"reset_in_body", "", true}};
constexpr fault_kind of_answers[] = {{"reset_in_reply", "", true},
                                     {"garbage", "body=html", true},
                                     {"garbage", "body=bomb", true},
                                     {"garbage", "body=nested", true},
                                     {"garbage", "body=cut", true},
                                     {"garbage", "body=binary", true},
                                     {"empty", "", true}};
constexpr fault_kind of_writes[] = {
    {"garbage", "body=html", true}, {"empty", "", false}, {"error_in_200", "code=InternalError", true}};
constexpr fault_kind of_completions[] = {
    {"error_in_200", "code=InternalError", true}, {"error_in_200", "code=InternalError done=1", true},
    {"whitespace", "ms=5 then=done", true},       {"whitespace", "ms=5 then=error", true},
    {"whitespace", "ms=5 then=cut", true},        {"garbage", "body=html done=1", true}};
constexpr fault_kind of_ranges[] = {{"short_range", "", true},
                                    {"wrong_range", "by=3", true},
                                    {"whole_object", "", true},
                                    {"reset_in_reply", "", true},
                                    {"changed", "", false}};

TEST_CASE(
    "one kind of fault in one request, at first, later and for ever: the right bytes or a typed error") {
  s3::server server{strict()};
  int met = 0;
  int number = 0;
  const auto check = [&](const char* operation, const fault_kind& f, const char* when, auto&& scenario) {
    server.faults.clear();
    const auto rule = std::string(f.kind) + " " + operation + " " + when + " " + f.words;
    CAPTURE(rule);
    auto clock = std::make_shared<quick_clock>();
    auto store = quick(server, clock);
    const auto key = "object-" + std::to_string(number++);
    scenario(store, key, rule, f.overcome && std::string_view(when) != "all");
    ++met;
    server.faults.clear();
    store.remove(key);
    for (const auto& left : store.leftovers("")) store.discard(left);
  };
  // A quarter of them in a short run, other ones for each operation.
  const std::size_t stride = cairn_test::long_run() ? 1 : 4;
  std::size_t turn = 0;
  const auto each = [&](const char* operation, std::span<const fault_kind> kinds,
                        std::span<const char* const> times, auto&& scenario) {
    for (const auto& f : kinds)
      for (const auto* when : times)
        if (turn++ % stride == 0) check(operation, f, when, scenario);
  };
  const char* const once[] = {"first", "all"};
  const char* const often[] = {"first", "2", "3", "all"};

  const auto small = pattern(10'000, 9);
  const auto write_small = [&](cairn::s3_store& store, const std::string& key, const std::string& rule,
                               bool must) {
    store.put_new(key + ".probe", {});  // that the service heeds conditions is known before
    store.remove(key + ".probe");
    server.faults.add(rule);
    bool stands = false;
    const auto failure = attempt([&] { stands = store.publish_new(key, small); });
    CHECK((!must || (!failure && stands)));
    server.faults.clear();
    const auto there = store.read_all(key, 1u << 20);
    if (!failure) CHECK(stands);  // nobody else wrote it
    if (!failure) CHECK(there == small);
    if (there) CHECK(*there == small);
  };
  each("PutObject", anywhere, once, write_small);
  each("PutObject", of_bodies, once, write_small);
  each("PutObject", of_writes, once, write_small);

  const auto with_object = [&](auto&& ask) {
    return [&, ask](cairn::s3_store& store, const std::string& key, const std::string& rule, bool must) {
      store.put_new(key, small);
      server.faults.add(rule);
      bool right = false;
      const auto failure = attempt([&] { right = ask(store, key); });
      CHECK((failure || right));
      CHECK((!must || !failure));
    };
  };
  const auto size =
      with_object([&](auto& store, const auto& key) { return store.size(key) == small.size(); });
  each("HeadObject", anywhere, once, size);
  const auto listing = with_object([&](auto& store, const auto& key) {
    const auto found = store.list(key);
    return found.size() == 1 && found[0].key == key && found[0].bytes == small.size();
  });
  each("ListObjectsV2", anywhere, once, listing);
  each("ListObjectsV2", of_answers, once, listing);
  const auto unfinished = with_object([&](auto& store, const auto&) { return store.leftovers("").empty(); });
  each("ListMultipartUploads", of_answers, once, unfinished);
  const auto removal = with_object([&](auto& store, const auto& key) {
    store.remove(key);
    return !server.objects().keys("bucket").empty() || true;
  });
  each("DeleteObject", anywhere, once, removal);
  const auto ranged = with_object([&](auto& store, const auto& key) {
    std::vector<std::byte> a(1000);
    std::vector<std::byte> b(3000);
    std::vector<std::byte> c(10);
    const cairn::read_range ranges[] = {{key, 0, a}, {key, 6'000, b}, {key, 9'990, c}};
    store.read(ranges);
    return std::equal(a.begin(), a.end(), small.begin()) &&
           std::equal(b.begin(), b.end(), small.begin() + 6'000) &&
           std::equal(c.begin(), c.end(), small.begin() + 9'990);
  });
  each("GetObject", anywhere, once, ranged);
  each("GetObject", of_ranges, once, ranged);

  const auto large = pattern((10u << 20) + 5, 4);
  const auto write_large = [&](cairn::s3_store& store, const std::string& key, const std::string& rule,
                               bool must) {
    server.faults.add(rule);
    const auto failure = attempt([&] {
      auto writer = store.create(key, large.size());
      const cairn::write_range whole{0, large};
      writer.write_stable({&whole, 1});
      writer.finish();
    });
    CHECK((!must || !failure));
    server.faults.clear();
    const auto there = store.read_all(key, 1u << 30);
    const bool whole =
        there && there->size() == large.size() && std::memcmp(there->data(), large.data(), large.size()) == 0;
    CHECK(whole == there.has_value());
    CHECK((failure || whole));
  };
  const char* const first[] = {"first"};
  CHECK(met >= (cairn_test::long_run() ? 150 : 40));
  const char* const middle[] = {"2"};
  each("UploadPart", std::span(anywhere).subspan(9, 2), middle, write_large);
  each("CompleteMultipartUpload", std::span(of_completions).first(5), first, write_large);
  if (!cairn_test::long_run()) return;
  each("UploadPart", std::span(anywhere).first(3), often, write_large);
  each("UploadPart", std::span(anywhere).subspan(8, 4), often, write_large);
  each("UploadPart", of_bodies, often, write_large);
  each("UploadPart", of_writes, first, write_large);
  each("CreateMultipartUpload", std::span(anywhere).subspan(8, 4), first, write_large);
  each("CreateMultipartUpload", of_answers, first, write_large);
  each("CompleteMultipartUpload", anywhere, first, write_large);
  each("CompleteMultipartUpload", of_answers, first, write_large);
  each("CompleteMultipartUpload", of_completions, once, write_large);
  MESSAGE(met, " faults");
}

const cairn::checkpointer_options calm{.timeout = std::chrono::seconds(60),
                                       .peer_timeout = std::chrono::seconds(60),
                                       .max_restarts = 1'000'000,  // as often as it is killed
                                       .quiet = true};

/// A state that needs an upload of two parts, a function of the step.
struct large_state {
  explicit large_state(std::int64_t step, std::size_t size = 1'400'000) : weights(size), steps(step) {
    for (std::size_t i = 0; i < weights.size(); i += 101)
      weights[i] = static_cast<float>(i) + static_cast<float>(step);
    state.tensor("weights", weights, {static_cast<std::int64_t>(size / 1'000), 1'000});
    state.value("steps", steps);
  }
  [[nodiscard]] bool operator==(const large_state& other) const {
    return steps == other.steps &&
           std::memcmp(weights.data(), other.weights.data(), weights.size() * sizeof(float)) == 0;
  }
  std::vector<float> weights;
  std::int64_t steps;
  cairn::state_dict state;
};

TEST_CASE("a run on a bucket: saved, kept, resumed, and one of two jobs commits a step") {
  s3::server server{strict()};
  const cairn::s3_store store(on(server), cairn::s3_credential_source::fixed(strict_key),
                              std::make_shared<quick_clock>());
  {
    large_state training(0);
    cairn::checkpointer ckpt{store, cairn::keep_last(2), calm};
    CHECK_FALSE(ckpt.resume(training.state));
    for (std::int64_t step = 1; step <= 4; ++step) {
      large_state now(step);
      ckpt.save(now.state, step).wait();
    }
    CHECK(ckpt.list() == std::vector<std::int64_t>{3, 4});
    ckpt.close();
  }
  CHECK(server.count("UploadPart") == 8);
  CHECK(cairn::s3_store(store).leftovers("").empty());
  for (const auto& o : cairn::s3_store(store).list(""))
    CHECK((o.key.starts_with("step-00000003/") || o.key.starts_with("step-00000004/")));

  large_state back(0);
  cairn::checkpointer again{store, calm};
  server.clear_journal();
  CHECK(again.resume(back.state) == 4);
  CHECK(back == large_state(4));
  std::uint64_t fetched = 0;
  for (const auto& entry : server.journal()) {
    if (entry.operation != "GetObject" || entry.range.empty()) continue;
    fetched += entry.bytes_out;
  }
  CHECK(fetched >= back.weights.size() * sizeof(float));
  CHECK(fetched <= back.weights.size() * sizeof(float) * 105 / 100 + (1u << 20));

  // Another job, with another connection, wants the same step at the same time.
  std::atomic<int> committed{0};
  std::vector<std::thread> jobs;
  for (int job = 0; job < 2; ++job)
    jobs.emplace_back([&, job] {
      cairn::checkpointer ckpt{quick(server), calm};
      large_state own(100 + job);
      try {
        ckpt.save(own.state, 9).wait();
        ++committed;
      } catch (const cairn::error&) {
      }
    });
  for (auto& j : jobs) j.join();
  CHECK(committed == 1);
  large_state one(0);
  CHECK(again.resume(one.state) == 9);
  CHECK((one == large_state(100) || one == large_state(101)));
}

namespace {
/// Keeps what is warned of.
struct warnings {
  using cairn_role = cairn::role::observer;
  std::shared_ptr<std::vector<std::string>> texts = std::make_shared<std::vector<std::string>>();
  void observe(const cairn::observation& what) noexcept {
    if (what.kind == cairn::observation::event::warning) texts->emplace_back(what.text);
  }
};
}  // namespace

TEST_CASE("a checkpoint that a bucket refuses to remove stays whole, is reported once, and delays no other") {
  auto options = strict();
  options.objects.terms.locked = "step-00000001/";
  s3::server server{options};
  warnings told;
  large_state training(1, 1'000);
  cairn::checkpointer ckpt{quick(server), cairn::keep_last(1), calm, told};
  for (std::int64_t step = 1; step <= 4; ++step) ckpt.save(training.state, step).wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{1, 4});
  CHECK(told.texts->size() == 1);
  CHECK(told.texts->at(0).find("the checkpoint of step 1 would go now and stays") == 0);
  CHECK(told.texts->at(0).find("an object lock or a legal hold") != std::string::npos);
  large_state back(0, 1'000);
  ckpt.load(back.state, 1);
  CHECK(back == training);
}

TEST_CASE(
    "a checkpoint whose removal a bucket puts off is not told as removed, and goes after the next commit") {
  s3::server server{strict()};
  warnings told;
  large_state training(1, 1'000);
  cairn::checkpointer ckpt{quick(server), cairn::keep_last(1), calm, told};
  ckpt.save(training.state, 1).wait();
  server.faults.add("error DeleteObject 1-3 status=409 code=Conflict key=step-00000001/manifest");
  ckpt.save(training.state, 2).wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2});
  REQUIRE(told.texts->size() == 1);
  CHECK(told.texts->at(0).find("old checkpoints could not be removed") == 0);
  server.faults.add("error DeleteObject 1-3 status=409 code=Conflict key=step-00000002/manifest");
  try {
    ckpt.remove(2);
    FAIL("removed");
  } catch (const cairn::storage_error& e) {
    CHECK(e.id() == cairn::error_id::storage_unavailable);
  }
  CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2});
  ckpt.save(training.state, 3).wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{3});
}

TEST_CASE("a checkpoint of a bucket that somebody reads stays until the lease ends") {
  s3::server server{strict()};
  const auto store = quick(server);
  large_state training(1);
  cairn::checkpointer ckpt{store, cairn::keep_last(1), calm};
  cairn::checkpointer evaluator{quick(server), calm};
  ckpt.save(training.state, 1).wait();
  auto lease = evaluator.lease(1);
  CHECK(lease.held());
  ckpt.save(training.state, 2).wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2});
  try {
    ckpt.remove(1);
    FAIL("removed");
  } catch (const cairn::storage_error& e) {
    CHECK(e.id() == cairn::error_id::storage_leased);
    CHECK(e.fields().got.starts_with("process " + std::to_string(::getpid()) + " on "));
  }
  lease.release();
  ckpt.save(training.state, 3).wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{3});
  CHECK(server.objects().uploads() == 0);
}

TEST_CASE(
    "who removes a step of a bucket ends what is under way of it, and nothing that has begun since it "
    "looked") {
  s3::server server{strict()};
  auto there = quick(server);  // of other processes
  const auto bytes = pattern(11u << 20, 1);
  const cairn::write_range all{0, bytes};
  const auto earlier = cairn::data_key(5, 0, 77, 0), later = cairn::data_key(5, 0, 78, 0);
  auto of_earlier = there.create(earlier, bytes.size());
  of_earlier.write({&all, 1});
  REQUIRE(server.objects().uploads() == 1);
  std::optional<cairn::s3_store::object_writer> of_later;
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->add({.kind = cairn_test::store_call::leftovers, .after = true, .action = [&](auto) {
                 of_later.emplace(there.create(later, bytes.size()));
                 of_later->write({&all, 1});
                 CHECK(server.objects().uploads() == 2);
               }});
  cairn::checkpoint_catalog(
      cairn::any_store(cairn_test::faulty_store<cairn::s3_store>{quick(server), faults}))
      .remove(5);
  REQUIRE(of_later.has_value());
  CHECK_THROWS_AS(of_earlier.finish(), cairn::storage_error);
  of_later->finish();
  CHECK(there.size(later) == bytes.size());
  CHECK(server.objects().uploads() == 0);
}

TEST_CASE("a bucket is followed, and only what changed is read of it") {
  s3::server server{strict()};
  large_state training(1);
  large_state here(0);
  cairn::checkpointer ckpt{quick(server), calm};
  cairn::checkpointer evaluator{quick(server), calm};
  bool saved = false;
  auto steps = evaluator.follow({.stop = [&] {
    if (!std::exchange(saved, true)) ckpt.save(training.state, 1).wait();
    return false;
  }});
  CHECK(steps.next() == 1);
  CHECK(evaluator.refresh(here.state, 1).blocks_equal == 0);
  CHECK(here == training);
  training.weights[7] = -1;
  saved = true;
  ckpt.save(training.state, 2).wait();
  CHECK(steps.next() == 2);
  server.clear_journal();
  const auto report = evaluator.refresh(here.state);
  CHECK(report.step == 2);
  CHECK(report.blocks == 7);
  CHECK(report.blocks_equal == 6);
  CHECK(here == training);
  std::uint64_t fetched = 0;
  for (const auto& entry : server.journal())
    if (entry.operation == "GetObject") fetched += entry.bytes_out;
  CHECK(fetched >= cairn::digest_block_bytes);
  CHECK(fetched < 3 * cairn::digest_block_bytes);  // also where a slow request is made twice
}

/// What the trainer that is killed finds in its environment: the end point.
constexpr const char* trainer_variable = "CAIRN_TEST_S3_TRAINER";
/// So many that a save is an upload of three parts.
constexpr std::size_t three_parts = 2'625'000;

TEST_CASE("the trainer that is killed" * doctest::skip()) {
  const char* const endpoint = std::getenv(trainer_variable);
  REQUIRE(endpoint != nullptr);
  ::alarm(240);
  cairn::s3_store store(s3::bucket_at(endpoint), cairn::s3_credential_source::fixed(strict_key));
  large_state training(0, three_parts);
  cairn::checkpointer ckpt{store, cairn::keep_last(1), calm};
  const auto from = ckpt.resume(training.state);
  REQUIRE(from);
  large_state next(*from + 1, three_parts);
  ckpt.save(next.state, *from + 1).wait();
  ckpt.close();
}

/// Begins another process with one of the cases that are killed.
::pid_t begin(const s3::server& server, std::string which) {
  ::setenv(trainer_variable, server.endpoint().c_str(), 1);
  std::string program = "/proc/self/exe";
  std::string all = "--no-skip";
  which = "-tc=" + which;
  char* const arguments[] = {program.data(), all.data(), which.data(), nullptr};
  ::pid_t child = 0;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  const int error = ::posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::unsetenv(trainer_variable);
  REQUIRE(error == 0);
  return child;
}
::pid_t begin_trainer(const s3::server& server) {
  return begin(server, "the trainer that is killed");
}

/// Where in a run a process dies, as the server sees it; NEW, OLD and PAST in a rule are the step that is
/// being saved, the one before, which the run resumed from, and the one before that.
struct kill_point {
  const char* name;
  const char* rule;
  bool committed = false;  ///< the new step is
  bool rare = false;       ///< only in long runs
};
constexpr kill_point kill_points[] = {
    {"resume: uploads listed", "ListMultipartUploads first at=done", false, true},
    {"resume: steps listed", "ListObjectsV2 first at=done"},
    {"resume: manifest asked for", "GetObject first at=head key=OLD/manifest", false, true},
    {"resume: manifest read", "GetObject first at=told key=OLD/manifest"},
    {"resume: tensors asked for", "GetObject first at=head key=safetensors", false, true},
    {"save: before the look for the object", "HeadObject first at=head key=NEW/"},
    {"save: after it", "HeadObject first at=told key=NEW/", false, true},
    {"upload: before it is begun", "CreateMultipartUpload first at=head"},
    {"upload: begun, not told", "CreateMultipartUpload first at=done"},
    {"upload: begun", "CreateMultipartUpload first at=told"},
    {"part 1: before", "UploadPart first at=head part=1"},
    {"part 1: in its middle", "UploadPart first at=body part=1"},
    {"part 1: stored, not told", "UploadPart first at=done part=1"},
    {"part 1: after", "UploadPart first at=told part=1", false, true},
    {"part 2: before", "UploadPart first at=head part=2"},
    {"part 2: in its middle", "UploadPart first at=body part=2", false, true},
    {"part 2: stored, not told", "UploadPart first at=done part=2"},
    {"last part: before", "UploadPart first at=head part=3", false, true},
    {"last part: in its middle", "UploadPart first at=body part=3", false, true},
    {"last part: stored, not told", "UploadPart first at=done part=3"},
    {"last part: after", "UploadPart first at=told part=3"},
    {"completion: before", "CompleteMultipartUpload first at=head"},
    {"completion: in its middle", "CompleteMultipartUpload first at=body"},
    {"completion: done, not told", "CompleteMultipartUpload first at=done"},
    {"completion: after", "CompleteMultipartUpload first at=told"},
    {"probe: first object put", "PutObject first at=done key=cairn-probe"},
    {"probe: not removed", "DeleteObject first at=head key=cairn-probe", false, true},
    {"record: before", "PutObject first at=head key=record"},
    {"record: in its middle", "PutObject first at=body key=record", false, true},
    {"record: stored, not told", "PutObject first at=done key=record"},
    {"record: after", "PutObject first at=told key=record", false, true},
    {"manifest: before", "PutObject first at=head key=NEW/manifest"},
    {"manifest: in its middle", "PutObject first at=body key=NEW/manifest"},
    {"manifest: stored, not told", "PutObject first at=done key=NEW/manifest", true},
    {"manifest: after", "PutObject first at=told key=NEW/manifest", true},
    {"removal: before the old manifest goes", "DeleteObject first at=head key=PAST/manifest", true},
    {"removal: the old manifest is gone", "DeleteObject first at=done key=PAST/manifest", true},
    {"removal: before the old tensors go", "DeleteObject first at=head key=safetensors", true, true},
    {"removal: the old tensors are gone", "DeleteObject first at=done key=safetensors", true}};

TEST_CASE("killed at any named point of a save, a run goes on from the checkpoint before, and cleans up") {
  static_assert(std::count_if(std::begin(kill_points), std::end(kill_points),
                              [](const kill_point& p) { return !p.rare; }) >= 25);
  auto rules = strict();
  rules.objects.opaque_etags = true;  // MD5 takes longer than all the rest
  s3::server server{rules};
  std::atomic<::pid_t> child{0};
  server.on_kill = [&] {
    child.wait(0);
    ::kill(child, SIGKILL);
  };
  std::int64_t step = 2;
  {
    cairn::checkpointer ckpt{quick(server), calm};
    for (const std::int64_t past : {step - 1, step}) {
      large_state training(past, three_parts);
      ckpt.save(training.state, past).wait();
    }
  }
  REQUIRE(server.await_silence());
  std::size_t probes = 0;  // a process that dies while it probes leaves an object of no bytes
  for (std::uint64_t round = 0; round < cairn_test::rounds(1, 3); ++round)
    for (const auto& point : kill_points) {
      if (point.rare && !cairn_test::long_run()) continue;
      const std::string name = point.name;
      CAPTURE(name);
      std::string rule = std::string("kill ") + point.rule;
      for (const auto& [word, means] :
           {std::pair(std::string_view("NEW"), step + 1), std::pair(std::string_view("OLD"), step),
            std::pair(std::string_view("PAST"), step - 1)})
        if (const auto at = rule.find(word); at != std::string::npos)
          rule.replace(at, word.size(), cairn::step_directory(means));
      child = 0;
      server.faults.add(rule);
      child = begin_trainer(server);
      child.notify_all();
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
      REQUIRE(server.await_silence());  // requests that were under way have come or never will
      server.faults.clear();
      server.revive();
      step += point.committed ? 1 : 0;
      {
        auto store = quick(server);
        large_state back(0, three_parts);
        cairn::checkpointer ckpt{store, cairn::keep_last(1), calm};
        CHECK(ckpt.resume(back.state) == step);
        CHECK(back == large_state(step, three_parts));
        ckpt.close();
      }
      REQUIRE(server.await_silence());
      CHECK(server.objects().uploads() == 0);
      // Only whole checkpoints, some of which a killed run may not have removed, and marks for late writers.
      if (name.starts_with("probe")) ++probes;
      std::size_t others = 0;
      const auto keys = server.objects().keys("bucket");
      for (const auto& key : keys) {
        if (key.starts_with("cairn-probe-")) {
          ++others;
          continue;
        }
        if (key.starts_with("restart.")) continue;  // of trainers that were killed
        const auto manifest = key.substr(0, key.find('/')) + "/manifest.cairn";
        CAPTURE(key);
        CHECK((key.find("/aborted.") != std::string::npos ||
               std::find(keys.begin(), keys.end(), manifest) != keys.end()));
      }
      CHECK(others <= probes);
    }
  // Nobody is in the way of the next save.
  child = begin_trainer(server);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  auto store = quick(server);
  CHECK(store.leftovers("").empty());
  large_state back(0, three_parts);
  cairn::checkpointer ckpt{store, calm};
  CHECK(ckpt.resume(back.state) == step + 1);
  CHECK(back == large_state(step + 1, three_parts));
  CHECK(ckpt.list() == std::vector<std::int64_t>{step, step + 1});  // resumed from, and the last one
  std::size_t files = 0;
  for (const auto& o : store.list("")) files += o.key.starts_with(cairn::step_directory(step + 1) + "/");
  CHECK(files == 3);
}

/// Where the model lies that is imported, in the bucket into which it is.
constexpr std::string_view model_prefix = "model/";

cairn::s3_store model_at(const std::string& endpoint) {
  auto o = s3::bucket_at(endpoint);
  o.prefix = model_prefix;
  return cairn::s3_store(o, cairn::s3_credential_source::fixed(strict_key));
}

/// A model of one tensor, as another program writes it.
void put_model(const s3::server& server, const std::vector<float>& weights) {
  cairn::safetensors_header header;
  cairn::safetensors_entry e;
  e.key = "weights", e.type = cairn::dtype::f32, e.shape = {static_cast<std::int64_t>(weights.size())};
  e.end = weights.size() * sizeof(float);
  header.entries.push_back(e);
  auto model = cairn::encode_safetensors_header(header, 8);
  const auto bytes = std::as_bytes(std::span(weights));
  model.insert(model.end(), bytes.begin(), bytes.end());
  model_at(server.endpoint()).put_new("model.safetensors", model);
}

TEST_CASE(
    "an import into a bucket leaves a save of its step that is under way alone, which no announcement "
    "shows") {
  s3::server server{strict()};
  put_model(server, std::vector<float>(1'000, 2.0F));
  // The save is at its manifest when the import looks and ends.
  const auto faults = std::make_shared<cairn_test::store_faults>();
  int tried = 0;
  faults->add(
      {.kind = cairn_test::store_call::publish_new, .key_contains = "manifest", .action = [&](auto) {
         cairn::import_options ended;
         ended.stop = [] { return true; };
         CHECK(!cairn::import_safetensors(cairn::safetensors_files(model_at(server.endpoint())).reader(),
                                          cairn::any_store(quick(server)), ended)
                    .complete);
         ++tried;
       }});
  large_state training(0, three_parts);
  cairn::checkpointer ckpt{
      cairn::safetensors_storage{cairn_test::faulty_store<cairn::s3_store>{quick(server), faults}}, calm};
  (void)ckpt.save(training.state, 0).wait();
  CHECK(tried == 1);
  CHECK(ckpt.list() == std::vector<std::int64_t>{0});
}

TEST_CASE("the import that is killed" * doctest::skip()) {
  const char* const endpoint = std::getenv(trainer_variable);
  REQUIRE(endpoint != nullptr);
  ::alarm(240);
  const cairn::s3_store to(s3::bucket_at(endpoint), cairn::s3_credential_source::fixed(strict_key));
  CHECK(cairn::import_safetensors(cairn::safetensors_files(model_at(endpoint)).reader(), cairn::any_store(to))
            .complete);
}

constexpr kill_point import_kill_points[] = {
    {"model: listed", "ListObjectsV2 first at=done"},
    {"model: header read", "GetObject first at=told key=model/"},
    {"upload: before it is begun", "CreateMultipartUpload first at=head"},
    {"upload: begun, not told", "CreateMultipartUpload first at=done"},
    {"upload: begun", "CreateMultipartUpload first at=told"},
    {"part 1: in its middle", "UploadPart first at=body part=1"},
    {"part 2: stored, not told", "UploadPart first at=done part=2"},
    {"completion: before", "CompleteMultipartUpload first at=head"},
    {"completion: done, not told", "CompleteMultipartUpload first at=done"},
    {"completion: after", "CompleteMultipartUpload first at=told"},
    {"record: before", "PutObject first at=head key=record"},
    {"record: stored, not told", "PutObject first at=done key=record"},
    {"manifest: before", "PutObject first at=head key=NEW/manifest"},
    {"manifest: in its middle", "PutObject first at=body key=NEW/manifest"},
    {"manifest: stored, not told", "PutObject first at=done key=NEW/manifest", true},
    {"manifest: after", "PutObject first at=told key=NEW/manifest", true}};

TEST_CASE("an import into a bucket that is killed at any named point has made a whole checkpoint or none") {
  for (const auto& point : import_kill_points) {
    const std::string name = point.name;
    CAPTURE(name);
    auto rules = strict();
    rules.objects.opaque_etags = true;
    s3::server server{rules};
    std::atomic<::pid_t> child{0};
    server.on_kill = [&] {
      child.wait(0);
      ::kill(child, SIGKILL);
    };
    put_model(server, large_state(7, three_parts).weights);
    const auto model = model_at(server.endpoint()).read_all("model.safetensors", 1u << 30);
    REQUIRE(model);
    std::string rule = std::string("kill ") + point.rule;
    if (const auto at = rule.find("NEW"); at != std::string::npos)
      rule.replace(at, 3, cairn::step_directory(0));
    server.faults.add(rule);
    child = begin(server, "the import that is killed");
    child.notify_all();
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    REQUIRE(server.await_silence());
    server.faults.clear();
    server.revive();

    const cairn::any_store to(quick(server));
    cairn::safetensors_reader made{to};
    const auto files = cairn::safetensors_files(model_at(server.endpoint())).reader();
    CHECK(made.list() == (point.committed ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{}));
    if (!point.committed) CHECK(cairn::import_safetensors(files, to).complete);
    CHECK(cairn::verify_checkpoint(made, 0).good());
    {
      cairn::readable_checkpoint copy{made, 0}, was{files};
      CHECK(cairn::compare_checkpoints(copy, was).equal());
    }  // and with it the lease on what it read
    // Of an import that died after its commit the announcement is left, which the next run removes.
    if (point.committed) cairn::checkpoint_catalog(to).clean({7, 7});
    CHECK(server.objects().uploads() == 0);
    for (const auto& key : server.objects().keys("bucket")) {
      CAPTURE(key);
      CHECK((key.starts_with(model_prefix) || key.starts_with(cairn::step_directory(0) + "/")));
    }
    CHECK(model_at(server.endpoint()).read_all("model.safetensors", 1u << 30) == model);
  }
}

namespace cairn_test {
TEST_CASE_TEMPLATE_INVOKE(byte_store_conformance, s3_on_moto, s3_strict, s3_plain);
}
