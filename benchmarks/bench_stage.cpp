// SPDX-License-Identifier: Apache-2.0
// test: --bytes 4MiB --times 1
// Staging an image: a blocking stage() of 200 tensors against a hand-written parallel copy, with and without
// XXH3.
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/system/digest.hpp>

#include <sys/mman.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <support/bench.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn;

struct state {
  std::vector<heap_block> tensors;
  std::vector<item_source> sources;
  std::shared_ptr<const image_layout> layout;
};

/// `count` tensors of random sizes, together `bytes`, behind a header of 4096 bytes.
state make_state(std::uint64_t bytes, int count) {
  std::mt19937_64 random(7);
  std::vector<double> weights;
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    weights.push_back(0.1 + static_cast<double>(random() % 1000) / 1000.0);
    sum += weights.back();
  }
  state s;
  auto layout = std::make_shared<image_layout>();
  image_segment segment;
  segment.header.resize(image_alignment, std::byte{' '});
  std::uint64_t at = image_alignment;
  std::uint64_t left = bytes;
  heap_memory memory;
  for (int i = 0; i < count; ++i) {
    const auto share =
        static_cast<std::uint64_t>(static_cast<double>(bytes) * weights[static_cast<std::size_t>(i)] / sum);
    const auto size = i + 1 == count ? left : std::min(left, share / 4 * 4);
    left -= size;
    s.tensors.push_back(memory.allocate(size));
    auto* data = s.tensors.back().bytes().data();
    for (std::uint64_t k = 0; k + 8 <= size; k += 8) {
      const std::uint64_t value = random();
      std::memcpy(data + k, &value, 8);
    }
    item_placement place;
    place.item = static_cast<std::uint32_t>(i);
    place.begin = at, place.bytes = size, place.first_block = layout->blocks;
    place.early = size < always_copied_below;
    layout->items.push_back(place);
    layout->blocks += block_count(size);
    at += size;
    s.sources.push_back({contiguous_view(data, dtype::u8, extents{size}), nullptr});
  }
  segment.bytes = at;
  layout->segments.push_back(std::move(segment));
  layout->bytes = (at + image_alignment - 1) / image_alignment * image_alignment;
  s.layout = std::move(layout);
  return s;
}

/// The twin: each thread takes an equal run of the image's bytes and copies it item by item, hashing each
/// block of an item right after its copy where asked.
void copy_by_hand(const state& s, std::byte* image, std::vector<std::uint64_t>* digests, int threads) {
  const auto& layout = *s.layout;
  const auto work = [&](int t) {
    const auto begin = layout.bytes * static_cast<std::uint64_t>(t) / static_cast<std::uint64_t>(threads);
    const auto end = layout.bytes * static_cast<std::uint64_t>(t + 1) / static_cast<std::uint64_t>(threads);
    for (const auto& place : layout.items) {
      const auto* from = s.sources[place.item].view.data;
      if (digests == nullptr) {
        const auto first = std::max(begin, place.begin);
        const auto last = std::min(end, place.begin + place.bytes);
        if (first < last) std::memcpy(image + first, from + (first - place.begin), last - first);
        continue;
      }
      for (std::uint64_t at = 0, block = 0; at < place.bytes; at += digest_block_bytes, ++block) {
        if (place.begin + at < begin || place.begin + at >= end) continue;
        const auto size = std::min(digest_block_bytes, place.bytes - at);
        std::memcpy(image + place.begin + at, from + at, size);
        (*digests)[place.first_block + block] =
            digest(std::span<const std::byte>(image + place.begin + at, size));
      }
    }
  };
  std::vector<std::jthread> helpers;
  for (int t = 1; t < threads; ++t) helpers.emplace_back(work, t);
  work(0);
}
}  // namespace

int main(int argc, char** argv) {
  std::uint64_t bytes = std::uint64_t{1} << 30;
  int threads = std::min(4, std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  int times = 9;
  int tensors = 200;
  std::string json;
  CLI::App app{"Staging against a hand-written parallel copy"};
  app.add_option("--bytes", bytes, "bytes of the state")->transform(CLI::AsSizeValue(false));
  app.add_option("--tensors", tensors, "tensors in it")->check(CLI::Range(1, 1'000'000));
  app.add_option("--threads", threads, "copy threads on both sides")->check(CLI::Range(1, 256));
  app.add_option("--times", times, "interleaved pairs")->check(CLI::Range(1, 1000));
  app.add_option("--json", json, "file for the figures");
  CLI11_PARSE(app, argc, argv);

  try {
    const auto s = make_state(bytes, tensors);
    cairn_bench::report report("stage");
    const auto until = [] { return deadline::in(std::chrono::minutes(10)); };
    heap_stager stager({}, host_copy({.threads = threads}));
    report.add("prepare (first touch of the buffer)",
               cairn_bench::seconds_of([&] { stager.prepare(*s.layout, until()); }), "s");
    const auto twin_memory = heap_memory().allocate(s.layout->bytes);
    std::vector<std::uint64_t> digests(s.layout->blocks);
    const auto stage = [&](bool overlapped, bool digest) {
      return stager.stage(s.layout, s.sources, {overlapped, digest}, until());
    };
    const auto twin = [&](bool digest) {
      copy_by_hand(s, twin_memory.bytes().data(), digest ? &digests : nullptr, threads);
    };

    {  // Everything warm, and the same on both sides.
      const auto image = stage(false, true);
      twin(true);
      if (std::memcmp(image.bytes().data() + image_alignment, twin_memory.bytes().data() + image_alignment,
                      bytes) != 0 ||
          !std::equal(digests.begin(), digests.end(), image.digests().begin()))
        throw std::runtime_error("the twin's image is another");
    }
    report.add("stage/copy+xxh3 vs memcpy+xxh3",
               cairn_bench::interleaved_pairs([&] { (void)stage(false, true); }, [&] { twin(true); }, times),
               "s");
    report.add(
        "stage/copy vs memcpy",
        cairn_bench::interleaved_pairs([&] { (void)stage(false, false); }, [&] { twin(false); }, times), "s");
    report.add("stage/copy+xxh3 vs memcpy",
               cairn_bench::interleaved_pairs([&] { (void)stage(false, true); }, [&] { twin(false); }, times),
               "s");
    report.add("stage/overlapped, until it returns",
               cairn_bench::measure(times,
                                    [&] {
                                      double blocked = 0;
                                      staged_image image;
                                      blocked = cairn_bench::seconds_of([&] { image = stage(true, true); });
                                      image.wait_released(until());
                                      return blocked;
                                    }),
               "s");
    report.write(json);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_stage: %s\n", e.what());
    return 1;
  }
}
