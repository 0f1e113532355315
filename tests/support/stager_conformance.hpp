// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/concepts/memory.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/cast.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/image_sources.hpp>
#include <cairn/system/digest.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

// What every Stager must do, and the smallest Stager, Memory and CopyEngine.
namespace cairn_test {

inline cairn::deadline soon() {
  return cairn::deadline::in(std::chrono::minutes(2));
}

/// A state in memory of its own, its layout, and what the image must be.
struct stager_case {
  struct memory {
    std::vector<std::byte> bytes;
    bool early = false;
  };
  std::shared_ptr<const cairn::image_layout> layout;
  std::vector<cairn::item_source> sources;
  std::vector<memory> memories;  ///< of each source
  std::vector<std::byte> image;
  std::vector<std::uint64_t> digests;

  /// Overwrites the memory of these items, as training does when it goes on.
  void change(bool early) {
    for (auto& m : memories)
      if (m.early == early) std::fill(m.bytes.begin(), m.bytes.end(), std::byte{0xa5});
  }
};

/// Makes cases; the reference image is computed element by element.
class case_maker {
 public:
  explicit case_maker(std::uint32_t seed) : random_(seed) {}

  /// A new file, with a header of this many bytes.
  case_maker& segment(std::size_t header) {
    end_segment();
    cairn::image_segment s;
    s.begin = end_;
    s.header.resize(header);
    for (auto& b : s.header) b = byte();
    image_.insert(image_.end(), s.header.begin(), s.header.end());
    layout_.segments.push_back(std::move(s));
    return *this;
  }
  /// A contiguous tensor.
  case_maker& tensor(cairn::dtype type, const cairn::extents& shape, bool early = false,
                     cairn::cast_function cast = nullptr, cairn::dtype stored = cairn::dtype::u8) {
    const auto v = cairn::contiguous_view(nullptr, type, shape);
    return strided(type, shape, v.strides, early, cast, stored);
  }
  /// A tensor with any strides (in elements).
  case_maker& strided(cairn::dtype type, const cairn::extents& shape,
                      const std::array<std::int64_t, cairn::extents::max_rank>& strides, bool early = false,
                      cairn::cast_function cast = nullptr, cairn::dtype stored = cairn::dtype::u8) {
    const auto elements = static_cast<std::uint64_t>(shape.volume());
    const std::uint64_t size = cairn::bits_of(type) / 8;
    std::int64_t lowest = 0;
    std::int64_t highest = 0;
    for (int d = 0; d < shape.rank() && elements != 0; ++d) {
      const auto reach = (shape[d] - 1) * strides[static_cast<std::size_t>(d)];
      (reach < 0 ? lowest : highest) += reach;
    }
    stager_case::memory m;
    m.early = early;
    m.bytes.resize(elements == 0 ? 0 : (static_cast<std::uint64_t>(highest - lowest) + 1) * size);
    fill(m.bytes);
    cairn::item_source source{cairn::contiguous_view(nullptr, type, shape), cast};
    source.view.strides = strides;
    std::byte* first = m.bytes.data() + static_cast<std::uint64_t>(-lowest) * size;
    source.view.data = elements == 0 ? nullptr : first;

    const std::uint64_t stored_size = cast == nullptr ? size : cairn::bits_of(stored) / 8;
    cairn::item_placement place;
    place.item = static_cast<std::uint32_t>(sources_.size());
    place.segment = static_cast<std::uint32_t>(layout_.segments.size() - 1);
    place.begin = image_.size();
    place.bytes = elements * stored_size;
    place.first_block = layout_.blocks;
    place.early = early;
    layout_.blocks += cairn::block_count(place.bytes);
    layout_.items.push_back(place);
    image_.resize(place.begin + place.bytes);
    std::byte* to = image_.data() + place.begin;
    // Elements in a row that are stored as they are need no arithmetic; they are most.
    const bool row = cast == nullptr && shape.rank() == 1 && strides[0] == 1;
    if (row && elements != 0) std::memcpy(to, first, place.bytes);
    std::array<std::int64_t, cairn::extents::max_rank> index{};
    for (std::uint64_t i = 0; i < elements && !row; ++i, to += stored_size) {
      if (cast == nullptr)
        std::memcpy(to, first, size);
      else
        cast(first, to, 1);
      for (int d = shape.rank() - 1; d >= 0; --d) {  // to the next element
        const auto k = static_cast<std::size_t>(d);
        first += strides[k] * static_cast<std::int64_t>(size);
        if (++index[k] < shape[d]) break;
        first -= shape[d] * strides[k] * static_cast<std::int64_t>(size);
        index[k] = 0;
      }
    }
    sources_.push_back(source);
    memories_.push_back(std::move(m));
    return *this;
  }
  [[nodiscard]] stager_case make() {
    end_segment();
    layout_.bytes = end_;
    stager_case c;
    for (const auto& place : layout_.items)
      for (std::uint64_t at = 0; at < place.bytes; at += cairn::digest_block_bytes)
        c.digests.push_back(cairn::digest(std::span<const std::byte>(image_).subspan(
            place.begin + at, std::min(cairn::digest_block_bytes, place.bytes - at))));
    c.layout = std::make_shared<const cairn::image_layout>(std::move(layout_));
    c.sources = std::move(sources_);
    c.memories = std::move(memories_);
    c.image = std::move(image_);
    return c;
  }
  /// Any number in [0, below).
  std::uint64_t any(std::uint64_t below) { return random_() % below; }

