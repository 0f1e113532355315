// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Writes a checkpoint as another number of ranks would have saved it: in one file, or in as many as are asked for.
#include <CLI/CLI.hpp>
#include <cairn/manage/reshard.hpp>
#include <cairn/manage/stop_signal.hpp>

#include <csignal>
#include <cstdint>
#include <string>

#include "tools/checkpoint.hpp"
#include "tools/json.hpp"
#include "tools/numbers.hpp"
#include "tools/program.hpp"
#include "tools/status.hpp"
#include "tools/store.hpp"
#include "tools/terminal.hpp"

namespace {

struct reshard_arguments {
  std::string from, to;
  std::int64_t step = -1;
  bool json = false;
  std::uint64_t memory_megabytes = 128;
  cairn::reshard_options options;
};

tools::exit_status reshard(reshard_arguments& arguments, tools::terminal& lines) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  auto from = tools::open_checkpoint(arguments.from, arguments.step);
  const cairn::any_store to(tools::open_store(arguments.to));
  auto& options = arguments.options;
  const auto step = options.step < 0 ? from.step() : options.step;
  const auto name = "step " + std::to_string(step);
  options.memory_bytes = arguments.memory_megabytes << 20;
  options.progress = [&](std::uint64_t done, std::uint64_t all) {
    lines.progress(name + "  writing", done, all);
  };
  options.stop = [&] { return stop.requested(); };
  const auto report = cairn::reshard_checkpoint(from, to, options);
  lines.end_progress();
  if (!report.complete) {
    lines.complain("ended by a signal; " + name + " is not committed. Run the same command again");
    return tools::failed;
  }
  if (arguments.json) {
    lines.say(tools::json_object()
                  .step("step", step)
                  .number("items", report.items)
                  .number("bytes", report.bytes)
                  .step("ranks", options.ranks)
                  .texts("left_out", report.left_out)
                  .line());
    return tools::fine;
  }
  for (const auto& item : report.left_out) lines.say("left out, since there are fewer ranks now: " + item);
  lines.say(name + "  " + tools::count_text(report.items, "item") + ", " + tools::size_text(report.bytes) +
            " for " + tools::count_text(static_cast<std::uint64_t>(options.ranks), "rank") + ", committed");
  return tools::fine;
}

}  // namespace

int main(int argc, char** argv) {
  reshard_arguments arguments;
  auto& options = arguments.options;
  CLI::App app{
      "Writes one checkpoint as another number of ranks would have saved it: each has a data file. No load\n"
      "needs this, each takes any number of ranks as it is; what counts or reads files does. What is read "
      "is\n"
      "verified; names and dtypes are kept.",
      "reshard"};
  app.footer(std::string(tools::url_help) + tools::checkpoint_help + tools::status_help);
  app.option_defaults()->always_capture_default();
  app.add_option("from", arguments.from, "where the checkpoint is")->required()->option_text("URL");
  app.add_option("to", arguments.to, "where the new one goes")->required()->option_text("URL");
  app.add_option("--step", arguments.step, "which checkpoint (default: the newest)")
      ->transform(tools::whole_number(0))
      ->option_text("N");
  app.add_option("--to-step", options.step, "the number of the new one (default: the same)")
      ->transform(tools::whole_number(0))
      ->option_text("N");
  auto* ranks = app.add_option("--ranks", options.ranks, "for so many ranks, with a file each")
                    ->check(CLI::Range(1, 1 << 20))
                    ->option_text("N=1");
  bool one_file = false;
  app.add_flag("--one-file", one_file, "for one rank, with one file: what is done without --ranks, too")
      ->excludes(ranks);
  app.add_option("--split-dim", options.dimension,
                 "cut tensors along this dimension; those without it, or shorter, stay whole")
      ->check(CLI::Range(0, 7))
      ->option_text("D=0");
  app.add_option("--items,--only", options.items,
                 "only items whose name matches, such as 'model.*' (default: all)")
      ->option_text("GLOB ...");
  app.add_flag("--json", arguments.json, tools::json_help);
  app.add_option("--memory", arguments.memory_megabytes, "MiB of buffers, about")
      ->check(CLI::Range(4, 65536));
  return tools::run_program(app, argc, argv,
                            [&](tools::terminal& lines) { return reshard(arguments, lines); });
}
