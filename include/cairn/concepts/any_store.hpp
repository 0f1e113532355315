// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store_model.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_capabilities.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {
/// True for any_store and any_store_of, which are handles themselves; false for a class that derives from
/// one, whose own functions count.
template <class S>
concept StoreHandle = requires { typename S::handle_type; } && std::same_as<typename S::handle_type, S>;
}  // namespace detail

/// A handle on a ByteStore of any type: a ByteStore itself, and everything that a store may offer
/// besides. What is built over stores is written once, against this class. Copies share the store; its
/// functions may be called by several threads at once, as those of the store. Each call costs a virtual
/// one.
///
/// Of a capability that the store lacks, each function says what it does instead.
class any_store {
 public:
  using handle_type = any_store;

  /// Holds a store of any type; a copy of the handle where it is one.
  template <class Store>
    requires(!std::derived_from<std::remove_cvref_t<Store>, any_store> &&
             ByteStore<std::remove_cvref_t<Store>>)
  explicit any_store(Store&& store)
      : any_store(std::make_shared<std::remove_cvref_t<Store>>(std::forward<Store>(store))) {}
  // A class that derives from this one is not asked here whether it is a ByteStore: that asks for its
  // constructors, and this is one of them.
  template <class Store>
    requires(!std::same_as<std::remove_cvref_t<Store>, any_store> &&
             std::derived_from<std::remove_cvref_t<Store>, any_store>)
  explicit any_store(Store&& store)
      : any_store(std::make_shared<std::remove_cvref_t<Store>>(std::forward<Store>(store))) {}
  /// The same of a store that others hold, too. @pre not null
  template <ByteStore Store>
  explicit any_store(std::shared_ptr<Store> store) : face_(detail::face_of(std::move(store))) {}

  /// On a store of the caller's, which outlives all copies of what this gives.
  template <ByteStore Store>
  [[nodiscard]] static any_store lent(Store& store) {
    return any_store(std::shared_ptr<Store>(std::shared_ptr<void>(), &store));
  }

  /// See ObjectWriter.
  class object_writer {
   public:
    void write(std::span<const write_range> parts) { object_->write(parts); }
    /// See ZeroCopyObjectWriter; write() where the store has none.
    void write_stable(std::span<const write_range> parts) { object_->write_stable(parts); }
    /// See DeadlineObjectWriter; nothing where the store has none.
    void until(deadline when) { object_->until(when); }
    void finish() { object_->finish(); }
    /// See AnnouncingObjectWriter; nothing where the store has none: others see the object anyway, or never.
    void announce() { object_->announce(); }
    /// See LockedObjectWriter; -1 where the store has none.
    [[nodiscard]] int lock_descriptor() const { return object_->lock_descriptor(); }
    /// See CountsHelperCpu; 0 where the store does not count.
    [[nodiscard]] std::int64_t helper_cpu() const { return object_->helper_cpu(); }

   private:
    friend any_store;
    explicit object_writer(std::unique_ptr<detail::object_face> object) : object_(std::move(object)) {}
    std::unique_ptr<detail::object_face> object_;
  };

  /// See SharedObjectWriter.
  class shared_object_writer {
   public:
    void write(std::span<const write_range> parts) { object_->write(parts); }
    void put(std::uint64_t offset, std::span<const std::byte> bytes) { object_->put(offset, bytes); }
    [[nodiscard]] bool read(std::uint64_t offset, std::span<std::byte> destination) const {
      return object_->read(offset, destination);
    }
    void sync() { object_->sync(); }
    void finish(std::uint64_t bytes) { object_->finish(bytes); }
    /// See CountsHelperCpu; 0 where the store does not count.
    [[nodiscard]] std::int64_t helper_cpu() const { return object_->helper_cpu(); }

   private:
    friend any_store;
    explicit shared_object_writer(std::unique_ptr<detail::shared_object_face> object)
        : object_(std::move(object)) {}
    std::unique_ptr<detail::shared_object_face> object_;
  };

  /// See ReadSession; where the store has none, read() is that of the store, and nothing is known of a cache. Copies
  /// share the session.
  class read_session {
   public:
    using store_type = any_store;
    void read(std::span<const read_range> ranges) const {
      session_ != nullptr ? session_->read(ranges) : store_->read(ranges);
    }
    [[nodiscard]] bool is_cached(std::string_view key, std::uint64_t offset, std::uint64_t bytes) const {
      return session_ != nullptr && session_->is_cached(key, offset, bytes);
    }
    [[nodiscard]] read_figures figures() const {
      return session_ != nullptr ? session_->figures() : read_figures{};
    }

   private:
    friend any_store;
    explicit read_session(std::shared_ptr<detail::store_face> store)
        : store_(std::move(store)), session_(store_->begin_reads()) {}
    std::shared_ptr<detail::store_face> store_;
    std::shared_ptr<detail::read_session_face> session_;
  };

