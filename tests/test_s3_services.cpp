// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3 OpenSSL::SSL
// cost: 15
//
// What services differ in: the conditions and checksums that they take, their clocks and regions, whom they
// let in, TLS and its certificates, the dialect of Google.
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/s3_store.hpp>
#include <cairn/stores/s3_url.hpp>

#include <doctest/doctest.h>
#include <support/byte_store_conformance.hpp>
#include <support/metadata_server.hpp>
#include <support/quick_clock.hpp>
#include <support/s3_access.hpp>
#include <support/saved_world.hpp>
#include <support/scratch_directory.hpp>
#include <support/tls_front.hpp>

#include <dlfcn.h>
#include <netdb.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {
/// Names whose resolver does not answer until it is let go, or a minute has passed.
class slow_names_t {
 public:
  const std::string domain = ".slow.test";
  /// In the resolver.
  void wait() {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.wait_for(lock, std::chrono::minutes(1), [&] { return let_go_; });
    ++answered_;
    changed_.notify_all();
  }
  /// Whether none was answered before; waits until all are.
  [[nodiscard]] bool let_go() {
    std::unique_lock lock(mutex_);
    const bool none = answered_ == 0;
    let_go_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return answered_ == asked_; });
    return none;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool let_go_ = false;
  int asked_ = 0, answered_ = 0;
} slow_names;
}  // namespace

/// libcurl's, before libc's.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  if (name != nullptr && std::string_view(name).ends_with(slow_names.domain)) {
    slow_names.wait();
    return EAI_AGAIN;
  }
  static const auto next = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return next(name, service, hints, found);
}

namespace {
using namespace cairn_test;
namespace s3 = cairn_test::s3;
using cairn::error_id;

s3::server_options service(bool google = false) {
  auto o = s3::quick_server();
  o.objects.google = google;
  if (google) o.signatures.region = "auto";
  return o;
}
cairn::s3_options where(const std::string& endpoint) {
  auto o = s3::bucket_at(endpoint);
  o.max_attempts = 2;
  return o;
}
cairn::s3_store store_at(cairn::s3_options o) {
  return cairn::s3_store(std::move(o), s3::credentials_of(), std::make_shared<quick_clock>());
}
void write(cairn::s3_store& store, const std::string& name, std::span<const std::byte> bytes) {
  auto writer = store.create(name, bytes.size());
  const cairn::write_range whole{0, bytes};
  writer.write_stable({&whole, 1});
  writer.finish();
}
std::uint64_t crc64(std::span<const std::byte> bytes) {
  return cairn::detail::crc64nvme({&bytes, 1});
}

struct some_state {
  explicit some_state(float value) : weights(std::size_t{11} << 17, value) {
    all.tensor("weights", weights, {static_cast<std::int64_t>(weights.size())});
    all.value("steps", steps);
  }
  std::vector<float> weights;
  double steps = 1;
  cairn::state_dict all;
};

}  // namespace

