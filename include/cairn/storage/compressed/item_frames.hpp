// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/codec.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

// An item as frames that are encoded independently, so that a range of it can be read and decoded without the
// rest, and by several threads.
//
// The encoded item is its frames, one after another, then its index, and the index ends in a trailer:
//
//   | frames           | what encode() gave for bytes [0, L), [L, 2 L), ... of the item; the last may be of
//   |                  | fewer; an empty item has none                                                      |
//   | u32 × F          | bytes of each frame                                                                |
//   | u64 × F          | XXH3-64 of each frame, as it is stored                                             |
//   | 8 bytes          | trailer: "cairnfrm"                                                                |
//   | u16, u16         | version: 1; the codec's number                                                     |
//   | u8, u8, u16      | dtype, as in manifests; the binary logarithm of L, from 16 to 28; 0                |
//   | u64              | bytes of the item                                                                  |
//   | u64              | F, the number of frames: the item's bytes / L, rounded up                          |
//   | u64              | XXH3-64 of the index up to here                                                    |
//
// A reader knows beforehand, from the manifest and the record, how long the item is, how long its encoded
// form is, its dtype and its codec; all must agree.

/// How an item is cut and by how many threads it is encoded.
struct frame_options {
  /// The bytes of the item in each frame: a power of two from 64 KiB to 256 MiB. From 1 MiB on, no digest
  /// block lies in two frames.
  std::uint64_t frame_bytes = std::uint64_t{4} << 20;
  std::size_t threads = 1;  ///< that encode at once, the calling one among them; at least 1
};

/// What a reader knows of an encoded item before it reads it.
struct framed_item {
  std::uint16_t codec = 0;          ///< number of the codec, as in manifests
  dtype type = dtype::u8;           ///< of the item's elements
  std::uint64_t decoded_bytes = 0;  ///< as the manifest says: nothing larger is ever allocated
  std::uint64_t encoded_bytes = 0;  ///< frames and index
  std::string_view file = {};       ///< for messages
  std::uint64_t begin = 0;          ///< of the encoded item in the file
};

/// Frames that follow one another in an item.
struct frame_range {
  std::size_t first = 0;            ///< index of the first frame
  std::size_t count = 0;            ///< frames of the range
  std::uint64_t encoded_begin = 0;  ///< from the beginning of the encoded item
  std::uint64_t encoded_bytes = 0;  ///< of all frames of the range
};

/// Where the frames of an encoded item are, and their digests.
class frame_index {
 public:
  /// Bytes of the trailer, with which an encoded item ends.
  static constexpr std::size_t trailer_bytes = 40;
  /// The binary logarithm of the fewest bytes of the item in a frame.
  static constexpr unsigned min_frame_log = 16;
  /// The binary logarithm of the most bytes of the item in a frame.
  static constexpr unsigned max_frame_log = 28;

  /// The index of an item that is being encoded. @throws usage_error (usage_bad_option)
  frame_index(std::uint16_t codec, dtype type, std::uint64_t decoded_bytes, std::uint64_t frame_bytes)
      : codec_(codec), type_(type), decoded_bytes_(decoded_bytes), frame_bytes_(frame_bytes) {
    if (!std::has_single_bit(frame_bytes) || frame_bytes >> min_frame_log == 0 ||
        frame_bytes >> max_frame_log > 1)
      fail(error_id::usage_bad_option, "frames have a power of two bytes, from 64 KiB to 256 MiB",
           {.got = std::to_string(frame_bytes)});
  }

  /// Adds the next frame. @throws usage_error (usage_overflow) if it is longer than an index can say.
  void add(std::span<const std::byte> encoded) {
    if (encoded.size() > UINT32_MAX)
      fail(error_id::usage_overflow, "a frame of an item is longer than 4 GiB when it is encoded",
           {.got = std::to_string(encoded.size())});
    ends_.push_back(frames_end() + encoded.size());
    digests_.push_back(digest(encoded));
  }

