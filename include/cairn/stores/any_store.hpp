// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/error.hpp>
#include <cairn/model/wire.hpp>
#include <cairn/stores/file_store.hpp>

#include <algorithm>
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

/// A ByteStore whose type is chosen at run time. Each call costs a virtual one, and copies of descriptions a
/// string. Copies share the store. Where a worker process is to write, any_store_of names the types that it
/// may be.
class any_store {
  struct any_object {
    virtual ~any_object() = default;
    virtual void write(std::span<const write_part> parts) = 0;
    virtual void write_lasting(std::span<const write_part> parts) = 0;
    virtual void until(deadline when) = 0;
    virtual void finish() = 0;
    virtual void announce() = 0;
    virtual int lock_descriptor() = 0;
  };
  template <class W>
  struct object_of final : any_object {
    explicit object_of(W made) : writer(std::move(made)) {}
    void write(std::span<const write_part> parts) override { writer.write(parts); }
    void write_lasting(std::span<const write_part> parts) override {
      if constexpr (LastingObjectWriter<W>)
        writer.write_lasting(parts);
      else
        writer.write(parts);
    }
    void until([[maybe_unused]] deadline when) override {
      if constexpr (DeadlineObjectWriter<W>) writer.until(when);
    }
    void finish() override { writer.finish(); }
    void announce() override {
      if constexpr (requires { writer.announce(); }) writer.announce();
    }
    int lock_descriptor() override {
      if constexpr (requires { writer.lock_descriptor(); })
        return writer.lock_descriptor();
      else
        return -1;
    }
    W writer;
  };
  struct face {
    virtual ~face() = default;
    virtual std::unique_ptr<any_object> create(std::string_view key, std::uint64_t size_hint) = 0;
    virtual std::size_t part_alignment() = 0;
    virtual std::size_t min_part() = 0;
    virtual std::size_t reads_at_once() = 0;
    virtual void read(std::span<const read_range> ranges) = 0;
    virtual void put_new(std::string_view key, std::span<const std::byte> bytes) = 0;
    virtual bool publish_new(std::string_view key, std::span<const std::byte> bytes) = 0;
    virtual std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) = 0;
    virtual std::optional<std::uint64_t> size(std::string_view key) = 0;
    virtual std::vector<listed_object> list(std::string_view prefix) = 0;
    virtual std::vector<std::string> keys(std::string_view prefix, std::size_t parts) = 0;
    virtual void remove(std::string_view key) = 0;
    virtual bool remove_if(std::string_view key, std::span<const std::byte> bytes) = 0;
    virtual std::vector<std::string> leftovers(std::string_view prefix) = 0;
    virtual void discard(std::string_view key) = 0;
    virtual std::optional<space_left> free_space() = 0;
    virtual std::string describe() = 0;
    virtual void make_directory(std::string_view directory) = 0;
    virtual bool adopt_directory(std::string_view directory) = 0;
    virtual void settle(std::string_view key) = 0;
    virtual void note_settled(std::string_view key) noexcept = 0;
    virtual bool is_settled(std::string_view key) = 0;
    virtual bool tells_writers() = 0;
    virtual bool announces_writers() = 0;
    virtual std::vector<std::string> live_writers(std::string_view prefix) = 0;
    virtual bool writer_lives(std::string_view key) = 0;
    virtual std::vector<std::byte> description() = 0;
    virtual store_proof prove() = 0;
  };
  template <class S>
  struct face_of final : face {
    explicit face_of(S made) : store(std::move(made)) {}
    std::unique_ptr<any_object> create(std::string_view key, std::uint64_t size_hint) override {
      using writer = std::remove_cvref_t<decltype(store.create(key, size_hint))>;
      return std::make_unique<object_of<writer>>(store.create(key, size_hint));
    }
    std::size_t part_alignment() override { return store.part_alignment(); }
    std::size_t min_part() override { return store.min_part(); }
    std::size_t reads_at_once() override {
      if constexpr (requires { store.reads_at_once(); })
        return store.reads_at_once();
      else
        return 1;
    }
    void read(std::span<const read_range> ranges) override { store.read(ranges); }
    void put_new(std::string_view key, std::span<const std::byte> bytes) override {
      store.put_new(key, bytes);
    }
    bool publish_new(std::string_view key, std::span<const std::byte> bytes) override {
      return store.publish_new(key, bytes);
    }
    std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) override {
      return store.read_all(key, cap);
    }
    std::optional<std::uint64_t> size(std::string_view key) override { return store.size(key); }
    std::vector<listed_object> list(std::string_view prefix) override { return store.list(prefix); }
    std::vector<std::string> keys(std::string_view prefix, std::size_t parts) override {
      return detail::list_keys(store, prefix, parts);
    }
    void remove(std::string_view key) override { store.remove(key); }
    bool remove_if(std::string_view key, std::span<const std::byte> bytes) override {
      return detail::remove_if(store, key, bytes);
    }
    std::vector<std::string> leftovers(std::string_view prefix) override { return store.leftovers(prefix); }
    void discard(std::string_view key) override { store.discard(key); }
    std::optional<space_left> free_space() override { return store.free_space(); }
    std::string describe() override { return std::string(store.describe()); }
    void make_directory(std::string_view directory) override {
      if constexpr (DirectoryStore<S>) store.make_directory(directory);
    }
    bool adopt_directory(std::string_view directory) override {
      if constexpr (DirectoryStore<S>)
        return store.adopt_directory(directory);
      else
        return true;  // there is nothing that must be made before an object
    }
    void settle(std::string_view key) override {
      if constexpr (DirectoryStore<S>) store.settle(key);
    }
    void note_settled([[maybe_unused]] std::string_view key) noexcept override {
      if constexpr (NotesSettled<S>) store.note_settled(key);
    }
    bool is_settled(std::string_view key) override {
      if constexpr (NotesSettled<S>) return store.is_settled(key);
      settle(key);  // so that nobody waits for a note that never comes
      return true;
    }
    static constexpr bool tells = requires(S& s, std::string_view key) {
      s.live_writers(key);
      s.writer_lives(key);
    };
    bool tells_writers() override { return tells; }
    bool announces_writers() override {
      if constexpr (requires { store.announces_writers(); })
        return store.announces_writers();
      else
        return false;
    }
    std::vector<std::string> live_writers([[maybe_unused]] std::string_view prefix) override {
      if constexpr (tells)
        return store.live_writers(prefix);
      else
        return {};
    }
    bool writer_lives([[maybe_unused]] std::string_view key) override {
      if constexpr (tells)
        return store.writer_lives(key);
      else
        return false;
    }
    std::vector<std::byte> description() override {
      if constexpr (Portable<S>)
        return store.description();
      else
        fail(error_id::usage_bad_option, "this store cannot be used by a worker process: save on a thread",
             {.file = describe()});
    }
    store_proof prove() override {
      if constexpr (SelfTestingStore<S>)
        return store.prove();
      else
        return {};
    }
    S store;
  };

 public:
  /// Holds a store of any type.
  template <class Store>
    requires(!std::derived_from<std::remove_cvref_t<Store>, any_store> &&
             ByteStore<std::remove_cvref_t<Store>>)
  explicit any_store(Store&& store)
      : face_(std::make_shared<face_of<std::remove_cvref_t<Store>>>(std::forward<Store>(store))) {}

  /// See ObjectWriter.
  class object_writer {
   public:
    void write(std::span<const write_part> parts) { object_->write(parts); }
    /// See LastingObjectWriter; write() where the store has none.
    void write_lasting(std::span<const write_part> parts) { object_->write_lasting(parts); }
    /// See DeadlineObjectWriter; nothing where the store has none.
    void until(deadline when) { object_->until(when); }
    void finish() { object_->finish(); }
    /// Lets others see the object before it is finished, where the store does not anyway.
    void announce() { object_->announce(); }
    /// Of the open file whose lock tells others that this writer lives; -1 where the store has none.
    [[nodiscard]] int lock_descriptor() const { return object_->lock_descriptor(); }

   private:
    friend any_store;
    explicit object_writer(std::unique_ptr<any_object> object) : object_(std::move(object)) {}
    std::unique_ptr<any_object> object_;
  };

  // See ByteStore.
  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint) {
    return object_writer(face_->create(key, size_hint));
  }
  [[nodiscard]] std::size_t part_alignment() const { return face_->part_alignment(); }
  [[nodiscard]] std::size_t min_part() const { return face_->min_part(); }
  [[nodiscard]] std::size_t reads_at_once() const { return face_->reads_at_once(); }
  void read(std::span<const read_range> ranges) { face_->read(ranges); }
  void put_new(std::string_view key, std::span<const std::byte> bytes) { face_->put_new(key, bytes); }
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    return face_->publish_new(key, bytes);
  }
  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    return face_->read_all(key, cap);
  }
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) { return face_->size(key); }
  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix) { return face_->list(prefix); }
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix, std::size_t parts) {
    return face_->keys(prefix, parts);
  }
  void remove(std::string_view key) { face_->remove(key); }
  /// See ConditionalRemove; by a look before where the store has none.
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes) {
    return face_->remove_if(key, bytes);
  }
  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix) {
    return face_->leftovers(prefix);
  }
  void discard(std::string_view key) { face_->discard(key); }
  [[nodiscard]] std::optional<space_left> free_space() { return face_->free_space(); }
  [[nodiscard]] std::string describe() const { return face_->describe(); }
  // See DirectoryStore; nothing to do where the store has no directories.
  void make_directory(std::string_view directory) { face_->make_directory(directory); }
  [[nodiscard]] bool adopt_directory(std::string_view directory) { return face_->adopt_directory(directory); }
  void settle(std::string_view key) { face_->settle(key); }
  // See NotesSettled; where the store notes nothing, is_settled() settles.
  void note_settled(std::string_view key) noexcept { face_->note_settled(key); }
  [[nodiscard]] bool is_settled(std::string_view key) { return face_->is_settled(key); }
  /// See SelfTestingStore; an empty proof where the store tries nothing.
  [[nodiscard]] store_proof prove() { return face_->prove(); }
  /// Whether the store knows of other processes' writers whether they live; the next two tell nothing where
  /// not.
  [[nodiscard]] bool tells_writers() const { return face_->tells_writers(); }
  /// Whether writers are seen by what they announce alone, not by their objects.
  [[nodiscard]] bool announces_writers() const { return face_->announces_writers(); }
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix) {
    return face_->live_writers(prefix);
  }
  [[nodiscard]] bool writer_lives(std::string_view key) { return face_->writer_lives(key); }

 protected:
  [[nodiscard]] std::vector<std::byte> inner_description() const { return face_->description(); }

 private:
  std::shared_ptr<face> face_;
};