 private:
  void end_segment() {
    if (layout_.segments.empty()) return;
    auto& s = layout_.segments.back();
    s.bytes = image_.size() - s.begin;
    end_ = (image_.size() + cairn::image_alignment - 1) / cairn::image_alignment * cairn::image_alignment;
    image_.resize(end_);
  }
  void fill(std::span<std::byte> bytes) {
    while (bytes.size() >= sizeof(std::uint64_t)) {
      const std::uint64_t bits = random_();
      std::memcpy(bytes.data(), &bits, sizeof bits);
      bytes = bytes.subspan(sizeof bits);
    }
    for (auto& b : bytes) b = byte();
  }
  std::byte byte() {
    if (left_ == 0) bits_ = random_(), left_ = 8;
    const auto b = static_cast<std::byte>(bits_ & 0xff);
    bits_ >>= 8, --left_;
    return b;
  }
  std::mt19937_64 random_;
  std::uint64_t bits_ = 0;
  int left_ = 0;
  std::uint64_t end_ = 0;
  cairn::image_layout layout_;
  std::vector<cairn::item_source> sources_;
  std::vector<stager_case::memory> memories_;
  std::vector<std::byte> image_;
};

/// Everything at once: small and large, odd sizes, strides, casts, nothing at all, several files.
inline stager_case make_random_case(std::uint32_t seed) {
  using cairn::dtype;
  case_maker make(seed);
  const auto to_bf16 = cairn::find_cast(dtype::f32, dtype::bf16);
  const auto to_f64 = cairn::find_cast(dtype::f32, dtype::f64);
  const int segments = 1 + static_cast<int>(make.any(3));
  for (int s = 0; s < segments; ++s) {
    make.segment(4096 + make.any(5000));
    const auto items = make.any(12);
    for (std::uint64_t i = 0; i < items; ++i) {
      const auto n = static_cast<std::int64_t>(make.any(3) == 0 ? make.any(450'000) : make.any(5000));
      switch (make.any(8)) {
        case 0:
          make.tensor(dtype::u8, {n}, true);
          break;
        case 1:
          make.tensor(dtype::f32, {n}, false, to_bf16, dtype::bf16);
          break;
        case 2:
          make.strided(dtype::f32, {n / 7 + 1, 5}, {7, 1}, false, to_f64, dtype::f64);
          break;
        case 3:
          make.strided(dtype::i16, {3, n / 3 + 1}, {1, 3});
          break;
        case 4:
          make.strided(dtype::u8, {n / 100 + 1, 90}, {-100, 1}, make.any(2) == 0);
          break;
        case 5:
          make.tensor(dtype::f32, {0, 4});
          break;
        default:
          make.tensor(dtype::f64, {n});
      }
    }
  }
  return make.make();
}

/// A view of random rank, element size and strides: any order of dimensions, gaps, backwards, repeated,
/// single elements.
inline void add_strided(case_maker& make) {
  using cairn::dtype;
  const dtype types[] = {dtype::u8, dtype::bf16, dtype::f32, dtype::f64};
  const int rank = 1 + static_cast<int>(make.any(8));
  std::vector<std::int64_t> sizes;
  std::vector<std::size_t> order;
  const std::uint64_t most = rank <= 2 ? 300 : rank <= 4 ? 14 : 4;
  for (int d = 0; d < rank; ++d) {
    sizes.push_back(1 + static_cast<std::int64_t>(make.any(most)));
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(make.any(order.size() + 1)),
                 static_cast<std::size_t>(d));
  }
  std::array<std::int64_t, cairn::extents::max_rank> strides{};
  std::int64_t next = make.any(2) == 0 ? 1 : 3;
  for (const auto d : order) {
    const auto kind = make.any(12);
    strides[d] = kind == 0 ? 0 : kind == 1 ? -next : next;
    if (kind != 0) next = next * sizes[d] + (kind == 2 ? 5 : 0);
  }
  make.strided(types[make.any(4)], cairn::extents(sizes), strides, make.any(4) == 0);
}
/// Twelve such views, with contiguous ones between them.
inline stager_case make_strided_case(std::uint32_t seed) {
  case_maker make(seed);
  make.segment(4096 + make.any(99));
  for (int i = 0; i < 12; ++i) {
    add_strided(make);
    if (make.any(3) == 0) make.tensor(cairn::dtype::u8, {static_cast<std::int64_t>(make.any(700'000))});
  }
  return make.make();
}

/// A separate case with the same contents.
inline stager_case copy_of(const stager_case& made) {
  stager_case c = made;
  for (std::size_t i = 0; i < c.sources.size(); ++i)
    if (c.sources[i].view.data != nullptr)
      c.sources[i].view.data =
          c.memories[i].bytes.data() + (made.sources[i].view.data - made.memories[i].bytes.data());
  return c;
}
/// Cases are computed once: sanitizers make that slow.
template <class Make>
stager_case cached_case(std::uint32_t seed, Make&& make) {
  static std::map<std::uint32_t, stager_case> cases;
  auto at = cases.find(seed);
  if (at == cases.end()) at = cases.emplace(seed, make(seed)).first;
  return copy_of(at->second);
}
inline stager_case random_case(std::uint32_t seed) {
  return cached_case(seed, [](auto s) { return make_random_case(s); });
}

/// Ten thousand small tensors and values.
inline stager_case make_many_small(std::uint32_t seed) {
  case_maker make(seed);
  make.segment(8192);
  for (int i = 0; i < 10'000; ++i) make.tensor(cairn::dtype::u8, {make.any(300)}, make.any(2) == 0);
  return make.make();
}

inline stager_case many_small(std::uint32_t seed) {
  return cached_case(seed, [](auto s) { return make_many_small(s); });
}
/// Four large tensors with small early ones between them.
inline stager_case large_and_small(std::uint32_t seed) {
  return cached_case(seed, [](auto s) {
    case_maker make(s);
    make.segment(4096);
    for (int i = 0; i < 4; ++i)
      make.tensor(cairn::dtype::u8, {1'300'001}).tensor(cairn::dtype::u8, {99}, true);
    return make.make();
  });
}

/// The image's bytes, as a writer takes them: in pieces that cut items and elements.
inline std::vector<std::byte> read_image(const cairn::staged_image& image, std::uint64_t piece = 99'991) {
  std::vector<std::byte> bytes(image.layout().bytes);
  for (std::uint64_t at = 0; at < bytes.size(); at += piece) {
    const auto part = std::span<std::byte>(bytes).subspan(at, std::min(piece, bytes.size() - at));
    image.wait_for(at + part.size(), soon());
    if (image.resident())
      std::memcpy(part.data(), image.bytes().data() + at, part.size());
    else
      image.gather(at, part);
  }
  return bytes;
}

/// The first byte that differs, or -1: one check, however large the images are.
inline std::int64_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return static_cast<std::int64_t>(std::min(a.size(), b.size()));
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return -1;
  const auto at = std::mismatch(a.begin(), a.end(), b.begin()).first;
  return at == a.end() ? -1 : at - a.begin();
}

inline void check_digests(const cairn::staged_image& image, const stager_case& c, bool expected) {
  CHECK(image.digested() == expected);
  REQUIRE(image.digests().size() == c.digests.size());
  if (expected) CHECK(std::equal(c.digests.begin(), c.digests.end(), image.digests().begin()));
}

/// Runs all that a Stager promises. `Environment`: `make()` gives a fresh stager; `digests`: whether it
/// computes them.
template <class Environment>
void stager_conformance(const Environment& environment) {
  const auto run = [&](auto& stager, const stager_case& made, cairn::stage_options options) {
    stager_case c = copy_of(made);
    auto image = stager.stage(c.layout, c.sources, options, soon());
    c.change(true);
    if (!image.resident()) {
      // Training memory is the writer's until it says so.
      CHECK(image.control()->watermark() == c.layout->bytes);
      CHECK(first_difference(read_image(image), c.image) == -1);
      image.read_completely();
      image.wait_released(soon());
      c.change(false);
    } else {
      if (!options.overlapped) CHECK(image.control()->watermark() == c.layout->bytes);
      if (!options.overlapped) CHECK(image.control()->copied());
      image.wait_released(soon());
      c.change(false);
      CHECK(first_difference(read_image(image), c.image) == -1);
    }
    check_digests(image, c, options.digest && environment.digests);
  };

  SUBCASE("the image is that of the sources") {
    auto stager = environment.make();
    CHECK(stager.depth() >= 1);
    for (std::uint32_t seed = 1; seed <= 4; ++seed) {
      const auto c = random_case(seed);
      CAPTURE(seed);
      for (const bool overlapped : {false, true})
        for (const bool digest : {false, true}) run(stager, c, {overlapped, digest});
    }
  }
  SUBCASE("many small items") {
    auto stager = environment.make();
    const auto c = many_small(7);
    stager.prepare(*c.layout, soon());
    for (const bool overlapped : {false, true}) run(stager, c, {overlapped, true});
  }
  SUBCASE("nothing, and next to nothing") {
    auto stager = environment.make();
    for (const bool overlapped : {false, true}) {
      run(stager, case_maker(1).make(), {overlapped, true});
      run(stager, case_maker(1).segment(1).make(), {overlapped, true});
      run(stager,
          case_maker(1)
              .segment(4096)
              .tensor(cairn::dtype::f32, {0})
              .tensor(cairn::dtype::u8, {1}, true)
              .make(),
          {overlapped, true});
    }
  }
  SUBCASE("the watermark rises, and what lies below it is there") {
    auto stager = environment.make();
    const auto c = large_and_small(11);
    auto image = stager.stage(c.layout, c.sources, {true, true}, soon());
    std::atomic<bool> wrong{false};
    std::thread checker([&] {
      std::uint64_t seen = 0;
      std::vector<std::byte> part;
      while (seen < c.layout->bytes) {
        const auto mark = image.control()->watermark();
        if (mark < seen || mark > c.layout->bytes) wrong = true;
        if (mark <= seen) {
          std::this_thread::yield();
          continue;
        }
        part.resize(mark - seen);
        if (image.resident())
          std::memcpy(part.data(), image.bytes().data() + seen, part.size());
        else
          image.gather(seen, part);
        if (first_difference(part, std::span<const std::byte>(c.image).subspan(seen, part.size())) != -1)
          wrong = true;
        if (image.digested())
          for (const auto& place : c.layout->items)
            for (std::uint64_t b = 0; b < cairn::block_count(place.bytes); ++b)
              if (place.begin + std::min(place.bytes, (b + 1) * cairn::digest_block_bytes) <= mark &&
                  image.digests()[place.first_block + b] != c.digests[place.first_block + b])
                wrong = true;
        seen = mark;
      }
    });
    checker.join();
    CHECK_FALSE(wrong);
    image.read_completely();
    image.wait_released(soon());
  }
  SUBCASE("an image outlives its stager") {
    const auto c = random_case(3);
    cairn::staged_image image;
    {
      auto stager = environment.make();
      auto moved = std::move(stager);
      image = moved.stage(c.layout, c.sources, {true, true}, soon());
    }
    CHECK(first_difference(read_image(image), c.image) == -1);
    image.read_completely();
    image.wait_released(soon());
  }
  SUBCASE("an image that is dropped gives training its memory back") {
    auto stager = environment.make();
    const auto c = random_case(4);
    auto image = stager.stage(c.layout, c.sources, {true, true}, soon());
    const auto control = image.control();
    image = {};
    (void)control->wait_copied(soon());
    CHECK(control->copied());
  }
  SUBCASE("memory that does not fit its place is refused") {
    auto stager = environment.make();
    const auto c = case_maker(5).segment(4096).tensor(cairn::dtype::f32, {10}).make();
    auto sources = c.sources;
    sources[0].view.shape = {9};
    CHECK_THROWS_AS((void)stager.stage(c.layout, sources, {}, soon()), cairn::usage_error);
    CHECK_THROWS_AS((void)stager.stage(c.layout, {}, {}, soon()), cairn::usage_error);
    // A cast whose result does not divide the place.
    sources = c.sources;
    sources[0].view.shape = {7};
    sources[0].cast = cairn::find_cast(cairn::dtype::f32, cairn::dtype::bf16);
    CHECK_THROWS_AS((void)stager.stage(c.layout, sources, {}, soon()), cairn::usage_error);
    sources = c.sources;
    sources[0].view.space = cairn::memory_space::device;
    CHECK_THROWS_AS((void)stager.stage(c.layout, sources, {}, soon()), cairn::usage_error);
    run(stager, c, {});
  }
}

// --- Archetypes: the least that satisfies each concept. No default constructor, no copies, no other members.
// -----------

/// A Stager that reads from training memory.
class least_stager {
 public:
  explicit least_stager(int) {}
  least_stager(least_stager&&) = default;
  least_stager& operator=(least_stager&&) = default;
  cairn::staged_image stage(std::shared_ptr<const cairn::image_layout> layout,
                            std::vector<cairn::item_source> sources, cairn::stage_options, cairn::deadline) {
    struct backing final : cairn::image_backing {
      std::vector<cairn::item_source> sources;
      std::shared_ptr<const cairn::image_layout> layout;
      std::vector<std::uint64_t> digests;
      void gather(std::uint64_t begin, std::span<std::byte> out) const override {
        cairn::detail::gather_image(*layout, sources, begin, out);
      }
      std::exception_ptr failure() const noexcept override { return nullptr; }
    };
    auto held = std::make_shared<backing>();
    held->sources = std::move(sources), held->layout = layout;
    held->digests.resize(layout->blocks);
    auto control = std::make_shared<cairn::image_control>();
    control->advance(layout->bytes);
    return {layout, control, {}, held->digests, false, held};
  }
  void prepare(const cairn::image_layout&, cairn::deadline) {}
  int depth() const { return 1; }
};
static_assert(cairn::Stager<least_stager>);

/// Memory from the heap; counts the blocks that live.
class least_memory {
 public:
  class block_type {
   public:
    block_type(std::uint64_t bytes, std::shared_ptr<std::atomic<int>> live)
        : bytes_(bytes),
          data_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(cairn::image_alignment)))),
          live_(std::move(live)) {
      ++*live_;
    }
    block_type(block_type&& other) noexcept
        : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)), live_(std::move(other.live_)) {}
    block_type& operator=(block_type&& other) noexcept {
      std::swap(bytes_, other.bytes_), std::swap(data_, other.data_), std::swap(live_, other.live_);
      return *this;
    }
    ~block_type() {
      if (data_ == nullptr) return;
      ::operator delete(data_, std::align_val_t(cairn::image_alignment));
      --*live_;
    }
    std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }

   private:
    std::uint64_t bytes_;
    std::byte* data_;
    std::shared_ptr<std::atomic<int>> live_;
  };
  static constexpr cairn::memory_space space = cairn::memory_space::host;
  static constexpr bool shareable = false;

