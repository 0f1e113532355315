// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Copies checkpoints from one store to another, or to another place of the same. What arrived before is not
// sent again; each copy is read back and verified before it is committed, so that none is ever seen by half.
#include <CLI/CLI.hpp>
#include <cairn/manage/copy.hpp>
#include <cairn/manage/stop_signal.hpp>

#include <csignal>
#include <cstddef>
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

struct copy_arguments {
  std::string from, to;
  std::int64_t step = -1;
  bool newest = false;
  bool json = false;
  std::uint64_t memory_megabytes = 128;
};

tools::exit_status copy_step(tools::store_type& from, const tools::storage_type& to, std::int64_t step,
                             const copy_arguments& arguments, const cairn::stop_signal& stop,
                             tools::terminal& lines) {
  const auto name = "step " + std::to_string(step);
  cairn::copy_options options;
  options.memory_bytes = arguments.memory_megabytes << 20;
  options.found = [&](const cairn::damage& d) { lines.complain(name + ": " + cairn::to_string(d)); };
  options.progress = [&](cairn::copy_phase phase, std::uint64_t done, std::uint64_t all) {
    lines.progress(name + (phase == cairn::copy_phase::send ? "  sending" : "  reading back"), done, all);
  };
  options.stop = [&] { return stop.requested(); };
  const auto report = cairn::copy_checkpoint(from, to, step, options);
  using outcome = cairn::copy_report::outcome;
  const auto sent = tools::size_text(report.sent_bytes) + " in " +
                    tools::count_text(report.sent_objects, "object") + " sent, " +
                    std::to_string(report.kept_objects) + " were there";
  if (arguments.json && report.ended != outcome::stopped) {
    lines.say(tools::json_object()
                  .step("step", step)
                  .truth("was_there", report.ended == outcome::was_there)
                  .number("sent_objects", report.sent_objects)
                  .number("sent_bytes", report.sent_bytes)
                  .number("kept_objects", report.kept_objects)
                  .line());
    return tools::fine;
  }
  if (report.ended == outcome::was_there) lines.say(name + "  is there already");
  if (report.ended == outcome::copied) lines.say(name + "  copied and verified: " + sent);
  return report.ended == outcome::stopped ? tools::failed : tools::fine;
}

/// Whether other steps may be copied where this came of one: it is damaged or cannot be read, or the target failed for a moment.
bool is_of_one_step(const cairn::error& error) {
  switch (error.id()) {
    case cairn::error_id::storage_not_committed:      // the one that was asked for
    case cairn::error_id::storage_no_space:           // of the target, as what follows
    case cairn::error_id::storage_already_committed:  // another run's checkpoints lie there
    case cairn::error_id::storage_aborted:            // a job has resumed there
      return false;
    default:
      return error.kind() == cairn::error_kind::corrupt || error.kind() == cairn::error_kind::storage;
  }
}

tools::exit_status copy(const copy_arguments& arguments, tools::terminal& lines) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  auto from = tools::open_store(arguments.from);
  const tools::storage_type to{tools::open_store(arguments.to)};
  auto steps = tools::storage_type{from}.reader().list();
  if (arguments.step >= 0) steps = {arguments.step};
  if (steps.empty()) {
    lines.complain(tools::no_checkpoint_in(arguments.from));
    return tools::nothing_there;
  }
  if (arguments.newest) steps = {steps.back()};
  auto status = tools::fine;
  std::size_t gone = 0;
  for (const auto step : steps) {
    try {
      status = tools::worse(status, copy_step(from, to, step, arguments, stop, lines));
    } catch (const cairn::error& error) {
      // One that a running job removed meanwhile is none that is missing; a target that is not there is another matter.
      if (error.id() == cairn::error_id::storage_not_committed && arguments.step < 0 && !arguments.newest) {
        if (!arguments.json) lines.say("step " + std::to_string(step) + "  is not there any more");
        ++gone;
        continue;
      }
      if (!is_of_one_step(error)) throw;
      status = tools::worse(status, tools::status_of(error));
      if (arguments.json)
        lines.say(
            tools::json_object().step("step", step).text(tools::fault_of(error).member, error.what()).line());
      lines.complain("step " + std::to_string(step) + ": " + error.what());
      // The others may be whole. A target that is gone takes none of them, and this call throws.
      if (error.kind() == cairn::error_kind::storage) static_cast<void>(to.reader().list());
    }
    if (stop.requested()) {
      lines.complain("ended by a signal; step " + std::to_string(step) +
                     " is not committed unless a line says so. The same command goes on: what arrived is not "
                     "sent again");
      return tools::worse(status, tools::failed);
    }
  }
  return gone == steps.size() ? tools::nothing_there : status;
}

}  // namespace

int main(int argc, char** argv) {
  copy_arguments arguments;
  CLI::App app{
      "Copies all checkpoints, or one, to another store or another place of the same. Each copy is read "
      "back\n"
      "and verified before it is committed. Ended at any moment, the same command goes on: what arrived is\n"
      "not sent again. A job may go on training at the source.",
      "copy"};
  app.footer(std::string(tools::url_help) + tools::status_help);
  app.option_defaults()->always_capture_default();
  app.add_option("from", arguments.from, "where the checkpoints are")->required()->option_text("URL");
  app.add_option("to", arguments.to, "where the copies go")->required()->option_text("URL");
  auto* step = app.add_option("--step", arguments.step, "copy one checkpoint (default: all)")
                   ->transform(tools::whole_number(0))
                   ->option_text("N");
  app.add_flag("--newest", arguments.newest, "copy the newest one alone")->excludes(step);
  app.add_option("--memory", arguments.memory_megabytes, "MiB of buffers, about")
      ->check(CLI::Range(1, 65536));
  app.add_flag("--json", arguments.json, tools::json_help);
  return tools::run_program(app, argc, argv, [&](tools::terminal& lines) { return copy(arguments, lines); });
}
