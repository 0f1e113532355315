// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_gathering.hpp>
#include <cairn/comm/socket/socket_job.hpp>
#include <cairn/comm/socket/socket_rendezvous.hpp>
#include <cairn/comm/socket/socket_world.hpp>
#include <cairn/links/link_frame.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/unforked_file.hpp>
#include <cairn/system/wire.hpp>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

// --- Names of hosts

CAIRN_BODY std::vector<std::string> addresses_of(const std::string& host, deadline until) {
  std::array<unsigned char, 16> numeric{};
  if (::inet_pton(AF_INET, host.c_str(), numeric.data()) == 1 ||
      ::inet_pton(AF_INET6, host.c_str(), numeric.data()) == 1)
    return {host};
  // A resolver has no deadline, and may be asked for a minute: a thread of its own waits for it.
  const auto found = detail::make_shared<std::vector<std::string>>();
  background_thread asks;
  const bool started = asks.start("cairn resolver", [found, host] {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* all = nullptr;
    if (::getaddrinfo(host.c_str(), nullptr, &wanted, &all) != 0) return;
    try {
      for (const int family : {AF_INET, AF_INET6})
        for (const addrinfo* each = all; each != nullptr; each = each->ai_next) {
          std::array<char, NI_MAXHOST> text{};
          if (each->ai_family == family &&
              ::getnameinfo(each->ai_addr, each->ai_addrlen, text.data(), static_cast<socklen_t>(text.size()),
                            nullptr, 0, NI_NUMERICHOST) == 0)
            found->emplace_back(text.data());
        }
    } catch (...) {
      // No memory for all of them. Who asks does so again.
    }
    ::freeaddrinfo(all);
  });
  if (!started) fail(error_id::storage_limit, "the system gives no thread to look for the host of rank 0");
  if (!asks.join(until)) return {};
  return *found;
}

// --- The key