  // See ByteStore.
  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint) const {
    return object_writer(face_->create(key, size_hint));
  }
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes) const {
    return face_->publish_new(key, bytes);
  }
  void read(std::span<const read_range> ranges) const { face_->read(ranges); }
  /// See OffersReadSessions.
  [[nodiscard]] read_session begin_reads() const { return read_session(face_); }
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) const { return face_->size(key); }
  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix) const { return face_->list(prefix); }
  void remove(std::string_view key) const { face_->remove(key); }
  [[nodiscard]] std::string describe() const { return face_->describe(); }

  /// See PutsNew; by publish_new() where the store has none.
  void put_new(std::string_view key, std::span<const std::byte> bytes) const { face_->put_new(key, bytes); }
  /// See ReadsWhole; by size() and read() where the store has none.
  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key,
                                                               std::uint64_t cap) const {
    return face_->read_all(key, cap);
  }
  // See PrefersWriteSizes; 1 where the store likes all parts alike.
  [[nodiscard]] std::size_t io_alignment() const { return face_->io_alignment(); }
  [[nodiscard]] std::size_t min_write_bytes() const { return face_->min_write_bytes(); }
  // See KeepsLeftovers; none where the store keeps none.
  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix) const {
    return face_->leftovers(prefix);
  }
  void discard(std::string_view key) const { face_->discard(key); }
  /// See ReportsSpace; nothing where the store does not tell.
  [[nodiscard]] std::optional<space_left> free_space() const { return face_->free_space(); }
  /// See ListsKeys; by list() where the store has none.
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix,
                                              std::size_t parts = detail::any_parts) const {
    return face_->keys(prefix, parts);
  }
  /// See ConditionalRemove; by a look before where the store has none.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes) const {
    return face_->remove_if(key, bytes);
  }
  /// See DistantStore; 0 where the store is none.
  [[nodiscard]] std::size_t reads_at_once() const { return face_->reads_at_once(); }

  // See DirectoryStore; nothing to do where the store has no directories: each of them is there and lasts.
  void make_directory(std::string_view directory) const { face_->make_directory(directory); }
  [[nodiscard]] bool adopt_directory(std::string_view directory) const {
    return face_->adopt_directory(directory);
  }
  void make_name_durable(std::string_view key) const { face_->make_name_durable(key); }
  // See DurabilityHints; where the store notes nothing, is_noted_durable() makes the name durable and is
  // true.
  void note_durable(std::string_view key) const noexcept { face_->note_durable(key); }
  [[nodiscard]] bool is_noted_durable(std::string_view key) const { return face_->is_noted_durable(key); }

  /// Whether the store is a TracksWriters; where it is none, no writer is known to live.
  [[nodiscard]] bool tracks_writers() const { return face_->tracks_writers(); }
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix) const {
    return face_->live_writers(prefix);
  }
  [[nodiscard]] bool writer_lives(std::string_view key) const { return face_->writer_lives(key); }
  /// See AnnouncesWriters; false where the store says nothing of it.
  [[nodiscard]] bool announces_writers() const { return face_->announces_writers(); }

  /// Whether the store is a SharedStore; where it is none, the next two throw usage_error (usage_bad_option).
  [[nodiscard]] bool shares() const { return face_->shares(); }
  [[nodiscard]] shared_object_writer share(std::string_view key, std::uint64_t tag) const {
    return shared_object_writer(face_->share(key, tag));
  }
  [[nodiscard]] std::optional<shared_object_writer> join(std::string_view key, std::uint64_t tag) const {
    auto joined = face_->join(key, tag);
    if (joined == nullptr) return std::nullopt;
    return shared_object_writer(std::move(joined));
  }

  /// See DecodingStore; true for 0 alone where the store decodes nothing.
  [[nodiscard]] bool decodes(std::uint16_t codec) const { return face_->decodes(codec); }
  /// See SelfTestingStore; an empty proof where the store tries nothing.
  [[nodiscard]] store_proof prove() const { return face_->prove(); }
  /// The store below all LayeredStores; this one where it lies over no other.
  [[nodiscard]] any_store innermost() const {
    auto found = *this;
    while (auto below = found.face_->inner()) found.face_ = std::move(below);
    return found;
  }

 protected:
  /// See Portable. @throws usage_error (usage_bad_option) where the store is not
  [[nodiscard]] std::vector<std::byte> inner_description() const { return face_->description(); }

 private:
  template <ByteStore S>
  friend std::shared_ptr<detail::store_face> detail::face_of(std::shared_ptr<S> store);
  std::shared_ptr<detail::store_face> face_;
};

template <ByteStore S>
std::shared_ptr<detail::store_face> detail::face_of(std::shared_ptr<S> store) {
  if constexpr (StoreHandle<S>)
    return static_cast<const any_store&>(*store).face_;
  else
    return std::make_shared<store_model<S>>(std::move(store));
}

static_assert(ByteStore<any_store> && ConditionalRemove<any_store> && ListsKeys<any_store> &&
              DurabilityHints<any_store> && MayTrackWriters<any_store> && MayShare<any_store> &&
              DecodingStore<any_store>);

}  // namespace v1
}  // namespace cairn
