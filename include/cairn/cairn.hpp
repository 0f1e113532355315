// SPDX-License-Identifier: Apache-2.0
#pragma once
// The core: everything that needs only the standard library, libxxhash and a JSON parser. Headers that bring
// other libraries (MPI, CUDA, Boost, libcurl, zstd) are included by themselves.
#include <cairn/any_checkpointer.hpp>
#include <cairn/checkpointer.hpp>
#include <cairn/comm/single_process.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/execute/thread_executor.hpp>
#include <cairn/manage/resume_together.hpp>
#include <cairn/manage/stop_signal.hpp>
#include <cairn/observe/progress_bar.hpp>
#include <cairn/observe/save_interval.hpp>
#include <cairn/observe/trace_file.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/gathered.hpp>
#include <cairn/stage/heap_stager.hpp>
#include <cairn/stage/no_staging.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/version.hpp>