static_assert(ConditionalRemove<any_store>);

/// An any_store that is one of these types, all Portable; Portable itself, so that the worker of a
/// process_executor finds the same store:
///
///   cairn::any_store_of<cairn::file_store, cairn::s3_store> store = cairn::open_store(url);
template <class... Stores>
  requires(sizeof...(Stores) > 0 && (ByteStore<Stores> && ...) && (Portable<Stores> && ...))
class any_store_of : public any_store {
 public:
  using cairn_role = role::store;

  template <class Store>
    requires(std::same_as<std::remove_cvref_t<Store>, Stores> || ...)
  explicit any_store_of(Store&& store)
      : any_store(std::forward<Store>(store)), type_(index_of<std::remove_cvref_t<Store>>()) {}

  /// See Portable: which of the types it is, and what that says of itself.
  [[nodiscard]] std::vector<std::byte> description() const {
    wire_writer out;
    out.put(type_).raw(inner_description());
    return out.take();
  }
  [[nodiscard]] static any_store_of from_description(std::span<const std::byte> bytes) {
    wire_reader in(bytes);
    const auto type = in.get<std::uint8_t>();
    const auto rest = in.take(in.left());
    std::optional<any_store_of> made;
    (void)((type == index_of<Stores>() && (made.emplace(Stores::from_description(rest)), true)) || ...);
    if (!made)
      fail(error_id::usage_bad_option, "a description is of a store that this program does not know",
           {.got = std::to_string(type)});
    return std::move(*made);
  }

