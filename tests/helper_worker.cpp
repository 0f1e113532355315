// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// A worker program as trainers have it whose main() is not theirs.
#include <cairn/execute/worker_main.hpp>
#include <cairn/storage/safetensors_writer.hpp>
#include <cairn/stores/file_store.hpp>

int main(int argc, char** argv) {
  return cairn::worker_program_main<cairn::safetensors_writer<cairn::file_store>>(argc, argv);
}
