// SPDX-License-Identifier: Apache-2.0
// The one file that pays for the templates.
#include "checkpoints.hpp"

#include <cairn/cairn.hpp>

cairn::any_checkpointer make_checkpointer(const std::string& directory) {
  return cairn::checkpointer{cairn::file_store{directory}, cairn::overlapped{}, cairn::keep_last(3)};
}
