// SPDX-License-Identifier: Apache-2.0
// uses: cairn::zstd
//
// Saves the same items in each way that changes which bytes a checkpoint has, and tells what a reader must find:
//   helper_saves_of_all_kinds DIRECTORY
//     KIND STEP KEY DTYPE [SHAPE] DIGEST      XXH3 of all of its bytes
// KIND is the directory in DIRECTORY: plain, with annotations; shared, with files of several ranks in directories;
// again, where a damaged step was set aside and saved once more; and compressed, where the program has zstd.
#include "support/on_all_ranks.hpp"

#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/system/digest.hpp>
#if CAIRN_USES_ZSTD + 0
#include <cairn/storage/compressed/compressed_storage.hpp>
#include <cairn/storage/compressed/zstd_codec.hpp>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace {
using cairn::dtype;
using cairn::extents;

enum class spread { whole, rows, columns, flat, last_rank, per_rank, bytes, bytes_per_rank, value };
enum class contents { noise, weights, halves, text };

struct item {
  std::string name;
  dtype type;
  extents shape;
  spread how;
  contents what = contents::noise;
};

std::vector<item> items_of(int world) {
  const std::int64_t w = world;
  return {
      {"rows", dtype::f32, {5 * w + 2, 9}, spread::rows, contents::weights},
      {"columns", dtype::bf16, {7, 6 * w}, spread::columns},
      {"flat", dtype::f32, {7, 11, 13}, spread::flat},
      {"deep", dtype::f16, {2, 1, 3, 2, 1, 2, 3, 2}, spread::flat},
      {"whole", dtype::i16, {5, 4}, spread::whole},
      {"packed", dtype::f4, {3, 10}, spread::whole},
      {"scalar", dtype::i64, {}, spread::whole},
      {"nothing", dtype::f32, {0, 3}, spread::whole},
      {"weights", dtype::f32, {450, 1000}, spread::last_rank, contents::weights},
      {"halves", dtype::bf16, {200, 501}, spread::rows, contents::halves},
      {"text", dtype::u8, {150'001}, spread::flat, contents::text},
      {"\"quoted\"\\\xf0\x9f\x98\x80", dtype::u32, {3}, spread::whole},
      {"own", dtype::i32, {2, 2}, spread::per_rank},
      {"loader", dtype::u8, {1'100'000}, spread::bytes, contents::text},
      {"rng", dtype::u8, {21}, spread::bytes_per_rank},
      {"rate", dtype::f64, {}, spread::value},
  };
}

/// All bytes of an item, or what one rank has of a per-rank item.
std::vector<std::byte> bytes_of(const item& i, std::uint64_t seed, int rank = 0) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(cairn::checked_bytes(i.type, i.shape).value()));
  auto state = cairn::digest(i.name) + seed * 1'000'003 + static_cast<std::uint64_t>(rank);
  for (std::size_t k = 0; k < bytes.size(); ++k) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    auto b = static_cast<unsigned char>(state >> 40);
    if (i.what == contents::weights && k % 4 == 3) b = static_cast<unsigned char>(0x3c + b % 3);
    if (i.what == contents::halves && k % 2 == 1) b = 0x3f;
    if (i.what == contents::text) b = static_cast<unsigned char>('a' + k / 100 % 26);
    bytes[k] = std::byte{b};
  }
  return bytes;
}

/// What a rank has of the items, in memory of its own.
class rank_state {
 public:
  rank_state(int rank, int world, std::uint64_t seed) {
    for (const auto& i : items_of(world)) {
      const bool own = i.how == spread::per_rank || i.how == spread::bytes_per_rank;
      const auto all = bytes_of(i, seed, own ? rank : 0);
      const auto volume = i.shape.volume();
      const auto row_begin = [&](int r) { return i.shape[0] * r / world; };
      auto& memory = memory_.emplace_back(all);
      memory.reserve(1);  // nothing is registered at no address
      switch (i.how) {
        case spread::last_rank:
          if (rank == world - 1) state.tensor(i.name, view(memory, i.type, i.shape));
          break;
        case spread::whole:
          state.tensor(i.name, view(memory, i.type, i.shape));
          break;
        case spread::per_rank:
          state.tensor(i.name, view(memory, i.type, i.shape), cairn::per_rank);
          break;
        case spread::bytes:
          state.bytes(i.name, memory);
          break;
        case spread::bytes_per_rank:
          state.bytes(i.name, memory, cairn::per_rank);
          break;
        case spread::value:
          std::memcpy(&rate_, all.data(), sizeof rate_);
          state.value(i.name, rate_);
          break;
        case spread::flat: {
          const auto begin = volume * rank / world;
          const auto length = volume * (rank + 1) / world - begin;
          cut(memory, all, begin, length, volume);
          state.tensor(i.name, view(memory, i.type, {length}), cairn::flat_shard{i.shape, begin, length});
          break;
        }
        case spread::rows: {
          auto sizes = i.shape;
          sizes.set(0, row_begin(rank + 1) - row_begin(rank));
          auto at = extents::zeros(i.shape.rank());
          at.set(0, row_begin(rank));
          cut(memory, all, at[0], sizes[0], i.shape[0]);
          state.tensor(i.name, view(memory, i.type, sizes), cairn::shard{i.shape, at, sizes});
          break;
        }
        case spread::columns: {
          const extents sizes{i.shape[0], i.shape[1] / world};
          const extents at{0, sizes[1] * rank};
          const auto row = all.size() / static_cast<std::size_t>(i.shape[0]);
          const auto part = row / static_cast<std::size_t>(world);
          memory.resize(all.size() / static_cast<std::size_t>(world));
          for (std::size_t r = 0; r * row < all.size(); ++r)
            std::memcpy(memory.data() + r * part,
                        all.data() + r * row + static_cast<std::size_t>(rank) * part, part);
          state.tensor(i.name, view(memory, i.type, sizes), cairn::shard{i.shape, at, sizes});
          break;
        }
      }
    }
  }

