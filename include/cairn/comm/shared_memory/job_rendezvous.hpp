// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/algorithm.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// @throws usage_error (usage_bad_name) unless the name is 1 to 64 of A-Z a-z 0-9 . _ -
inline void check_job_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > 64 || !detail::all_of(name, allowed))
    fail(error_id::usage_bad_name, "the name of a job has 1 to 64 of the characters A-Z a-z 0-9 . _ -",
         {.got = std::to_string(name.size()) + " characters"});
}

/// Where the ranks of a job meet: a socket of the abstract namespace, which lives in the kernel alone and
/// ends with its owner. Each user has names of its own.
struct job_address {
  explicit job_address(std::string_view name) {
    check_job_name(name);
    const auto path = "cairn-" + std::to_string(::geteuid()) + "-" + std::string(name);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, path.data(), path.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t length = 0;
};

[[nodiscard]] inline file_descriptor job_socket() {
  file_descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.open()) fail_system(errno, "a socket for the rendezvous of a job's ranks could not be made");
  return made;
}

/// What a rank says when it comes, and what rank 0 answers; with a welcome goes the shared memory.
enum class rendezvous_answer : std::uint32_t {
  welcome,
  other_version,
  other_size,
  no_such_rank,
  taken,
  mixed
};
struct rendezvous_hello {
  std::uint64_t magic = 0x4F4C4C4548434343;
  std::uint32_t version = 1;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint32_t reserved = 0;
};
struct rendezvous_reply {
  std::uint64_t magic = 0x594C504552434343;
  std::uint32_t version = 1;
  rendezvous_answer answer = rendezvous_answer::welcome;
  std::int32_t size = 0;
  std::uint32_t reserved = 0;
};

/// Sends an answer, with a descriptor where one is given. Whether it went; a peer that is gone is no error.
inline bool send_reply(int to, const rendezvous_reply& reply, int descriptor) noexcept {
  auto copy = reply;
  iovec part{&copy, sizeof copy};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  }
  return ::sendmsg(to, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof copy);
}

/// Takes an answer and the descriptor that comes with it. Whether it was one.
inline bool take_reply(int from, rendezvous_reply& reply, file_descriptor& descriptor) noexcept {
  iovec part{&reply, sizeof reply};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const auto got = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got >= 0) {
    const cmsghdr* head = CMSG_FIRSTHDR(&message);
    if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof(int))) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(head), sizeof number);
      descriptor = file_descriptor(number);
    }
  }
  return got == static_cast<ssize_t>(sizeof reply) && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
         reply.magic == rendezvous_reply().magic;
}

/// Who is at the other end of a socket.
[[nodiscard]] inline ucred peer_of(int socket) noexcept {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) who.uid = static_cast<uid_t>(-1);
  return who;
}

/// Rank 0's side: takes the job's name, and lets ranks in. While it lives, the name is taken.
class rendezvous_host {
 public:
  /// Waits a little for a job of the same name that is about to end.
  /// @throws usage_error (usage_bad_option) if it does not.
  rendezvous_host(const std::string& job, deadline until) : socket_(job_socket()) {
    const job_address where(job);
    until = until.earlier(deadline::in(std::chrono::seconds(2)));
    while (::bind(socket_.get(), where.get(), where.length) != 0) {
      if (errno != EADDRINUSE) fail_system(errno, "the name of a job could not be taken");
      if (!sleep_for(std::chrono::milliseconds(5), until))
        fail(error_id::usage_bad_option,
             "another job of this name runs on this host; give each run a name of its own, or end that one",
             {.item = job});
    }
    if (::listen(socket_.get(), SOMAXCONN) != 0) fail_system(errno, "no rank can join the job");
  }

