// SPDX-License-Identifier: Apache-2.0
#pragma once
// What both files of the program of the consumers know.
#include <cairn/cairn.hpp>

#include <string>

/// The library's parts, composed in the other file.
cairn::any_checkpointer checkpoints_in(const std::string& directory);

/// Made in each file, so that both have the same templates.
inline cairn::any_checkpointer same_in_both_files() {
  return cairn::checkpointer{cairn::memory_store{}, cairn::inline_executor{}};
}

/// Saves twice, and loads what was saved.
/// @returns whether that came back.
bool saves_and_loads(cairn::any_checkpointer ckpt);
