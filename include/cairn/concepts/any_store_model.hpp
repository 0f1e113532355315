// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/concepts/store_errors.hpp>
#include <cairn/concepts/store_reads.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>

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

/// The functions of an object writer of any type; see any_store::object_writer.
struct object_face {
  virtual ~object_face() = default;
  virtual void write(std::span<const write_range> parts) = 0;
  virtual void write_stable(std::span<const write_range> parts) = 0;
  virtual void until(deadline when) = 0;
  virtual void finish() = 0;
  virtual void announce() = 0;
  virtual bool announced() const noexcept = 0;
  virtual int lock_descriptor() const = 0;
  virtual std::int64_t helper_cpu() const = 0;
};

/// The functions of a writer of a shared object of any type; see any_store::shared_object_writer.
struct shared_object_face {
  virtual ~shared_object_face() = default;
  virtual void write(std::span<const write_range> parts) = 0;
  virtual void put(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual bool read(std::uint64_t offset, std::span<std::byte> destination) = 0;
  virtual void sync() = 0;
  virtual void finish(std::uint64_t bytes) = 0;
  virtual std::int64_t helper_cpu() const = 0;
};

/// The functions of a ReadSession of any type; see any_store::read_session.
struct read_session_face {
  virtual ~read_session_face() = default;
  virtual void read(std::span<const read_range> ranges) = 0;
  virtual bool is_cached(std::string_view key, std::uint64_t offset, std::uint64_t bytes) = 0;
  virtual bool copy(std::string_view key, std::uint64_t offset, std::span<std::byte> destination,
                    std::uint64_t* digest) = 0;
  virtual read_figures figures() = 0;
};

/// The functions of a store of any type, with defaults for the capabilities that it lacks; see any_store.
struct store_face {
  virtual ~store_face() = default;
  virtual detail::owned<object_face> create(std::string_view key, std::uint64_t size_hint) = 0;
  virtual detail::owned<object_face> show(std::string_view key) = 0;
  virtual std::size_t io_alignment() = 0;
  virtual std::size_t min_write_bytes() = 0;
  virtual std::size_t reads_at_once() = 0;
  virtual std::uint64_t read_bytes(std::uint64_t total) = 0;
  virtual void read(std::span<const read_range> ranges) = 0;
  virtual void open_connections() noexcept = 0;
  /// Null where the store has no sessions.
  virtual std::shared_ptr<read_session_face> begin_reads() = 0;
  virtual void put_new(std::string_view key, std::span<const std::byte> bytes) = 0;
  virtual bool publish_new(std::string_view key, std::span<const std::byte> bytes) = 0;
  virtual std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) = 0;
  virtual std::optional<std::uint64_t> size(std::string_view key) = 0;
  virtual std::optional<object_identity> identify(std::string_view key) = 0;
  virtual std::optional<std::string> root_identity() = 0;
  virtual std::vector<listed_object> list(std::string_view prefix) = 0;
  virtual std::vector<std::string> keys(std::string_view prefix, std::size_t parts) = 0;
  virtual std::optional<std::vector<std::string>> keys_after(std::string_view prefix, std::string_view after,
                                                             std::size_t parts) = 0;
  virtual void remove(std::string_view key) = 0;
  virtual bool remove_all(std::span<const std::string> keys) = 0;
  virtual bool remove_if(std::string_view key, std::span<const std::byte> bytes) = 0;
  virtual std::vector<std::string> leftovers(std::string_view prefix) = 0;
  virtual void discard(std::string_view key) = 0;
  virtual std::optional<space_left> free_space() = 0;
  virtual std::string describe() = 0;
  virtual void make_directory(std::string_view directory) = 0;
  virtual bool adopt_directory(std::string_view directory) = 0;
  virtual void make_name_durable(std::string_view key) = 0;
  virtual void note_durable(std::string_view key) noexcept = 0;
  virtual bool is_noted_durable(std::string_view key) = 0;
  virtual bool tracks_writers() = 0;
  virtual bool announces_writers() = 0;
  virtual std::vector<std::string> live_writers(std::string_view prefix) = 0;
  virtual bool writer_lives(std::string_view key) = 0;
  /// Nothing where the store has no such function.
  virtual std::optional<std::vector<listed_unfinished>> unfinished(
      std::span<const std::string_view> prefixes) = 0;
  virtual bool shares() = 0;
  virtual detail::owned<shared_object_face> share(std::string_view key, std::uint64_t tag) = 0;
  virtual detail::owned<shared_object_face> join(std::string_view key, std::uint64_t tag) = 0;
  virtual std::unique_ptr<change_watch> watch(std::string_view prefix) = 0;
  virtual bool links() = 0;
  virtual void link(std::string_view from, std::string_view to, deadline until) = 0;
  virtual bool decodes(std::uint16_t codec) = 0;
  virtual std::vector<std::byte> description() = 0;
  virtual store_test_report self_test() = 0;
  /// Null where the store lies over no other one.
  virtual std::shared_ptr<store_face> inner() = 0;
};