  /// The index as it is stored behind the frames. @throws usage_error (usage_wrong_order) before all are
  /// added.
  [[nodiscard]] std::vector<std::byte> encode() const {
    if (frames() != frames_of(decoded_bytes_, frame_bytes_))
      fail(error_id::usage_wrong_order, "the index of an item is written before its frames");
    wire_writer out;
    std::uint64_t before = 0;
    for (const auto end : ends_) out.put(static_cast<std::uint32_t>(end - std::exchange(before, end)));
    out.raw(std::as_bytes(std::span(digests_)));
    out.raw(std::as_bytes(std::span(magic, 8))).put(std::uint16_t{1}).put(codec_).put(type_);
    out.put(static_cast<std::uint8_t>(std::countr_zero(frame_bytes_))).put(std::uint16_t{0});
    out.put(decoded_bytes_).put(std::uint64_t{frames()});
    return out.put(digest(out.view())).take();
  }

  /// How many bytes at the end of the item parse() needs. `tail` is at least its last trailer_bytes.
  /// Hostile bytes: the result is at most the bytes of the encoded item. @throws corrupt_error
  [[nodiscard]] static std::uint64_t needed(std::span<const std::byte> tail, const framed_item& expected) {
    return read_trailer(tail, expected).index_bytes();
  }

  /// Reads an index from hostile bytes. `tail`: the end of the item, of needed() bytes or more. Takes memory
  /// of four thirds of the index. @throws corrupt_error unless everything is as `expected`.
  [[nodiscard]] static frame_index parse(std::span<const std::byte> tail, const framed_item& expected) {
    const auto trailer = read_trailer(tail, expected);
    if (tail.size() < trailer.index_bytes())
      refuse(expected, error_id::corrupt_truncated, "the index of an item's frames is cut", 0,
             trailer.index_bytes(), tail.size());
    const auto index = tail.last(static_cast<std::size_t>(trailer.index_bytes()));
    const auto frames = static_cast<std::size_t>(trailer.frames);
    if (digest(index.first(index.size() - 8)) != trailer.digest)
      refuse(expected, error_id::corrupt_digest, "the index of an item's frames does not match its digest",
             index.size());
    frame_index made(expected.codec, expected.type, expected.decoded_bytes, trailer.frame_bytes);
    made.ends_.reserve(frames);
    std::uint64_t left = expected.encoded_bytes - trailer.index_bytes();
    for (std::size_t i = 0; i < frames; ++i) {
      std::uint32_t bytes = 0;
      std::memcpy(&bytes, index.data() + 4 * i, sizeof bytes);
      if (bytes > left)
        refuse(expected, error_id::corrupt_size_mismatch, "a frame of an item reaches into its index",
               index.size() - 4 * i, left, bytes);
      left -= bytes;
      made.ends_.push_back(made.frames_end() + bytes);
    }
    if (left != 0)
      refuse(expected, error_id::corrupt_size_mismatch, "the frames of an item do not end at its index",
             index.size(), 0, left);
    made.digests_.resize(frames);
    if (frames != 0) std::memcpy(made.digests_.data(), index.data() + 4 * frames, 8 * frames);
    return made;
  }

