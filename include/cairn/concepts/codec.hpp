// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace cairn {
inline namespace v1 {

/// The most that a codec is given at once, in bytes: items are cut into frames that are shorter.
inline constexpr std::uint64_t codec_limit = std::uint64_t{1} << 30;

/// Codecs of users have these numbers and larger ones; cairn gives the numbers below, and 0 means: none.
inline constexpr std::uint16_t first_user_codec = 0x8000;

/// Makes the bytes of an item fewer, without loss. Knows nothing of files, items and ranges: those who call
/// it cut items into frames, keep sizes and digests, and choose the threads.
///
/// - `id`: a std::uint16_t constant other than 0, the number that stands in manifests: it is never used for
///   another encoding. It names what decode() understands, not how well encode() tries.
/// - `bound(bytes)`: the most that encode() writes for so many bytes, at most codec_limit of them. Constant,
///   ascending, little more than `bytes`: what does not compress is stored.
/// - `encode(type, from, to)`: the encoded form of `from`, which holds elements of `type` and may begin and
///   end within one, in the first bytes of `to`; returns how many. `to` has at least bound(from.size()) bytes
///   and does not overlap `from`; of its bytes up to the bound those behind the result are unspecified, and
///   no other memory is changed. Throws usage_error if `to` is too short or `from` is longer than
///   codec_limit. The result depends on `type`, `from` and the codec's options alone: not on the thread, nor
///   on calls before.
/// - `decode(type, from, to)`: the reverse. `from` is hostile. Either fills `to`, exactly, or throws
///   corrupt_error and leaves `to` unspecified; never writes outside of it. Refuses whatever encode() cannot
///   have given for `to.size()` bytes as far as it can tell without a checksum: always what is cut short or
///   continued, what has another size when decoded, and what was encoded for a type that is laid out in
///   another way. Bytes that changed in place may decode to others: callers compare digests. Its memory is
///   bounded by `to`, whatever `from` claims. Depends on no option: a codec decodes what any other of its
///   type encoded.
///
/// Both may also throw std::bad_alloc. No alignment is asked for. encode and decode may be called by several
/// threads at once.
template <class C>
concept Codec = std::movable<C> && requires(const C& codec, dtype type, std::span<const std::byte> from,
                                            std::span<std::byte> to, std::uint64_t bytes) {
  { C::id } -> std::same_as<const std::uint16_t&>;
  requires std::integral_constant<std::uint16_t, C::id>::value != 0;
  { codec.bound(bytes) } -> std::same_as<std::uint64_t>;
  { codec.encode(type, from, to) } -> std::same_as<std::size_t>;
  { codec.decode(type, from, to) } -> std::same_as<void>;
};

}  // namespace v1
}  // namespace cairn
