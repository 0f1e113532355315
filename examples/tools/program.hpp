// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the mains of the programs have in common.
#include <CLI/CLI.hpp>

#include <exception>
#include <string>

#include "status.hpp"
#include "terminal.hpp"

namespace tools {

/// Parses the command line and runs `body(terminal&)`, which returns an exit_status. What it throws becomes a
/// line on standard error and a status.
template <class Body>
int run_program(CLI::App& app, int argc, char** argv, Body body) {
  app.name(program_name());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? fine : wrong_options;
  }
  terminal lines(app.get_name());
  try {
    return body(lines);
  } catch (const cairn::error& error) {
    lines.complain(error.what());
    return status_of(error);
  } catch (const std::exception& error) {
    lines.complain(error.what());
    return failed;
  }
}

}  // namespace tools
