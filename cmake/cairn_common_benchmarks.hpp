// SPDX-License-Identifier: Apache-2.0
#pragma once
// With CAIRN_PRECOMPILE, what is compiled once for all benchmarks, most of which read their command lines with CLI11.
#include "cairn_common.hpp"
#include "cairn_common_cli.hpp"
