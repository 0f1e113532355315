// SPDX-License-Identifier: Apache-2.0
// links: cairn::s3
// test: --mebibytes 1 --pairs 1 --only local
// Uploads and downloads of one object by s3_store, beside libcurl by hand (16 transfers at a time, the same
// parts, signed and hashed the same), beside a single stream and beside Python's clients, against the scripted
// server of the tests in a process of its own: each connection has its latency and its bandwidth. And the
// memory that they take beyond the object, in a process of their own, beside that of the parts in flight; and a
// resume, beside one that opens no connections before it reads.
#include <cairn/checkpointer.hpp>
#include <cairn/stores/s3_store.hpp>

#include <curl/curl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <support/bench.hpp>
#include <support/s3_server.hpp>
#include <vector>

namespace {

using bytes = std::vector<std::byte>;
constexpr std::size_t at_once = 16;
constexpr std::size_t get_bytes = std::size_t{8} << 20;
const cairn::s3_credentials credentials{"AKIDBENCH", "the-secret-of-a-benchmark", "", 0};

/// The scripted server in a child, which ends with this process. Made while there is one thread.
class server_process {
 public:
  server_process(std::chrono::milliseconds latency, std::uint64_t bytes_per_second) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      cairn_test::s3::server_options o;
      o.latency = latency;
      o.bytes_per_second = bytes_per_second;
      // Its own hashing would be the slowest thing here; both clients send theirs all the same.
      o.objects.opaque_etags = true;
      o.objects.ignore_checksums = true;
      o.signatures.accepted = {{credentials.access_key, credentials.secret_key, {}, false}};
      const cairn_test::s3::server server(o);
      const auto port = server.port();
      if (::write(ends[1], &port, sizeof port) != sizeof port) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    const auto got = ::read(ends[0], &port_, sizeof port_);
    ::close(ends[0]);
    if (process_ < 0 || got != sizeof port_) throw std::runtime_error("the server does not start");
  }
  server_process(const server_process&) = delete;
  server_process& operator=(const server_process&) = delete;
  ~server_process() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  [[nodiscard]] std::string authority() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  ::pid_t process_ = 0;
  std::uint16_t port_ = 0;
};

/// libcurl's multi interface and the signer, and nothing else.
class raw_client {
 public:
  struct transfer {
    std::string method = {};
    std::string key = {};
    cairn::name_values query = {};
    std::string range = {};
    std::span<const std::byte> body = {};
    bool has_body = false;
    std::span<std::byte> into = {};
    // What came, and what was sent with a part:
    std::string answer = {};
    std::string etag = {};
    std::string checksum = {};
    // While it runs:
    CURL* easy = nullptr;
    curl_slist* headers = nullptr;
    std::size_t done = 0;
  };

