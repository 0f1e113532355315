// SPDX-License-Identifier: Apache-2.0
#pragma once
// The smallest type for each concept of <cairn/concepts/store_capabilities.hpp> and store_reads.hpp: a
// byte_store_archetype with the functions of one capability. Generic code that compiles with them asks for
// nothing but the concept.
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/concepts/store_reads.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include "support/byte_store_archetype.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn_test {

/// Records what the archetypes were asked.
struct asked_capabilities {
  int announced = 0;
  std::map<std::string, std::vector<std::byte>> shared;
};

class extended_archetype : public byte_store_archetype {
 public:
  explicit extended_archetype(const cairn::memory_store& store)
      : byte_store_archetype(byte_store_archetype::over(store)) {}
};

struct telling_archetype : extended_archetype {
  using extended_archetype::extended_archetype;
  std::vector<std::string> live_writers(std::string_view prefix) & { return {std::string(prefix) + "live"}; }
  bool writer_lives(std::string_view key) & { return key == "lives"; }
};
struct dying_archetype : telling_archetype {
  using telling_archetype::telling_archetype;
  std::vector<std::string> leftovers(std::string_view prefix) & {
    return {std::string(prefix) + "died", std::string(prefix) + "live"};
  }
  void discard(std::string_view) & {}
};
struct unfinished_archetype : dying_archetype {
  using dying_archetype::dying_archetype;
  std::vector<cairn::listed_unfinished> unfinished(std::span<const std::string_view> prefixes) & {
    return {{std::string(prefixes.back()), true}};
  }
};
struct sizing_archetype : extended_archetype {
  using extended_archetype::extended_archetype;
  std::size_t reads_at_once() & { return 3; }
  std::uint64_t read_bytes(std::uint64_t total) & { return total / 3; }
};
struct not_telling_archetype : extended_archetype {
  using extended_archetype::extended_archetype;
  std::vector<std::string> live_writers(std::string_view) & {
    throw std::logic_error("it said that it cannot");
  }
  bool writer_lives(std::string_view) & { throw std::logic_error("it said that it cannot"); }
  bool tracks_writers() & { return false; }
};

struct announcing_archetype : extended_archetype {
  announcing_archetype(const cairn::memory_store& store, std::shared_ptr<asked_capabilities> by)
      : extended_archetype(store), asked(std::move(by)) {}
  struct writer : byte_store_archetype::writer {
    writer(byte_store_archetype::writer made, std::shared_ptr<asked_capabilities> by)
        : byte_store_archetype::writer(std::move(made)), asked(std::move(by)) {}
    void announce() & { ++asked->announced; }
    std::shared_ptr<asked_capabilities> asked;
  };
  writer create(std::string_view key, std::uint64_t hint) & {
    return {byte_store_archetype::create(key, hint), asked};
  }
  bool announces_writers() & { return true; }
  std::shared_ptr<asked_capabilities> asked;
};

/// A store whose object writers are of this type, made of the archetype's.
template <class Writer>
struct writing_archetype : extended_archetype {
  using extended_archetype::extended_archetype;
  using writer = Writer;
  Writer create(std::string_view key, std::uint64_t hint) & {
    return Writer(byte_store_archetype::create(key, hint));
  }
};
struct locked_writer : byte_store_archetype::writer {
  explicit locked_writer(byte_store_archetype::writer made) : byte_store_archetype::writer(std::move(made)) {}
  short lock_descriptor() const { return 7; }
};
struct counting_writer : byte_store_archetype::writer {
  explicit counting_writer(byte_store_archetype::writer made)
      : byte_store_archetype::writer(std::move(made)) {}
  short helper_cpu() const { return 21; }
};
using locked_archetype = writing_archetype<locked_writer>;
using counting_archetype = writing_archetype<counting_writer>;

