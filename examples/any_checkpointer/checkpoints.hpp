// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the files of the trainer include: light, for no part of a checkpointer is compiled with it.
#include <cairn/any_checkpointer.hpp>

#include <string>

/// Overlapped saves into the directory, of which the last three stay.
cairn::any_checkpointer make_checkpointer(const std::string& directory);