TEST_CASE("whether a service heeds conditions is found out once, and one that does not is refused") {
  const auto bytes = pattern(100);
  for (const bool heeds : {true, false}) {
    CAPTURE(heeds);
    for (const bool says_so : {true, false}) {
      if (heeds && says_so) continue;
      auto options = service();
      options.objects.conditional_writes = heeds;
      options.objects.refuse_conditions = says_so;
      s3::server server{options};
      auto store = store_at(where(server.endpoint()));
      const auto report = store.self_test();
      CHECK(report.points.at(0).outcome ==
            (heeds ? cairn::store_check::verdict::right : cairn::store_check::verdict::single_job));
      if (heeds) {
        CHECK(store.publish_new("one", bytes));
        const auto requests = server.count("*");
        CHECK(store.publish_new("two", bytes));
        CHECK_FALSE(store.publish_new("two", pattern(50)));
        CHECK(server.count("*") <= requests + 3);  // it is known now
        CHECK(store.read_all("two", 1'000) == bytes);
      } else {
        const auto why = failure_of([&] { static_cast<void>(store.publish_new("one", bytes)); });
        CHECK(why.id == error_id::usage_bad_option);
        CHECK(why.text.find("s3_exclusive::single_writer") != std::string::npos);
        auto alone = where(server.endpoint());
        alone.exclusive = cairn::s3_exclusive::single_writer;
        auto single = store_at(alone);
        CHECK(single.publish_new("one", bytes));
        CHECK_FALSE(single.publish_new("one", pattern(50)));
        CHECK(single.read_all("one", 1'000) == bytes);
      }
      for (const auto& name : server.objects().keys("bucket"))
        CHECK(name.find("cairn-probe-") == std::string::npos);
    }
  }
}

TEST_CASE("bytes for a service on this host are not hashed, unless the options or the service want it") {
  for (const auto* proxy : {"http_proxy", "all_proxy", "ALL_PROXY"}) ::unsetenv(proxy);
  const auto bytes = pattern((11u << 20) + 5, 4);
  for (const bool refused : {false, true}) {
    for (const bool asked : {false, true}) {
      CAPTURE(refused);
      CAPTURE(asked);
      auto s = service();
      s.signatures.allow_unsigned_payload = !refused;
      s3::server server{s};
      auto o = where(server.endpoint());
      o.sign_payload = asked;
      auto store = store_at(o);
      CHECK(store.publish_new("small", pattern(100)));
      write(store, "object", bytes);
      CHECK(store.read_all("object", 1u << 30) == bytes);
      std::size_t bodies = 0;
      for (const auto& entry : server.journal()) {
        if (entry.bytes_in == 0 || entry.status / 100 != 2) continue;
        ++bodies;
        CHECK(entry.hashed == (asked || refused));
      }
      CHECK(bodies == 1 + 3 + 1);
    }
  }
  using cairn::detail::resolve;
  const auto here = [](const std::string& endpoint) {
    auto o = where(endpoint);
    return resolve(o).loopback;
  };
  for (const auto* endpoint : {"http://localhost:9000", "http://127.0.0.1", "http://[::1]:9000"})
    CHECK(here(endpoint));
  for (const auto* endpoint : {"https://localhost", "http://127.0.0.1.example.com", "http://10.0.0.1:9000",
                               "http://localhost.example.com", "http://127.example.com"})
    CHECK_FALSE(here(endpoint));
}

TEST_CASE("an upload whose completion meets a conflict is begun again, with all of its parts") {
  const auto bytes = pattern((11u << 20) + 5, 4);
  s3::server server{service()};
  auto store = store_at(where(server.endpoint()));
  server.faults.add("error CompleteMultipartUpload 1-2 status=409 code=ConditionalRequestConflict");
  write(store, "object", bytes);
  CHECK(store.read_all("object", 1u << 30) == bytes);
  CHECK(server.count("CreateMultipartUpload") == 3);
  CHECK(server.count("UploadPart") == 9);
  CHECK(server.objects().uploads() == 0);
  // One that lasts is an error, and so is the first where the parts are gone that were sent.
  server.faults.add("error CompleteMultipartUpload all status=409 code=ConditionalRequestConflict");
  CHECK(failure_of([&] { write(store, "other", bytes); }).id == error_id::storage_exists);
  CHECK(failure_of([&] {
          auto writer = store.create("copied", bytes.size());
          const cairn::write_range whole{0, bytes};
          writer.write({&whole, 1});
          writer.finish();
        }).id == error_id::storage_exists);
  CHECK(server.count("CreateMultipartUpload") == 3 + 3 + 1);
  CHECK(server.objects().uploads() == 0);
  CHECK(server.objects().keys("bucket").size() == 1);
}

TEST_CASE(
    "a service that stores other bytes than it was sent is found out, although the object is the writer's") {
  const auto bytes = pattern(1'000);
  for (const std::string how : {"", " cut=1"}) {
    CAPTURE(how);
    s3::server server{service()};
    auto store = store_at(where(server.endpoint()));
    store.put_new("before", bytes);
    server.faults.add("damage PutObject first" + how);
    const auto why = failure_of([&] { store.put_new("object", bytes); });
    CHECK(why.id == error_id::storage_io);
    CHECK(why.fields.file == "s3://bucket/object");
    // One that lost an answer alone is believed its token.
    server.faults.add("lost_reply PutObject first key=late");
    server.clear_journal();
    store.put_new("late", bytes);
    CHECK(server.count("GetObject") == 0);
    CHECK(store.read_all("late", 2'000) == bytes);
  }
}

TEST_CASE("a service's clock that is wrong is followed, and another region's bucket is named") {
  for (const int hours : {-26, 3}) {
    CAPTURE(hours);
    auto options = service();
    options.clock_offset_seconds = hours * 3600;
    s3::server server{options};
    auto store = store_at(where(server.endpoint()));
    store.put_new("object", pattern(100));
    CHECK(store.read_all("object", 1'000) == pattern(100));
    std::size_t refused = 0;
    for (const auto& entry : server.journal())
      if (entry.code == "RequestTimeTooSkewed") ++refused;
    CHECK(refused == 1);  // the first request, and no other
    // The refusal of a HEAD request names no reason.
    auto looking = store_at(where(server.endpoint()));
    server.clear_journal();
    CHECK(looking.size("object") == 100);
    CHECK(server.count("HeadObject") == 2);
    server.clear_journal();
    server.faults.add("error HeadObject all status=403");
    CHECK(failure_of([&] { static_cast<void>(looking.size("object")); }).id == error_id::storage_permission);
    CHECK(server.count("HeadObject") == 2);  // once more with the credentials of now
    server.faults.clear();
  }
  s3::server server{service()};
  auto store = store_at(where(server.endpoint()));
  server.faults.add("redirect * all status=301 region=ap-south-1");
  const auto why = failure_of([&] { store.put_new("object", pattern(100)); });
  CHECK(why.id == error_id::storage_io);
  CHECK(why.text.find("region ap-south-1: set s3_options::region") != std::string::npos);
}

TEST_CASE("every request that must carry a bucket's terms carries them, and no other does") {
  auto options = service();
  options.objects.terms.requester_pays = true;
  options.objects.terms.must_encrypt = "aws:kms";
  s3::server server{options};
  auto o = where(server.endpoint());
  CHECK(failure_of([&] { store_at(o).put_new("small", pattern(10)); }).id == error_id::storage_permission);
  o.requester_pays = true;
  CHECK(failure_of([&] { store_at(o).put_new("small", pattern(10)); }).id == error_id::storage_permission);
  o.encryption = cairn::s3_encryption::sse_kms;
  o.kms_key = "arn:aws:kms:us-east-1:123456789012:key/0f-1";
  o.kms_context = {{"team", "a \"b\""}, {"run", "7"}};
  o.bucket_key = true;
  o.storage_class = "STANDARD_IA";
  o.bucket_owner = "123456789012";
  o.prefix = "team/";
  // In another process, too.
  auto store = cairn::s3_store(
      [&] {
        cairn::wire_writer out;
        cairn::detail::encode(out, o);
        cairn::wire_reader in(out.view());
        return cairn::detail::decode_s3_options(in);
      }(),
      s3::credentials_of(), std::make_shared<quick_clock>());
  const auto large = pattern((11u << 20) + 5, 2);
  CHECK(store.publish_new("small", pattern(10)));
  write(store, "large", large);
  {
    auto announced = store.create("other", 10);
    announced.announce();
    CHECK(store.live_writers("").size() == 1);
  }
  CHECK(store.read_all("large", 1u << 30) == large);
  CHECK(store.list("").size() == 2);
  for (const std::string key : {"team/small", "team/large"}) {
    CAPTURE(key);
    const auto kept = [&](std::string_view name) { return server.objects().kept("bucket", key, name); };
    CHECK(kept("x-amz-server-side-encryption") == "aws:kms");
    CHECK(kept("x-amz-server-side-encryption-aws-kms-key-id") == o.kms_key);
    CHECK(kept("x-amz-server-side-encryption-bucket-key-enabled") == "true");
    CHECK(kept("x-amz-server-side-encryption-context") == "eyJ0ZWFtIjoiYSBcImJcIiIsInJ1biI6IjcifQ==");
    CHECK(kept("x-amz-storage-class") == "STANDARD_IA");
  }
  store.remove("small");
  CHECK(server.objects().uploads() == 0);

  auto other = o;
  other.bucket_owner = "210987654321";
  const auto why = failure_of([&] { static_cast<void>(store_at(other).read_all("large", 1u << 30)); });
  CHECK(why.id == error_id::storage_permission);
  CHECK(why.text.find("not of account 210987654321") != std::string::npos);
  other = o;
  other.kms_key = "unknown";
  const auto no_key = failure_of([&] { store_at(other).put_new("new", pattern(10)); });
  CHECK(no_key.id == error_id::storage_permission);
  CHECK(no_key.text.find("s3_options::kms_key") != std::string::npos);
  for (const auto& key : server.objects().keys("bucket")) CHECK(key == "team/large");
}

TEST_CASE("a service that ignores the requested encryption is detected before anything is committed") {
  auto options = service();
  options.objects.terms.ignores_encryption = true;
  s3::server server{options};
  auto o = where(server.endpoint());
  o.exclusive = cairn::s3_exclusive::assumed;
  o.encryption = cairn::s3_encryption::sse_s3;
  auto store = store_at(o);
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{11} << 20}) {
    const auto why = failure_of([&] { write(store, "object-" + std::to_string(bytes), pattern(bytes)); });
    CHECK(why.id == error_id::usage_bad_option);
    CHECK(why.text.find("s3_encryption::bucket") != std::string::npos);
  }
  CHECK(server.objects().uploads() == 0);
}

TEST_CASE(
    "a bucket with versions says so once something was removed, and one that locks objects names the lock") {
  auto options = service();
  options.objects.terms.versions = true;
  options.objects.terms.locked = "step-00000001/manifest";
  s3::server server{options};
  auto o = where(server.endpoint());
  o.exclusive = cairn::s3_exclusive::assumed;  // else the probe is removed first
  auto store = store_at(o);
  store.put_new("object", pattern(10));
  CHECK_FALSE(store.keeps_removed());
  CHECK(store.describe().find("versions") == std::string::npos);
  store.remove("object");
  CHECK(store.keeps_removed());
  CHECK(store.describe().find("which keeps versions of what is removed") != std::string::npos);
  CHECK_FALSE(store.size("object"));
  store.put_new("object", pattern(11));  // above the marker
  CHECK(store.size("object") == 11);

  store.put_new("step-00000001/manifest.cairn", pattern(10));
  const auto why = failure_of([&] { store.remove("step-00000001/manifest.cairn"); });
  CHECK(why.id == error_id::storage_permission);
  CHECK(why.text.find("a retention rule, an object lock or a legal hold") != std::string::npos);
  CHECK(why.text.find("step-00000001/manifest.cairn") != std::string::npos);
}

TEST_CASE("impossible terms are refused when the store is made, also in a URL") {
  const auto refused = [](auto change, std::string_view because) {
    CAPTURE(because);
    auto o = where("http://127.0.0.1:1");
    change(o);
    const auto why = failure_of([&] { static_cast<void>(store_at(o)); });
    CHECK(why.id == error_id::usage_bad_option);
    CHECK(why.text.find(because) != std::string::npos);
  };
  using options = cairn::s3_options;
  refused([](options& o) { o.kms_key = "k"; }, "kms_key and kms_context are for");
  refused([](options& o) { o.encryption = cairn::s3_encryption::dsse_kms, o.bucket_key = true; },
          "bucket_key");
  refused(
      [](options& o) {
        o.encryption = cairn::s3_encryption::sse_kms, o.kms_key = "k\r\nx-amz-acl: public-read";
      },
      "kms_key");
  refused([](options& o) { o.storage_class = "GLACIER"; }, "before it is restored");
  refused([](options& o) { o.storage_class = "glacier\n"; }, "storage_class");
  refused([](options& o) { o.bucket_owner = "me"; }, "12 digits");
  refused([](options& o) { o.dialect = cairn::s3_dialect::google, o.requester_pays = true; }, "Google");
  const auto o = cairn::parse_s3_url(
      "s3://bucket/run?encryption=sse-kms&kms-key=arn:aws:kms:a:1:key/"
      "2&bucket-key=on&storage-class=GLACIER_IR"
      "&bucket-owner=123456789012&requester-pays=on");
  CHECK(o.encryption == cairn::s3_encryption::sse_kms);
  CHECK(o.kms_key == "arn:aws:kms:a:1:key/2");
  CHECK(o.bucket_key);
  CHECK(o.requester_pays);
  CHECK(o.storage_class == "GLACIER_IR");
  CHECK(o.bucket_owner == "123456789012");
  CHECK(failure_of([] { static_cast<void>(cairn::parse_s3_url("s3://bucket?encryption=rot13")); }).id ==
        error_id::usage_bad_option);
}

namespace {
/// Variables of the environment as a test wants them, and as they were afterwards.
class environment_set {
 public:
  void set(const std::string& name, const std::string& value) {
    if (!before_.contains(name)) {
      const char* old = std::getenv(name.c_str());
      before_[name] = old == nullptr ? std::nullopt : std::optional<std::string>(old);
    }
    if (value.empty())
      ::unsetenv(name.c_str());
    else
      ::setenv(name.c_str(), value.c_str(), 1);
  }
  environment_set() = default;
  environment_set(const environment_set&) = delete;
  environment_set& operator=(const environment_set&) = delete;
  ~environment_set() {
    for (const auto& [name, value] : before_)
      if (value)
        ::setenv(name.c_str(), value->c_str(), 1);
      else
        ::unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};
/// An environment in which no credentials are found, but those that a test puts there.
struct bare_environment : environment_set {
  bare_environment() {
    for (const auto* name :
         {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
          "AWS_SHARED_CREDENTIALS_FILE", "HOME", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
          "AWS_ROLE_SESSION_NAME", "AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL",
          "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
          "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
          "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"})
      set(name, "");
    set("AWS_EC2_METADATA_DISABLED", "true");
  }
};
}  // namespace

TEST_CASE("credentials come from the environment or a file's profile, read again, and are told to nobody") {
  const s3::credentials first{"AKIDFIRST", "first/secret+of=them", "a-long-token-of-the-first-session",
                              false};
  const s3::credentials second{"AKIDSECOND", "second/secret+of=them", "", false};
  auto options = service();
  options.signatures.accepted = {first};
  s3::server server{options};
  scratch_directory directory;
  const auto path = directory.path() + "/credentials";
  const auto write_file = [&](const s3::credentials& c) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    REQUIRE(file != nullptr);
    std::fprintf(file,
                 "# of nobody\n[default]\naws_access_key_id = AKIDNOBODY\naws_secret_access_key = none\n");
    std::fprintf(file, "[ team ]\n aws_access_key_id=%s\n; a remark\naws_secret_access_key = %s\n",
                 c.access_key.c_str(), c.secret_key.c_str());
    if (!c.session_token.empty()) std::fprintf(file, "aws_session_token = %s\n", c.session_token.c_str());
    std::fclose(file);
  };
  write_file(first);
  bare_environment environment;
  const auto with = [&](cairn::s3_credential_source source) {
    return cairn::s3_store(where(server.endpoint()), std::move(source), std::make_shared<quick_clock>());
  };
  using from = cairn::s3_credential_source;
  const auto failure = [&](cairn::s3_store store) {
    return failure_of([&] { static_cast<void>(store.size("object")); });
  };
  const auto none = failure(with(from::standard()));
  CHECK(none.id == error_id::storage_permission);
  CHECK(none.text.find("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") != std::string::npos);

  auto named = with(from::file("team", path));
  named.put_new("object", pattern(100));
  environment.set("AWS_SHARED_CREDENTIALS_FILE", path);
  CHECK(failure(with(from::standard())).id ==
        error_id::storage_permission);  // the default profile's are wrong
  environment.set("AWS_PROFILE", "team");
  CHECK(with(from::standard()).size("object") == 100);
  environment.set("AWS_SHARED_CREDENTIALS_FILE", "");
  environment.set("HOME", directory.path());
  CHECK(failure(with(from::standard())).id ==
        error_id::storage_permission);  // ~/.aws/credentials is not there
  environment.set("AWS_ACCESS_KEY_ID", first.access_key);
  environment.set("AWS_SECRET_ACCESS_KEY", first.secret_key);
  CHECK(failure(with(from::standard())).id == error_id::storage_permission);  // without the token
  environment.set("AWS_SESSION_TOKEN", first.session_token);
  CHECK(with(from::standard()).size("object") == 100);
  CHECK(with(from::environment()).size("object") == 100);

  // They expire, and the file has others.
  auto expired = first;
  expired.expired = true;
  server.set_credentials({expired, second});
  write_file(second);
  CHECK(named.size("object") == 100);
  const auto old = failure(with(from::environment()));
  CHECK(old.id == error_id::storage_permission);

  // A value that would begin another header is not sent.
  for (const auto* key_id : {"AKID\r\nx-amz-acl: public-read", "", "two words"}) {
    const auto why = failure(with(from::fixed({key_id, "secret-of-all", "", 0})));
    CHECK(why.id == error_id::storage_permission);
    CHECK(why.text.find("secret-of-all") == std::string::npos);
  }
  // A server that repeats a secret, or the beginning of a token, is not quoted.
  server.set_credentials({first});
  for (const auto& secret : {first.secret_key, first.session_token}) {
    server.faults.add("error PutObject all status=403 code=AccessDenied says=it-was-" + secret);
    auto store = with(from::environment());
    const auto why = failure_of([&] { store.put_new("other", pattern(10)); });
    server.faults.clear();
    CHECK(why.id == error_id::storage_permission);
    CHECK(why.text.find("(withheld)") != std::string::npos);
    CHECK(why.text.find(secret.substr(0, 12)) == std::string::npos);
  }
  for (const auto& one : {none, old})
    for (const auto& c : {first, second}) CHECK(one.text.find(c.secret_key) == std::string::npos);
}

namespace {
std::string iso(std::int64_t seconds) {
  const auto t = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&t, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}
std::string as_json(const s3::credentials& c, std::int64_t expires) {
  return R"({"Code":"Success","Other":{"AccessKeyId":"no","List":[1]},"AccessKeyId":")" + c.access_key +
         R"(","SecretAccessKey":")" + c.secret_key + R"(","Token":")" + c.session_token +
         R"(","Expiration":")" + iso(expires) + R"("})";
}
void write_text(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
}
const s3::credentials of_now{"AKIDNOW", "the-secret-of-now+/=", "the-session-of-now", false};
const s3::credentials of_later{"AKIDLATER", "the-secret-of-later", "the-session-of-later", false};
/// A clock whose day the test chooses, and that only the test and pauses move on.
struct dated_clock : quick_clock {
  [[nodiscard]] time_point now() noexcept override {
    return time_point(std::chrono::hours(1) + std::chrono::nanoseconds(skipped.load()));
  }
  std::atomic<std::int64_t> date{static_cast<std::int64_t>(std::time(nullptr))};
  [[nodiscard]] std::int64_t unix_time() noexcept override { return date; }
};
using from = cairn::s3_credential_source;
told_failure none_from(from source) {
  return failure_of([&] { static_cast<void>(source.get()); });
}
}  // namespace

TEST_CASE(
    "a machine's role: its credentials need a token, are renewed before they expire, and serve meanwhile") {
  bare_environment environment;
  auto options = service();
  options.signatures.accepted = {of_now, of_later};
  options.signatures.allowed_skew_seconds = 1 << 20;
  s3::server server{options};
  const auto clock = std::make_shared<dated_clock>();
  const auto begin = clock->date.load();
  const auto pass = [&](int seconds) {
    clock->skipped += std::chrono::nanoseconds(std::chrono::seconds(seconds)).count();
  };
  std::atomic<int> status{200};
  std::atomic<bool> later{false};
  metadata_server machine([&](const metadata_server::request& r) -> metadata_server::answer {
    if (r.method == "PUT")
      return r.path == "/latest/api/token" && r.header("x-aws-ec2-metadata-token-ttl-seconds") == "21600"
                 ? metadata_server::answer{status, status == 200 ? "a-token==" : "no " + of_now.secret_key}
                 : metadata_server::answer{400, ""};
    if (r.header("x-aws-ec2-metadata-token") != "a-token==") return {401, ""};
    if (r.path == "/latest/meta-data/iam/security-credentials/") return {200, "the role\nanother"};
    if (r.path != "/latest/meta-data/iam/security-credentials/the%20role") return {404, ""};
    return {200, later ? as_json(of_later, begin + 7200) : as_json(of_now, begin + 3600)};
  });
  environment.set("AWS_EC2_METADATA_DISABLED", "");
  environment.set("AWS_EC2_METADATA_SERVICE_ENDPOINT", machine.url() + "/");
  cairn::s3_store store(where(server.endpoint()), from::standard(), clock);
  store.put_new("object", pattern(100));
  CHECK(store.size("object") == 100);
  CHECK(machine.requests() == 3);  // once for all
  // Five minutes before they expire others are there; where they cannot be had, these serve on.
  clock->date = begin + 3600 - 200;
  pass(2);
  status = 500;
  CHECK(store.size("object") == 100);
  CHECK(machine.requests() == 4);
  CHECK(store.size("object") == 100);
  CHECK(machine.requests() == 4);    // it is not asked for each request
  clock->date = begin + 3600 - 290;  // it was fast, and is set right
  pass(6);
  status = 200;
  later = true;
  CHECK(store.size("object") == 100);
  CHECK(machine.requests() == 7);
  server.set_credentials({of_later});
  clock->date = begin + 3700;
  CHECK(store.size("object") == 100);

  status = 403;
  const auto refused = none_from(from::instance());
  CHECK(refused.id == error_id::storage_permission);
  CHECK(refused.text.find("hop limit must be 2") != std::string::npos);
  CHECK(refused.text.find("status 403") != std::string::npos);
  CHECK(refused.text.find(of_now.secret_key) == std::string::npos);
  environment.set("AWS_EC2_METADATA_DISABLED", "true");
  const auto asked = machine.requests();
  CHECK(none_from(from::standard()).text.find("give the machine, the container or the pod a role") !=
        std::string::npos);
  CHECK(machine.requests() == asked);
}

TEST_CASE("credentials expire by the service's clock, however wrong this host's is") {
  auto options = service();
  options.clock_offset_seconds = -3600;
  s3::server server{options};
  const s3::credentials key;
  const auto expires = static_cast<std::int64_t>(std::time(nullptr)) - 3600 + 900;
  std::atomic<int> asked{0};
  cairn::s3_store store(
      where(server.endpoint()), from::callback([&] {
        ++asked;
        return cairn::s3_credentials{key.access_key, key.secret_key, key.session_token, expires};
      }),
      std::make_shared<quick_clock>());
  store.put_new("object", pattern(100));
  for (int i = 0; i < 5; ++i) CHECK(store.size("object") == 100);
  CHECK(asked == 1);
}

TEST_CASE("a service of credentials whose name nobody resolves is given up in time") {
  const auto answer = cairn::detail::ask_once({.url = "http://credentials" + slow_names.domain + "/",
                                               .connect_timeout = std::chrono::milliseconds(100),
                                               .timeout = std::chrono::milliseconds(100)});
  CHECK_FALSE(answer.has_value());
  CHECK(slow_names.let_go());
}

TEST_CASE("a container's credentials: its token is read anew, and sent to nobody else") {
  bare_environment environment;
  scratch_directory directory;
  std::atomic<int> status{200};
  std::string wanted = "first-token";
  metadata_server container([&](const metadata_server::request& r) -> metadata_server::answer {
    if (r.path != "/credentials?of=me" || r.header("authorization") != wanted)
      return {403, R"({"code":"AccessDenied","message":"not )" + r.header("authorization") + R"("})"};
    return {status, as_json(of_now, 2'000'000'000)};
  });
  const auto url = container.url() + "/credentials?of=me";
  environment.set("AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
  environment.set("AWS_CONTAINER_AUTHORIZATION_TOKEN", wanted);
  for (const auto& source : {from::container(), from::standard()}) {
    const auto got = source.get();
    CHECK(got.access_key == of_now.access_key);
    CHECK(got.secret_key == of_now.secret_key);
    CHECK(got.session_token == of_now.session_token);
    CHECK(got.expires == 2'000'000'000);
  }
  environment.set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", directory.path() + "/token");
  CHECK(none_from(from::container()).text.find("AUTHORIZATION_TOKEN_FILE cannot be read") !=
        std::string::npos);
  for (const std::string token : {"a-token-of-the-file", "the-next-one"}) {
    write_text(directory.path() + "/token", token + "\n");
    const auto why = none_from(from::container());
    CHECK(why.text.find("status 403 AccessDenied") != std::string::npos);
    CHECK(why.text.find(token) == std::string::npos);
    wanted = token;
    CHECK(from::container().get().access_key == of_now.access_key);
  }
  status = 500;
  const auto before = container.requests();
  CHECK(none_from(from::container()).id == error_id::storage_permission);
  CHECK(container.requests() == before + 2);
  // Where a source is set and fails, the next one is not asked: it would give another role.
  environment.set("AWS_EC2_METADATA_SERVICE_ENDPOINT", container.url());
  environment.set("AWS_EC2_METADATA_DISABLED", "");
  CHECK(none_from(from::standard()).text.find("the container's end point") != std::string::npos);

  using cairn::detail::is_allowed_endpoint;
  for (const auto* fine :
       {"https://example.com/x", "http://127.0.0.1:80/", "http://127.9.9.9", "http://localhost:1/x",
        "http://169.254.170.2/x", "http://169.254.170.23/v1", "http://[::1]:80/", "http://[fd00:ec2::23]/v1"})
    CHECK_MESSAGE(is_allowed_endpoint(fine), fine);
  for (const auto* not_fine :
       {"http://example.com/", "http://169.254.169.254/", "http://127.0.0.1@example.com/", "http://10.0.0.1/",
        "http://localhost.example.com/", "ftp://127.0.0.1/", "http://[fe80::1]/", "http://[::1]x/",
        "http://2130706433/", "", "file:///etc/passwd"})
    CHECK_FALSE_MESSAGE(is_allowed_endpoint(not_fine), not_fine);
  const auto asked = container.requests();
  environment.set("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/");
  CHECK(none_from(from::standard()).text.find("FULL_URI must be https://") != std::string::npos);
  environment.set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "@example.com/");
  CHECK(none_from(from::standard()).text.find("FULL_URI must be https://") != std::string::npos);
  CHECK(container.requests() == asked);
}

TEST_CASE(
    "a web identity takes its role by the token of now, before a file's profile and after the environment") {
  bare_environment environment;
  scratch_directory directory;
  std::string form;
  int status = 200;
  std::string reply;
  metadata_server service_of_tokens([&](const metadata_server::request& r) -> metadata_server::answer {
    form = r.method + r.path + " " + r.body;
    return {status, reply};
  });
  const auto good = [](const s3::credentials& c) {
    return "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
           "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>" +
           c.access_key + "</AccessKeyId><SecretAccessKey>" + c.secret_key +
           "</SecretAccessKey><SessionToken>" + c.session_token +
           "</SessionToken><Expiration>2033-05-18T03:33:20Z</Expiration></Credentials>"
           "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
  };
  const auto token = directory.path() + "/token";
  write_text(token, "a.b-c_d/1\n");
  environment.set("AWS_WEB_IDENTITY_TOKEN_FILE", token);
  environment.set("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x y");
  environment.set("AWS_ROLE_SESSION_NAME", "a-run");
  environment.set("AWS_ENDPOINT_URL_STS", service_of_tokens.url());
  write_text(directory.path() + "/credentials",
             "[default]\naws_access_key_id=AKIDFILE\naws_secret_access_key=b\n");
  environment.set("AWS_SHARED_CREDENTIALS_FILE", directory.path() + "/credentials");
  reply = good(of_now);
  const auto got = from::standard().get();
  CHECK(got.access_key == of_now.access_key);
  CHECK(got.secret_key == of_now.secret_key);
  CHECK(got.session_token == of_now.session_token);
  CHECK(got.expires == 2'000'000'000);
  CHECK(
      form ==
      "POST/ Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3A"
      "role%2Fx%20y&RoleSessionName=a-run&WebIdentityToken=a.b-c_d%2F1");
  write_text(token, "the-next-token");
  static_cast<void>(from::web_identity().get());
  CHECK(form.ends_with("&WebIdentityToken=the-next-token"));

  status = 400;
  reply =
      "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>the-next-token</Message></Error>"
      "</ErrorResponse>";
  const auto why = none_from(from::standard());
  CHECK(why.id == error_id::storage_permission);
  CHECK(why.text.find("status 400 InvalidIdentityToken") != std::string::npos);
  CHECK(why.text.find("the-next-token") == std::string::npos);
  for (const auto& hostile : {std::string("<html>"), std::string(70'000, 'x'), good({"", "", "", false})}) {
    status = 200;
    reply = hostile;
    CHECK(none_from(from::web_identity()).id == error_id::storage_permission);
  }
  environment.set("AWS_ACCESS_KEY_ID", "AKIDENV");
  environment.set("AWS_SECRET_ACCESS_KEY", "env");
  CHECK(from::standard().get().access_key == "AKIDENV");
  environment.set("AWS_ACCESS_KEY_ID", "");
  environment.set("AWS_SECRET_ACCESS_KEY", "");
  environment.set("AWS_WEB_IDENTITY_TOKEN_FILE", "");
  CHECK(from::standard().get().access_key == "AKIDFILE");
}

TEST_CASE("CRC-64/NVME is the published one, by tables and by instructions, and is joined from parts") {
  const std::string digits = "123456789";
  CHECK(crc64(std::as_bytes(std::span(digits))) == 0xAE8B14860A799888u);
  CHECK(cairn::detail::checksum_text(std::uint64_t{0xAE8B14860A799888u}) == "rosUhgp5mIg=");
  CHECK(crc64({}) == 0);
  // The NVM Command Set's examples, of 4 KiB each.
  std::vector<std::byte> block(4096);
  CHECK(crc64(block) == 0x6482D367EB22B64Eu);
  std::fill(block.begin(), block.end(), std::byte{0xFF});
  CHECK(crc64(block) == 0xC0DDBA7302ECA3ACu);
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i & 0xFF);
  CHECK(crc64(block) == 0x3E729F5F6750449Cu);
  const auto bytes = pattern(1500);
  for (std::size_t n = 0; n <= bytes.size(); n += n < 300 ? 1 : 97) {
    CAPTURE(n);
    const auto some = std::span(bytes).subspan(n % 5, n - n % 5);
    const auto whole = ~cairn::detail::crc64_by_table(~std::uint64_t{0}, some);
    CHECK(crc64(some) == whole);
    const auto first = some.first(some.size() / 3);
    const auto second = some.subspan(first.size());
    CHECK(cairn::detail::crc64nvme_joined(crc64(first), crc64(second), second.size()) == whole);
    const std::span<const std::byte> pieces[] = {first, second};
    CHECK(cairn::detail::crc64nvme(pieces) == whole);
  }
}

TEST_CASE("a service checks CRC-64/NVME of each part and of the whole object, or says that it does not") {
  const auto small = pattern(10'000, 1);
  const auto large = pattern((11u << 20) + 5, 2);
  for (const bool takes_them : {true, false}) {
    CAPTURE(takes_them);
    auto options = service();
    options.objects.checksums = takes_them;
    s3::server server{options};
    auto o = where(server.endpoint());
    o.checksums = cairn::s3_checksum::crc64nvme;
    auto store = store_at(o);
    write(store, "small", small);
    write(store, "large", large);
    CHECK(store.read_all("small", 1u << 20) == small);
    CHECK(store.read_all("large", 1u << 30) == large);
    cairn::detail::s3_client client(o, s3::credentials_of(), std::make_shared<quick_clock>());
    for (const bool big : {false, true}) {
      const auto call = client.run({.method = "HEAD",
                                    .key = big ? "large" : "small",
                                    .headers = {{"x-amz-checksum-mode", takes_them ? "ENABLED" : ""}}});
      const auto told = call->header("x-amz-checksum-crc64nvme");
      CHECK(told.has_value() == takes_them);
      if (told) CHECK(*told == cairn::detail::checksum_text(crc64(big ? large : small)));
    }
  }
  // A server that stores other bytes than it was sent.
  s3::server server{service()};
  auto o = where(server.endpoint());
  o.checksums = cairn::s3_checksum::crc64nvme;
  auto store = store_at(o);
  server.faults.add("error CompleteMultipartUpload all status=400 code=BadDigest");
  const auto why = failure_of([&] { write(store, "large", large); });
  REQUIRE(why.id.has_value());
  CHECK(cairn::kind_of(*why.id) == cairn::error_kind::storage);
  CHECK(server.objects().keys("bucket").empty());
  CHECK(server.objects().uploads() == 0);
}

TEST_CASE("TLS: a server with a valid certificate is trusted, and others are errors that say what to do") {
  scratch_directory directory;
  const auto authority = make_identity("an authority for tests");
  const auto stranger = make_identity("an authority that nobody trusts");
  authority.write(directory.path() + "/authority.pem");
  stranger.write(directory.path() + "/stranger.pem");
  s3::server server{service()};
  tls_front front{make_identity("localhost", &authority), server.port()};
  tls_front late{make_identity("localhost", &authority, true), server.port()};
  const auto at = [](const std::string& host, const tls_front& f) {
    return host + ":" + std::to_string(f.port());
  };
  const auto bytes = pattern((11u << 20) + 5, 3);
  for (const bool sign : {false, true}) {
    auto o = where("https://" + at("localhost", front));
    o.ca_file = directory.path() + "/authority.pem";
    o.sign_payload = sign;
    auto store = store_at(o);
    const std::string name = sign ? "signed" : "unsigned";
    write(store, name, bytes);
    CHECK(store.read_all(name, 1u << 30) == bytes);
    CHECK(store.publish_new(name + "-once", {}));
    CHECK_FALSE(store.publish_new(name + "-once", {}));
  }
  const auto requests = server.count("*");
  const auto refused = [&](const std::string& host, const tls_front& f, const std::string& ca,
                           std::string_view advice) {
    CAPTURE(advice);
    auto o = where("https://" + at(host, f));
    o.ca_file = ca.empty() ? "" : directory.path() + "/" + ca;
    auto store = store_at(o);
    const auto why = failure_of([&] { static_cast<void>(store.read_all("unsigned", 1u << 30)); });
    CAPTURE(why.text);
    CHECK(why.id == error_id::storage_permission);
    CHECK(why.text.find(at(host, f)) != std::string::npos);
    CHECK(why.text.find(advice) != std::string::npos);
    CHECK(why.text.find(s3::credentials{}.secret_key) == std::string::npos);
  };
  refused("localhost", front, "", "set s3_options::ca_file");
  refused("localhost", front, "stranger.pem", "set s3_options::ca_file");
  refused("127.0.0.1", front, "authority.pem", "is for other hosts: set s3_options::endpoint");
  refused("localhost", late, "authority.pem", "has expired");
  refused("localhost", front, "missing.pem", "cannot be read");
  CHECK(server.count("*") == requests);  // not one of them was sent

  auto careless = where("https://" + at("127.0.0.1", late));
  careless.verify_tls = false;
  CHECK(store_at(careless).size("unsigned") == bytes.size());
}

TEST_CASE("TLS: a new connection goes on with the session of an earlier one") {
  scratch_directory directory;
  const auto authority = make_identity("an authority for tests");
  authority.write(directory.path() + "/authority.pem");
  s3::server server{service()};
  tls_front front{make_identity("localhost", &authority), server.port()};
  auto o = where("https://localhost:" + std::to_string(front.port()));
  o.ca_file = directory.path() + "/authority.pem";
  o.get_bytes = 1u << 20;
  auto store = store_at(o);
  const auto bytes = pattern(8u << 20, 3);
  write(store, "object", bytes);
  CHECK(store.size("object") == bytes.size());
  // None of them is answered before all have come, each on a connection of its own.
  constexpr int at_once = 8;
  server.faults.add("gather GetObject 1-8 count=8 ms=60000");
  std::vector<std::byte> read(bytes.size());
  const cairn::read_range all{"object", 0, read};
  store.read({&all, 1});
  CHECK(read == bytes);
  CHECK(server.count("GetObject") == at_once);
  // The first new one does; others that begin at once may find its session taken, as TLS 1.3 uses each ticket once.
  CHECK(front.resumed_sessions() > 0);
}

TEST_CASE("TLS: a server without TLS is an error that says so") {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listener, 8) == 0);
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  std::thread plain([&] {
    for (;;) {
      const int one = ::accept(listener, nullptr, nullptr);
      if (one < 0) return;
      char some[512];
      static_cast<void>(::recv(one, some, sizeof some, 0));
      const std::string_view answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
      static_cast<void>(::send(one, answer.data(), answer.size(), MSG_NOSIGNAL));
      ::shutdown(one, SHUT_WR);
      while (::recv(one, some, sizeof some, 0) > 0) {
      }
      ::close(one);
    }
  });
  const auto host = "localhost:" + std::to_string(ntohs(address.sin_port));
  auto store = store_at(where("https://" + host));
  const auto why = failure_of([&] { static_cast<void>(store.size("object")); });
  ::shutdown(listener, SHUT_RDWR);
  plain.join();
  ::close(listener);
  CAPTURE(why.text);
  CHECK(why.id == error_id::storage_unavailable);
  CHECK(why.text.find("no TLS connection to " + host) != std::string::npos);
  CHECK(why.text.find("https://") != std::string::npos);
}

namespace {
struct at_google {
  s3::server server{service(true)};
  [[nodiscard]] cairn::s3_options options() const {
    auto o = where(server.endpoint());
    o.dialect = cairn::s3_dialect::google;
    o.region = "";
    o.prefix = "team/";
    return o;
  }
  cairn::s3_store store{options(), s3::credentials_of()};
  cairn::s3_store make() { return store; }
};
}  // namespace

TEST_CASE("Google's dialect: saved in parts, loaded, committed once, cleaned") {
  at_google google;
  cairn::safetensors_storage storage{google.store};
  auto writer = storage.writer();
  auto reader = storage.reader();
  const some_state one(1);
  world_save(writer, {&one.all}, 7).run();
  CHECK(google.server.count("CompleteMultipartUpload") == 1);
  CHECK(google.server.count("UploadPart") == 2);
  some_state loaded(0);
  load_world(reader, 7, {&loaded.all});
  CHECK(loaded.weights == one.weights);
  // Another job commits the same step: it gets an error, and the first checkpoint stays.
  const some_state two(2);
  world_save other(writer, {&two.all}, 7, {3, 4});
  const auto why = failure_of([&] { other.run(); });
  CHECK(why.id.has_value());
  load_world(reader, 7, {&loaded.all});
  CHECK(loaded.weights == one.weights);
  // What an interrupted save left, and a checkpoint that is not wanted any more.
  const auto bytes = pattern((11u << 20) + 5, 3);
  {
    cairn::detail::s3_client client(google.options(), s3::credentials_of(),
                                    std::make_shared<cairn::s3_clock>());
    const auto begun = client.run({.method = "POST",
                                   .key = "team/" + cairn::data_key(8, 0, 1, 0),
                                   .query = {{"uploads", ""}},
                                   .root = "InitiateMultipartUploadResult"});
    CHECK(begun->fine());
  }
  CHECK(google.server.objects().uploads() == 1);
  writer.clean({5, 6});
  CHECK(google.server.objects().uploads() == 0);
  writer.remove(7);
  writer.clean({5, 6});
  // A mark stays for a writer that is late.
  for (const auto& o : google.store.list("")) CHECK(o.key.starts_with("step-00000008/aborted."));
  google.store.remove("is-not-there");
  // A lost answer to the last request of an upload is settled as elsewhere.
  google.server.faults.add("lost_reply CompleteMultipartUpload first");
  write(google.store, "large", bytes);
  CHECK(google.store.read_all("large", 1u << 30) == bytes);
  for (const auto& entry : google.server.journal()) CHECK(entry.code != "411");

  CHECK(failure_of([&] {
          auto o = google.options();
          o.checksums = cairn::s3_checksum::crc64nvme;
          static_cast<void>(store_at(o));
        }).id == error_id::usage_bad_option);
}

namespace cairn_test {
TEST_CASE_TEMPLATE_INVOKE(byte_store_conformance, at_google);
}
