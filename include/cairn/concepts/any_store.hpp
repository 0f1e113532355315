// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store_model.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>

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
/// Each function of a capability says what it does if the store lacks the capability.
class any_store {
 public:
  using handle_type = any_store;

  /// Holds a store of any type; a copy of the handle where it is one.
  template <class Store>
    requires(!std::derived_from<std::remove_cvref_t<Store>, any_store> &&
             ByteStore<std::remove_cvref_t<Store>>)
  explicit any_store(Store&& store)
      : any_store(detail::make_shared<std::remove_cvref_t<Store>>(std::forward<Store>(store))) {}
  // A class that derives from this one is not asked here whether it is a ByteStore: that asks for its
  // constructors, and this is one of them.
  template <class Store>
    requires(!std::same_as<std::remove_cvref_t<Store>, any_store> &&
             std::derived_from<std::remove_cvref_t<Store>, any_store>)
  explicit any_store(Store&& store)
      : any_store(detail::make_shared<std::remove_cvref_t<Store>>(std::forward<Store>(store))) {}
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
    void write(std::span<const write_range> parts);
    /// See ZeroCopyObjectWriter; write() where the store has none.
    void write_stable(std::span<const write_range> parts);
    /// See DeadlineObjectWriter; nothing where the store has none.
    void until(deadline when);
    void finish();
    /// See AnnouncingObjectWriter; nothing where the store has none: others see the object anyway, or never.
    void announce();
    /// See KeepsAnnouncement; true where the store does not tell.
    [[nodiscard]] bool announced() const noexcept;
    /// See LockedObjectWriter; -1 where the store has none.
    [[nodiscard]] int lock_descriptor() const;
    /// See CountsHelperCpu; 0 where the store does not count.
    [[nodiscard]] std::int64_t helper_cpu() const;

