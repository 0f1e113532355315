// SPDX-License-Identifier: Apache-2.0
// links: cairn::zstd
// What compressing weights gives and costs, beside zstd by itself: ratio, and bytes of the item each second.
//   bench_codec [--mebibytes N] [--pairs N] [--threads N] [--level N] [--json FILE]
#include <zstd.h>
#include <cairn/storage/item_frames.hpp>
#include <cairn/storage/zstd_codec.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <vector>

namespace {

using bytes = std::vector<std::byte>;
constexpr std::size_t frame_bytes = std::size_t{4} << 20;

/// Weights of a normal distribution; 20 MiB of them, again and again: further apart than a frame is long.
bytes make_weights(cairn::dtype type, std::size_t size) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(0, 0.02);
  const std::size_t width = cairn::bits_of(type) / 8;
  bytes made;
  made.reserve(size + width);
  while (made.size() < std::min(size, 5 * frame_bytes)) {
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

void run(cairn::dtype type, std::size_t size, int level, std::size_t threads, int pairs,
         cairn_bench::report& report) {
  const auto item = make_weights(type, size);
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
  const auto name = std::string(cairn::name_of(type)) + "/level=" + std::to_string(level);
  const auto many = name + "/threads=" + std::to_string(threads);
  const auto share = [&](std::size_t bytes_of_it) {
    return static_cast<double>(bytes_of_it) / static_cast<double>(size);
  };
  report.add_against("encoded_size/" + name, cairn_bench::samples({share(encoded.size())}), "",
                     share(plain.size()), cairn_bench::at_most(1));
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

}  // namespace

int main(int argc, char** argv) {
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
    cairn_bench::report report("codec");
    for (const auto type : {cairn::dtype::bf16, cairn::dtype::f32, cairn::dtype::f64})
      run(type, size, level, threads, pairs, report);
    report.write(cairn_bench::argument(argc, argv, "--json"));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_codec: %s\n", e.what());
    return 1;
  }
}
