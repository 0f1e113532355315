// SPDX-License-Identifier: Apache-2.0
// links: cairn::parity
// test: --mebibytes 16 --pairs 1
// What parity costs: making the piece of a member and rebuilding an image, beside ISA-L called by hand for the same bytes,
// and beside a copy of as many bytes as are read. `computed`: the computation alone; `verified`: with each source copied
// and its digests compared first, as it is where the bytes come from elsewhere, beside the same by hand;
// `while_fetching`: the same over links of 500 MB/s, beside fetching alone.
#include <isa-l.h>
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/links/thread_link.hpp>
#include <cairn/redundancy/link_reader.hpp>
#include <cairn/redundancy/parity.hpp>
#include <cairn/redundancy/strip_reader.hpp>
#include <cairn/system/digest.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <support/bench.hpp>
#include <vector>

namespace {

/// Memory in huge pages, so that the first touch and the translation of addresses are in no figure.
class room {
 public:
  explicit room(std::size_t bytes) : bytes_(bytes) {
    void* const got = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) throw std::bad_alloc();
    static_cast<void>(::madvise(got, bytes, MADV_HUGEPAGE));
    begin_ = static_cast<std::byte*>(got);
    std::memset(begin_, 1, bytes_);
  }
  room(const room&) = delete;
  room& operator=(const room&) = delete;
  ~room() { ::munmap(begin_, bytes_); }
  [[nodiscard]] std::span<std::byte> span(std::size_t at, std::size_t bytes) const {
    return {begin_ + at, bytes};
  }

 private:
  std::byte* begin_ = nullptr;
  std::size_t bytes_;
};

constexpr std::size_t block = cairn::digest_block_bytes;

/// ISA-L by hand: the rows of parity of as many sources, all at once.
void by_hand(std::span<unsigned char* const> sources, std::span<unsigned char* const> rows, std::size_t bytes,
             unsigned char* tables) {
  constexpr std::size_t unit = 32768;
  for (std::size_t at = 0; at < bytes; at += unit) {
    const int length = static_cast<int>(std::min(unit, bytes - at));
    std::array<unsigned char*, 64> parts;
    for (std::size_t i = 0; i < sources.size(); ++i) parts[i] = sources[i] + at;
    for (std::size_t i = 0; i < rows.size(); ++i) parts[sources.size() + i] = rows[i] + at;
    if (rows.size() == 1) {
      std::array<void*, 64> all;
      std::copy_n(parts.begin(), sources.size() + 1, all.begin());
      if (::xor_gen(static_cast<int>(sources.size() + 1), length, all.data()) != 0)
        throw std::runtime_error("xor_gen refuses");
    } else {
      ::ec_encode_data(length, static_cast<int>(sources.size()), static_cast<int>(rows.size()), tables,
                       parts.data(), parts.data() + sources.size());
    }
  }
}

