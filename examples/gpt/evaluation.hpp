// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command line that evaluate and evaluate_cuda have in common.
#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "../tools/numbers.hpp"
#include "../tools/store.hpp"

namespace gpt {

struct evaluation {
  std::string url;
  std::int64_t step = -1;  ///< below zero: the newest
  std::vector<std::string> files;
  std::size_t sample = 0;
  bool follow = false;       ///< evaluates each newer checkpoint, too
  double gone_after = 1800;  ///< seconds without a commit after which the trainer counts as gone
};

/// `follows`: whether it has the options for following a run. Parses the command line and calls `evaluate(evaluation)`. The program's status: 2 for wrong options, 1
/// with a line on stderr for what evaluate throws.
template <class Evaluate>
int run_evaluation(const std::string& name, const std::string& about, int argc, char** argv,
                   Evaluate evaluate, bool follows = false) {
  evaluation wanted;
  CLI::App app{about, name};
  app.footer(tools::url_help);
  app.add_option("url", wanted.url, "where the checkpoints are")->required()->option_text("URL");
  app.add_option("--step", wanted.step, "step of the checkpoint (default: the newest)")
      ->transform(tools::whole_number(0));
  app.add_option("--text", wanted.files, "the text of the training run (default: /usr/share/common-licenses)")
      ->check(CLI::ExistingPath);
  app.add_option("--sample", wanted.sample, "let the model write this many bytes");
  if (follows) {
    auto* follow = app.add_flag("--follow", wanted.follow,
                                "goes on with each newer checkpoint, of which only what changed is read");
    app.add_option(
           "--gone-after", wanted.gone_after,
           "with --follow: seconds without a commit after which the trainer counts as gone (default: 1800)")
        ->check(tools::amount())
        ->needs(follow);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    evaluate(wanted);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return 1;
  }
  return 0;
}

}  // namespace gpt