struct sharing_archetype : extended_archetype {
  sharing_archetype(const cairn::memory_store& store, std::shared_ptr<asked_capabilities> by)
      : extended_archetype(store), asked(std::move(by)) {}
  class writer {
   public:
    writer(std::string key, std::shared_ptr<asked_capabilities> by)
        : key_(std::move(key)), asked_(std::move(by)) {}
    writer(const writer&) = delete;
    writer& operator=(const writer&) = delete;
    writer(writer&&) = default;
    writer& operator=(writer&&) = default;
    void write(std::span<const cairn::write_range> parts) & {
      for (const auto& p : parts) put(p.offset, p.bytes);
    }
    void put(std::uint64_t offset, std::span<const std::byte> from) & {
      auto& to = asked_->shared[key_];
      to.resize(std::max(to.size(), static_cast<std::size_t>(offset) + from.size()));
      std::copy(from.begin(), from.end(), to.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    bool read(std::uint64_t offset, std::span<std::byte> to) & {
      const auto& from = asked_->shared[key_];
      if (offset + to.size() > from.size()) return false;
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
      return true;
    }
    void sync() & {}
    void finish(std::uint64_t size) & { asked_->shared[key_].resize(static_cast<std::size_t>(size)); }

   private:
    std::string key_;
    std::shared_ptr<asked_capabilities> asked_;
  };
  writer share(std::string_view key, std::uint64_t) & {
    asked->shared[std::string(key)];
    return writer(std::string(key), asked);
  }
  std::optional<writer> join(std::string_view key, std::uint64_t) & {
    if (asked->shared.count(std::string(key)) == 0) return std::nullopt;
    return writer(std::string(key), asked);
  }
  std::shared_ptr<asked_capabilities> asked;
};
struct not_sharing_archetype : sharing_archetype {
  using sharing_archetype::sharing_archetype;
  bool shares() & { return false; }
};

struct listing_archetype : extended_archetype {
  using extended_archetype::extended_archetype;
  std::vector<std::string> keys_after(std::string_view, std::string_view after, std::size_t parts) & {
    return {std::string(after) + "more" + std::to_string(parts)};
  }
};

struct linking_archetype : extended_archetype {
  explicit linking_archetype(const cairn::memory_store& store) : extended_archetype(store), objects(store) {}
  void link(std::string_view from, std::string_view to) & { objects.link(from, to); }
  cairn::memory_store objects;
};
/// A link() that hangs: it ends with the time that it is given.
struct hanging_link_archetype : linking_archetype {
  using linking_archetype::link;
  using linking_archetype::linking_archetype;
  void link(std::string_view, std::string_view to, cairn::deadline until) & {
    static_cast<void>(cairn::detail::sleep_for(std::chrono::hours(1), until));
    cairn::fail(cairn::error_id::timeout_write, "the link hung", {.file = std::string(to)});
  }
};
struct not_linking_archetype : linking_archetype {
  using linking_archetype::linking_archetype;
  bool links() & { return false; }
};

struct watching_archetype : extended_archetype {
  using extended_archetype::extended_archetype;
  struct least_watch : cairn::change_watch {
    bool wait(cairn::deadline) override { return true; }
    bool sees_all() const noexcept override { return false; }
  };
  std::unique_ptr<cairn::change_watch> watch(std::string_view) & { return std::make_unique<least_watch>(); }
};

struct identifying_archetype : extended_archetype {
  using extended_archetype::extended_archetype;
  std::optional<cairn::object_identity> identify(std::string_view key) & {
    return cairn::object_identity{3, std::string(key)};
  }
};

struct rooted_archetype : extended_archetype {
  using extended_archetype::extended_archetype;
  std::optional<std::string> root_identity() & { return "root"; }
};

struct layered_archetype : extended_archetype {
  layered_archetype(const cairn::memory_store& own, telling_archetype below)
      : extended_archetype(own), inner_(std::move(below)) {}
  telling_archetype& inner() & { return inner_; }

 private:
  telling_archetype inner_;
};
struct decoding_archetype : extended_archetype {
  using extended_archetype::extended_archetype;
  bool decodes(std::uint16_t codec) & { return codec == 0 || codec == 3; }
};

struct session_archetype : extended_archetype {
  explicit session_archetype(const cairn::memory_store& store) : extended_archetype(store), objects(store) {}
  struct session {
    using store_type = session_archetype;
    explicit session(const cairn::memory_store& of) : store(of) {}
    session(const session&) = delete;
    session& operator=(const session&) = delete;
    session(session&&) = default;
    session& operator=(session&&) = default;
    void read(std::span<const cairn::read_range> ranges) & {
      bytes += ranges.front().destination.size();
      store.read(ranges);
    }
    bool is_cached(std::string_view key, std::uint64_t offset, std::uint64_t n) & {
      return key == "cached" && offset == 1 && n == 2;
    }
    cairn::read_figures figures() & { return {bytes, 0}; }
    cairn::memory_store store;
    std::uint64_t bytes = 0;
  };
  session begin_reads() & { return session(objects); }
  cairn::memory_store objects;
};
struct copying_archetype : extended_archetype {
  explicit copying_archetype(const cairn::memory_store& store) : extended_archetype(store), objects(store) {}
  struct session : session_archetype::session {
    using store_type = copying_archetype;
    using session_archetype::session::session;
    bool copy(std::string_view key, std::uint64_t offset, std::span<std::byte> destination,
              std::uint64_t* digest) & {
      if (key != "cached" || offset != 1) return false;
      for (auto& b : destination) b = std::byte{7};
      if (digest != nullptr) *digest = 42;
      return true;
    }
  };
  session begin_reads() & { return session(objects); }
  cairn::memory_store objects;
};
/// Reads in its own way: sessions of its base would not come here.
struct session_heir : session_archetype {
  using session_archetype::session_archetype;
};

static_assert(cairn::OffersReadSessions<session_archetype> && !cairn::OffersReadSessions<session_heir>);
static_assert(cairn::OffersReadSessions<copying_archetype> &&
              cairn::CopiesFromMemory<copying_archetype::session> &&
              !cairn::CopiesFromMemory<session_archetype::session>);
static_assert(cairn::SizesReads<sizing_archetype> && !cairn::SizesReads<telling_archetype>);
static_assert(cairn::TracksWriters<telling_archetype> && cairn::MayTrackWriters<not_telling_archetype>);
static_assert(cairn::AnnouncesWriters<announcing_archetype> &&
              cairn::AnnouncingObjectWriter<announcing_archetype::writer>);
static_assert(cairn::LockedObjectWriter<locked_writer> && cairn::CountsHelperCpu<counting_writer>);
static_assert(cairn::SharedStore<sharing_archetype> && cairn::MayShare<not_sharing_archetype>);
static_assert(cairn::ListsKeysAfter<listing_archetype> && !cairn::ListsKeysAfter<linking_archetype>);
static_assert(cairn::LinksObjects<linking_archetype> && !cairn::MayLink<linking_archetype> &&
              cairn::MayLink<not_linking_archetype>);
static_assert(cairn::LinksUntil<hanging_link_archetype> && !cairn::LinksUntil<linking_archetype>);
static_assert(cairn::WatchesChanges<watching_archetype>);
static_assert(cairn::IdentifiesObjects<identifying_archetype> &&
              !cairn::IdentifiesObjects<watching_archetype>);
static_assert(cairn::IdentifiesRoot<rooted_archetype> && !cairn::IdentifiesRoot<watching_archetype>);
static_assert(cairn::LayeredStore<layered_archetype> && cairn::DecodingStore<decoding_archetype>);

}  // namespace cairn_test