  /// The number of the codec by which the frames are encoded.
  [[nodiscard]] std::uint16_t codec() const noexcept { return codec_; }
  /// The dtype of the item's elements.
  [[nodiscard]] dtype type() const noexcept { return type_; }
  /// Bytes of the item before it was encoded.
  [[nodiscard]] std::uint64_t decoded_bytes() const noexcept { return decoded_bytes_; }
  /// Bytes of the item in each frame; the last frame may have fewer.
  [[nodiscard]] std::uint64_t frame_bytes() const noexcept { return frame_bytes_; }
  /// How many frames the index lists so far; all of them after parse().
  [[nodiscard]] std::size_t frames() const noexcept { return ends_.size(); }
  /// Bytes of all frames together: where the index begins.
  [[nodiscard]] std::uint64_t frames_end() const noexcept { return ends_.empty() ? 0 : ends_.back(); }
  /// XXH3-64 of a frame as it is stored. @pre frame < frames()
  [[nodiscard]] std::uint64_t digest_of(std::size_t frame) const noexcept { return digests_[frame]; }
  /// Where a frame of the encoded item begins and ends.
  [[nodiscard]] std::uint64_t encoded_begin(std::size_t frame) const noexcept {
    return frame == 0 ? 0 : ends_[frame - 1];
  }
  /// One past the last byte of a frame; see encoded_begin().
  [[nodiscard]] std::uint64_t encoded_end(std::size_t frame) const noexcept { return ends_[frame]; }
  /// Where the bytes of a frame begin in the item, and how many they are.
  [[nodiscard]] std::uint64_t decoded_begin(std::size_t frame) const noexcept { return frame * frame_bytes_; }
  /// How many bytes of the item a frame holds.
  [[nodiscard]] std::uint64_t decoded_size(std::size_t frame) const noexcept {
    return std::min(frame_bytes_, decoded_bytes_ - decoded_begin(frame));
  }

  /// The frames that hold these bytes of the item; none for no bytes.
  /// @throws usage_error (usage_overflow) if the item has them not.
  [[nodiscard]] frame_range covering(std::uint64_t begin, std::uint64_t bytes) const {
    if (begin > decoded_bytes_ || bytes > decoded_bytes_ - begin)
      fail(error_id::usage_overflow, "a range reaches beyond the end of an item",
           {.expected = "at most " + std::to_string(decoded_bytes_),
            .got = std::to_string(begin) + " and " + std::to_string(bytes)});
    if (bytes == 0) return {};
    const auto first = static_cast<std::size_t>(begin / frame_bytes_);
    const auto last = static_cast<std::size_t>((begin + bytes - 1) / frame_bytes_);
    return {first, last - first + 1, encoded_begin(first), ends_[last] - encoded_begin(first)};
  }

 private:
  static constexpr char magic[9] = "cairnfrm";
  static constexpr std::uint64_t frame_entry_bytes = 12;

  struct trailer {
    std::uint64_t frame_bytes = 0;
    std::uint64_t frames = 0;
    std::uint64_t digest = 0;
    [[nodiscard]] std::uint64_t index_bytes() const noexcept {
      return frames * frame_entry_bytes + trailer_bytes;
    }
  };

