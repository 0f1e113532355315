// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_dial.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/comm/socket/socket_gathering.hpp>
#include <cairn/comm/socket/socket_service.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

// --- How ranks meet

CAIRN_BODY void gather(socket_service& in, deadline until) {
  std::optional<deadline> told_by;
  for (;;) {
    const auto seen = in.changed.current();
    std::exception_ptr failure;
    {
      const std::lock_guard lock(in.mutex);
      // Not before the others know it: this rank may leave at once.
      if (in.all_know) return;
      std::string missing;
      int first = -1, count = 0;
      for (int rank = 1; rank < in.options.size && failure == nullptr; ++rank) {
        const auto& p = in.peer(rank);
        if (p.gone && in.at == socket_service::phase::gathering)
          failure =
              make_failure(error_id::peer_lost, "a rank ended before all ranks of the job had come: " + p.why,
                           {.rank = rank, .item = in.options.job, .got = in.who(rank)});
        if (p.came) continue;
        if (first < 0) first = rank;
        if (++count <= 16) missing += (count == 1 ? "" : ", ") + std::to_string(rank);
      }
      if (count > 16) missing += " and " + std::to_string(count - 16) + " more";
      if (failure == nullptr && until.passed() && in.at == socket_service::phase::gathering)
        failure = make_failure(error_id::timeout_peer,
                               "ranks did not come to the job by the deadline: " + missing +
                                   (in.last_refused.empty() ? "" : "; " + in.last_refused),
                               {.rank = first, .item = in.options.job});
      if (!told_by && in.at == socket_service::phase::begun)
        told_by = deadline::in(in.options.handshake_timeout);
      if (failure == nullptr && told_by && told_by->passed() && until.passed())
        failure = make_failure(error_id::timeout_peer,
                               "all ranks have come, and rank 0 could not tell them by the deadline; see "
                               "whether its host is out of memory",
                               {.item = in.options.job});
    }
    if (failure != nullptr) {
      in.give_up(failure);
      std::rethrow_exception(failure);
    }
    in.changed.wait(seen, told_by && until.passed() ? *told_by : until);
  }
}

CAIRN_BODY void await_begin(socket_service& in, deadline until) {
  for (;;) {
    const auto seen = in.changed.current();
    {
      const std::lock_guard lock(in.mutex);
      if (in.at == socket_service::phase::begun) return;
      if (in.at == socket_service::phase::given_up) std::rethrow_exception(in.failure);
      if (in.peer(0).gone)
        fail(error_id::peer_lost, "rank 0 ended before all ranks of the job had come: " + in.peer(0).why,
             {.rank = 0, .item = in.options.job, .got = in.who(0)});
      if (until.passed())
        fail(error_id::timeout_peer,
             "ranks did not come to the job by the deadline: " +
                 (in.waiting_for.empty() ? std::string("rank 0 has not said which") : in.waiting_for),
             {.rank = std::max(in.first_missing, 0), .item = in.options.job});
    }
    in.changed.wait(seen, until);
  }
}

CAIRN_BODY found_rank_0 come(socket_service& in, const std::string& host, std::uint16_t port,
                             std::uint64_t listener, deadline until) {
  using status = socket_answer::status;
  auto made = dial(in, host, port, listener, until);
  // A rank 0 that has no time answers nothing, and proves to be of this job later.
  if (!made.answer) return {false, made.reached && !made.silent, made.text};
  const auto& o = in.options;
  const auto refuse = [&](const char* sentence, const std::string& expected, const std::string& got) {
    fail(error_id::usage_bad_option, sentence,
         {.rank = o.rank, .item = o.job, .expected = expected, .got = got});
  };
  const auto where = host + " port " + std::to_string(port);
  switch (made.answer->what) {
    case status::welcome:
      break;
    case status::other_size:
      refuse("rank 0 was started with another number of ranks", std::to_string(made.answer->size),
             std::to_string(o.size));
      break;
    case status::no_such_rank:
      refuse("there is no such rank", "1 to " + std::to_string(made.answer->size - 1),
             std::to_string(o.rank));
      break;
    case status::taken:
      refuse("this rank has come already: it was started twice, or one of an earlier start is still there",
             "one process for each rank", made.answer->text);
      break;
    case status::other_job:
      return {false, true, where + ": job '" + made.answer->text + "' has it"};
    case status::other_listener:
      return {false, true, where + ": another rank has it"};
    case status::given_up:
      return {false, true, where + ": rank 0 gave up to wait for the others"};
  }
  {
    const std::lock_guard lock(in.mutex);
    in.peer(0).place.from.hosts = {host};
  }
  in.add(made.connection, 0, true);
  // Rank 0 takes a connection that ends before this for a try that was given up.
  const std::lock_guard lock(made.connection->mutex);
  made.connection->post({.what = socket_frame::kind::heartbeat}, {});
  in.arm(*made.connection);
  return {true, false, {}};
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
