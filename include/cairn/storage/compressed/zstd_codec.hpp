// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::zstd
#pragma once
#include <cairn/concepts/codec.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/storage/compressed/byte_planes.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Options of zstd_codec.
struct zstd_options {
  /// 1 to 22 (ZSTD_maxCLevel), for what repeats itself; weights do not, and take no more time.
  int level = 1;
  bool planes = true;  ///< numbers are split into byte planes where samples say that it pays
};

namespace detail {

/// The memory of one call of a zstd_codec, allocated when it is first needed.
class zstd_workspace {
 public:
  /// `repeats`: whether the bytes hold what was there before, or only some values more often than others.
  /// Then looking for repetitions costs time, and those found by chance cost bytes, so that few are looked
  /// for.
  [[nodiscard]] ZSTD_CCtx* compressor(int level, bool repeats) {
    if (compressor_ == nullptr) compressor_.reset(ZSTD_createCCtx());
    if (compressor_ == nullptr) throw std::bad_alloc();
    const auto set = [&](ZSTD_cParameter what, int value) {
      static_cast<void>(ZSTD_CCtx_setParameter(compressor_.get(), what, value));
    };
    static_cast<void>(ZSTD_CCtx_reset(compressor_.get(), ZSTD_reset_session_and_parameters));
    set(ZSTD_c_compressionLevel, repeats ? level : 1);
    if (!repeats) {
      set(ZSTD_c_minMatch, 7);
      set(ZSTD_c_hashLog, 6);
    }
    // Checksums are the caller's; the size lets a decoder refuse what does not fit.
    set(ZSTD_c_contentSizeFlag, 1);
    set(ZSTD_c_checksumFlag, 0);
    return compressor_.get();
  }
  [[nodiscard]] ZSTD_DCtx* decompressor() {
    if (decompressor_ == nullptr) decompressor_.reset(ZSTD_createDCtx());
    if (decompressor_ == nullptr) throw std::bad_alloc();
    static_cast<void>(ZSTD_DCtx_reset(decompressor_.get(), ZSTD_reset_session_and_parameters));
    return decompressor_.get();
  }
  /// Memory of so many bytes; its contents are unspecified.
  [[nodiscard]] std::span<std::byte> scratch(std::size_t bytes) {
    if (bytes > scratch_bytes_) {
      scratch_.reset();
      scratch_bytes_ = 0;
      scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      scratch_bytes_ = bytes;
    }
    return {scratch_.get(), bytes};
  }
  /// Frees memory that is not worth keeping.
  void trim() noexcept {
    if (scratch_bytes_ <= std::size_t{16} << 20) return;
    scratch_.reset();
    scratch_bytes_ = 0;
  }

 private:
  struct free_contexts {
    void operator()(ZSTD_CCtx* c) const noexcept { ZSTD_freeCCtx(c); }
    void operator()(ZSTD_DCtx* d) const noexcept { ZSTD_freeDCtx(d); }
  };
  std::unique_ptr<ZSTD_CCtx, free_contexts> compressor_;
  std::unique_ptr<ZSTD_DCtx, free_contexts> decompressor_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
};

/// Workspaces that are not in use: as many as there were calls at once.
class zstd_workspaces {
 public:
  /// Has a workspace for itself as long as it lives.
  class lease {
   public:
    explicit lease(zstd_workspaces& from) : from_(from), held_(from.take()) {}
    lease(const lease&) = delete;
    lease& operator=(const lease&) = delete;
    ~lease() { from_.give_back(std::move(held_)); }
    zstd_workspace& operator*() const noexcept { return *held_; }
    zstd_workspace* operator->() const noexcept { return held_.get(); }

   private:
    zstd_workspaces& from_;
    std::unique_ptr<zstd_workspace> held_;
  };

 private:
  std::unique_ptr<zstd_workspace> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto taken = std::move(idle_.back());
        idle_.pop_back();
        return taken;
      }
    }
    return std::make_unique<zstd_workspace>();
  }
  void give_back(std::unique_ptr<zstd_workspace> used) noexcept {
    used->trim();
    try {
      const std::lock_guard lock(mutex_);
      idle_.push_back(std::move(used));
    } catch (...) {  // out of memory: it is freed
    }
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<zstd_workspace>> idle_;
};

