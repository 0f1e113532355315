// SPDX-License-Identifier: Apache-2.0
// links: cairn::zstd
// test: --mebibytes 1 --pairs 1
// What compressing weights gives and costs, beside zstd by itself, the library and, where it is installed,
// the program (`zstd -b`, one thread, the same frames): ratio, and bytes of the item each second; what it
// costs a load, and that it costs a save's caller nothing.
// Of a checkpoint of train_gpt: weights as they are and as bf16, Adam's moments.
#include <zstd.h>
#include <cairn/checkpointer.hpp>
#include <cairn/storage/compressed/compressed_storage.hpp>
#include <cairn/storage/compressed/item_frames.hpp>
#include <cairn/storage/compressed/zstd_codec.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <support/bench.hpp>
#include <vector>

namespace {

using bytes = std::vector<std::byte>;
/// Of all that is measured; as compressed_storage has them, unless the command line says otherwise.
std::size_t frame_bytes = cairn::compression_options{}.frame_bytes;
constexpr std::size_t max_frame_bytes = std::size_t{4} << 20;

/// Weights of a normal distribution; 20 MiB of them, again and again: further apart than a frame is long.
bytes make_weights(cairn::dtype type, std::size_t size) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(0, 0.02);
  const std::size_t width = cairn::bits_of(type) / 8;
  bytes made;
  made.reserve(size + width);
  while (made.size() < std::min(size, 5 * max_frame_bytes)) {
    const double wide = normal(random);
    const auto single = static_cast<float>(wide);
    std::byte element[8];
    if (type == cairn::dtype::f64)
      std::memcpy(element, &wide, 8);
    else if (type == cairn::dtype::f32)
      std::memcpy(element, &single, 4);
    else
      std::memcpy(element, reinterpret_cast<const std::byte*>(&single) + 2, 2);
    made.insert(made.end(), element, element + width);
  }
  const std::size_t period = made.size();
  made.resize(size);
  for (std::size_t at = period; at < size; at += period)
    std::memcpy(made.data() + at, made.data(), std::min(period, size - at));
  return made;
}

/// zstd by itself: the same frames, one after another, contexts reused.
class plain_zstd {
 public:
  explicit plain_zstd(int level) : level_(level), to_(ZSTD_compressBound(frame_bytes)) {}
  void encode(const bytes& item) {
    encoded_.clear();
    ends_.clear();
    for (std::size_t at = 0; at < item.size(); at += frame_bytes) {
      const auto size = checked(ZSTD_compressCCtx(compressor_.get(), to_.data(), to_.size(), item.data() + at,
                                                  std::min(frame_bytes, item.size() - at), level_));
      encoded_.insert(encoded_.end(), to_.begin(), to_.begin() + static_cast<std::ptrdiff_t>(size));
      ends_.push_back(encoded_.size());
    }
  }
  void decode(bytes& item) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < ends_.size(); begin = ends_[i++])
      checked(ZSTD_decompressDCtx(decompressor_.get(), item.data() + i * frame_bytes,
                                  std::min(frame_bytes, item.size() - i * frame_bytes),
                                  encoded_.data() + begin, ends_[i] - begin));
  }
  [[nodiscard]] std::size_t size() const noexcept { return encoded_.size(); }

 private:
  static std::size_t checked(std::size_t result) {
    if (ZSTD_isError(result) != 0) throw std::runtime_error(ZSTD_getErrorName(result));
    return result;
  }
  struct free_contexts {
    void operator()(ZSTD_CCtx* c) const noexcept { ZSTD_freeCCtx(c); }
    void operator()(ZSTD_DCtx* d) const noexcept { ZSTD_freeDCtx(d); }
  };
  int level_;
  bytes to_;
  bytes encoded_;
  std::vector<std::size_t> ends_;
  std::unique_ptr<ZSTD_CCtx, free_contexts> compressor_{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, free_contexts> decompressor_{ZSTD_createDCtx()};
};

