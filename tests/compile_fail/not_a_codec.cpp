// SPDX-License-Identifier: Apache-2.0
// expect: what should encode an item does not model Codec
// expect: bound
#include <cairn/storage/compressed/item_frames.hpp>

// A codec that does not say how much room it takes.
struct boundless_codec {
  static constexpr std::uint16_t id = cairn::first_user_codec;
  std::size_t encode(cairn::dtype, std::span<const std::byte>, std::span<std::byte>) const;
  void decode(cairn::dtype, std::span<const std::byte>, std::span<std::byte>) const;
};
int main() {
  cairn::encode_frames(boundless_codec{}, cairn::dtype::f32, {}, {}, [](std::span<const std::byte>) {});
}