  explicit raw_client(std::string authority) : authority_(std::move(authority)), multi_(::curl_multi_init()) {
    ::curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(at_once + 4));
  }
  raw_client(const raw_client&) = delete;
  raw_client& operator=(const raw_client&) = delete;
  ~raw_client() { ::curl_multi_cleanup(multi_); }

  /// All of them, `most` at a time, in order.
  void run(std::list<transfer>& all, std::size_t most) {
    auto next = all.begin();
    std::size_t running = 0;
    while (next != all.end() || running != 0) {
      while (next != all.end() && running < most) {
        begin(*next++);
        ++running;
        int still = 0;
        ::curl_multi_perform(multi_, &still);  // what runs goes on between two hashes
      }
      int still = 0;
      ::curl_multi_perform(multi_, &still);
      int left = 0;
      bool ended = false;
      while (auto* message = ::curl_multi_info_read(multi_, &left)) {
        transfer* t = nullptr;
        ::curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &t);
        long status = 0;
        ::curl_easy_getinfo(message->easy_handle, CURLINFO_RESPONSE_CODE, &status);
        if (message->data.result != CURLE_OK || status / 100 != 2)
          throw std::runtime_error("the twin's transfer failed: status " + std::to_string(status) + " " +
                                   t->answer);
        ::curl_multi_remove_handle(multi_, t->easy);
        ::curl_easy_cleanup(t->easy);
        ::curl_slist_free_all(t->headers);
        --running;
        ended = true;
      }
      if (!ended) ::curl_multi_poll(multi_, nullptr, 0, 100, nullptr);
    }
  }
  transfer run_one(transfer t) {
    std::list<transfer> all{std::move(t)};
    run(all, 1);
    return std::move(all.front());
  }

  void upload(const std::string& key, std::span<const std::byte> image, std::size_t part_bytes) {
    auto begun = run_one({.method = "POST", .key = key, .query = {{"uploads", ""}}});
    const auto from = begun.answer.find("<UploadId>") + 10;
    const auto id = begun.answer.substr(from, begun.answer.find("</UploadId>") - from);
    std::list<transfer> parts;
    for (std::size_t at = 0; at < image.size(); at += part_bytes)
      parts.push_back({.method = "PUT",
                       .key = key,
                       .query = {{"partNumber", std::to_string(parts.size() + 1)}, {"uploadId", id}},
                       .body = image.subspan(at, std::min(part_bytes, image.size() - at)),
                       .has_body = true});
    run(parts, at_once);
    std::string text = "<CompleteMultipartUpload>";
    int number = 0;
    for (const auto& p : parts)
      text += "<Part><PartNumber>" + std::to_string(++number) + "</PartNumber><ETag>" + p.etag +
              "</ETag><ChecksumCRC32C>" + p.checksum + "</ChecksumCRC32C></Part>";
    text += "</CompleteMultipartUpload>";
    run_one({.method = "POST",
             .key = key,
             .query = {{"uploadId", id}},
             .body = std::as_bytes(std::span(text.data(), text.size())),
             .has_body = true});
  }
  void download(const std::string& key, std::span<std::byte> into) {
    std::list<transfer> ranges;
    for (std::size_t at = 0; at < into.size(); at += get_bytes) {
      const auto n = std::min(get_bytes, into.size() - at);
      ranges.push_back({.method = "GET",
                        .key = key,
                        .range = "bytes=" + std::to_string(at) + "-" + std::to_string(at + n - 1),
                        .into = into.subspan(at, n)});
    }
    run(ranges, at_once);
  }

 private:
  void begin(transfer& t) {
    const auto path = "/bucket/" + cairn::detail::percent_encoded(t.key, true);
    cairn::name_values headers{{"host", authority_}};
    if (!t.range.empty()) headers.emplace_back("range", t.range);
    if (!t.query.empty() && t.query.front().first == "partNumber") {
      t.checksum = cairn::detail::checksum_text(cairn::detail::crc32c({&t.body, 1}));
      headers.emplace_back("x-amz-checksum-crc32c", t.checksum);
    }
    if (!t.query.empty() && t.query.front().first == "uploads")
      headers.emplace_back("x-amz-checksum-algorithm", "CRC32C");
    // As s3_store signs for a service on its own host.
    const auto hash = t.has_body ? "UNSIGNED-PAYLOAD" : cairn::detail::sha256_text(std::string_view());
    t.easy = ::curl_easy_init();
    for (const auto& [name, value] : signer_.sign({t.method, path, &t.query, &headers, hash}, credentials,
                                                  static_cast<std::int64_t>(std::time(nullptr))))
      t.headers = ::curl_slist_append(t.headers, (name + ": " + value).c_str());
    t.headers = ::curl_slist_append(t.headers, "Expect:");
    auto* const e = t.easy;
    const auto url = "http://" + authority_ + path +
                     (t.query.empty() ? "" : "?" + cairn::detail::canonical_query(t.query));
    ::curl_easy_setopt(e, CURLOPT_URL, url.c_str());
    ::curl_easy_setopt(e, CURLOPT_HTTPHEADER, t.headers);
    ::curl_easy_setopt(e, CURLOPT_PRIVATE, &t);
    ::curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    ::curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, t.method.c_str());
    ::curl_easy_setopt(e, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    ::curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 512L << 10);
    ::curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, &raw_client::on_answer);
    ::curl_easy_setopt(e, CURLOPT_WRITEDATA, &t);
    ::curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, &raw_client::on_header);
    ::curl_easy_setopt(e, CURLOPT_HEADERDATA, &t);
    if (t.has_body) {
      ::curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
      ::curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
      ::curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(t.body.size()));
      ::curl_easy_setopt(e, CURLOPT_READFUNCTION, &raw_client::on_body);
      ::curl_easy_setopt(e, CURLOPT_READDATA, &t);
    }
    ::curl_multi_add_handle(multi_, e);
  }
  static std::size_t on_answer(char* data, std::size_t, std::size_t n, void* self) {
    auto& t = *static_cast<transfer*>(self);
    if (t.into.empty()) {
      t.answer.append(data, n);
      return n;
    }
    if (n > t.into.size() - t.done) return 0;
    std::memcpy(t.into.data() + t.done, data, n);
    t.done += n;
    return n;
  }
  static std::size_t on_body(char* to, std::size_t, std::size_t room, void* self) {
    auto& t = *static_cast<transfer*>(self);
    const auto n = std::min(room, t.body.size() - t.done);
    std::memcpy(to, t.body.data() + t.done, n);
    t.done += n;
    return n;
  }
  static std::size_t on_header(char* data, std::size_t, std::size_t n, void* self) {
    std::string line(data, n);
    const auto name = cairn::detail::lower_case(line.substr(0, 5));
    if (name == "etag:")
      static_cast<transfer*>(self)->etag = cairn::detail::canonical_value(line.substr(5, n - 7));
    return n;
  }
  std::string authority_;
  CURLM* multi_;
  cairn::sigv4_signer signer_{"us-east-1"};
};