struct program_figures {
  double share = 0;   ///< of the item's bytes
  double encode = 0;  ///< B/s
  double decode = 0;
};
/// What `zstd -b` says of the item after so many seconds of each direction, or one turn; nothing where there is no such
/// program, or it says something else.
std::optional<program_figures> ask_program(const bytes& item, int level, int seconds) {
  if (level > 19) return std::nullopt;  // asks for --ultra
  char path[] = "/tmp/cairn-bench-codec-XXXXXX";
  const int file = ::mkstemp(path);
  if (file < 0) return std::nullopt;
  bool written = true;
  for (std::size_t at = 0; written && at < item.size();) {
    const auto count = ::write(file, item.data() + at, item.size() - at);
    written = count > 0;
    if (written) at += static_cast<std::size_t>(count);
  }
  ::close(file);
  std::optional<program_figures> found;
  const auto text = std::to_string(level);
  const auto command = "zstd -q -T1 -b" + text + " -e" + text + " -i" + std::to_string(seconds) + " -B" +
                       std::to_string(frame_bytes) + " " + path + " 2>/dev/null";
  if (std::FILE* const said = written ? ::popen(command.c_str(), "r") : nullptr) {
    char line[512];
    while (std::fgets(line, sizeof line, said) != nullptr) {
      unsigned long long size = 0;
      double times = 0;
      program_figures f;
      // -1     15528420 (1.080)  71.66 MB/s  175.0 MB/s  NAME
      if (std::sscanf(line, "-%*d %llu (%lf) %lf MB/s %lf MB/s", &size, &times, &f.encode, &f.decode) != 4)
        continue;
      f.share = static_cast<double>(size) / static_cast<double>(item.size());
      f.encode *= 1e6, f.decode *= 1e6;
      found = f;
    }
    ::pclose(said);
  }
  ::unlink(path);
  return found;
}

void run(const std::string& what, cairn::dtype type, const bytes& item, int level, std::size_t threads,
         int pairs, cairn_bench::report& report) {
  const auto size = item.size();
  bytes back(size);
  bytes encoded;
  encoded.reserve(size + size / 8);
  const cairn::zstd_codec codec({.level = level});
  cairn::frame_index index(codec.id, type, size, frame_bytes);
  plain_zstd plain(level);
  const auto encode = [&](std::size_t with) {
    encoded.clear();
    index = cairn::encode_frames(
        codec, type, item, {.frame_bytes = frame_bytes, .threads = with},
        [&](std::span<const std::byte> part) { encoded.insert(encoded.end(), part.begin(), part.end()); });
  };
  const auto decode = [&](std::size_t with) {
    const auto frames =
        std::span<const std::byte>(encoded).first(static_cast<std::size_t>(index.frames_end()));
    cairn::decode_range(codec, index, frames, 0, back, with);
  };
  encode(1), decode(1), plain.encode(item), plain.decode(back);  // warm
  decode(1);
  if (back != item) throw std::runtime_error("what was decoded is not what was encoded");
  const auto encoding = cairn_bench::interleaved(
      pairs, [&] { encode(1); }, [&] { encode(threads); }, [&] { plain.encode(item); });
  const auto decoding = cairn_bench::interleaved(
      pairs, [&] { decode(1); }, [&] { decode(threads); }, [&] { plain.decode(back); });
  const auto name = what + std::string(cairn::name_of(type)) + "/level=" + std::to_string(level);
  const auto many = name + "/threads=" + std::to_string(threads);
  const auto share = [&](std::size_t bytes_of_it) {
    return static_cast<double>(bytes_of_it) / static_cast<double>(size);
  };
  report.add_against("encoded_size/" + name, cairn_bench::samples({share(encoded.size())}), "",
                     share(plain.size()), cairn_bench::at_most(1));
  if (const auto program = ask_program(item, level, pairs > 1 ? 1 : 0)) {
    report.add_against("encoded_size_beside_program/" + name, cairn_bench::samples({share(encoded.size())}),
                       "", program->share, cairn_bench::at_most(1));
    report.add_against("encode_beside_program/" + name,
                       cairn_bench::samples(cairn_bench::rates(size, encoding[0])), "B/s", program->encode,
                       cairn_bench::at_least(1));
    report.add_against("decode_beside_program/" + name,
                       cairn_bench::samples(cairn_bench::rates(size, decoding[0])), "B/s", program->decode,
                       cairn_bench::at_least(1));
  }
  // Without splitting into planes, beside the same zstd.
  const cairn::zstd_codec whole({.level = level, .planes = false});
  bytes unsplit;
  unsplit.reserve(size + size / 8);
  cairn::frame_index unsplit_index(whole.id, type, size, frame_bytes);
  const auto encode_whole = [&] {
    unsplit.clear();
    unsplit_index = cairn::encode_frames(
        whole, type, item, {.frame_bytes = frame_bytes, .threads = 1},
        [&](std::span<const std::byte> part) { unsplit.insert(unsplit.end(), part.begin(), part.end()); });
  };
  const auto decode_whole = [&] {
    const auto frames =
        std::span<const std::byte>(unsplit).first(static_cast<std::size_t>(unsplit_index.frames_end()));
    cairn::decode_range(whole, unsplit_index, frames, 0, back, 1);
  };
  const auto unsplit_encoding = cairn_bench::interleaved(
      pairs, encode_whole, [&] { plain.encode(item); }, [&] { encode(1); });
  const auto unsplit_decoding = cairn_bench::interleaved(
      pairs, decode_whole, [&] { plain.decode(back); }, [&] { decode(1); });
  report.add_against("encoded_size_without_planes/" + name, cairn_bench::samples({share(unsplit.size())}), "",
                     share(plain.size()));
  const auto beside = [&](const std::string& row, const std::vector<double>& ours,
                          const std::vector<double>& twin) {
    report.add(row, cairn_bench::make_pairs(cairn_bench::rates(size, ours), cairn_bench::rates(size, twin)),
               "B/s");
  };
  beside("encode_without_planes/" + name, unsplit_encoding[0], unsplit_encoding[1]);
  beside("decode_without_planes/" + name, unsplit_decoding[0], unsplit_decoding[1]);
  beside("encode_with_over_without_planes/" + name, unsplit_encoding[2], unsplit_encoding[0]);
  beside("decode_with_over_without_planes/" + name, unsplit_decoding[2], unsplit_decoding[0]);
  const auto against_plain = [&](const std::string& row, const std::vector<double>& ours,
                                 const std::vector<double>& twin) {
    report.add(row, cairn_bench::make_pairs(cairn_bench::rates(size, ours), cairn_bench::rates(size, twin)),
               "B/s", cairn_bench::at_least(1));
  };
  against_plain("encode/" + name, encoding[0], encoding[2]);
  against_plain("decode/" + name, decoding[0], decoding[2]);
  if (threads < 2) return;
  against_plain("encode/" + many, encoding[1], encoding[2]);
  against_plain("decode/" + many, decoding[1], decoding[2]);
}