   private:
    friend any_store;
    explicit object_writer(detail::owned<detail::object_face> object) : object_(std::move(object)) {}
    detail::owned<detail::object_face> object_;
  };

  /// See SharedObjectWriter.
  class shared_object_writer {
   public:
    void write(std::span<const write_range> parts);
    void put(std::uint64_t offset, std::span<const std::byte> bytes);
    [[nodiscard]] bool read(std::uint64_t offset, std::span<std::byte> destination) const;
    void sync();
    void finish(std::uint64_t bytes);
    /// See CountsHelperCpu; 0 where the store does not count.
    [[nodiscard]] std::int64_t helper_cpu() const;

   private:
    friend any_store;
    explicit shared_object_writer(detail::owned<detail::shared_object_face> object)
        : object_(std::move(object)) {}
    detail::owned<detail::shared_object_face> object_;
  };

  /// See ReadSession; where the store has none, read() is that of the store, and nothing is known of a cache. Copies
  /// share the session.
  class read_session {
   public:
    using store_type = any_store;
    void read(std::span<const read_range> ranges) const;
    [[nodiscard]] bool is_cached(std::string_view key, std::uint64_t offset, std::uint64_t bytes) const;
    /// See CopiesFromMemory; false where the session has none.
    [[nodiscard]] bool copy(std::string_view key, std::uint64_t offset, std::span<std::byte> destination,
                            std::uint64_t* digest) const;
    [[nodiscard]] read_figures figures() const;

   private:
    friend any_store;
    explicit read_session(std::shared_ptr<detail::store_face> store);
    std::shared_ptr<detail::store_face> store_;
    std::shared_ptr<detail::read_session_face> session_;
  };

  // See ByteStore.
  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint) const;
  /// See ShowsWriters; by create() and announce() where the store has none.
  [[nodiscard]] object_writer show(std::string_view key) const;
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes) const;
  void read(std::span<const read_range> ranges) const;
  /// See OpensConnections; nothing where the store has none.
  void open_connections() const noexcept;
  /// See OffersReadSessions.
  [[nodiscard]] read_session begin_reads() const;
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) const;
  /// See IdentifiesObjects; the size alone where the store has none.
  [[nodiscard]] std::optional<object_identity> identify(std::string_view key) const;
  /// See IdentifiesRoot, of the innermost store; an empty text where that has no such root.
  [[nodiscard]] std::optional<std::string> root_identity() const;
  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix) const;
  void remove(std::string_view key) const;
  [[nodiscard]] std::string describe() const;

  /// See PutsNew; by publish_new() where the store has none.
  void put_new(std::string_view key, std::span<const std::byte> bytes) const;
  /// See ReadsWhole; by size() and read() where the store has none.
  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) const;
  // See PrefersWriteSizes; 1 where the store likes all parts alike.
  [[nodiscard]] std::size_t io_alignment() const;
  [[nodiscard]] std::size_t min_write_bytes() const;
  // See KeepsLeftovers; none where the store keeps none.
  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix) const;
  void discard(std::string_view key) const;
  /// See ListsUnfinished; by live_writers() and leftovers() where the store has none.
  [[nodiscard]] std::vector<listed_unfinished> unfinished(std::span<const std::string_view> prefixes) const;
  /// See ReportsSpace; nothing where the store does not tell.
  [[nodiscard]] std::optional<space_left> free_space() const;
  /// See ListsKeys; by list() where the store has none.
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix,
                                              std::size_t parts = detail::any_parts) const;
  /// See ListsKeysAfter; nothing where the store has none.
  [[nodiscard]] std::optional<std::vector<std::string>> keys_after(
      std::string_view prefix, std::string_view after, std::size_t parts = detail::any_parts) const;
  /// See RemovesMany; false where the store has none, and nothing is removed.
  [[nodiscard]] bool remove_all(std::span<const std::string> keys) const;
  /// See ConditionalRemove; by a look before where the store has none.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes) const;
  /// See DistantStore; 0 where the store does not model it.
  [[nodiscard]] std::size_t reads_at_once() const;
  /// See SizesReads; 0 where the store does not say.
  [[nodiscard]] std::uint64_t read_bytes(std::uint64_t total) const;

  // See DirectoryStore; nothing to do where the store has no directories: each of them is there and lasts.
  void make_directory(std::string_view directory) const;
  [[nodiscard]] bool adopt_directory(std::string_view directory) const;
  void make_name_durable(std::string_view key) const;
  // See DurabilityHints; where the store notes nothing, is_noted_durable() makes the name durable and is
  // true.
  void note_durable(std::string_view key) const noexcept;
  [[nodiscard]] bool is_noted_durable(std::string_view key) const;

  /// Whether the store models TracksWriters; where it does not, no writer is known to live.
  [[nodiscard]] bool tracks_writers() const;
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix) const;
  [[nodiscard]] bool writer_lives(std::string_view key) const;
  /// See AnnouncesWriters; false where the store says nothing of it.
  [[nodiscard]] bool announces_writers() const;

  /// Whether the store models SharedStore; where it does not, the next two throw usage_error
  /// (usage_bad_option).
  [[nodiscard]] bool shares() const;
  [[nodiscard]] shared_object_writer share(std::string_view key, std::uint64_t tag) const;
  [[nodiscard]] std::optional<shared_object_writer> join(std::string_view key, std::uint64_t tag) const;

  /// See WatchesChanges; null where the store does not tell.
  [[nodiscard]] std::unique_ptr<change_watch> watch(std::string_view prefix) const;

  /// Whether the store models LinksObjects; where it does not, link() throws usage_error (usage_bad_option).
  [[nodiscard]] bool links() const;
  /// See LinksUntil; without a limit where the store has none.
  void link(std::string_view from, std::string_view to, deadline until = deadline::never()) const;

  /// See DecodingStore; true for 0 alone where the store decodes nothing.
  [[nodiscard]] bool decodes(std::uint16_t codec) const;
  /// See SelfTestingStore; an empty report where the store tries nothing.
  [[nodiscard]] store_test_report self_test() const;
  /// The store below all LayeredStores; this one where it lies over no other.
  [[nodiscard]] any_store innermost() const;
  /// See LayeredStore.
  [[nodiscard]] bool is_layered() const;

 protected:
  /// See Portable. @throws usage_error (usage_bad_option) where the store is not
  [[nodiscard]] std::vector<std::byte> inner_description() const;

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
    return detail::make_shared<store_model<S>>(std::move(store));
}

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/any_store.ipp>
#endif