/// A whole small file; nothing where it cannot be read.
inline std::optional<std::string> small_file(int number) {
  std::string text(8192, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const auto got = ::read(number, text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  return text;
}
/// The secret of a job, from where its user put it.
inline std::string secret_of(const socket_job& job) {
  if (!job.key.empty()) return job.key;
  if (const char* const text = std::getenv("CAIRN_JOB_KEY")) return text;
  const char* const path = std::getenv("CAIRN_JOB_KEY_FILE");
  if (path == nullptr) return {};
  const file_descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  auto text = file.open() ? small_file(file.get()) : std::nullopt;
  if (!text)
    fail(error_id::usage_bad_option, "the file that CAIRN_JOB_KEY_FILE names cannot be read", {.file = path});
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r' || text->back() == ' '))
    text->pop_back();
  return std::move(*text);
}
/// A key of OpenSSL's digest of the secret.
inline link_key key_of(const socket_job& job) {
  auto secret = secret_of(job);
  if (secret.size() < 32)
    fail(error_id::usage_bad_option,
         secret.empty() ? "the ranks need a secret that they share; set CAIRN_JOB_KEY on all of them to what "
                          "'openssl rand -hex 32' prints, or CAIRN_JOB_KEY_FILE to a file that has it"
                        : "the secret of a job has at least 32 characters, which nobody can guess",
         {.item = job.name});
  secret.insert(0, "cairn socket job\n");
  std::array<std::byte, 32> bytes{};
  unsigned int size = 0;
  const int good = ::EVP_Digest(secret.data(), secret.size(), reinterpret_cast<unsigned char*>(bytes.data()),
                                &size, ::EVP_sha256(), nullptr);
  ::OPENSSL_cleanse(secret.data(), secret.size());
  if (good != 1 || size != bytes.size()) fail(error_id::storage_io, "OpenSSL has no SHA-256");
  const link_key made(bytes);
  ::OPENSSL_cleanse(bytes.data(), bytes.size());
  return made;
}

// --- The file

inline constexpr std::uint32_t job_file_magic = 0x424F4A43;  // "CJOB"
inline constexpr std::uint32_t job_file_version = 1;

inline std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}
/// @throws usage_error (usage_bad_option) where others than this user may read what is there
inline void check_private(int number, const std::string& path) {
  struct stat is {};
  if (::fstat(number, &is) != 0) fail_system(errno, "the file of a job cannot be looked at");
  if (is.st_uid != ::geteuid() || (is.st_mode & 077) != 0)
    fail(error_id::usage_bad_option,
         "the ranks of a job meet by a file that holds its key, in a directory that no other user can read; "
         "give them one of this user, of mode 0700",
         {.file = path});
}

CAIRN_BODY void write_job_file(const std::string& path, const job_file& what) {
  const auto directory = directory_of(path);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    fail(error_id::storage_io, "the directory in which the ranks of a job meet cannot be made",
         {.file = directory, .got = std::strerror(errno)});
  const file_descriptor place(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!place.open()) fail_system(errno, "the directory in which the ranks of a job meet cannot be opened");
  check_private(place.get(), directory);
  wire_writer out;
  out.put(job_file_magic).put(job_file_version).raw(what.key.bytes());
  const auto address = encode(what.rank_0);
  out.put(static_cast<std::uint32_t>(address.size())).raw(address);
  out.put(digest(out.view()));
  const auto fresh = path + "." + std::to_string(what.rank_0.link) + ".new";
  const file_descriptor file(
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.open()) fail_system(errno, "the file by which the ranks of a job meet cannot be written");
  const bool written =
      ::write(file.get(), out.view().data(), out.size()) == static_cast<::ssize_t>(out.size()) &&
      ::fsync(file.get()) == 0 && ::rename(fresh.c_str(), path.c_str()) == 0;
  const int why = errno;
  if (!written) {
    ::unlink(fresh.c_str());
    fail_system(why, "the file by which the ranks of a job meet cannot be written");
  }
  static_cast<void>(::fsync(place.get()));
}

CAIRN_BODY std::optional<job_file> read_job_file(const std::string& path) {
  // A client of NFS remembers for a minute that a name is absent. To list the directory makes it ask again.
  if (DIR* const listed = ::opendir(directory_of(path).c_str())) {
    while (::readdir(listed) != nullptr) continue;
    ::closedir(listed);
  }
  const file_descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.open()) return std::nullopt;
  check_private(file.get(), path);
  const auto text = small_file(file.get());
  if (!text || text->size() < sizeof(std::uint64_t)) return std::nullopt;
  const auto bytes = std::as_bytes(std::span(*text));
  try {
    wire_reader in(bytes);
    if (in.get<std::uint32_t>() != job_file_magic || in.get<std::uint32_t>() != job_file_version)
      return std::nullopt;
    std::array<std::byte, 32> key{};
    const auto raw = in.take(key.size());
    std::copy(raw.begin(), raw.end(), key.begin());
    auto address = decode_address(in.take(in.get<std::uint32_t>()));
    const auto end = in.offset();
    if (!address || in.get<std::uint64_t>() != digest(bytes.first(end))) return std::nullopt;
    in.finish();
    return job_file{link_key(key), std::move(*address)};
  } catch (const wire_error&) {
    return std::nullopt;
  }
}

// --- The ranks meet

inline void check(const socket_job& job, const socket_options& options) {
  const auto refuse = [](const char* why, const std::string& got) {
    fail(error_id::usage_bad_option, why, {.got = got});
  };
  const bool named =
      !job.name.empty() && job.name.size() <= 64 &&
      job.name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
          std::string::npos;
  if (!named)
    fail(error_id::usage_bad_name, "the name of a job is 1 to 64 of A-Z a-z 0-9 . _ -", {.got = job.name});
  if (job.size < 1 || job.size > (1 << 20)) refuse("a job has 1 to 1048576 ranks", std::to_string(job.size));
  if (job.rank < 0 || job.rank >= job.size)
    fail(error_id::usage_bad_option, "there is no such rank",
         {.expected = "0 to " + std::to_string(job.size - 1), .got = std::to_string(job.rank)});
  if (job.size > 1 && job.host.empty() == job.file.empty())
    refuse("the ranks of a job meet either at a host or by a file", job.host + " " + job.file);
  if (job.size > 1 && !job.host.empty() && (job.port < 1 || job.ports < 1 || job.port > 65536 - job.ports))
    refuse("rank 0 listens at ports from 1 to 65535", std::to_string(job.port));
  if (job.run.size() > 512) refuse("socket_job::run has at most 512 bytes", std::to_string(job.run.size()));
  if (options.lost_after < std::chrono::milliseconds(500))
    refuse("socket_options::lost_after is at least 0.5 s", "less");
  if (options.stopped_after != options.stopped_after.zero() &&
      options.stopped_after < std::chrono::milliseconds(500))
    refuse("socket_options::stopped_after is 0 or at least 0.5 s", "less");
  if (options.handshake_timeout <= std::chrono::nanoseconds(0))
    refuse("socket_options::handshake_timeout is longer than nothing", "no time");
  if (options.ports < 1) refuse("socket_options::ports is at least 1", "0");
}