void run(int data, int losses, std::size_t image_bytes, int turns, cairn_bench::report& report) {
  const cairn::any_redundancy by(cairn::parity{.data = data, .losses = losses});
  const auto members = static_cast<std::size_t>(data + losses);
  const cairn::redundancy_set set(members, {.rank = 0, .bytes = image_bytes});
  const std::size_t piece_bytes = by.overhead(set, 0);
  const room images(members * image_bytes);
  const room pieces(members * piece_bytes);
  const room made(std::max(image_bytes, piece_bytes));
  const room other(std::max(image_bytes, piece_bytes) * 2);
  std::mt19937_64 random(5);
  for (std::size_t at = 0; at < members * image_bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t number = random();
    std::memcpy(images.span(at, sizeof number).data(), &number, sizeof number);
  }
  const auto bytes_of = [&](const cairn::member_range& from) {
    const auto member = static_cast<std::size_t>(from.member);
    return from.piece ? pieces.span(member * piece_bytes + from.begin, piece_bytes - from.begin).data()
                      : images.span(member * image_bytes + from.begin, image_bytes - from.begin).data();
  };
  const auto compute = [&](const std::vector<cairn::redundancy_strip>& strips, std::span<std::byte> to) {
    std::vector<const std::byte*> sources;
    for (const auto& strip : strips)
      for (std::uint64_t at = 0; at < strip.bytes; at += block) {
        sources.clear();
        for (auto from : strip.sources) {
          from.begin += at;
          sources.push_back(bytes_of(from));
        }
        by.combine(strip.factors, sources,
                   to.subspan(static_cast<std::size_t>(strip.begin + at),
                              static_cast<std::size_t>(std::min<std::uint64_t>(block, strip.bytes - at))));
      }
  };
  for (std::int32_t member = 0; static_cast<std::size_t>(member) < members; ++member)
    compute(by.encoding(set, member),
            pieces.span(static_cast<std::size_t>(member) * piece_bytes, piece_bytes));
  std::vector<cairn::detail::member_tables> tables;
  for (std::size_t i = 0; i < members; ++i)
    tables.push_back({cairn::detail::blocks_of(images.span(i * image_bytes, image_bytes)),
                      cairn::detail::blocks_of(pieces.span(i * piece_bytes, piece_bytes))});

  // By hand: as many bytes of as many sources, without a thought of whose they are.
  const auto part = image_bytes / static_cast<std::size_t>(data);
  std::vector<unsigned char> matrix(members * static_cast<std::size_t>(data));
  std::vector<unsigned char> factors(32 * static_cast<std::size_t>(data * losses));
  ::gf_gen_cauchy1_matrix(matrix.data(), data + losses, data);
  ::ec_init_tables(data, losses, matrix.data() + data * data, factors.data());
  std::vector<unsigned char*> sources;
  for (std::size_t i = 0; i < static_cast<std::size_t>(data); ++i)
    sources.push_back(reinterpret_cast<unsigned char*>(images.span(i * image_bytes, image_bytes).data()));
  unsigned char* const to = reinterpret_cast<unsigned char*>(other.span(0, image_bytes).data());
  const auto hand = [&](std::size_t parts) {  // one row of as many parts, or rows of some at once
    for (std::size_t p = 0; p < parts; p += static_cast<std::size_t>(losses)) {
      std::vector<unsigned char*> from = sources;
      for (auto& s : from) s += p % static_cast<std::size_t>(data) * part;
      std::vector<unsigned char*> rows;
      for (std::size_t r = 0; r < static_cast<std::size_t>(losses); ++r)
        rows.push_back(to + (p + r) % static_cast<std::size_t>(data) * part);
      by_hand(from, rows, part, factors.data());
    }
  };
  // A row of parity is computed for each part where the parts of other groups are others: one row at a time.
  const auto hand_of_rows = [&](std::size_t parts) {
    for (std::size_t p = 0; p < parts; ++p) {
      std::vector<unsigned char*> from = sources;
      for (auto& s : from) s += p % static_cast<std::size_t>(data) * part;
      std::array<unsigned char*, 1> row{to + p % static_cast<std::size_t>(data) * part};
      if (losses == 1)
        by_hand(from, row, part, factors.data());
      else
        for (std::size_t at = 0; at < part; at += 32768) {
          std::array<unsigned char*, 64> parts_of;
          for (std::size_t i = 0; i < from.size(); ++i) parts_of[i] = from[i] + at;
          unsigned char* out = row[0] + at;
          ::ec_encode_data(static_cast<int>(std::min<std::size_t>(32768, part - at)), data, 1, factors.data(),
                           parts_of.data(), &out);
        }
    }
  };
  const auto verified_by_hand = [&](std::size_t parts) {
    for (std::size_t p = 0; p < parts; ++p)
      for (std::size_t at = 0; at < part; at += block) {
        const auto length = std::min(block, part - at);
        std::vector<unsigned char*> from;
        for (std::size_t i = 0; i < static_cast<std::size_t>(data); ++i) {
          const auto copy = other.span(image_bytes + i * block % image_bytes, length);
          std::memcpy(copy.data(), sources[i] + p % static_cast<std::size_t>(data) * part + at, length);
          cairn_bench::keep(cairn::digest(copy));
          from.push_back(reinterpret_cast<unsigned char*>(copy.data()));
        }
        std::array<unsigned char*, 1> row{to + p % static_cast<std::size_t>(data) * part + at};
        if (losses == 1)
          by_hand(from, row, length, factors.data());
        else
          ::ec_encode_data(static_cast<int>(length), data, 1, factors.data(), from.data(), row.data());
      }
  };
  const auto read = [&](const cairn::member_range& from, std::span<std::byte> out) {
    std::memcpy(out.data(), bytes_of(from), out.size());
    return true;
  };

  const std::string which = std::to_string(data) + "+" + std::to_string(losses);
  const auto count = static_cast<std::size_t>(losses);
  const std::uint64_t encoded = static_cast<std::uint64_t>(data) * count * part;
  const auto add = [&](const std::string& name, std::uint64_t bytes, const std::vector<double>& ours,
                       const std::vector<double>& twin, cairn_bench::goal wanted) {
    report.add(name,
               cairn_bench::make_pairs(cairn_bench::rates(bytes, ours), cairn_bench::rates(bytes, twin)),
               "B/s", wanted);
  };
  const auto encoding = by.encoding(set, 0);
  auto timed = cairn_bench::interleaved(
      turns, [&] { compute(encoding, made.span(0, piece_bytes)); }, [&] { hand_of_rows(count); },
      [&] {
        std::size_t at = 0;
        for (std::size_t p = 0; p < count; ++p)
          for (std::size_t i = 0; i < static_cast<std::size_t>(data); ++i, at += part)
            std::memcpy(other.span(at % image_bytes, part).data(), sources[i] + p * part, part);
      });
  if (std::memcmp(made.span(0, piece_bytes).data(), pieces.span(0, piece_bytes).data(), piece_bytes) != 0)
    throw std::runtime_error("a piece is not what it was");
  add("encode_computed/" + which, encoded, timed[0], timed[1], cairn_bench::at_least(1 / 1.3));
  report.add("copy_of_as_many_bytes/" + which, cairn_bench::samples(cairn_bench::rates(encoded, timed[2])),
             "B/s");
  if (losses > 1) {
    const auto together = cairn_bench::interleaved(turns, [&] { hand(count); });
    report.add("encode_by_hand_of_all_rows_at_once/" + which,
               cairn_bench::samples(cairn_bench::rates(static_cast<std::uint64_t>(data) * part, together[0])),
               "B/s");
  }

  timed = cairn_bench::interleaved(
      turns,
      [&] {
        cairn::detail::strip_reader reader(by, tables, read);
        for (std::size_t at = 0; at < piece_bytes; at += block)
          if (reader.compute(encoding, at, made.span(at, std::min(block, piece_bytes - at))))
            throw std::runtime_error("a block is wrong");
      },
      [&] { verified_by_hand(count); });
  add("encode_verified/" + which, encoded, timed[0], timed[1], cairn_bench::at_least(1 / 1.3));

  cairn::set_survivors survivors{std::vector<bool>(members, true), std::vector<bool>(members, true)};
  for (std::size_t i = 0; i < count; ++i) survivors.images[i] = survivors.pieces[i] = false;
  const auto rebuilding = by.rebuilding(set, 0, survivors);
  timed = cairn_bench::interleaved(
      turns, [&] { compute(rebuilding, made.span(0, image_bytes)); },
      [&] { hand_of_rows(static_cast<std::size_t>(data)); });
  if (std::memcmp(made.span(0, image_bytes).data(), images.span(0, image_bytes).data(), image_bytes) != 0)
    throw std::runtime_error("an image is not what it was");
  const std::uint64_t read_bytes = static_cast<std::uint64_t>(data) * image_bytes;
  add("rebuild_computed/" + which, read_bytes, timed[0], timed[1], cairn_bench::at_least(0.7));
  timed = cairn_bench::interleaved(
      turns,
      [&] {
        static_cast<void>(
            cairn::detail::rebuild_image(by, set, 0, survivors, tables, read, made.span(0, image_bytes)));
      },
      [&] { verified_by_hand(static_cast<std::size_t>(data)); });
  add("rebuild_verified/" + which, read_bytes, timed[0], timed[1], cairn_bench::at_least(0.7));
}

