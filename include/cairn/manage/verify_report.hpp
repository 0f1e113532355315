// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace cairn {
inline namespace v1 {

/// Bytes of a checkpoint that differ from what was written, or cannot be read.
struct damage {
  std::string what;       ///< a sentence
  std::string item = {};  ///< the item that is lost with it; empty: none, or what it tells is lost
  std::string file = {};  ///< key of the object
  /// In the file of the first byte of `bytes`, of a compressed one of the frame that holds it; -1: unknown.
  std::int64_t offset = -1;
  std::uint64_t bytes = 0;  ///< of the item, in which the damage lies: whole blocks
  std::int32_t rank = -1;   ///< whose part it is
  bool unreadable = false;  ///< an I/O error or a permission: nothing is known about the bytes
};

/// "item wte, file step-00000100/rank-....safetensors, offset 4096, 1048576 bytes: a block is damaged"
[[nodiscard]] inline std::string to_string(const damage& d) {
  std::string text;
  const auto add = [&](const std::string& part) { text.append(text.empty() ? "" : ", ").append(part); };
  if (!d.item.empty()) add("item " + d.item);
  if (!d.file.empty()) add("file " + d.file);
  if (d.offset >= 0) add("offset " + std::to_string(d.offset));
  if (d.bytes != 0) add(std::to_string(d.bytes) + " bytes");
  return text + (text.empty() ? "" : ": ") + d.what;
}

/// Options of verify().
struct verify_options {
  /// The approximate memory for the buffers of all threads together; at least 1 MiB is used. In addition
  /// come the manifest, the records of 256 ranks at a time, and for compressed items their encoded bytes.
  std::uint64_t memory_bytes = std::uint64_t{128} << 20;
  /// Called with each damage, in no particular order, by one thread at a time.
  std::function<void(const damage&)> found = {};
  /// Called with the bytes read so far and the bytes in all; often, by several threads at once.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
  /// Called before each read, by several threads at once; true ends the verify early.
  std::function<bool()> stop = {};
};

/// The result of verify().
struct verify_report {
  std::uint64_t bytes = 0;       ///< read
  std::uint64_t files = 0;       ///< data files and records
  std::uint64_t damages = 0;     ///< found, and which were told
  std::uint64_t unreadable = 0;  ///< of these
  bool complete = true;          ///< false: `stop` said so
  /// True if everything was read and nothing is damaged.
  [[nodiscard]] bool good() const noexcept { return complete && damages == 0; }
};

}  // namespace v1
}  // namespace cairn