  explicit least_memory(std::shared_ptr<std::atomic<int>> live) : live_(std::move(live)) {}
  least_memory(least_memory&&) = default;
  least_memory& operator=(least_memory&&) = default;
  block_type allocate(std::uint64_t bytes) { return {bytes, live_}; }
  std::shared_ptr<cairn::image_control> make_control(block_type&) {
    return std::make_shared<cairn::image_control>();
  }

 private:
  std::shared_ptr<std::atomic<int>> live_;
};
static_assert(cairn::Memory<least_memory>);

/// Copies in the calling thread, without digests.
class least_engine {
 public:
  template <class M>
  static constexpr bool accepts = M::space == cairn::memory_space::host;
  static constexpr bool digests = false;
  explicit least_engine(int) {}
  least_engine(least_engine&&) = default;
  least_engine& operator=(least_engine&&) = default;
  void check(const cairn::item_source& source) const { cairn::check_host_readable(source); }
  void copy(std::shared_ptr<cairn::image_fill> fill, cairn::deadline) {
    std::vector<cairn::item_source> sources(fill->layout().items.size());
    for (const auto& place : fill->layout().items) sources[place.item] = fill->source(place);
    cairn::detail::gather_image(fill->layout(), sources, 0, fill->memory());
    fill->control().advance(fill->layout().bytes);
    fill->control().release();
  }
};
static_assert(cairn::CopyEngine<least_engine, least_memory>);