/// @throws storage_error (storage_limit) where rank 0 cannot have a connection to each of the others
inline void check_limits(const socket_job& job) {
  struct rlimit files {};
  const auto needed = static_cast<std::uint64_t>(job.size) + 2;
  if (job.rank != 0 || job.size == 1 || ::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed)
    return;
  fail(error_id::storage_limit,
       "rank 0 has a connection to each of the others, and its process may not have so many files open; "
       "raise that limit (ulimit -n)",
       {.rank = 0,
        .item = job.name,
        .expected = "more than " + std::to_string(needed),
        .got = std::to_string(files.rlim_cur)});
}

/// Listens for other ranks; where they come in the clear, at `meeting` and nowhere else unless the user says so.
inline owned<unforked_file> listen_for_ranks(const socket_job& job, const socket_options& options,
                                             const std::string& meeting, link_address& told) {
  auto address = options.address;
  if (address.empty() && options.protection == socket_protection::plaintext) address = meeting;
  const bool first = job.rank == 0 && job.file.empty();
  auto made =
      listen_at(address, first ? job.port : options.first_port, first ? job.ports : options.ports, told);
  // Of the generator that keys come from: nobody else's.
  const auto number = link_key::random();
  for (std::size_t i = 0; i < 8; ++i)
    told.link = told.link << 8 | std::to_integer<std::uint64_t>(number.bytes()[i]);
  return made;
}

/// What listens in the place of a port that an earlier run has left may end within a moment. The only one that rank 0 may
/// have is its own until the system has freed the memory of a process that was killed, which takes a second for 20 GiB.
inline owned<unforked_file> listen_patiently(const socket_job& job, const socket_options& options,
                                             const std::string& meeting, link_address& told) {
  const bool only = job.rank == 0 && job.file.empty() && job.ports == 1;
  const auto until =
      deadline::in(std::min<std::chrono::nanoseconds>(options.timeout, std::chrono::seconds(only ? 60 : 2)));
  for (;;) try {
      return listen_for_ranks(job, options, meeting, told);
    } catch (const usage_error& e) {
      if (e.message() != no_free_port || !sleep_for(std::chrono::milliseconds(100), until)) throw;
    }
}

/// The address at which ranks in the clear listen: the loopback where rank 0 is there.
inline std::string plain_address(const std::vector<std::string>& of_rank_0, bool is_rank_0) {
  if (!of_rank_0.empty() &&
      (is_rank_0 || of_rank_0.front() == "::1" || of_rank_0.front().compare(0, 4, "127.") == 0))
    return of_rank_0.front();
  if (of_rank_0.empty()) return "127.0.0.1";
  fail(error_id::usage_bad_option,
       "in the clear a rank listens at no address but those that it is told to; give it one in "
       "socket_options::address",
       {.got = of_rank_0.front()});
}

/// Pauses between tries to find rank 0, which is often started some moments later: many ranks ask more rarely than few.
inline backoff between_tries(int ranks) noexcept {
  const auto longest = std::clamp(std::chrono::milliseconds(ranks), std::chrono::milliseconds(50),
                                  std::chrono::milliseconds(500));
  return {std::chrono::milliseconds(10), longest};
}

