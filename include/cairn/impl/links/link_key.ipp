// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/links/link_key.hpp>
#include <cairn/system/error.hpp>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <array>
#include <cstddef>

namespace cairn {
inline namespace v1 {

CAIRN_BODY link_key::~link_key() {
  ::OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

CAIRN_BODY link_key link_key::random() {
  std::array<std::byte, 32> bytes;
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1)
    fail(error_id::storage_io, "OpenSSL has no random numbers for a key");
  link_key made(bytes);
  ::OPENSSL_cleanse(bytes.data(), bytes.size());
  return made;
}

}  // namespace v1
}  // namespace cairn