// The smallest types with one optional capability each.

struct least_preparing_engine : least_engine {
  explicit least_preparing_engine(std::size_t& count) : least_engine(1), prepared(&count) {}
  void prepare(const cairn::source_table& sources) & { *prepared += sources.size(); }
  std::size_t* prepared;
};
struct least_stream {
  int* waits;
};
struct least_ordered_engine : least_engine {
  using least_engine::least_engine;
  void before_update(least_stream stream, int device, cairn::deadline) & { *stream.waits += device; }
};
struct least_device_engine : least_engine {
  explicit least_device_engine(std::shared_ptr<cairn::device_access> given)
      : least_engine(1), devices(std::move(given)) {}
  /// Not a pointer, but gives one.
  struct access {
    std::shared_ptr<cairn::device_access> devices;
    operator std::shared_ptr<cairn::device_access>() const { return devices; }  // NOLINT: the point
  };
  access device_memory() const& { return {devices}; }
  std::shared_ptr<cairn::device_access> devices;
};
static_assert(cairn::PreparingCopyEngine<least_preparing_engine> &&
              cairn::StreamOrderedCopyEngine<least_ordered_engine, least_stream> &&
              cairn::DeviceCopyEngine<least_device_engine>);

struct least_node_memory : least_memory {
  using least_memory::least_memory;
  block_type allocate(std::uint64_t bytes, int) { return least_memory::allocate(bytes); }
  using least_memory::allocate;
};
static_assert(cairn::NodeMemory<least_node_memory>);