template <class W>
[[nodiscard]] std::int64_t helper_cpu_of([[maybe_unused]] const W& writer) {
  if constexpr (CountsHelperCpu<W>)
    return writer.helper_cpu();
  else
    return 0;
}

template <ObjectWriter W>
struct object_model final : object_face {
  explicit object_model(W made) : writer(std::move(made)) {}
  void write(std::span<const write_range> parts) override { writer.write(parts); }
  void write_stable(std::span<const write_range> parts) override {
    if constexpr (ZeroCopyObjectWriter<W>)
      writer.write_stable(parts);
    else
      writer.write(parts);
  }
  void until([[maybe_unused]] deadline when) override {
    if constexpr (DeadlineObjectWriter<W>) writer.until(when);
  }
  void finish() override { writer.finish(); }
  void announce() override {
    if constexpr (AnnouncingObjectWriter<W>) writer.announce();
  }
  bool announced() const noexcept override {
    if constexpr (KeepsAnnouncement<W>)
      return writer.announced();
    else
      return true;
  }
  int lock_descriptor() const override {
    if constexpr (LockedObjectWriter<W>)
      return writer.lock_descriptor();
    else
      return -1;
  }
  std::int64_t helper_cpu() const override { return helper_cpu_of(writer); }
  W writer;
};

template <SharedObjectWriter W>
struct shared_object_model final : shared_object_face {
  explicit shared_object_model(W made) : writer(std::move(made)) {}
  void write(std::span<const write_range> parts) override { writer.write(parts); }
  void put(std::uint64_t offset, std::span<const std::byte> bytes) override { writer.put(offset, bytes); }
  bool read(std::uint64_t offset, std::span<std::byte> to) override { return writer.read(offset, to); }
  void sync() override { writer.sync(); }
  void finish(std::uint64_t bytes) override { writer.finish(bytes); }
  std::int64_t helper_cpu() const override { return helper_cpu_of(writer); }
  W writer;
};

template <ReadSession R>
struct read_session_model final : read_session_face {
  explicit read_session_model(R begun) : session(std::move(begun)) {}
  void read(std::span<const read_range> ranges) override { session.read(ranges); }
  bool is_cached(std::string_view key, std::uint64_t offset, std::uint64_t bytes) override {
    return session.is_cached(key, offset, bytes);
  }
  bool copy([[maybe_unused]] std::string_view key, [[maybe_unused]] std::uint64_t offset,
            [[maybe_unused]] std::span<std::byte> destination,
            [[maybe_unused]] std::uint64_t* digest) override {
    if constexpr (CopiesFromMemory<R>)
      return session.copy(key, offset, destination, digest);
    else
      return false;
  }
  read_figures figures() override { return session.figures(); }
  R session;
};

/// The face of a store, as any_store holds it: that of the any_store itself where it is one.
template <ByteStore S>
[[nodiscard]] std::shared_ptr<store_face> face_of(std::shared_ptr<S> store);

template <ByteStore S>
struct store_model final : store_face {
  explicit store_model(std::shared_ptr<S> of) : held(std::move(of)), store(*held) {}