/// How a zstd_codec's encoded form begins. Stored in files: the numbers never change.
enum class zstd_form : std::uint8_t {
  stored = 0,  ///< the bytes as they are
  whole = 1,   ///< one zstd frame
  planes = 2,  ///< u8 width, u32 × width: bytes of each plane, the planes, the bytes behind the last element
};

[[noreturn]] inline void zstd_corrupt(error_id id, const char* what, std::uint64_t expected,
                                      std::uint64_t got) {
  fail(id, what, {.expected = std::to_string(expected), .got = std::to_string(got)});
}

/// One zstd frame of `to.size()` bytes. Decoding in one pass needs no memory for a window, whatever the frame
/// asks for. @throws corrupt_error unless `from` is that frame and nothing else.
inline void decode_zstd_frame(ZSTD_DCtx* context, std::span<const std::byte> from, std::span<std::byte> to) {
  std::uint32_t magic = 0;
  if (from.size() >= sizeof magic) std::memcpy(&magic, from.data(), sizeof magic);
  // Frames of old versions and those that are skipped have other numbers.
  if (magic != ZSTD_MAGICNUMBER)
    zstd_corrupt(error_id::corrupt_bad_magic, "compressed data is no zstd frame", ZSTD_MAGICNUMBER, magic);
  const auto size = ZSTD_getFrameContentSize(from.data(), from.size());
  if (size != to.size())
    zstd_corrupt(error_id::corrupt_size_mismatch, "a zstd frame holds another number of bytes than its place",
                 to.size(), size);
  const auto length = ZSTD_findFrameCompressedSize(from.data(), from.size());
  if (ZSTD_isError(length) != 0 || length != from.size())
    zstd_corrupt(error_id::corrupt_truncated, "a zstd frame does not end where its bytes end", from.size(),
                 ZSTD_isError(length) != 0 ? 0 : length);
  const auto done = ZSTD_decompressDCtx(context, to.data(), to.size(), from.data(), from.size());
  if (ZSTD_isError(done) != 0) {
    if (ZSTD_getErrorCode(done) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    fail(error_id::corrupt_bad_value,
         std::string("a zstd frame is damaged; zstd says: ") + ZSTD_getErrorName(done));
  }
  if (done != to.size())
    zstd_corrupt(error_id::corrupt_size_mismatch, "a zstd frame decodes to another number of bytes",
                 to.size(), done);
}

/// The frame's bytes, or 0 where it would not be shorter than `to`.
[[nodiscard]] inline std::size_t encode_zstd_frame(ZSTD_CCtx* context, std::span<const std::byte> from,
                                                   std::span<std::byte> to) {
  const auto size = ZSTD_compress2(context, to.data(), to.size(), from.data(), from.size());
  if (ZSTD_isError(size) == 0) return size;
  const auto code = ZSTD_getErrorCode(size);
  if (code == ZSTD_error_memory_allocation) throw std::bad_alloc();
  if (code != ZSTD_error_dstSize_tooSmall)
    fail(error_id::storage_io, std::string("zstd cannot compress; it says: ") + ZSTD_getErrorName(size));
  return 0;
}

}  // namespace detail

/// Codec 1: zstd (https://github.com/facebook/zstd), after numbers were split into byte planes where it pays:
/// of floating-point numbers, the exponents compress and the rest does not, and is stored.
///
/// One byte says which of three forms follows, see detail::zstd_form; what does not become shorter by 1/64 is
/// stored, so the encoded form is never longer than the input and one byte. A plane as long as its elements
/// are many is stored, a shorter one is a zstd frame. Frames have their content size, no checksum, no
/// dictionary.
///
/// Whether planes pay, what is not worth compressing and what repeats itself is told from samples;
/// repetitions that are further apart than 4 KiB are not seen by them. Weights of a normal distribution take
/// 0.67 (bf16), 0.84 (fp16, fp32) or 0.88 (fp64) of their bytes; a thread encodes 1 GB/s of them and
/// decodes 2.6 to 4 GB/s.
///
/// Copies share their workspaces: as many as there were calls at once, each of some 100 KiB (more at high
/// levels) and, up to 16 MiB of it, the length of what was encoded last.
class zstd_codec {
 public:
  static constexpr std::uint16_t id = 1;

