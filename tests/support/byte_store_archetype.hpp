// SPDX-License-Identifier: Apache-2.0
#pragma once
// The smallest type that satisfies ByteStore. It withholds what stores usually have: copying, default
// construction, comparison, a writer that can be copied, a description that is exactly std::string, and every
// function that is optional. Generic code that compiles with it asks for nothing but the concept.
#include <cairn/concepts/byte_store.hpp>
#include <cairn/stores/memory_store.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn_test {

class byte_store_archetype {
  template <class T>
  class only_converts {
   public:
    explicit only_converts(T value) : value_(std::move(value)) {}
    operator T() const { return value_; }  // NOLINT: that it converts is the point

   private:
    T value_;
  };

 public:
  class writer {
   public:
    writer(const writer&) = delete;
    writer& operator=(const writer&) = delete;
    writer(writer&&) = default;
    writer& operator=(writer&&) = default;
    void write(std::span<const cairn::write_range> parts) & { inner_.write(parts); }
    void finish() & { inner_.finish(); }

   private:
    friend byte_store_archetype;
    explicit writer(cairn::memory_store::object_writer inner) : inner_(std::move(inner)) {}
    cairn::memory_store::object_writer inner_;
  };

  /// The only way to make one.
  static byte_store_archetype over(cairn::memory_store inner) {
    return byte_store_archetype(std::move(inner));
  }
  byte_store_archetype(const byte_store_archetype&) = delete;
  byte_store_archetype& operator=(const byte_store_archetype&) = delete;
  byte_store_archetype(byte_store_archetype&&) = default;
  byte_store_archetype& operator=(byte_store_archetype&&) = default;

  writer create(std::string_view key, std::uint64_t hint) & { return writer(inner_.create(key, hint)); }
  void read(std::span<const cairn::read_range> ranges) & { inner_.read(ranges); }
  bool publish_new(std::string_view key, std::span<const std::byte> bytes) & {
    return inner_.publish_new(key, bytes);
  }
  std::optional<std::uint64_t> size(std::string_view key) & { return inner_.size(key); }
  std::vector<cairn::listed_object> list(std::string_view prefix) & { return inner_.list(prefix); }
  void remove(std::string_view key) & { inner_.remove(key); }
  only_converts<std::string> describe() & { return only_converts<std::string>(inner_.describe()); }

 private:
  explicit byte_store_archetype(cairn::memory_store inner) : inner_(std::move(inner)) {}
  cairn::memory_store inner_;
};

static_assert(cairn::ByteStore<byte_store_archetype>);
static_assert(cairn::ObjectWriter<byte_store_archetype::writer>);

}  // namespace cairn_test
