// SPDX-License-Identifier: Apache-2.0
// uses: cairn::s3
//
// Makes a checkpoint of safetensors files that something else wrote: a directory of Hugging Face or PyTorch, single
// files, a bucket.
#include <CLI/CLI.hpp>
#include <cairn/manage/import_safetensors.hpp>
#include <cairn/manage/stop_signal.hpp>
#include <cairn/safetensors_files.hpp>

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/json.hpp"
#include "tools/numbers.hpp"
#include "tools/program.hpp"
#include "tools/status.hpp"
#include "tools/store.hpp"
#include "tools/terminal.hpp"

namespace {

struct import_arguments {
  std::string from, to;
  bool json = false;
  cairn::import_options options;
};

tools::exit_status run(import_arguments& arguments, tools::terminal& lines) {
  const cairn::stop_signal stop{SIGINT, SIGTERM};
  const auto directory = tools::directory_of(arguments.from);
  const auto files = directory ? cairn::safetensors_files(*directory)
                               : cairn::safetensors_files(tools::open_store(arguments.from));
  const cairn::any_store to(tools::open_store(arguments.to));
  const auto name = "step " + std::to_string(arguments.options.step);
  arguments.options.progress = [&](std::uint64_t done, std::uint64_t all) {
    lines.progress(name + "  writing", done, all);
  };
  arguments.options.stop = [&] { return stop.requested(); };
  const auto report = cairn::import_safetensors(files.reader(), to, arguments.options);
  lines.end_progress();
  if (!report.complete) {
    lines.complain("ended by a signal; " + name + " is not committed. Run the same command again");
    return tools::failed;
  }
  if (arguments.json) {
    lines.say(tools::json_object()
                  .step("step", arguments.options.step)
                  .number("tensors", report.tensors)
                  .number("bytes", report.bytes)
                  .number("files", report.files)
                  .line());
    return tools::fine;
  }
  lines.say(name + "  " + tools::count_text(report.tensors, "tensor") + ", " +
            tools::size_text(report.bytes) + " in " + tools::count_text(report.files, "file") +
            ", committed");
  return tools::fine;
}

}  // namespace

int main(int argc, char** argv) {
  import_arguments arguments;
  CLI::App app{
      "Makes a checkpoint of safetensors files that another program wrote: a directory of Hugging Face or "
      "PyTorch\n"
      "with or without an index, a file, an index, or a bucket. dtypes and names are kept. What is read "
      "gets\n"
      "digests, so that later loads verify it; the source has none.",
      "import_safetensors"};
  app.footer(std::string(tools::url_help) + tools::status_help);
  app.option_defaults()->always_capture_default();
  app.add_option("from", arguments.from, "the files: a directory, a file, or s3://BUCKET/PREFIX")
      ->required()
      ->option_text("URL");
  app.add_option("to", arguments.to, "where the checkpoint goes")->required()->option_text("URL");
  app.add_option("--step", arguments.options.step, "the number of the checkpoint")
      ->transform(tools::whole_number(0))
      ->option_text("N=0");
  app.add_option("--items,--only", arguments.options.items,
                 "only tensors whose name matches, such as 'model.*' (default: all)")
      ->option_text("GLOB ...");
  app.add_flag("--json", arguments.json, tools::json_help);
  return tools::run_program(app, argc, argv, [&](tools::terminal& lines) { return run(arguments, lines); });
}