/// A rank other than 0 looks for rank 0.
inline void find_rank_0(socket_world& world, const socket_job& job, const socket_options& options,
                        deadline until) {
  auto pause = between_tries(job.size);
  const auto begin = deadline::clock::now();
  int refusals = 0;
  std::string found;
  // Where there are many, one that swallows what comes may not take the time of the others.
  const auto limit = job.ports > 1 ? std::chrono::nanoseconds(std::chrono::seconds(2)) : options.timeout;
  for (;;) {
    const auto hosts = addresses_of(job.host, until);
    if (hosts.empty()) found = "nobody knows the host " + job.host;
    for (const auto& host : hosts)
      for (std::uint32_t port = job.port; port < std::uint32_t{job.port} + job.ports; ++port) {
        const auto tried = come(world.service(), host, static_cast<std::uint16_t>(port), 0,
                                until.earlier(deadline::in(limit)));
        if (tried.came) return;
        if (tried.refused) ++refusals;
        if (tried.refused || refusals == 0) found = tried.text;
      }
    if (job.ports == 1 && refusals >= 3 && deadline::clock::now() - begin > std::chrono::seconds(2))
      fail(
          error_id::peer_refused,
          "what listens at the address of rank 0 is not rank 0 of this job; see that all ranks have the same "
          "CAIRN_JOB_KEY, name of the job and protection, and that no other program has the port",
          {.rank = 0, .item = job.name, .got = found});
    if (!pause.wait(until))
      fail(error_id::timeout_peer,
           "rank 0 was not found by the deadline, at " + job.host + " port " + std::to_string(job.port) +
               (job.ports > 1 ? " to " + std::to_string(job.port + job.ports - 1) : ""),
           {.rank = 0, .item = job.name, .got = found});
  }
}

/// The same by a file, which may be one of an earlier run until rank 0 has written its own.
inline owned<socket_world> find_by_file(const socket_world_options& told, const socket_job& job,
                                        const socket_options& options, deadline until) {
  auto pause = between_tries(job.size);
  std::uint64_t link = 0;
  std::string found = "there is no such file";
  for (;;) {
    if (const auto file = read_job_file(job.file)) {
      link_address own;
      auto listening = listen_for_ranks(job, options, "127.0.0.1", own);
      // By it rank 0 knows another try of this process, whose last one it may not have seen to end.
      if (link == 0) link = own.link;
      own.link = link;
      auto world = detail::make_owned<socket_world>(told, file->key, std::move(listening), std::move(own));
      for (const auto& host : file->rank_0.hosts) {
        const auto tried = come(world->service(), host, file->rank_0.port, file->rank_0.link,
                                until.earlier(deadline::in(std::chrono::seconds(10))));
        if (tried.came) return world;
        found = tried.text;
      }
    }
    if (!pause.wait(until))
      fail(error_id::timeout_peer,
           "rank 0 was not found by the deadline: it has not written the file, or does not answer",
           {.rank = 0, .item = job.name, .file = job.file, .got = found});
  }
}

CAIRN_BODY owned<socket_world> meet(const socket_job& job, const socket_options& options) {
  check(job, options);
  check_limits(job);
  const auto until = deadline::in(options.timeout);
  const bool plain = options.protection == socket_protection::plaintext;
  socket_world_options told;
  told.job = job.run.empty() ? job.name : job.name + " (" + job.run + ")";
  told.rank = job.rank;
  told.size = job.size;
  told.plain = plain;
  told.lost_after = options.lost_after;
  told.stopped_after = options.stopped_after;
  told.handshake_timeout = options.handshake_timeout;
  if (job.size == 1)
    return detail::make_owned<socket_world>(told, link_key::random(), nullptr, link_address());

  const bool by_file = !job.file.empty();
  if (by_file && job.rank != 0) {
    auto world = find_by_file(told, job, options, until);
    await_begin(world->service(), until);
    return world;
  }
  const auto key = plain || by_file ? link_key::random() : key_of(job);
  std::string meeting;
  if (plain && options.address.empty())
    meeting =
        plain_address(by_file ? std::vector<std::string>() : addresses_of(job.host, until), job.rank == 0);
  link_address own;
  auto listening = listen_patiently(job, options, meeting, own);
  auto world = detail::make_owned<socket_world>(told, key, std::move(listening), own);
  if (job.rank != 0) {
    find_rank_0(*world, job, options, until);
    await_begin(world->service(), until);
    return world;
  }
  if (!by_file) {
    gather(world->service(), until);
    return world;
  }
  /// Removes the file, unless that is another rank 0's by now.
  struct removal {
    const std::string& path;
    std::uint64_t link;
    ~removal() {
      try {
        if (const auto now = read_job_file(path); now && now->rank_0.link == link) ::unlink(path.c_str());
      } catch (...) {
        // The next rank 0 writes over it.
      }
    }
  };
  write_job_file(job.file, {key, own});
  const removal after{job.file, own.link};
  gather(world->service(), until);
  return world;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