bytes make_image(std::size_t size) {
  bytes image(size);
  std::uint64_t x = 88172645463325252u;
  for (std::size_t i = 0; i + 8 <= size; i += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(image.data() + i, &x, 8);
  }
  return image;
}
cairn::s3_options options_for(const server_process& server) {
  cairn::s3_options o;
  o.bucket = "bucket";
  o.endpoint = "http://" + server.authority();
  o.region = "us-east-1";
  o.in_flight = at_once;
  return o;
}
cairn::s3_store store_on(const server_process& server) {
  return cairn::s3_store(options_for(server), cairn::s3_credential_source::fixed(credentials));
}

/// A line of /proc/self/status that is a number of KiB, in bytes.
double status_line(const char* name) {
  double kibibytes = 0;
  std::FILE* const file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) throw std::runtime_error("/proc is not mounted");
  char line[256];
  const auto length = std::strlen(name);
  while (std::fgets(line, sizeof line, file) != nullptr)
    if (std::strncmp(line, name, length) == 0) kibibytes = std::strtod(line + length, nullptr);
  std::fclose(file);
  return kibibytes * 1024;
}
/// The most bytes of this process that were resident at once while `work` ran, beyond those before.
template <class Work>
double max_beyond(Work&& work) {
  if (std::FILE* const file = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", file);  // the peak begins anew
    std::fclose(file);
  }
  const double before = status_line("VmRSS:");
  work();
  return std::max(0.0, status_line("VmHWM:") - before);
}
/// What `measure` gives in a process of its own, which has no memory that was used before. While there is one
/// thread.
double in_process_of_its_own(const std::function<double()>& measure) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe");
  const auto child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(ends[0]);
    try {
      const double value = measure();
      if (::write(ends[1], &value, sizeof value) == sizeof value) ::_exit(0);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "bench_object_store: %s\n", e.what());
    }
    ::_exit(1);
  }
  ::close(ends[1]);
  double value = 0;
  const auto got = ::read(ends[0], &value, sizeof value);
  ::close(ends[0]);
  if (child > 0) ::waitpid(child, nullptr, 0);
  if (child < 0 || got != sizeof value) throw std::runtime_error("memory could not be measured");
  return value;
}
/// Rows of memory beyond the object, beside parts in flight x part size.
void run_memory(const server_process& server, std::size_t size, cairn_bench::report& report) {
  const auto upload = [&](const char* key, bool lasting) {
    return in_process_of_its_own([&, lasting] {
      const auto image = make_image(size);
      return max_beyond([&] {
        auto store = store_on(server);
        auto writer = store.create(key, size);
        constexpr std::size_t piece = std::size_t{4} << 20;  // as buffers of an image that is not staged
        for (std::size_t at = 0; at < size; at += piece) {
          const cairn::write_range one{at, std::span(image).subspan(at, std::min(piece, size - at))};
          if (lasting)
            writer.write_stable({&one, 1});
          else
            writer.write({&one, 1});
        }
        writer.finish();
      });
    });
  };
  const auto download = [&] {
    return in_process_of_its_own([&] {
      bytes back(size);
      return max_beyond([&] {
        auto store = store_on(server);
        const cairn::read_range whole{"memory-lasting", 0, back};
        store.read({&whole, 1});
      });
    });
  };
  const auto part_bytes = static_cast<double>(cairn::detail::part_bytes_for(size, 0));
  const auto name = "/" + std::to_string(size >> 20) + "MiB";
  const auto add = [&](const char* what, double bytes_beyond, double each, double most) {
    report.add_against(what + name, cairn_bench::samples({bytes_beyond}), "B",
                       static_cast<double>(at_once) * each, cairn_bench::at_most(most));
  };
  // libcurl has a MiB to send from and half of one to receive into for each request.
  constexpr double buffers = 1.5 * (1 << 20);
  add("memory_beyond/upload_from_where_it_lies", upload("memory-lasting", true), part_bytes, 0.5);
  add("memory_beyond/upload_copied", upload("memory-copied", false), part_bytes, 1 + buffers / part_bytes);
  add("memory_beyond/download", download(), static_cast<double>(get_bytes), 0.5);
}

