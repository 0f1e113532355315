// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/manage/stop_signal.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <system_error>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void stop_state::note(int number) noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::int64_t none = 0;
  at.compare_exchange_strong(none, std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
  int nobody = 0;
  first.compare_exchange_strong(nobody, number);
  count.fetch_add(1);
}

}  // namespace detail

CAIRN_BODY stop_signal::stop_signal(std::initializer_list<int> signals, stop_file file)
    : file_(std::move(file)) {
  if (signals.size() == 0) refuse("needs at least one signal", "");
  for (const int number : signals) check(number);
  if (detail::the_stop_state.owned.exchange(true))
    refuse("there is one in this process already; a second one would take its signals away", "");
  detail::the_stop_state.first = 0;
  detail::the_stop_state.at = 0;
  detail::the_stop_state.count = 0;
  try {
    former_.reserve(signals.size());
    for (const int number : signals) install(number);
  } catch (...) {
    restore();
    throw;
  }
}

CAIRN_BODY stop_signal::~stop_signal() {
  restore();
}

CAIRN_BODY bool stop_signal::requested() const noexcept {
  return detail::the_stop_state.count.load() != 0 || (!file_.path.empty() && sees_file());
}

CAIRN_BODY std::chrono::steady_clock::time_point stop_signal::when() const noexcept {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(detail::the_stop_state.at.load()));
}

CAIRN_BODY std::chrono::duration<double> stop_signal::since() const noexcept {
  if (!requested()) return {};
  return std::chrono::steady_clock::now() - when();
}

CAIRN_BODY bool stop_signal::sees_file() const noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  auto next = next_look_.load();
  const auto then = deadline::in(file_.every).time_point().time_since_epoch().count();
  if (now < next || !next_look_.compare_exchange_strong(next, then)) return false;
  if (::access(file_.path.c_str(), F_OK) != 0) return false;
  detail::the_stop_state.note(0);
  return true;
}

CAIRN_BODY void stop_signal::refuse(const std::string& why, const std::string& got) {
  fail(error_id::usage_bad_option, "stop_signal: " + why, {.got = got});
}

CAIRN_BODY void stop_signal::check(int number) {
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS})
    if (number == fault) refuse("this signal means a fault of the program, which cannot go on", text(number));
  if (number < 1 || number > SIGRTMAX || number == SIGKILL || number == SIGSTOP)
    refuse("this signal cannot be caught", text(number));
}

CAIRN_BODY std::string stop_signal::text(int number) {
  return "signal " + std::to_string(number);
}

CAIRN_BODY void stop_signal::install(int number) {
  struct sigaction action {};
  action.sa_handler = detail::cairn_v1_note_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  installed one{number, {}};
  if (::sigaction(number, &action, &one.before) != 0)
    refuse("the signal cannot be caught: " + std::system_category().message(errno), text(number));
  former_.push_back(one);
}

CAIRN_BODY void stop_signal::restore() noexcept {
  for (auto one = former_.rbegin(); one != former_.rend(); ++one) {
    struct sigaction now {};
    if (::sigaction(one->number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
        now.sa_handler == detail::cairn_v1_note_stop_signal)
      ::sigaction(one->number, &one->before, nullptr);
  }
  former_.clear();
  detail::the_stop_state.owned = false;
}

}  // namespace v1
}  // namespace cairn
