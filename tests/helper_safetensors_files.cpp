// SPDX-License-Identifier: Apache-2.0
//
// Loads safetensors files that something else wrote, on several ranks, and tells every tensor on a line:
//   helper_safetensors_files RANKS PATH [PATH...]
//     NAME DTYPE [SHAPE] CRC-32      of all of its bytes
// Each rank loads its rows of every tensor that has rows, and puts them into one buffer; so what is told is what came
// out of all parts together. Exits with 1 and cairn's message where something is refused.
#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/safetensors_files.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {
/// As zlib's.
std::uint32_t crc32_of(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const auto b : bytes) {
    crc ^= static_cast<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
  }
  return ~crc;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int world = std::atoi(argv[1]);
  const cairn::safetensors_files files(std::vector<std::string>(argv + 2, argv + argc));
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(world));
  try {
    auto reader = files.reader();
    const auto opened = reader.open(0, reader.fetch(0));
    const auto& items = opened.metadata().items;
    std::vector<std::vector<std::byte>> tensors;
    for (const auto& item : items)
      tensors.emplace_back(static_cast<std::size_t>(cairn::checked_bytes(item.type, item.global).value()));
    const cairn::thread_group group(world);
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < world; ++rank)
      ranks.emplace_back([&, rank] {
        try {
          cairn::state_dict state;
          for (std::size_t i = 0; i < items.size(); ++i) {
            const auto& item = items[i];
            const bool cut = item.global.rank() != 0 && item.global[0] >= world &&
                             item.global.volume() != 0 && cairn::granule_of(item.type) == 1;
            if (!cut && rank != 0) continue;  // one of them has it
            auto* data = tensors[i].data();
            if (!cut) {
              state.tensor(item.name, cairn::contiguous_view(data, item.type, item.global));
              continue;
            }
            const auto first = item.global[0] * rank / world;
            auto at = cairn::extents::zeros(item.global.rank());
            at.set(0, first);
            auto sizes = item.global;
            sizes.set(0, item.global[0] * (rank + 1) / world - first);
            data += tensors[i].size() / static_cast<std::size_t>(item.global[0]) *
                    static_cast<std::size_t>(first);
            state.tensor(item.name, cairn::contiguous_view(data, item.type, sizes),
                         cairn::shard{item.global, at, sizes});
          }
          cairn::checkpointer ckpt{files, group.communicator(rank),
                                   cairn::checkpointer_options{.quiet = true}};
          (void)ckpt.load(state, 0);
          ckpt.close();
        } catch (...) {
          thrown[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    ranks.clear();
    for (const auto& e : thrown)
      if (e != nullptr) std::rethrow_exception(e);
    for (std::size_t i = 0; i < items.size(); ++i)
      std::printf("%s %s %s %08x\n", items[i].name.c_str(),
                  std::string(cairn::name_of(items[i].type)).c_str(),
                  cairn::to_string(items[i].global).c_str(), crc32_of(tensors[i]));
  } catch (const std::exception& e) {
    std::printf("refused: %s\n", e.what());
    return 1;
  }
  return 0;
}
