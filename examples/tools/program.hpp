// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the mains of the programs have in common.
#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <exception>

#include "status.hpp"
#include "terminal.hpp"

namespace tools {

/// Ends standard output. False where something that was printed did not get there: the disk is full, or NFS, which says so when
/// a file is closed, has no room.
inline bool end_output() noexcept {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return false;
  return std::fclose(stdout) == 0 || errno == EBADF;  // closed by whoever called, and nothing was printed
}

template <class Body>
int run_body(CLI::App& app, int argc, char** argv, Body& body) {
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

/// Parses the command line and runs `body(terminal&)`, which returns an exit_status. What it throws becomes a
/// line on standard error and a status, and so does output that cannot be written. Prints nothing after that.
template <class Body>
int run_program(CLI::App& app, int argc, char** argv, Body body) {
  const int status = run_body(app, argc, argv, body);
  if (end_output()) return status;
  std::fprintf(stderr,
               "%s: standard output could not be written to its end: a part of the results is missing\n",
               program_name());
  return worse(static_cast<exit_status>(status), unreadable);
}

}  // namespace tools