struct class_of_items {
  std::string name;
  bytes content;
};

/// The tensors of the newest checkpoint in a directory, by what they are.
std::vector<class_of_items> read_checkpoint(const std::string& directory) {
  cairn::safetensors_storage storage{cairn::file_store{directory}};
  auto reader = storage.reader();
  const auto steps = reader.list();
  if (steps.empty()) throw std::runtime_error("there is no checkpoint in " + directory);
  auto opened = reader.open(steps.back(), reader.fetch(steps.back()));
  std::vector<class_of_items> all{{"weights/", {}}, {"adam.m/", {}}, {"adam.v/", {}}};
  cairn::load_plan plan;
  std::vector<bytes> memory;
  std::vector<std::size_t> classes;
  const auto& items = opened.metadata().items;
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    const auto& item = items[i];
    if (item.kind != cairn::item_kind::tensor || item.type != cairn::dtype::f32 || item.per_rank) continue;
    const bool model = item.name.starts_with("model.");
    const bool second =
        item.name.find(".v") != std::string::npos || item.name.find("second") != std::string::npos;
    if (item.chunks.size() != 1) throw std::runtime_error("save the checkpoint with --ranks 1");
    plan.items.push_back({i, 0, static_cast<std::uint32_t>(memory.size()), 0, cairn::whole(item.global)});
    memory.emplace_back(cairn::contiguous_view(nullptr, item.type, item.global).bytes());
    classes.push_back(model ? 0 : second ? 2 : 1);
  }
  const cairn::target_resolver resolver = [&](const cairn::read_item& item) {
    return cairn::item_target{
        cairn::contiguous_view(memory[item.entry].data(), cairn::dtype::f32, items[item.stored].global),
        nullptr};
  };
  static_cast<void>(reader.read(opened, cairn::state_dict(), plan, resolver, {},
                                cairn::deadline::in(std::chrono::minutes(5))));
  for (std::size_t i = 0; i < memory.size(); ++i) {
    auto& to = all[classes[i]].content;
    to.insert(to.end(), memory[i].begin(), memory[i].end());
  }
  return all;
}

/// The upper halves of f32: what rounding towards zero makes of them as bf16.
bytes as_bf16(const bytes& from) {
  bytes to;
  for (std::size_t i = 0; i + 4 <= from.size(); i += 4) to.insert(to.end(), {from[i + 2], from[i + 3]});
  return to;
}