  zstd_codec() : zstd_codec(zstd_options{}) {}
  /// @throws usage_error (usage_bad_option) for a level that zstd does not have.
  explicit zstd_codec(zstd_options options)
      : options_(options), workspaces_(detail::make_shared<detail::zstd_workspaces>()) {
    if (options.level < 1 || options.level > ZSTD_maxCLevel())
      fail(error_id::usage_bad_option,
           "the level of a zstd_codec is out of range (faster levels than 1 do not compress numbers)",
           {.expected = "1 to " + std::to_string(ZSTD_maxCLevel()), .got = std::to_string(options.level)});
  }
  zstd_codec(const zstd_codec&) = default;
  zstd_codec& operator=(const zstd_codec&) = default;

  /// The options of the constructor.
  [[nodiscard]] const zstd_options& options() const noexcept { return options_; }

  /// See Codec. One byte more than the input.
  [[nodiscard]] std::uint64_t bound(std::uint64_t bytes) const noexcept {
    return std::min(bytes, codec_limit) + 1;
  }

  /// See Codec.
  [[nodiscard]] std::size_t encode(dtype type, std::span<const std::byte> from,
                                   std::span<std::byte> to) const {
    if (from.size() > codec_limit)
      fail(error_id::usage_overflow, "a codec is given more than 1 GiB at once",
           {.got = std::to_string(from.size())});
    if (to.size() < bound(from.size()))
      fail(error_id::usage_overflow, "a codec is given less room than its bound",
           {.expected = std::to_string(bound(from.size())), .got = std::to_string(to.size())});
    to = to.first(from.size() + 1);
    std::size_t done = 0;
    if (from.size() >= min_bytes) {
      const detail::zstd_workspaces::lease work(*workspaces_);
      const auto estimate = estimate_planes(options_.planes ? plane_width(type) : 1, from);
      if (estimate.pays) done = encode_planes(*work, plane_width(type), estimate, from, to);
      if (done == 0 && estimate.whole.bits < hopeless_bits) {
        to[0] = static_cast<std::byte>(detail::zstd_form::whole);
        done =
            detail::encode_zstd_frame(work->compressor(options_.level, estimate.whole.repeated > repetitive),
                                      from, to.subspan(1, worth(from.size())));
        if (done != 0) ++done;
      }
    }
    if (done != 0) return done;
    to[0] = static_cast<std::byte>(detail::zstd_form::stored);
    if (!from.empty()) std::memcpy(to.data() + 1, from.data(), from.size());
    return to.size();
  }

  /// See Codec.
  void decode(dtype type, std::span<const std::byte> from, std::span<std::byte> to) const {
    if (from.empty()) fail(error_id::corrupt_truncated, "compressed data is empty");
    if (from.size() > bound(to.size()) || to.size() > codec_limit)
      detail::zstd_corrupt(error_id::corrupt_size_mismatch, "compressed data is longer than it can be",
                           bound(to.size()), from.size());
    const auto form = std::to_integer<std::uint8_t>(from[0]);
    from = from.subspan(1);
    if (form == static_cast<std::uint8_t>(detail::zstd_form::stored)) {
      if (from.size() != to.size())
        detail::zstd_corrupt(error_id::corrupt_size_mismatch, "stored data has another size than its place",
                             to.size(), from.size());
      if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
      return;
    }
    if (form > static_cast<std::uint8_t>(detail::zstd_form::planes))
      detail::zstd_corrupt(error_id::corrupt_bad_value, "compressed data has an unknown form", 0, form);
    const detail::zstd_workspaces::lease work(*workspaces_);
    if (form == static_cast<std::uint8_t>(detail::zstd_form::planes))
      return decode_planes(*work, plane_width(type), from, to);
    detail::decode_zstd_frame(work->decompressor(), from, to);
  }

  /// See Portable.
  [[nodiscard]] std::vector<std::byte> description() const {
    return wire_writer().put(static_cast<std::int32_t>(options_.level)).put(options_.planes).take();
  }
  /// @throws wire_error, usage_error (usage_bad_option)
  [[nodiscard]] static zstd_codec from_description(std::span<const std::byte> bytes) {
    wire_reader in(bytes);
    zstd_options o;
    o.level = in.get<std::int32_t>();
    const auto planes = in.get<std::uint8_t>();
    if (planes > 1) in.fail_here("a flag is neither 0 nor 1");
    o.planes = planes == 1;
    in.finish();
    return zstd_codec(o);
  }

