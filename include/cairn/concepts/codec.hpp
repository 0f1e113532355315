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

/// The largest input of a codec, in bytes. Items are cut into frames that are shorter.
inline constexpr std::uint64_t codec_limit = std::uint64_t{1} << 30;

/// The first number for codecs of users. cairn assigns the numbers below it; 0 means no codec.
inline constexpr std::uint16_t first_user_codec = 0x8000;

/// Lossless compression of the bytes of an item. A codec knows nothing of files and items: its callers
/// cut items into frames, keep sizes and digests, and choose the threads.
///
/// - `id`: a std::uint16_t constant other than 0, the number of the codec in manifests. It identifies the
///   encoding that decode() understands, and is never used for another encoding.
/// - `bound(bytes)`: the most bytes that encode() writes for so many bytes, which are at most
///   codec_limit. Constant, ascending, and little more than `bytes`, since incompressible bytes are
///   stored as they are.
/// - `encode(type, from, to)`: writes the encoded form of `from` to the first bytes of `to` and returns
///   their number. `from` holds elements of `type`, and may begin and end within an element. `to` has at
///   least bound(from.size()) bytes and does not overlap `from`; its bytes after the result, up to the
///   bound, are unspecified, and no other memory is changed. Throws usage_error if `to` is too short or
///   `from` is longer than codec_limit. The result depends only on `type`, `from` and the codec's
///   options: not on the thread or on earlier calls.
/// - `decode(type, from, to)`: the inverse; `from` may be hostile. Either fills `to` completely, or
///   throws corrupt_error and leaves `to` unspecified; never writes outside of it. Refuses what encode()
///   cannot have written for `to.size()` bytes, as far as it can tell without a checksum: in any case
///   input that is truncated or extended, that decodes to another size, or that was encoded for a type
///   with another layout. Bytes that were changed in place may decode to wrong bytes: callers compare
///   digests. Its memory is bounded by `to`, whatever `from` claims. Does not depend on options: a codec
///   decodes what any other of its type encoded.
///
/// Both may also throw std::bad_alloc. No alignment is required. Several threads may call encode and
/// decode at once.
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