/// A checkpointer saves and loads what is measured, compressed and not.
void run_checkpoints(const bytes& content, int level, std::size_t threads, int pairs,
                     cairn_bench::report& report) {
  auto values = content;
  cairn::state_dict state;
  state.tensor("w", cairn::contiguous_view(values.data(), cairn::dtype::f32,
                                           {static_cast<std::int64_t>(values.size() / 4)}));
  const cairn::checkpointer_options quiet{.quiet = true};
  cairn::checkpointer encoded{cairn::compressed_storage{cairn::memory_store{},
                                                        cairn::zstd_codec({.level = level}),
                                                        {.frame_bytes = frame_bytes, .threads = threads}},
                              quiet};
  cairn::checkpointer plain{cairn::memory_store{}, quiet};
  std::int64_t step = 0;
  const auto blocked = [&](auto& ckpt) {
    const auto begin = std::chrono::steady_clock::now();
    auto handle = ckpt.save(state, step);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    handle.wait();
    return seconds;
  };
  std::vector<double> ours;
  std::vector<double> twin;
  for (int i = 0; i < pairs + 2; ++i) {
    ++step;
    const double a = blocked(encoded);
    const double b = blocked(plain);
    if (i < 2) continue;  // the first saves make their buffers
    ours.push_back(a), twin.push_back(b);
  }
  report.add("save_blocked/compressed", cairn_bench::make_pairs(ours, twin), "s", cairn_bench::at_most(1.1));
  const auto loading = cairn_bench::interleaved(
      pairs, [&] { static_cast<void>(encoded.load(state, step)); },
      [&] { static_cast<void>(plain.load(state, step)); });
  if (values != content) throw std::runtime_error("what was loaded is not what was saved");
  report.add_against("load/compressed", cairn_bench::samples(cairn_bench::rates(values.size(), loading[0])),
                     "B/s", 1e9, cairn_bench::at_least(1));
  report.add_against("load/uncompressed", cairn_bench::samples(cairn_bench::rates(values.size(), loading[1])),
                     "B/s", 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--help") {
    std::puts(
        "What compressing weights gives and costs, beside zstd by itself.\n"
        "usage: bench_codec [--mebibytes N] [--pairs N] [--threads N] [--level N] [--frame-kibibytes N]\n"
        "         [--checkpoint DIRECTORY] [--json FILE]\n"
        "--checkpoint: the tensors of the newest checkpoint of train_gpt there, saved by one rank, in place\n"
        "of random weights.");
    return 0;
  }
  try {
    const auto number = [&](const char* name, std::int64_t otherwise, std::int64_t most) {
      const auto n = cairn_bench::argument(argc, argv, name, otherwise);
      if (n < 1 || n > most)
        throw std::invalid_argument(std::string(name) + " is a number from 1 to " + std::to_string(most));
      return n;
    };
    const auto size = static_cast<std::size_t>(number("--mebibytes", 64, 1 << 16)) << 20;
    const auto pairs = static_cast<int>(number("--pairs", 5, 1000));
    const auto threads = static_cast<std::size_t>(number("--threads", 2, 256));
    const auto level = static_cast<int>(number("--level", 1, ZSTD_maxCLevel()));
    frame_bytes =
        static_cast<std::size_t>(
            number("--frame-kibibytes", static_cast<std::int64_t>(frame_bytes >> 10), max_frame_bytes >> 10))
        << 10;
    cairn_bench::report report("codec");
    const auto directory = cairn_bench::argument(argc, argv, "--checkpoint");
    bytes first;
    if (directory.empty()) {
      for (const auto type : {cairn::dtype::bf16, cairn::dtype::f32, cairn::dtype::f64})
        run("", type, make_weights(type, size), level, threads, pairs, report);
      first = make_weights(cairn::dtype::f32, size);
    } else {
      const auto classes = read_checkpoint(directory);
      run("weights/", cairn::dtype::bf16, as_bf16(classes[0].content), level, threads, pairs, report);
      for (const auto& one : classes) {
        run(one.name, cairn::dtype::f32, one.content, level, threads, pairs, report);
        first.insert(first.end(), one.content.begin(), one.content.end());
      }
    }
    run_checkpoints(first, level, threads, pairs, report);
    report.write(cairn_bench::argument(argc, argv, "--json"));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_codec: %s\n", e.what());
    return 1;
  }
}