  static constexpr std::uint64_t frames_of(std::uint64_t bytes, std::uint64_t each) noexcept {
    return bytes / each + (bytes % each != 0);
  }
  /// `before_end`: how far before the end of the item.
  [[noreturn]] static void refuse(const framed_item& item, error_id id, const char* what,
                                  std::uint64_t before_end) {
    detail::corrupt(id, what, item.file, item.begin + item.encoded_bytes - before_end);
  }
  [[noreturn]] static void refuse(const framed_item& item, error_id id, const char* what,
                                  std::uint64_t before_end, std::uint64_t expected, std::uint64_t got) {
    detail::corrupt(id, what, item.file, item.begin + item.encoded_bytes - before_end,
                    std::to_string(expected), std::to_string(got));
  }
  /// Checked but for its digest; the index that it speaks of fits into the encoded item.
  static trailer read_trailer(std::span<const std::byte> tail, const framed_item& expected) {
    if (tail.size() < trailer_bytes || expected.encoded_bytes < trailer_bytes)
      refuse(expected, error_id::corrupt_truncated, "an encoded item is shorter than the end of its index", 0,
             trailer_bytes, std::min<std::uint64_t>(tail.size(), expected.encoded_bytes));
    const auto bytes = tail.last(trailer_bytes);
    if (std::memcmp(bytes.data(), magic, 8) != 0)
      refuse(expected, error_id::corrupt_bad_magic, "an encoded item does not end in an index of frames",
             trailer_bytes);
    wire_reader in(bytes.subspan(8));
    const auto check = [&](error_id id, const char* what, std::uint64_t wanted, std::uint64_t got,
                           std::uint64_t before_end) {
      if (wanted != got) refuse(expected, id, what, before_end, wanted, got);
    };
    // No unsupported version: this may be a flipped bit, and it is the file that says by which version it was written.
    check(error_id::corrupt_bad_value, "the frames of an item have an unknown version", 1,
          in.get<std::uint16_t>(), 32);
    check(error_id::corrupt_identity, "an item is encoded with another codec than its manifest says",
          expected.codec, in.get<std::uint16_t>(), 30);
    check(error_id::corrupt_identity, "an encoded item has another dtype than its manifest says",
          static_cast<std::uint64_t>(expected.type), in.get<std::uint8_t>(), 28);
    const auto log = in.get<std::uint8_t>();
    if (log < min_frame_log || log > max_frame_log)
      refuse(expected, error_id::corrupt_bad_value, "the frames of an item have an impossible size", 27,
             max_frame_log, log);
    check(error_id::corrupt_bad_value, "a reserved field of an index of frames is not zero", 0,
          in.get<std::uint16_t>(), 26);
    check(error_id::corrupt_size_mismatch, "an encoded item has another size than its manifest says",
          expected.decoded_bytes, in.get<std::uint64_t>(), 24);
    trailer t{.frame_bytes = std::uint64_t{1} << log};
    t.frames = in.get<std::uint64_t>();
    check(error_id::corrupt_bad_value, "an item has another number of frames than its size asks for",
          frames_of(expected.decoded_bytes, t.frame_bytes), t.frames, 16);
    if (t.frames > (expected.encoded_bytes - trailer_bytes) / frame_entry_bytes)
      refuse(expected, error_id::corrupt_truncated, "an encoded item is shorter than its index",
             trailer_bytes, t.frames, (expected.encoded_bytes - trailer_bytes) / frame_entry_bytes);
    t.digest = in.get<std::uint64_t>();
    return t;
  }

  std::uint16_t codec_;
  dtype type_;
  std::uint64_t decoded_bytes_;
  std::uint64_t frame_bytes_;
  std::vector<std::uint64_t> ends_;  ///< of frames, from the beginning of the encoded item
  std::vector<std::uint64_t> digests_;
};

namespace detail {
template <class C>
constexpr void check_codec() {
  static_assert(Codec<C>,
                "cairn: what should encode an item does not model Codec (see the lines below for the missing "
                "member; docs/concepts.md#codec)");
}
}  // namespace detail

/// Encodes an item of elements of `type`: calls `sink(span<const std::byte>)` with the parts of the encoded
/// item, in order, on this thread; a part is valid during the call. Takes memory for two encoded frames for
/// each thread, never for the item. Returns the index, which was the last part.
/// @throws usage_error for bad options; what the codec or the sink throws, std::bad_alloc.
template <class C, class Sink>
frame_index encode_frames(const C& codec, dtype type, std::span<const std::byte> item,
                          const frame_options& options, Sink&& sink) {
  detail::check_codec<C>();
  if (options.threads == 0)
    fail(error_id::usage_bad_option, "the number of threads for encoding is 0; give at least 1");
  frame_index index(C::id, type, item.size(), options.frame_bytes);
  const auto each = static_cast<std::size_t>(options.frame_bytes);
  const std::size_t frames = item.size() / each + (item.size() % each != 0);
  // Two frames for a thread, so that one that is quickly encoded does not leave its thread idle.
  const std::size_t max_places =
      std::min(frames, options.threads > frames / 2 ? frames : 2 * options.threads);
  struct place {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t room = 0;
    std::size_t size = 0;
  };
  std::vector<place> places(max_places);
  for (std::size_t done = 0; done < frames;) {
    const std::size_t count = std::min(max_places, frames - done);
    detail::parallel_for(count, options.threads, [&](std::size_t i, std::size_t) {
      const auto begin = (done + i) * each;
      const auto part = item.subspan(begin, std::min(each, item.size() - begin));
      auto& to = places[i];
      if (to.bytes == nullptr) {
        to.room = static_cast<std::size_t>(codec.bound(part.size()));
        to.bytes = std::make_unique_for_overwrite<std::byte[]>(to.room);
      }
      to.size = codec.encode(type, part, std::span(to.bytes.get(), to.room));
    });
    for (std::size_t i = 0; i < count; ++i) {
      const std::span<const std::byte> part(places[i].bytes.get(), places[i].size);
      index.add(part);
      sink(part);
    }
    done += count;
  }
  const auto last = index.encode();
  sink(std::span<const std::byte>(last));
  return index;
}

