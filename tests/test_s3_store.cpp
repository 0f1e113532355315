// SPDX-License-Identifier: Apache-2.0
// The S3 store against moto, an implementation that shares nothing with ours; the signer against AWS's
// published examples and against botocore. links: cairn::s3 timeout: 120
#include <cairn/stores/s3_store.hpp>

#include "support/byte_store_conformance.hpp"
#include "support/moto.hpp"

#include <atomic>
#include <cstdint>
#include <string>
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

TEST_CASE("checksums are those of RFC 3720") {
  const std::vector<std::byte> zeros(32);
  std::vector<std::byte> ascending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<std::byte>(i);
  const auto of = [](std::span<const std::byte> b) { return cairn::detail::crc32c({&b, 1}); };
  CHECK(of(zeros) == 0x8A9136AAu);
  CHECK(of(ascending) == 0x46DD794Eu);
  const auto bytes = pattern(1001);
  CHECK(of(bytes) == ~cairn::detail::crc32c_by_table(~0u, bytes));
  CHECK(cairn::detail::crc32c_text(0x46DD794Eu) == "Rt15Tg==");
}

TEST_CASE("a big object is an upload of many parts, copied or from where it lies") {
  cairn::s3_store store{on_moto("big/"), credentials()};
  const auto bytes = pattern((40u << 20) + 777, 3);
  for (const bool lasting : {false, true}) {
    const std::string key = lasting ? "lasting" : "copied";
    auto writer = store.create(key, bytes.size());
    for (std::size_t at = 0; at < bytes.size();) {
      const auto n = std::min<std::size_t>(bytes.size() - at, 3'000'000);
      const cairn::write_part part{at, std::span(bytes).subspan(at, n)};
      if (lasting)
        writer.write_lasting({&part, 1});
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

namespace cairn_test {
TEST_CASE_TEMPLATE_INVOKE(byte_store_conformance, s3_on_moto);
}
