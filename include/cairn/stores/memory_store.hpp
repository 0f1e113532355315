// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/store_errors.hpp>
#include <cairn/stores/object_buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A ByteStore that keeps objects in the memory of this process, for tests and for ranks that are
/// threads. Copies share the objects, which live as long as the last copy or object writer. Nothing is
/// durable. Several threads may call all functions at once.
class memory_store {
  struct shared_bytes;
  struct objects;

 public:
  using cairn_role = role::store;
  memory_store();
  /// See ObjectWriter.
  class object_writer {
   public:
    void write(std::span<const write_range> parts);
    void finish();

   private:
    friend memory_store;
    object_writer(std::shared_ptr<objects> into, std::string_view key, std::uint64_t size_hint)
        : objects_(std::move(into)), buffer_(key, size_hint) {}
    std::shared_ptr<objects> objects_;
    object_buffer buffer_;
  };

  /// See SharedObjectWriter.
  class shared_writer {
   public:
    void write(std::span<const write_range> parts);
    void put(std::uint64_t offset, std::span<const std::byte> bytes);
    [[nodiscard]] bool read(std::uint64_t offset, std::span<std::byte> destination);
    void sync() {}
    void finish(std::uint64_t bytes);
    shared_writer(shared_writer&&) noexcept = default;
    shared_writer& operator=(shared_writer&& other) noexcept;
    ~shared_writer();

   private:
    friend memory_store;
    shared_writer(std::shared_ptr<objects> into, std::shared_ptr<shared_bytes> shared, std::string_view key,
                  std::string name, bool began);
    void end() noexcept;
    std::shared_ptr<objects> objects_;
    std::shared_ptr<shared_bytes> shared_;
    std::string key_;
    std::string name_;  ///< in objects::begun
    bool began_;
  };

  /// See SharedStore.
  [[nodiscard]] shared_writer share(std::string_view key, std::uint64_t tag);
  [[nodiscard]] std::optional<shared_writer> join(std::string_view key, std::uint64_t tag);

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint);
  [[nodiscard]] std::size_t io_alignment() const noexcept { return 1; }
  [[nodiscard]] std::size_t min_write_bytes() const noexcept { return 1; }

  void read(std::span<const read_range> ranges);
  void put_new(std::string_view key, std::span<const std::byte> bytes);
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes);
  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap);
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key);
  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix);
  /// See LinksObjects: both keys share the bytes.
  void link(std::string_view from, std::string_view to);
  void remove(std::string_view key);
  /// See ConditionalRemove.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes);
  /// Returns none: an unfinished object ends with its writer.
  [[nodiscard]] std::vector<std::string> leftovers(std::string_view) { return {}; }
  void discard(std::string_view key) { check_key(key); }
  [[nodiscard]] std::optional<space_left> free_space() { return {}; }
  [[nodiscard]] std::string describe() const;

 private:
  std::shared_ptr<objects> objects_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/memory_store.ipp>
#endif