 private:
  /// Shorter input is stored: a zstd frame has ten bytes beside its data.
  static constexpr std::size_t min_bytes = 64;
  /// Bytes for which a compressor gains less than 1/64.
  static constexpr double hopeless_bits = 7.87;
  /// The share of repeated places from which on looking for repetitions is worth its time.
  static constexpr double repetitive = 0.05;
  /// What compressed data may have for an input of this size to be worth the time to decode it.
  static constexpr std::size_t worth(std::size_t bytes) noexcept { return bytes - bytes / 64 - 1; }

  /// 0 where the whole would not become shorter.
  [[nodiscard]] std::size_t encode_planes(detail::zstd_workspace& work, std::size_t width,
                                          const plane_estimate& estimate, std::span<const std::byte> from,
                                          std::span<std::byte> to) const {
    const std::size_t elements = from.size() / width;
    const auto split = work.scratch(from.size());
    split_planes(width, from, split);
    const auto room = to.first(worth(from.size()));
    std::size_t at = 2 + 4 * width;
    if (at > room.size()) return 0;
    room[0] = static_cast<std::byte>(detail::zstd_form::planes);
    room[1] = static_cast<std::byte>(width);
    for (std::size_t b = 0; b < width; ++b) {
      const auto plane = split.subspan(b * elements, elements);
      std::size_t size = 0;
      if (estimate.planes[b].bits < hopeless_bits)
        size = detail::encode_zstd_frame(
            work.compressor(options_.level, estimate.planes[b].repeated > repetitive), plane,
            room.subspan(at, std::min(worth(elements), room.size() - at)));
      if (size == 0) {
        if (room.size() - at < elements) return 0;
        std::memcpy(room.data() + at, plane.data(), elements);
        size = elements;
      }
      const auto stored = static_cast<std::uint32_t>(size);
      std::memcpy(room.data() + 2 + 4 * b, &stored, sizeof stored);
      at += size;
    }
    const auto tail = split.subspan(width * elements);
    if (room.size() - at < tail.size()) return 0;
    if (!tail.empty()) std::memcpy(room.data() + at, tail.data(), tail.size());
    return at + tail.size();
  }

  /// `from` begins behind the byte of the form.
  static void decode_planes(detail::zstd_workspace& work, std::size_t width, std::span<const std::byte> from,
                            std::span<std::byte> to) {
    if (from.size() < 1 + 4 * width)
      detail::zstd_corrupt(error_id::corrupt_truncated, "compressed data ends in its header", 1 + 4 * width,
                           from.size());
    if (width == 1 || std::to_integer<std::size_t>(from[0]) != width)
      detail::zstd_corrupt(error_id::corrupt_bad_value,
                           "compressed data is split into planes in another way than its dtype", width,
                           std::to_integer<std::uint64_t>(from[0]));
    const std::size_t elements = to.size() / width;
    const std::size_t tail = to.size() % width;
    std::array<std::uint32_t, 8> sizes{};
    std::memcpy(sizes.data(), from.data() + 1, 4 * width);
    from = from.subspan(1 + 4 * width);
    std::uint64_t sum = tail;
    std::size_t frames = 0;
    for (std::size_t b = 0; b < width; ++b) {
      sum += sizes[b];
      frames += sizes[b] != elements;
      if (sizes[b] > elements)
        detail::zstd_corrupt(error_id::corrupt_size_mismatch,
                             "a compressed plane is longer than its elements", elements, sizes[b]);
    }
    if (sum != from.size())
      detail::zstd_corrupt(error_id::corrupt_size_mismatch,
                           "compressed data does not end where its planes end", sum, from.size());
    auto decoded = work.scratch(frames * elements);
    std::array<const std::byte*, 8> planes{};
    for (std::size_t b = 0; b < width; ++b) {
      const auto plane = from.first(sizes[b]);
      from = from.subspan(sizes[b]);
      planes[b] = plane.data();
      if (plane.size() == elements) continue;  // stored: joined from where it is
      detail::decode_zstd_frame(work.decompressor(), plane, decoded.first(elements));
      planes[b] = decoded.data();
      decoded = decoded.subspan(elements);
    }
    join_planes(std::span<const std::byte* const>(planes.data(), width), from, to);
  }

  zstd_options options_;
  std::shared_ptr<detail::zstd_workspaces> workspaces_;
};

static_assert(Codec<zstd_codec> && Portable<zstd_codec>);

}  // namespace v1
}  // namespace cairn
