// SPDX-License-Identifier: Apache-2.0
// The one C++ file of a trainer in C.
#include <cairn/cairn.hpp>
#include <cairn/interop/c_interface.hpp>

extern "C" cairn_checkpointer* open_checkpoints(const char* directory) {
  return cairn::open_for_c([&] {
    return cairn::checkpointer{cairn::file_store{directory}, cairn::overlapped{}, cairn::keep_last(3)};
  });
}