  /// Waits at most until the deadline for something to happen, and answers those who came:
  /// `admit(hello, pid)` gives the answer, `gone(rank)` tells that one who was welcomed has hung up, as it
  /// does when it is ready.
  template <class Admit, class Gone>
  void serve(int memory, int size, deadline until, Admit&& admit, Gone&& gone) {
    std::vector<pollfd> list{{socket_.get(), POLLIN, 0}};
    for (const auto& each : joining_) list.push_back({each.socket.get(), POLLIN, 0});
    const auto left = std::min<std::chrono::nanoseconds>(until.left(), std::chrono::seconds(1));
    if (::poll(list.data(), list.size(), static_cast<int>((left.count() + 999'999) / 1'000'000)) <= 0) return;
    for (std::size_t i = joining_.size(); i-- > 0;) {
      if (list[i + 1].revents == 0 || read_hello(joining_[i], memory, size, admit)) continue;
      const int rank = joining_[i].rank;
      joining_.erase(joining_.begin() + static_cast<std::ptrdiff_t>(i));
      if (rank >= 0) gone(rank);
    }
    if (list[0].revents != 0) accept_all();
  }
  /// Lets nobody in any more; the name stays taken. Who still waits is sent away.
  void close() noexcept {
    static_cast<void>(::shutdown(socket_.get(), SHUT_RDWR));
    joining_.clear();
    while (file_descriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)).open()) {
    }
  }
  /// What those wanted who were sent away; for messages.
  [[nodiscard]] const std::string& refused() const noexcept { return refused_; }

 private:
  struct joining_rank {
    file_descriptor socket;
    int rank = -1;  ///< once welcomed
  };

  void accept_all() {
    for (;;) {
      file_descriptor came(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!came.open()) {
        const int why = errno;
        if (why == EAGAIN || why == EINTR || why == ECONNABORTED) return;
        refused_ = refused_connection(0, why);
        // Who waits to be let in would wake it at once again.
        sleep_for(std::chrono::milliseconds(10), deadline::never());
        return;
      }
      // Nobody else can speak for this user; and no crowd of the silent keeps the ranks out.
      if (peer_of(came.get()).uid != ::geteuid()) continue;
      if (joining_.size() >= max_joining) joining_.erase(joining_.begin());
      joining_.push_back({std::move(came)});
    }
  }
  /// Whether the rank stays.
  template <class Admit>
  bool read_hello(joining_rank& one, int memory, int size, Admit&& admit) {
    rendezvous_hello hello;
    const auto got = ::recv(one.socket.get(), &hello, sizeof hello, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (one.rank >= 0 || got < 12 || hello.magic != rendezvous_hello().magic) return false;
    rendezvous_reply reply;
    reply.size = size;
    const auto pid = peer_of(one.socket.get()).pid;
    if (hello.version != rendezvous_hello().version || got != static_cast<ssize_t>(sizeof hello))
      reply.answer = rendezvous_answer::other_version;
    else
      reply.answer = admit(hello, static_cast<std::int32_t>(pid));
    const bool welcome = reply.answer == rendezvous_answer::welcome;
    if (!welcome)
      refused_ = "process " + std::to_string(pid) + " came as rank " + std::to_string(hello.rank) + " of " +
                 std::to_string(hello.size) + " and was sent away";
    if (!send_reply(one.socket.get(), reply, welcome ? memory : -1) || !welcome) return false;
    one.rank = hello.rank;
    return true;
  }

  static constexpr std::size_t max_joining = 1024;

  file_descriptor socket_;
  std::vector<joining_rank> joining_;
  std::string refused_;
};

/// What a rank other than 0 gets: the shared memory, and the connection, to be dropped when it is ready.
struct rendezvous_address {
  file_descriptor memory;
  file_descriptor connection;
};

/// Waits for rank 0 and asks it to be let in.
/// @throws timeout_error (timeout_peer) that names rank 0, usage_error if rank 0 does not want this rank.
[[nodiscard]] inline rendezvous_address ask_in(const std::string& job, int rank, int size, deadline until) {
  const job_address where(job);
  for (backoff polling(std::chrono::milliseconds(1), std::chrono::milliseconds(20));;) {
    rendezvous_address place{{}, job_socket()};
    const int socket = place.connection.get();
    if (::connect(socket, where.get(), where.length) == 0) {
      if (peer_of(socket).uid != ::geteuid())
        fail(error_id::storage_permission, "the name of this job is held by another user", {.item = job});
      rendezvous_hello hello;
      hello.rank = rank;
      hello.size = size;
      rendezvous_reply reply;
      if (::send(socket, &hello, sizeof hello, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof hello) &&
          poll_one(socket, POLLIN, until) && take_reply(socket, reply, place.memory)) {
        switch (reply.answer) {
          case rendezvous_answer::welcome:
            if (place.memory.open()) return place;
            fail(error_id::storage_limit, "the shared memory of the job could not be taken over",
                 {.got = "no file descriptor is left"});
          case rendezvous_answer::other_size:
            fail(error_id::usage_bad_option, "rank 0 of this job expects another number of ranks",
                 {.rank = rank,
                  .item = job,
                  .expected = std::to_string(reply.size),
                  .got = std::to_string(size)});
          case rendezvous_answer::taken:
            fail(error_id::usage_bad_option, "this rank of the job has a process already",
                 {.rank = rank, .item = job});
          case rendezvous_answer::mixed:
            fail(error_id::usage_bad_option,
                 "a process is one rank of a job; only a job of one process has several in it",
                 {.rank = rank, .item = job});
          case rendezvous_answer::no_such_rank:
          case rendezvous_answer::other_version:
            break;
        }
        fail(error_id::peer_bad_message, "rank 0 of this job runs another version of cairn",
             {.rank = 0,
              .item = job,
              .expected = "version " + std::to_string(rendezvous_hello().version),
              .got = "version " + std::to_string(reply.version)});
      }
    } else if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR && errno != ECONNRESET) {
      fail_system(errno, "rank 0 of the job could not be reached");
    }
    if (!polling.wait(until)) break;
  }
  const auto probe = job_socket();
  if (::bind(probe.get(), where.get(), where.length) != 0 && errno == EADDRINUSE)
    fail(error_id::timeout_peer,
         "rank 0 did not let this rank in by the deadline: a job of this name runs on this host, and is "
         "complete or does not answer",
         {.rank = 0, .item = job});
  fail(error_id::timeout_peer, "rank 0 did not come to the job by the deadline", {.rank = 0, .item = job});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