/// A piece that is made while its sources are on their way, over links of so many bytes a second, beside fetching them alone.
void run_linked(int data, std::size_t image_bytes, std::uint64_t bytes_per_second, int turns,
                cairn_bench::report& report) {
  const cairn::any_redundancy by(cairn::parity{.data = data, .losses = 1});
  const int members = data + 1;
  const cairn::redundancy_set set(static_cast<std::size_t>(members), {.rank = 0, .bytes = image_bytes});
  const room images(static_cast<std::size_t>(members) * image_bytes);
  std::vector<cairn::detail::member_tables> tables;
  const cairn::thread_link_group group(members);
  std::vector<cairn::any_peer_link> links;
  const cairn::offer_key key{"image", 1};
  cairn::detail::link_reader::options how;
  for (int rank = 0; rank < members; ++rank) {
    const auto image = images.span(static_cast<std::size_t>(rank) * image_bytes, image_bytes);
    tables.push_back({cairn::detail::blocks_of(image), {}});
    links.emplace_back(group.link(rank));
    const std::span<const std::byte> part = image;
    links.back().offer(key, std::span(&part, 1));
    if (rank != 0)
      group.disturb(
          0, rank, {.what = cairn::link_fault::kind::slow, .after = 0, .bytes_per_second = bytes_per_second});
    how.ranks.push_back(rank);
  }
  how.image = key;
  const auto strips = by.encoding(set, 0);
  const auto piece_bytes = static_cast<std::size_t>(by.overhead(set, 0));
  const room made(piece_bytes);
  const room fetched(block);
  const auto timed = cairn_bench::interleaved(
      turns,
      [&] {
        cairn::detail::link_reader source(links[0], how, strips, tables);
        const auto read = [&](const cairn::member_range& from, std::span<std::byte> out) {
          return source.read(from, out);
        };
        cairn::detail::strip_reader reader(by, tables, read);
        for (std::size_t at = 0; at < piece_bytes; at += block) {
          const auto part = made.span(at, std::min(block, piece_bytes - at));
          if (reader.compute(strips, at, part)) throw std::runtime_error("a block is wrong");
          cairn_bench::keep(cairn::digest(part));
        }
      },
      [&] {
        for (const auto& strip : strips)
          for (std::uint64_t at = 0; at < strip.bytes; at += block)
            for (const auto& from : strip.sources) {
              const cairn::fetch_range range{
                  .offset = from.begin + at,
                  .destination = fetched.span(
                      0, static_cast<std::size_t>(std::min<std::uint64_t>(block, strip.bytes - at)))};
              static_cast<void>(
                  links[0].fetch(from.member, key, std::span(&range, 1), cairn::deadline::never()));
            }
      });
  const std::uint64_t bytes = piece_bytes * static_cast<std::uint64_t>(data);
  report.add(
      "encode_while_fetching/" + std::to_string(data) + "+1",
      cairn_bench::make_pairs(cairn_bench::rates(bytes, timed[0]), cairn_bench::rates(bytes, timed[1])),
      "B/s", cairn_bench::at_least(0.8));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--help") {
    std::puts(
        "What parity costs, beside ISA-L by hand: bytes of images that are read each second.\n"
        "usage: bench_parity [--mebibytes N] [--pairs N] [--json FILE]\n"
        "--mebibytes: of each image.");
    return 0;
  }
  try {
    const auto mebibytes = cairn_bench::argument(argc, argv, "--mebibytes", std::int64_t{64});
    const auto turns = cairn_bench::argument(argc, argv, "--pairs", std::int64_t{7});
    if (mebibytes < 16 || mebibytes > 1 << 16 || mebibytes % 16 != 0 || turns < 1 || turns > 1000)
      throw std::invalid_argument("--mebibytes is a multiple of 16, --pairs a number from 1 to 1000");
    cairn_bench::report report("parity");
    for (const auto& [data, losses] : {std::pair{8, 1}, {8, 2}, {16, 2}})
      run(data, losses, static_cast<std::size_t>(mebibytes) << 20, static_cast<int>(turns), report);
    run_linked(8, static_cast<std::size_t>(mebibytes) << 20, 500'000'000, static_cast<int>(turns), report);
    report.write(cairn_bench::argument(argc, argv, "--json"));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_parity: %s\n", e.what());
    return 1;
  }
}
