// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Tries what checkpoints rely on in a directory or a bucket, and says what follows from each answer.
#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

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

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    if (byte >= 0x20) {
      out += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(byte));
      out += escaped;
    }
  }
  return out + '"';
}

/// A directory is looked at as it is: none is made.
tools::store_type open(const doctor_arguments& arguments) {
  if (const auto directory = tools::directory_of(arguments.url))
    return tools::store_type(cairn::file_store{
        *directory, {.root = cairn::root_directory::must_exist, .single_writer = arguments.single_writer}});
  return tools::open_store(arguments.url);
}

tools::exit_status examine(const doctor_arguments& arguments, tools::terminal& lines) {
  auto store = open(arguments);
  const auto report = store.self_test();
  const auto space = store.free_space();
  const bool refused =
      report.has(verdict::unusable) || (report.has(verdict::single_job) && !report.single_writer);
  if (arguments.json) {
    std::string text = "{\"store\": " + json_text(store.describe()) +
                       ", \"kind\": " + json_text(report.kind) + ", \"mounted\": " + json_text(report.from) +
                       ", \"single_writer\": " + (report.single_writer ? "true" : "false") +
                       ", \"usable\": " + (refused ? "false" : "true");
    if (space) text += ", \"free_bytes\": " + std::to_string(space->bytes);
    text += ", \"points\": [";
    for (const auto& p : report.points)
      text += std::string(&p == report.points.data() ? "" : ", ") + "{\"what\": " + json_text(p.what) +
              ", \"outcome\": " + json_text(name_of(p.outcome)) + ", \"seen\": " + json_text(p.seen) +
              ", \"follows\": " + json_text(p.follows) + "}";
    lines.say(text + "]}");
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
      "Tries what checkpoints rely on in a directory or a bucket, as a run does before its first save: "
      "names\n"
      "that are given to one writer alone, locks, fsync; and says what follows. Leaves nothing behind.",
      "doctor"};
  app.footer(std::string(tools::url_help) + tools::status_help);
  app.add_option("url", arguments.url, "where checkpoints are to be")->required()->option_text("URL");
  app.add_flag("--single-writer", arguments.single_writer,
               "judge a directory as where one job alone writes (file_store_options::single_writer)");
  app.add_flag("--json", arguments.json, "one line of JSON");
  return tools::run_program(app, argc, argv,
                            [&](tools::terminal& lines) { return examine(arguments, lines); });
}
