// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3
//
// The scripted S3 server as a program: it prints `listening on 127.0.0.1:PORT` and serves until it is killed.
//   helper_s3_server [OPTION...]
//     --port=N  --bucket=NAME  --access-key=A --secret-key=S --token=T  --region=R
//     --min-part=BYTES  --page=ENTRIES  --latency-ms=N  --bandwidth=BYTES_A_SECOND_OF_EACH_CONNECTION
//     --clock-offset=SECONDS  --opaque-etags  --no-signatures
//     --no-conditions (If-None-Match is ignored)  --refuse-conditions (... answered with 501)
//     --refuse-checksums (501)  --ignore-checksums  --google (the dialect of Google Cloud Storage)
//     --all-addresses  serves clients on other hosts, too
//     --fault='KIND REQUEST WHEN [NAME=VALUE]...' (again and again; see support/s3_server_faults.hpp)
//     --port-file=PATH  the port is written there, too
//     --commands        commands come on its standard input, one a line, each answered by lines that end with
//     `.`;
//                       it ends with its input:
//       fault RULE | clear-faults | random PERCENT SEED (then rules, then `.`) | clock SECONDS | latency MS
//       credentials ACCESS SECRET [TOKEN] | expire | journal | clear-journal | keys | uploads | put KEY TEXT
//       | clear
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <support/s3_server.hpp>
#include <vector>

namespace s3 = cairn_test::s3;

namespace {

std::int64_t signed_number(const std::string& text) {
  const bool minus = !text.empty() && text[0] == '-';
  const auto value = s3::number_of(minus ? text.substr(1) : text);
  if (!value) throw std::invalid_argument("not a number: " + text);
  return minus ? -static_cast<std::int64_t>(*value) : static_cast<std::int64_t>(*value);
}

std::uint64_t number(const std::string& text) {
  const auto value = signed_number(text);
  if (value < 0) throw std::invalid_argument("not a size: " + text);
  return static_cast<std::uint64_t>(value);
}

void obey(s3::server& server, const std::string& bucket, s3::credentials& keys, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "fault") {
    server.faults.add(line.substr(6));
  } else if (command == "clear-faults") {
    server.faults.clear();
  } else if (command == "random") {
    unsigned percent = 0;
    std::uint64_t seed = 0;
    words >> percent >> seed;
    std::vector<std::string> rules;
    for (std::string rule; std::getline(std::cin, rule) && rule != ".";) rules.push_back(rule);
    server.faults.at_random(percent, seed, rules);
  } else if (command == "clock") {
    std::string seconds;
    words >> seconds;
    server.set_clock_offset(signed_number(seconds));
  } else if (command == "latency") {
    std::string milliseconds;
    words >> milliseconds;
    server.set_latency(std::chrono::milliseconds(number(milliseconds)));
  } else if (command == "credentials") {
    const bool expired = keys.expired;
    s3::credentials next;
    words >> next.access_key >> next.secret_key >> next.session_token;
    if (expired) {
      server.set_credentials({keys, next});
    } else {
      server.set_credentials({next});
    }
    keys = next;
  } else if (command == "expire") {
    keys.expired = true;
    server.set_credentials({keys});
  } else if (command == "journal") {
    for (const auto& entry : server.journal()) {
      std::cout << entry.operation << '\t' << entry.key << '\t' << entry.part << '\t' << entry.range << '\t'
                << entry.status << '\t' << entry.code << '\t' << entry.fault << '\t' << entry.bytes_in << '\t'
                << entry.bytes_out << '\t' << entry.connection << '\t' << entry.in_flight << '\t'
                << entry.began.count() << '\t' << entry.ended.count() << '\n';
    }
  } else if (command == "clear-journal") {
    server.clear_journal();
  } else if (command == "keys") {
    for (const auto& key : server.objects().keys(bucket)) std::cout << key << '\n';
  } else if (command == "uploads") {
    std::cout << server.objects().uploads() << '\n';
  } else if (command == "put") {
    std::string key;
    std::string text;
    words >> key >> text;
    server.objects().put_behind_the_back(bucket, key, text);
  } else if (command == "clear") {
    server.objects().clear();
  } else {
    throw std::invalid_argument("no command: " + line);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    s3::server_options options;
    s3::credentials keys;
    std::string bucket = "bucket";
    std::string port_file;
    std::vector<std::string> faults;
    bool commands = false;
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      const auto equals = argument.find('=');
      const std::string name = argument.substr(0, equals);
      const std::string value = equals == std::string::npos ? std::string() : argument.substr(equals + 1);
      if (name == "--port")
        options.port = static_cast<std::uint16_t>(number(value));
      else if (name == "--bucket")
        bucket = value;
      else if (name == "--access-key")
        keys.access_key = value;
      else if (name == "--secret-key")
        keys.secret_key = value;
      else if (name == "--token")
        keys.session_token = value;
      else if (name == "--region")
        options.signatures.region = value;
      else if (name == "--min-part")
        options.objects.min_part = number(value);
      else if (name == "--page")
        options.objects.page = number(value);
      else if (name == "--latency-ms")
        options.latency = std::chrono::milliseconds(number(value));
      else if (name == "--bandwidth")
        options.bytes_per_second = number(value);
      else if (name == "--clock-offset")
        options.clock_offset_seconds = signed_number(value);
      else if (name == "--opaque-etags")
        options.objects.opaque_etags = true;
      else if (name == "--all-addresses")
        options.all_addresses = true;
      else if (name == "--no-signatures")
        options.check_signatures = false;
      else if (name == "--no-conditions")
        options.objects.conditional_writes = false;
      else if (name == "--refuse-conditions")
        options.objects.refuse_conditions = true;
      else if (name == "--refuse-checksums")
        options.objects.checksums = false;
      else if (name == "--ignore-checksums")
        options.objects.ignore_checksums = true;
      else if (name == "--google")
        options.objects.google = options.objects.opaque_etags = true;
      else if (name == "--fault")
        faults.push_back(value);
      else if (name == "--port-file")
        port_file = value;
      else if (name == "--commands")
        commands = true;
      else
        throw std::invalid_argument("no option: " + argument);
    }
    options.signatures.accepted = {keys};
    options.objects.buckets = {bucket};
    s3::server server(options);
    for (const auto& rule : faults) server.faults.add(rule);
    std::cout << "listening on 127.0.0.1:" << server.port() << std::endl;
    if (!port_file.empty()) {
      std::FILE* file = std::fopen((port_file + ".new").c_str(), "w");
      if (file == nullptr) throw std::runtime_error("cannot write " + port_file);
      std::fprintf(file, "%u\n", static_cast<unsigned>(server.port()));
      std::fclose(file);
      std::rename((port_file + ".new").c_str(), port_file.c_str());
    }
    if (!commands) {
      for (;;) ::pause();
    }
    for (std::string line; std::getline(std::cin, line);) {
      try {
        obey(server, bucket, keys, line);
      } catch (const std::exception& failure) {
        std::cout << "error: " << failure.what() << '\n';
      }
      std::cout << "." << std::endl;
    }
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "helper_s3_server: %s\n", failure.what());
    return 2;
  }
}