struct least_sharing_stager : least_stager {
  using least_stager::least_stager;
  static constexpr bool shareable = true;
};
static_assert(cairn::SharesImages<least_sharing_stager>);

// --- Negative models: wrong in one point each.
// --------------------------------------------------------------------------

struct stager_without_prepare : least_stager {
  using least_stager::least_stager;
  void prepare() {}
};
static_assert(!cairn::Stager<stager_without_prepare>);
struct stager_without_deadline : least_stager {
  using least_stager::least_stager;
  cairn::staged_image stage(std::shared_ptr<const cairn::image_layout>, std::vector<cairn::item_source>,
                            cairn::stage_options);
};
static_assert(!cairn::Stager<stager_without_deadline>);
struct stager_that_cannot_move : least_stager {
  using least_stager::least_stager;
  stager_that_cannot_move(stager_that_cannot_move&&) = delete;
};
static_assert(!cairn::Stager<stager_that_cannot_move>);

struct memory_without_control : least_memory {
  void make_control();
};
static_assert(!cairn::Memory<memory_without_control>);
struct memory_with_variable_space : least_memory {
  cairn::memory_space space;
};
static_assert(!cairn::Memory<memory_with_variable_space>);
struct memory_of_pointers : least_memory {
  std::byte* allocate(std::uint64_t);
};
static_assert(!cairn::Memory<memory_of_pointers>);