/// Decodes the bytes [begin, begin + to.size()) of an item. `encoded` are the frames that
/// index.covering(begin, to.size()) names, hostile bytes. Each is checked against its digest, then decoded in
/// its place, or, where the range begins or ends within it, beside it: this takes memory of two frames at
/// most. On up to `threads` threads, this one among them.
/// @throws corrupt_error with `file` and the offset, `file_begin` being that of the encoded item in the file;
/// usage_error if the range or the length of `encoded` is not right; std::bad_alloc. `to` is unspecified
/// then.
template <class C>
void decode_range(const C& codec, const frame_index& index, std::span<const std::byte> encoded,
                  std::uint64_t begin, std::span<std::byte> to, std::size_t threads = 1,
                  std::string_view file = {}, std::uint64_t file_begin = 0) {
  detail::check_codec<C>();
  const auto range = index.covering(begin, to.size());
  if (threads == 0 || index.codec() != C::id)
    fail(error_id::usage_bad_option,
         "a range is to be decoded by 0 threads, or by another codec than its item's");
  if (encoded.size() != range.encoded_bytes)
    fail(error_id::usage_overflow, "a range is decoded from other bytes than its frames",
         {.expected = std::to_string(range.encoded_bytes), .got = std::to_string(encoded.size())});
  detail::parallel_for(range.count, threads, [&](std::size_t i, std::size_t) {
    const auto frame = range.first + i;
    const auto at = index.encoded_begin(frame) - range.encoded_begin;
    const auto bytes = static_cast<std::size_t>(index.encoded_end(frame) - index.encoded_begin(frame));
    const auto part = encoded.subspan(static_cast<std::size_t>(at), bytes);
    const auto where = file_begin + index.encoded_begin(frame);
    if (digest(part) != index.digest_of(frame))
      detail::corrupt(error_id::corrupt_digest, "a compressed frame does not match its digest", file, where,
                      detail::digest_text(index.digest_of(frame)), detail::digest_text(digest(part)));
    const auto first = index.decoded_begin(frame);
    const auto size = static_cast<std::size_t>(index.decoded_size(frame));
    const auto wanted_begin = std::max(begin, first);
    const auto wanted_end = std::min(begin + to.size(), first + size);
    const auto wanted = to.subspan(static_cast<std::size_t>(wanted_begin - begin),
                                   static_cast<std::size_t>(wanted_end - wanted_begin));
    try {
      if (wanted.size() == size) return codec.decode(index.type(), part, wanted);
      const auto whole = std::make_unique_for_overwrite<std::byte[]>(size);
      codec.decode(index.type(), part, std::span(whole.get(), size));
      std::memcpy(wanted.data(), whole.get() + (wanted_begin - first), wanted.size());
    } catch (const corrupt_error& e) {
      auto fields = e.fields();
      if (fields.file.empty()) fields.file = file;
      if (fields.offset < 0) fields.offset = static_cast<std::int64_t>(where);
      throw corrupt_error(e.id(), e.message(), std::move(fields));
    }
  });
}

}  // namespace v1
}  // namespace cairn