/// A store whose reads open the connections that they use.
struct late_store : cairn::s3_store {
  using s3_store::s3_store;
  void open_connections() = delete;
};

/// Seconds of a resume by a process that has no connections yet, beside one that opens none beforehand.
void run_resume(const server_process& server, const std::string& place, std::size_t size, int pairs,
                cairn_bench::report& report) {
  constexpr std::size_t tensors = 16;
  std::vector<std::vector<float>> weights(tensors, std::vector<float>(size / tensors / sizeof(float), 1));
  cairn::state_dict state;
  for (std::size_t i = 0; i < tensors; ++i)
    state.tensor("weights." + std::to_string(i), weights[i], {static_cast<std::int64_t>(weights[i].size())});
  auto where = options_for(server);
  where.prefix = "resumed/";
  const auto opened = [&]<class Store>(Store store) {
    return cairn::checkpointer{std::move(store), cairn::checkpointer_options{.quiet = true}};
  };
  opened(cairn::s3_store(where, cairn::s3_credential_source::fixed(credentials))).save(state, 1).wait();
  const auto resumed = [&]<class Store>() {
    auto ckpt = opened(Store(where, cairn::s3_credential_source::fixed(credentials)));
    return cairn_bench::seconds_of([&] {
      if (ckpt.resume(state) != 1) throw std::runtime_error("nothing was resumed");
    });
  };
  const auto ours = [&] { return resumed.operator()<cairn::s3_store>(); };
  const auto late = [&] { return resumed.operator()<late_store>(); };
  report.add("resume/" + std::to_string(size >> 20) + "MiB/" + place + "/twin=connections_opened_by_reads",
             cairn_bench::interleaved_pairs(ours, late, pairs), "s", cairn_bench::at_most(1.05));
}

