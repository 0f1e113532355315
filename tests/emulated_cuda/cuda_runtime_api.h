// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of CUDA's runtime that cairn's programs use, on the CPU: see emulated/. Names and numbers are
// CUDA's.
#include "emulated/device.hpp"
#include "emulated/runtime_calls.hpp"