  detail::owned<object_face> create(std::string_view key, std::uint64_t size_hint) override {
    using writer = std::remove_cvref_t<decltype(store.create(key, size_hint))>;
    return detail::make_owned<object_model<writer>>(store.create(key, size_hint));
  }
  detail::owned<object_face> show(std::string_view key) override {
    if constexpr (ShowsWriters<S>) {
      return detail::make_owned<object_model<decltype(store.show(key))>>(store.show(key));
    } else {
      auto shown = create(key, 0);
      shown->announce();
      return shown;
    }
  }
  std::size_t io_alignment() override {
    if constexpr (PrefersWriteSizes<S>)
      return store.io_alignment();
    else
      return 1;
  }
  std::size_t min_write_bytes() override {
    if constexpr (PrefersWriteSizes<S>)
      return store.min_write_bytes();
    else
      return 1;
  }
  std::size_t reads_at_once() override {
    if constexpr (DistantStore<S>)
      return store.reads_at_once();
    else
      return 0;
  }
  std::uint64_t read_bytes([[maybe_unused]] std::uint64_t total) override {
    if constexpr (SizesReads<S>)
      return store.read_bytes(total);
    else
      return 0;
  }
  void read(std::span<const read_range> ranges) override { store.read(ranges); }
  void open_connections() noexcept override {
    if constexpr (OpensConnections<S>) store.open_connections();
  }
  std::shared_ptr<read_session_face> begin_reads() override {
    if constexpr (OffersReadSessions<S>)
      return detail::make_shared<read_session_model<decltype(store.begin_reads())>>(store.begin_reads());
    else
      return nullptr;
  }
  void put_new(std::string_view key, std::span<const std::byte> bytes) override {
    if constexpr (PutsNew<S>)
      store.put_new(key, bytes);
    else if (!store.publish_new(key, bytes))
      fail(error_id::storage_exists, "an object of this key exists already; it was not touched",
           {.file = std::string(key)});
  }
  bool publish_new(std::string_view key, std::span<const std::byte> bytes) override {
    return store.publish_new(key, bytes);
  }
  std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) override {
    return read_whole(store, key, cap);
  }
  std::optional<std::uint64_t> size(std::string_view key) override { return store.size(key); }
  std::optional<std::string> root_identity() override {
    if constexpr (IdentifiesRoot<S>)
      return store.root_identity();
    else
      return std::string();
  }
  std::optional<object_identity> identify(std::string_view key) override {
    if constexpr (IdentifiesObjects<S>) {
      return store.identify(key);
    } else {
      const auto bytes = store.size(key);
      if (!bytes) return std::nullopt;
      return object_identity{*bytes};
    }
  }
  std::vector<listed_object> list(std::string_view prefix) override { return store.list(prefix); }
  std::vector<std::string> keys(std::string_view prefix, std::size_t parts) override {
    return list_keys(store, prefix, parts);
  }
  std::optional<std::vector<std::string>> keys_after([[maybe_unused]] std::string_view prefix,
                                                     [[maybe_unused]] std::string_view after,
                                                     [[maybe_unused]] std::size_t parts) override {
    if constexpr (ListsKeysAfter<S>)
      return store.keys_after(prefix, after, parts);
    else
      return std::nullopt;
  }
  void remove(std::string_view key) override { store.remove(key); }
  bool remove_all([[maybe_unused]] std::span<const std::string> keys) override {
    if constexpr (RemovesMany<S>) store.remove_all(keys);
    return RemovesMany<S>;
  }
  bool remove_if(std::string_view key, std::span<const std::byte> bytes) override {
    return detail::remove_if(store, key, bytes);
  }
  std::vector<std::string> leftovers([[maybe_unused]] std::string_view prefix) override {
    if constexpr (KeepsLeftovers<S>)
      return store.leftovers(prefix);
    else
      return {};
  }
  void discard(std::string_view key) override {
    if constexpr (KeepsLeftovers<S>)
      store.discard(key);
    else
      check_key(key);
  }
  std::optional<space_left> free_space() override {
    if constexpr (ReportsSpace<S>)
      return store.free_space();
    else
      return std::nullopt;
  }
  std::string describe() override { return std::string(store.describe()); }
  void make_directory([[maybe_unused]] std::string_view directory) override {
    if constexpr (DirectoryStore<S>) store.make_directory(directory);
  }
  bool adopt_directory([[maybe_unused]] std::string_view directory) override {
    if constexpr (DirectoryStore<S>)
      return store.adopt_directory(directory);
    else
      return true;  // there is nothing that must be made before an object
  }
  void make_name_durable([[maybe_unused]] std::string_view key) override {
    if constexpr (DirectoryStore<S>) store.make_name_durable(key);
  }
  void note_durable([[maybe_unused]] std::string_view key) noexcept override {
    if constexpr (DurabilityHints<S>) store.note_durable(key);
  }
  bool is_noted_durable(std::string_view key) override {
    if constexpr (DurabilityHints<S>) return store.is_noted_durable(key);
    make_name_durable(key);  // so that nobody waits for a note that never comes
    return true;
  }
  bool tracks_writers() override {
    if constexpr (MayTrackWriters<S>)
      return store.tracks_writers();
    else
      return TracksWriters<S>;
  }
  bool announces_writers() override {
    if constexpr (AnnouncesWriters<S>)
      return store.announces_writers();
    else
      return false;
  }
  std::vector<std::string> live_writers([[maybe_unused]] std::string_view prefix) override {
    if constexpr (TracksWriters<S>)
      return store.live_writers(prefix);
    else
      return {};
  }
  bool writer_lives([[maybe_unused]] std::string_view key) override {
    if constexpr (TracksWriters<S>)
      return store.writer_lives(key);
    else
      return false;
  }
  std::optional<std::vector<listed_unfinished>> unfinished(
      [[maybe_unused]] std::span<const std::string_view> prefixes) override {
    if constexpr (ListsUnfinished<S>)
      return store.unfinished(prefixes);
    else
      return std::nullopt;
  }
  bool shares() override {
    if constexpr (MayShare<S>)
      return store.shares();
    else
      return SharedStore<S>;
  }
  detail::owned<shared_object_face> share([[maybe_unused]] std::string_view key,
                                          [[maybe_unused]] std::uint64_t tag) override {
    if constexpr (SharedStore<S>) {
      using writer = std::remove_cvref_t<decltype(store.share(key, tag))>;
      return detail::make_owned<shared_object_model<writer>>(store.share(key, tag));
    } else {
      fail_to_share();
    }
  }
  detail::owned<shared_object_face> join([[maybe_unused]] std::string_view key,
                                         [[maybe_unused]] std::uint64_t tag) override {
    if constexpr (SharedStore<S>) {
      using writer = std::remove_cvref_t<decltype(store.share(key, tag))>;
      auto joined = store.join(key, tag);
      if (!joined) return nullptr;
      return detail::make_owned<shared_object_model<writer>>(std::move(*joined));
    } else {
      fail_to_share();
    }
  }
  std::unique_ptr<change_watch> watch([[maybe_unused]] std::string_view prefix) override {
    if constexpr (WatchesChanges<S>)
      return store.watch(prefix);
    else
      return nullptr;
  }
  bool links() override {
    if constexpr (MayLink<S>)
      return store.links();
    else
      return LinksObjects<S>;
  }
  void link([[maybe_unused]] std::string_view from, [[maybe_unused]] std::string_view to,
            [[maybe_unused]] deadline until) override {
    if constexpr (LinksUntil<S>)
      store.link(from, to, until);
    else if constexpr (LinksObjects<S>)
      store.link(from, to);
    else
      fail(error_id::usage_bad_option, "this store cannot give an object a second key", {.file = describe()});
  }
  bool decodes(std::uint16_t codec) override {
    if constexpr (DecodingStore<S>)
      return store.decodes(codec);
    else
      return codec == 0;
  }
  std::vector<std::byte> description() override {
    if constexpr (Portable<S>)
      return store.description();
    else
      fail(error_id::usage_bad_option, "this store cannot be used by a worker process: save on a thread",
           {.file = describe()});
  }
  store_test_report self_test() override {
    if constexpr (SelfTestingStore<S>)
      return store.self_test();
    else
      return {};
  }
  std::shared_ptr<store_face> inner() override {
    static_assert(
        LayeredStore<S> || !requires(S& s) { s.inner(); },
        "this store's inner() is not what cairn::LayeredStore asks for, so its leases would be held where "
        "users of the store below do not see them: return the store below as a reference that is not const, "
        "or give the function another name");
    if constexpr (LayeredStore<S>) {
      using inner_type = std::remove_reference_t<decltype(store.inner())>;
      return face_of(std::shared_ptr<inner_type>(held, &store.inner()));
    } else {
      return nullptr;
    }
  }

  [[noreturn]] void fail_to_share() {
    fail(error_id::usage_bad_option, "the ranks of a host cannot share files in this store",
         {.file = describe()});
  }

  std::shared_ptr<S> held;
  S& store;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