/// Python's clients in a process of their own, which uploads and downloads what it is told. One thread.
class peer_process {
 public:
  peer_process(const std::string& environment, const std::string& script, const server_process& server,
               std::size_t size) {
    int in[2];
    int out[2];
    if (::pipe(in) != 0 || ::pipe(out) != 0) throw std::runtime_error("pipe");
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      for (const int end : {in[0], in[1], out[0], out[1]}) ::close(end);
      ::setenv("AWS_ACCESS_KEY_ID", credentials.access_key.c_str(), 1);
      ::setenv("AWS_SECRET_ACCESS_KEY", credentials.secret_key.c_str(), 1);
      const auto python = environment + "/bin/python3";
      const auto endpoint = "http://" + server.authority();
      const auto mebibytes = std::to_string(size >> 20);
      ::execl(python.c_str(), python.c_str(), script.c_str(), endpoint.c_str(), mebibytes.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    tell_ = in[1];
    hear_ = ::fdopen(out[0], "r");
    if (process_ < 0 || hear_ == nullptr) throw std::runtime_error("no peers");
    auto line = answer();
    for (std::size_t at = 0; at < line.size();) {
      const auto end = std::min(line.find(' ', at), line.size());
      names_.push_back(line.substr(at, end - at));
      at = end + 1;
    }
  }
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;
  ~peer_process() {
    ::close(tell_);
    std::fclose(hear_);
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// Seconds of an upload ("up") or a download ("down").
  [[nodiscard]] double seconds(const std::string& name, const char* what, const std::string& key) {
    const auto line = name + " " + what + " " + key + "\n";
    if (::write(tell_, line.data(), line.size()) != static_cast<::ssize_t>(line.size()))
      throw std::runtime_error("the peers have ended");
    return std::strtod(answer().c_str(), nullptr);
  }

 private:
  [[nodiscard]] std::string answer() {
    char line[256];
    if (std::fgets(line, sizeof line, hear_) == nullptr) throw std::runtime_error("the peers have ended");
    std::string text(line);
    if (text.ends_with('\n')) text.pop_back();
    return text;
  }
  ::pid_t process_ = 0;
  int tell_ = -1;
  std::FILE* hear_ = nullptr;
  std::vector<std::string> names_;
};

void run(server_process& server, const std::string& place, int latency_ms, std::size_t size,
         std::size_t single, int pairs, peer_process* peers, cairn_bench::report& report) {
  const auto image = make_image(size);
  bytes back(size);
  auto store = store_on(server);
  raw_client raw(server.authority());
  const auto part_bytes = static_cast<std::size_t>(cairn::detail::part_bytes_for(size, 0));

  int n = 0;
  const auto ours_up = [&] {
    const auto key = "ours-" + std::to_string(n++);
    auto writer = store.create(key, size);
    const cairn::write_range whole{0, image};
    writer.write_stable({&whole, 1});
    writer.finish();
    return key;
  };
  const auto raw_up = [&] {
    const auto key = "raw-" + std::to_string(n++);
    raw.upload(key, image, part_bytes);
    return key;
  };
  const auto timed = [&](auto&& upload) {
    return [&, upload] {
      std::string key;
      const auto seconds = cairn_bench::seconds_of([&] { key = upload(); });
      store.remove(key);
      return seconds;
    };
  };
  const auto down_ours = [&](const std::string& key) {
    const cairn::read_range whole{key, 0, back};
    store.read({&whole, 1});
  };
  const auto key = ours_up();  // warm, and there to be read
  down_ours(key);
  if (back != image) throw std::runtime_error("what was read is not what was written");
  raw.download(key, back);

  const std::span<const std::byte> short_image =
      std::span<const std::byte>(image).first(std::min(size, single));
  const auto single_up = [&] {
    const auto s = cairn_bench::seconds_of(
        [&] { raw.run_one({.method = "PUT", .key = "single", .body = short_image, .has_body = true}); });
    return s * static_cast<double>(size) / static_cast<double>(short_image.size());
  };
  const auto single_down = [&] {
    const auto s = cairn_bench::seconds_of([&] {
      raw.run_one({.method = "GET", .key = "single", .into = std::span(back).first(short_image.size())});
    });
    return s * static_cast<double>(size) / static_cast<double>(short_image.size());
  };
  const auto up = cairn_bench::interleaved(pairs, timed(ours_up), timed(raw_up), single_up);
  const auto down = cairn_bench::interleaved(
      pairs, [&] { down_ours(key); }, [&] { raw.download(key, back); }, single_down);
  const auto name = "/" + std::to_string(size >> 20) + "MiB/" + place;
  const auto add = [&](const char* what, const std::vector<std::vector<double>>& seconds) {
    const auto ours = cairn_bench::rates(size, seconds[0]);
    report.add(what + name, cairn_bench::make_pairs(ours, cairn_bench::rates(size, seconds[1])), "B/s",
               latency_ms >= 10 ? cairn_bench::at_least(0.95) : cairn_bench::goal{});
    report.add(std::string(what) + "_over_single_stream" + name,
               cairn_bench::make_pairs(ours, cairn_bench::rates(size, seconds[2])), "B/s",
               latency_ms >= 50 ? cairn_bench::at_least(8) : cairn_bench::goal{});
  };
  add("upload", up);
  add("download", down);
  if (peers == nullptr) return;
  for (const auto& peer : peers->names()) {
    const auto beside = [&](const char* what, auto&& ours_once, const char* command) {
      static_cast<void>(peers->seconds(peer, command, "peer"));  // warm, and there to be read
      const auto seconds =
          cairn_bench::interleaved(pairs, ours_once, [&] { return peers->seconds(peer, command, "peer"); });
      report.add(
          what + ("/peer=" + peer) + name,
          cairn_bench::make_pairs(cairn_bench::rates(size, seconds[0]), cairn_bench::rates(size, seconds[1])),
          "B/s", cairn_bench::at_least(1.0));
    };
    beside("upload", timed(ours_up), "up");
    beside(
        "download", [&] { return cairn_bench::seconds_of([&] { down_ours(key); }); }, "down");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--help") {
    std::puts(
        "Uploads and downloads of one object by s3_store, beside libcurl by hand, against a server of its\n"
        "own, whose connections have a latency and a bandwidth.\n"
        "usage: bench_object_store [--mebibytes N] [--pairs N] [--megabytes-a-second N]\n"
        "         [--single-mebibytes N] [--json FILE] [--only PLACE] [--no-memory 1]\n"
        "         [--peers VENV [--script FILE]]\n"
        "  --megabytes-a-second: of each connection, except those of the server named `local`\n"
        "  --only: local, 1ms, 10ms or 50ms, instead of all of them\n"
        "  --peers: a virtual environment of Python with s3torchconnector, boto3 or both\n"
        "  --script: what runs them, benchmarks/s3_peer.py");
    return 0;
  }
  try {
    const auto number = [&](const char* name, std::int64_t otherwise, std::int64_t most) {
      const auto value = cairn_bench::argument(argc, argv, name, otherwise);
      if (value < 1 || value > most)
        throw std::invalid_argument(std::string(name) + " is a number from 1 to " + std::to_string(most));
      return value;
    };
    const auto size = static_cast<std::size_t>(number("--mebibytes", 512, 1 << 16)) << 20;
    const auto single = static_cast<std::size_t>(number("--single-mebibytes", 32, 1 << 16)) << 20;
    const auto pairs = static_cast<int>(number("--pairs", 5, 1000));
    const auto bandwidth =
        static_cast<std::uint64_t>(number("--megabytes-a-second", 25, 100'000)) * 1'000'000;
    const auto only = cairn_bench::argument(argc, argv, "--only");
    const auto venv = cairn_bench::argument(argc, argv, "--peers");
    auto script = cairn_bench::argument(argc, argv, "--script");
    if (script.empty()) script = "benchmarks/s3_peer.py";
    struct place {
      std::string name;
      int latency_ms;
      std::uint64_t bandwidth;
      std::unique_ptr<server_process> server = {};
      std::unique_ptr<peer_process> peers = {};
    };
    place places[] = {
        {"local", 0, 0}, {"1ms", 1, bandwidth}, {"10ms", 10, bandwidth}, {"50ms", 50, bandwidth}};
    // Before there is a second thread.
    for (auto& p : places) {
      if (!only.empty() && only != p.name) continue;
      p.server = std::make_unique<server_process>(std::chrono::milliseconds(p.latency_ms), p.bandwidth);
      if (!venv.empty()) p.peers = std::make_unique<peer_process>(venv, script, *p.server, size);
    }
    cairn_bench::report report("object_store");
    for (auto& p : places) {
      if (p.server && &p == &places[2] && cairn_bench::argument(argc, argv, "--no-memory", 0) == 0)
        run_memory(*p.server, size, report);
      if (p.server) run_resume(*p.server, p.name, std::min(size, std::size_t{64} << 20), pairs, report);
      if (p.server) run(*p.server, p.name, p.latency_ms, size, single, pairs, p.peers.get(), report);
      p.peers.reset();
    }
    report.write(cairn_bench::argument(argc, argv, "--json"));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_object_store: %s\n", e.what());
    return 1;
  }
}
