// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Tries what checkpoints rely on in a directory or a bucket, and says what follows from each answer.
#include <CLI/CLI.hpp>

#include <signal.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tools/json.hpp"
#include "tools/program.hpp"
#include "tools/status.hpp"
#include "tools/store.hpp"
#include "tools/terminal.hpp"

namespace {

struct doctor_arguments {
  std::string url;
  bool single_writer = false;
  bool json = false;
};

using verdict = cairn::store_check::verdict;

const char* name_of(verdict v) {
  switch (v) {
    case verdict::right:
      return "right";
    case verdict::weaker:
      return "weaker";
    case verdict::single_job:
      return "single job";
    case verdict::unusable:
      break;
  }
  return "unusable";
}

/// A directory is looked at as it is: none is made.
tools::store_type open(const doctor_arguments& arguments) {
  if (const auto directory = tools::directory_of(arguments.url))
    return tools::store_type(cairn::file_store{
        *directory, {.root = cairn::root_directory::must_exist, .single_writer = arguments.single_writer}});
  return tools::open_store(arguments.url);
}

/// The signal that asks for the end, which what is tried is taken away before; a second one ends the program at once.
volatile std::sig_atomic_t asked_to_end = 0;

void wait_for_signals() {
  struct sigaction once = {};
  once.sa_handler = [](int) { asked_to_end = 1; };
  once.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &once, nullptr);
}

tools::exit_status examine(const doctor_arguments& arguments, tools::terminal& lines) {
  if (arguments.single_writer && !tools::directory_of(arguments.url)) {
    lines.complain(
        "--single-writer is for directories; of a bucket, ?exclusive=single-writer of the URL says it");
    return tools::wrong_options;
  }
  auto store = open(arguments);
  wait_for_signals();
  lines.progress_begun("trying " + arguments.url);
  const auto report = store.self_test();
  const auto space = store.free_space();
  lines.end_progress();
  if (asked_to_end != 0) {
    lines.complain("ended by a signal; what was tried is taken away again");
    return tools::failed;
  }
  const bool refused =
      report.has(verdict::unusable) || (report.has(verdict::single_job) && !report.single_writer);
  if (arguments.json) {
    std::string points;
    for (const auto& p : report.points)
      points += (points.empty() ? "" : ", ") + tools::json_object()
                                                   .text("what", p.what)
                                                   .text("outcome", name_of(p.outcome))
                                                   .text("seen", p.seen)
                                                   .text("follows", p.follows)
                                                   .line();
    tools::json_object all;
    all.text("store", store.describe()).text("kind", report.kind).text("mounted", report.from);
    all.truth("single_writer", report.single_writer).truth("usable", !refused);
    if (space) all.number("free_bytes", space->bytes);
    lines.say(all.raw("points", "[" + points + "]").line());
  } else {
    lines.say(store.describe());
    if (!report.from.empty()) lines.say("mounted: " + report.from);
    if (space) lines.say("free: " + tools::size_text(space->bytes));
    for (const auto& p : report.points) {
      char head[16];
      std::snprintf(head, sizeof head, "%-11s", name_of(p.outcome));
      lines.say(head + p.what + ": " + p.seen);
      if (!p.follows.empty()) lines.say("           " + p.follows);
    }
  }
  if (report.points.empty()) lines.complain("this kind of store tries nothing");
  if (refused) lines.complain("a run that saves here is refused (storage.unsafe)");
  return refused ? tools::unreadable : tools::fine;
}

}  // namespace

int main(int argc, char** argv) {
  doctor_arguments arguments;
  CLI::App app{
      "Tries what checkpoints rely on in a directory or a bucket, as resume() and prepare() of a run do: "
      "names\n"
      "that are given to one writer alone, locks, fsync; and says what follows. Leaves nothing behind.",
      "doctor"};
  app.footer(std::string(tools::url_help) + tools::status_help);
  app.add_option("url", arguments.url, "where checkpoints are to be")->required()->option_text("URL");
  app.add_flag("--single-writer", arguments.single_writer,
               "judge a directory as where one job alone writes (file_store_options::single_writer)");
  app.add_flag("--json", arguments.json, tools::json_help);
  return tools::run_program(app, argc, argv,
                            [&](tools::terminal& lines) { return examine(arguments, lines); });
}
