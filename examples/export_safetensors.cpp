// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3 cairn::zstd
//
// Makes stock safetensors files of a checkpoint, with an index as Hugging Face has it, whatever number of
// ranks saved it and wherever it is.
#include <CLI/CLI.hpp>
#include <cairn/manage/export_safetensors.hpp>
#include <cairn/manage/stop_signal.hpp>

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

struct export_arguments {
  std::string from, to;
  std::int64_t step = -1;
  bool json = false;
  cairn::export_options options;
};

tools::exit_status run(export_arguments& arguments, tools::terminal& lines) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  const tools::storage_type storage{tools::open_store(arguments.from)};
  auto to = tools::open_store(arguments.to);
  auto reader = storage.reader();
  auto step = arguments.step;
  if (step < 0) {
    const auto steps = reader.list();
    if (steps.empty()) {
      lines.complain(tools::no_checkpoint_in(arguments.from));
      return tools::nothing_there;
    }
    step = steps.back();
  }
  const auto name = "step " + std::to_string(step);
  arguments.options.progress = [&](std::uint64_t done, std::uint64_t all) {
    lines.progress(name + "  writing", done, all);
  };
  arguments.options.stop = [&] { return stop.requested(); };
  const auto report = cairn::export_safetensors(reader, step, to, arguments.options);
  lines.end_progress();
  if (!report.complete) {
    for (const auto& file : report.files) lines.complain("written: " + file);
    lines.complain(
        "ended by a signal; there is no index, so nobody takes the files for a whole model. Remove what was "
        "written, then run the same command again");
    return tools::failed;
  }
  if (arguments.json) {
    lines.say(tools::json_object()
                  .step("step", step)
                  .number("tensors", report.tensors)
                  .number("bytes", report.bytes)
                  .texts("files", report.files)
                  .texts("left_out", report.left_out)
                  .line());
    return tools::fine;
  }
  if (!report.left_out.empty()) {
    std::string names;
    for (std::size_t i = 0; i < report.left_out.size() && i < 8; ++i)
      names += (i == 0 ? "" : ", ") + report.left_out[i];
    if (report.left_out.size() > 8) names += ", ...";
    lines.say(tools::count_text(report.left_out.size(), "item") +
              " left out, since bytes and per-rank items are no tensors of the model: " + names);
  }
  lines.say(name + "  " + tools::count_text(report.tensors, "tensor") + ", " +
            tools::size_text(report.bytes) + " in " + tools::count_text(report.files.size() - 1, "file") +
            "; the index is " + report.files.back());
  return tools::fine;
}

}  // namespace

int main(int argc, char** argv) {
  export_arguments arguments;
  auto& options = arguments.options;
  CLI::App app{
      "Writes the tensors of one checkpoint as stock safetensors files, NAME-00001-of-0000N.safetensors, "
      "and\n"
      "NAME.safetensors.index.json, as Hugging Face's libraries read them. dtypes are kept; every block is\n"
      "verified before it is written.",
      "export_safetensors"};
  app.footer(std::string(tools::url_help) + tools::status_help);
  app.option_defaults()->always_capture_default();
  app.add_option("from", arguments.from, "where the checkpoints are")->required()->option_text("URL");
  app.add_option("to", arguments.to, "where the files go; none of these names may be there")
      ->required()
      ->option_text("URL");
  app.add_option("--step", arguments.step, "which checkpoint (default: the newest)")
      ->transform(tools::whole_number(0))
      ->option_text("N");
  app.add_option("--items,--only", options.items,
                 "only items whose name matches, such as 'model.*' (default: all)")
      ->option_text("GLOB ...");
  app.add_option("--strip-prefix", options.strip_prefix,
                 "take this off the beginning of names, such as 'model.'")
      ->option_text("TEXT");
  app.add_option("--name", options.name, "of the files")->option_text("NAME=model");
  app.add_option("--max-shard-size", options.max_shard_bytes,
                 "of the data of a file, such as 5GB or 500MB; a longer tensor has a file of its own")
      ->transform(CLI::AsSizeValue(true))
      ->check(tools::whole_number(1))
      ->option_text("SIZE=5GB");
  app.add_flag("--json", arguments.json, tools::json_help);
  return tools::run_program(app, argc, argv, [&](tools::terminal& lines) { return run(arguments, lines); });
}
