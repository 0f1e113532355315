// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Reads every byte of checkpoints, wherever they are, and compares all digests; names every damaged place and
// goes on to the end. Changes nothing.
#include <CLI/CLI.hpp>
#include <cairn/manage/stop_signal.hpp>
#include <cairn/manage/verify.hpp>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/json.hpp"
#include "tools/numbers.hpp"
#include "tools/program.hpp"
#include "tools/status.hpp"
#include "tools/store.hpp"
#include "tools/terminal.hpp"

namespace {

struct verify_arguments {
  std::string url;
  std::int64_t step = -1;
  bool json = false;
  std::uint64_t memory_megabytes = 128;
};

tools::exit_status verify_step(tools::reader_type& reader, std::int64_t step,
                               const verify_arguments& arguments, const cairn::stop_signal& stop,
                               tools::terminal& lines) {
  const auto name = "step " + std::to_string(step);
  cairn::verify_options options;
  options.memory_bytes = arguments.memory_megabytes << 20;
  options.found = [&](const cairn::damage& d) {
    lines.complain(name + ": " + cairn::to_string(d));
    if (arguments.json)
      lines.say(tools::json_object()
                    .step("step", step)
                    .text("what", d.what)
                    .text("item", d.item)
                    .text("file", d.file)
                    .step("offset", d.offset)
                    .number("bytes", d.bytes)
                    .step("rank", d.rank)
                    .truth("unreadable", d.unreadable)
                    .line());
  };
  options.progress = [&](std::uint64_t done, std::uint64_t all) {
    lines.progress(name + "  reading", done, all);
  };
  options.stop = [&] { return stop.requested(); };
  const auto begin = std::chrono::steady_clock::now();
  const auto report = cairn::verify_checkpoint(reader, step, options);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  char text[40];
  std::snprintf(text, sizeof text, " in %.2f s", seconds.count());
  const auto read =
      tools::size_text(report.bytes) + " in " + tools::count_text(report.files, "file") + " read" + text;
  const auto lost = report.damages - report.unreadable;
  if (arguments.json)
    lines.say(tools::json_object()
                  .step("step", step)
                  .truth("good", report.good())
                  .number("damaged_places", lost)
                  .number("unreadable_places", report.unreadable)
                  .number("files", report.files)
                  .number("bytes", report.bytes)
                  .real("seconds", seconds.count())
                  .line());
  else if (lost != 0)
    lines.say(name + "  is damaged in " + tools::count_text(lost, "place") + ": " + read);
  else if (report.unreadable != 0)
    lines.say(name + "  cannot be read in " + tools::count_text(report.unreadable, "place") + ": " + read);
  else if (report.complete)
    lines.say(name + "  every digest is right: " + read);
  return lost != 0 ? tools::damaged : report.unreadable != 0 ? tools::unreadable : tools::fine;
}

tools::exit_status verify(const verify_arguments& arguments, tools::terminal& lines) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  const tools::storage_type storage{tools::open_store(arguments.url)};
  auto reader = storage.reader();
  auto steps = reader.list();
  if (arguments.step >= 0) steps = {arguments.step};
  if (steps.empty()) {
    lines.complain(tools::no_checkpoint_in(arguments.url));
    return tools::nothing_there;
  }
  auto status = tools::fine;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    try {
      status = tools::worse(status, verify_step(reader, steps[i], arguments, stop, lines));
    } catch (const cairn::error& error) {
      // One that a running job removed meanwhile is none that is missing; a store that is gone is another matter.
      if (error.id() == cairn::error_id::storage_not_committed && arguments.step < 0) {
        if (!arguments.json) lines.say("step " + std::to_string(steps[i]) + "  is not there any more");
        continue;
      }
      status = tools::worse(status, tools::status_of(error));
      if (arguments.json)
        lines.say(tools::json_object()
                      .step("step", steps[i])
                      .truth("good", false)
                      .text("why", error.what())
                      .line());
      lines.complain("step " + std::to_string(steps[i]) + ": " + error.what());
    }
    if (stop.requested()) {
      lines.complain("ended by a signal after " + std::to_string(i) + " of " +
                     tools::count_text(steps.size(), "checkpoint") + "; go on with --step " +
                     std::to_string(steps[i]) + " and those behind it");
      return tools::worse(status, tools::failed);
    }
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  verify_arguments arguments;
  CLI::App app{
      "Reads every byte of all checkpoints, or of one, and compares every digest. Names each damaged item,\n"
      "its file and offset, and goes on to the end. Changes nothing; a job may go on training.",
      "verify"};
  app.footer(std::string(tools::url_help) + tools::status_help);
  app.option_defaults()->always_capture_default();
  app.add_option("url", arguments.url, "where the checkpoints are")->required()->option_text("URL");
  app.add_option("--step", arguments.step, "verify one checkpoint (default: all)")
      ->transform(tools::whole_number(0))
      ->option_text("N");
  app.add_option("--memory", arguments.memory_megabytes, "MiB of buffers, about")
      ->check(CLI::Range(1, 65536));
  app.add_flag("--json", arguments.json, tools::json_help);
  return tools::run_program(app, argc, argv,
                            [&](tools::terminal& lines) { return verify(arguments, lines); });
}
