// SPDX-License-Identifier: Apache-2.0
// What clang-tidy reads: the whole core, with its bodies.
#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/interop/c_interface.hpp>