 private:
  template <class Store>
  [[nodiscard]] static constexpr std::uint8_t index_of() noexcept {
    std::uint8_t index = 0;
    (void)((std::same_as<Store, Stores> || (++index, false)) || ...);
    return index;
  }
  std::uint8_t type_;
};

namespace detail {
/// What stands before the colon of a URL in small letters; empty for a path: "checkpoints", "./a:b".
[[nodiscard]] constexpr std::string_view scheme_of(std::string_view url) noexcept {
  const auto colon = url.find(':');
  if (colon == std::string_view::npos || colon < 2) return {};
  for (std::size_t i = 0; i < colon; ++i) {
    const bool letter = url[i] >= 'a' && url[i] <= 'z';
    if (!letter && (i == 0 || url[i] < '0' || url[i] > '9')) return {};
  }
  return url.substr(0, colon);
}
}  // namespace detail

namespace detail {
/// The directory that a URL names. @throws usage_error (usage_bad_option)
[[nodiscard]] inline std::string path_of_url(std::string_view url) {
  auto path = url;
  if (const auto scheme = scheme_of(url); scheme == "file") {
    path.remove_prefix(5);
    if (path.starts_with("//")) {
      path.remove_prefix(2);
      if (!path.starts_with('/'))
        fail(error_id::usage_bad_option,
             "a URL of a directory has three slashes or none: file:///data/run, file:run",
             {.got = std::string(url)});
    }
  } else if (!scheme.empty()) {
    fail(error_id::usage_bad_option,
         "this program knows directories alone: a path, or file:PATH; for s3:// it is built with cairn::s3",
         {.got = std::string(scheme)});
  }
  if (path.empty()) fail(error_id::usage_bad_option, "the URL of a store names no directory");
  return std::string(path);
}
}  // namespace detail

/// The store that a URL without an option names: a path, or file:PATH (file:checkpoints, file:///data/run).
/// <cairn/stores/s3_url.hpp> knows s3://, too. @throws usage_error (usage_bad_option)
[[nodiscard]] inline any_store_of<file_store> open_file_url(std::string_view url) {
  return any_store_of<file_store>(file_store(detail::path_of_url(url)));
}

static_assert(Portable<any_store_of<file_store>>);

}  // namespace v1
}  // namespace cairn