  cairn::state_dict state;

 private:
  static cairn::tensor_view view(std::vector<std::byte>& memory, dtype type, const extents& shape) {
    return cairn::contiguous_view(memory.data(), type, shape);
  }
  /// `length` of the `all` parts of the bytes, from one on.
  static void cut(std::vector<std::byte>& to, const std::vector<std::byte>& from, std::int64_t begin,
                  std::int64_t length, std::int64_t all) {
    const auto each = from.size() / static_cast<std::size_t>(all);
    const auto* first = from.data() + each * static_cast<std::size_t>(begin);
    to.assign(first, first + each * static_cast<std::size_t>(length));
  }

  std::deque<std::vector<std::byte>> memory_;
  double rate_ = 0;
};

/// What a reader finds in the checkpoint of this step, where save() was called with these numbers.
void tell(const char* kind, int step, int world, std::uint64_t seed) {
  for (const auto& i : items_of(world)) {
    const bool own = i.how == spread::per_rank || i.how == spread::bytes_per_rank;
    for (int rank = 0; rank < (own ? world : 1); ++rank) {
      char suffix[16] = "";
      if (own) std::snprintf(suffix, sizeof suffix, "@rank%05d", rank);
      std::printf("%s %d %s%s %s %s %016llx\n", kind, step, i.name.c_str(), suffix,
                  std::string(cairn::name_of(i.type)).c_str(), cairn::to_string(i.shape).c_str(),
                  static_cast<unsigned long long>(cairn::digest(bytes_of(i, seed, rank))));
    }
  }
}

/// A job of its own, which resumes from what is there and saves these steps.
template <class Storage>
void save(const Storage& storage, int world, std::uint64_t seed, const std::vector<int>& steps) {
  const cairn::thread_group group(world);
  cairn_test::on_all_ranks(world, [&](int rank) {
    rank_state mine(rank, world, seed);
    mine.state.version(7);
    rank_state resumed(rank, world, seed);
    cairn::checkpointer ckpt{storage, group.communicator(rank), cairn::checkpointer_options{.quiet = true}};
    (void)ckpt.resume(resumed.state);
    for (const int step : steps) {
      ckpt.annotate({{"commit", "4f1c\xc3\xa9"}, {"step", step}, {"loss", 0.5}, {"final", false}});
      ckpt.save(mine.state, step).wait();
    }
    ckpt.close();
  });
}

void damage_data(const std::string& step) {
  for (const auto& file : std::filesystem::directory_iterator(step))
    if (file.path().extension() == ".safetensors") {
      std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekp(-1, std::ios::end).put('\x55');
    }
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string root = argv[1];
  try {
    const int large = 100'000'002;
    save(cairn::safetensors_storage{cairn::file_store{root + "/plain"}}, 4, 1, {1, large});
    tell("plain", 1, 4, 1);
    tell("plain", large, 4, 1);

    const cairn::commit_options together{.ranks_per_file = 2, .ranks_per_directory = 2};
    save(cairn::safetensors_storage{cairn::file_store{root + "/shared"}, together}, 5, 2, {1});
    tell("shared", 1, 5, 2);

    const cairn::safetensors_storage again{cairn::file_store{root + "/again"}};
    save(again, 2, 3, {1, 2});
    damage_data(root + "/again/step-00000002");
    save(again, 2, 4, {2});
    tell("again", 1, 2, 3);
    tell("again", 2, 2, 4);
#if CAIRN_USES_ZSTD + 0
    save(
        cairn::compressed_storage{
            cairn::file_store{root + "/compressed"}, cairn::zstd_codec{}, {.frame_bytes = 1 << 16}},
        3, 5, {1});
    tell("compressed", 1, 3, 5);
#endif
  } catch (const std::exception& e) {
    std::printf("failed: %s\n", e.what());
    return 1;
  }
  return 0;
}