struct engine_that_refuses : least_engine {
  template <class M>
  static constexpr bool accepts = false;
};
static_assert(!cairn::CopyEngine<engine_that_refuses, least_memory>);
struct engine_that_says_nothing_of_digests : least_engine {
  void digests();
};
static_assert(!cairn::CopyEngine<engine_that_says_nothing_of_digests, least_memory>);
struct engine_without_deadline : least_engine {
  void copy(std::shared_ptr<cairn::image_fill>);
};
static_assert(!cairn::CopyEngine<engine_without_deadline, least_memory>);

struct engine_that_prepares_nothing : least_engine {
  void prepare();
};
struct engine_that_answers : least_engine {
  bool prepare(const cairn::source_table&);
  bool before_update(least_stream, int, cairn::deadline);
};
struct engine_that_orders_without_deadline : least_engine {
  void before_update(least_stream, int);
};
struct engine_with_a_number_of_devices : least_engine {
  int device_memory() const;
};
struct engine_that_changes_to_tell_devices : least_engine {
  std::shared_ptr<cairn::device_access> device_memory();
};
static_assert(!cairn::PreparingCopyEngine<least_engine> &&
              !cairn::PreparingCopyEngine<engine_that_prepares_nothing> &&
              !cairn::PreparingCopyEngine<engine_that_answers>);
static_assert(!cairn::StreamOrderedCopyEngine<least_engine, least_stream> &&
              !cairn::StreamOrderedCopyEngine<least_ordered_engine, int*> &&
              !cairn::StreamOrderedCopyEngine<engine_that_answers, least_stream> &&
              !cairn::StreamOrderedCopyEngine<engine_that_orders_without_deadline, least_stream>);
static_assert(!cairn::DeviceCopyEngine<least_engine> &&
              !cairn::DeviceCopyEngine<engine_with_a_number_of_devices> &&
              !cairn::DeviceCopyEngine<engine_that_changes_to_tell_devices>);

struct memory_of_pointers_on_nodes : least_memory {
  std::byte* allocate(std::uint64_t, int);
  using least_memory::allocate;
};
static_assert(!cairn::NodeMemory<least_memory> && !cairn::NodeMemory<memory_of_pointers_on_nodes>);

struct stager_that_shares_nothing : least_stager {
  static constexpr bool shareable = false;
};
static_assert(!cairn::SharesImages<least_stager> && !cairn::SharesImages<stager_that_shares_nothing>);

}  // namespace cairn_test
