// SPDX-License-Identifier: Apache-2.0
#pragma once
// A store in memory as several clients see it, whose requests may go wrong: an answer is lost, or a request
// takes effect after it was reported as failed, or a second time. A scheduler lets one client advance at a
// time, from one request to the next, in an order that a seed chooses: one seed gives one order of
// everything.
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/manifest_reader.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/error.hpp>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <semaphore>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace cairn_test {

/// The properties that the protocols rely on, each of which a test may take away.
struct zombie_rules {
  bool looks_are_fresh = true;  ///< a client that was told "nothing there" is not told so again from a cache
  bool publishing_is_atomic = true;      ///< of several who publish under one key, one is told that it won
  bool manifests_die_with_marks = true;  ///< none takes effect after its attempt's mark was removed, or
                                         ///< its checkpoint removed
  bool removals_compare = true;          ///< remove_if() looks at what it removes when it takes effect
  bool links_look = true;                ///< none is reported as made where there was nothing to link
  bool frozen_items = true;              ///< not a property: some runs save them
};

/// Thrown in a client that is killed: it does nothing more.
struct client_killed {};

class zombie_world {
 public:
  using bytes = std::vector<std::byte>;
  using objects = std::map<std::string, bytes, std::less<>>;

  zombie_world(std::uint64_t seed, const zombie_rules& rules) : rules_(rules), random_(seed) {}

  /// `astray`: one in so many requests goes wrong. `killed`: at one in so many requests its client is killed.
  /// 0: none.
  std::uint64_t astray = 0;
  std::uint64_t killed = 0;

  [[nodiscard]] std::uint64_t below(std::uint64_t n) { return random_() % n; }
  [[nodiscard]] objects& stored() noexcept { return objects_; }
  [[nodiscard]] const zombie_rules& rules() const noexcept { return rules_; }
  [[nodiscard]] std::uint64_t requests() const noexcept { return requests_; }

  /// Runs clients to their ends, one at a time; then what is under way takes effect, or never does.
  void run(std::vector<std::function<void()>> bodies) {
    const one_cpu for_all;
    clients_.clear();
    for (std::size_t i = 0; i < bodies.size(); ++i) clients_.push_back(std::make_unique<client>());
    running_ = bodies.size();
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < bodies.size(); ++i)
      threads.emplace_back([this, i, body = std::move(bodies[i])] {
        clients_[i]->turn.acquire();
        here() = clients_[i].get();
        time_of_client time(*this);
        cairn::detail::current_simulated_waits = &time;
        try {
          body();
          time.try_all_again();
        } catch (const client_killed&) {
        }
        cairn::detail::current_simulated_waits = nullptr;
        clients_[i]->ended = true;
        if (--running_ == 0)
          all_ended_.release();
        else
          next()->turn.release();
      });
    next()->turn.release();
    all_ended_.acquire();
    for (auto& t : threads) t.join();
    clients_.clear();
    while (!late_.empty()) take_effect(below(late_.size()), below(2) == 0);
  }

  /// A place where another client may advance. @throws client_killed
  void turn() {
    auto* self = here();
    if (self == nullptr) return;
    ++requests_;
    if (!late_.empty() && below(6) == 0) take_effect(below(late_.size()), true);
    auto* chosen = below(3) == 0 ? self : next();
    if (chosen != self) {
      chosen->turn.release();
      self->turn.acquire();
    }
    if (!self->dead && killed != 0 && below(killed) == 0) self->dead = true;
    if (self->dead) throw client_killed{};
  }
  /// A request that changes something, and may go astray. `effect(objects)` gives its answer.
  template <class Effect>
  auto change(const char* call, const std::string& key, std::span<const std::byte> sent, Effect effect) {
    turn();
    const auto fate = here() != nullptr && astray != 0 && below(astray) == 0 ? 1 + below(4) : 0;
    static const char* const fates[] = {"", " refused", " later, if at all", " answer lost", " twice"};
    trace(std::string(call) + " " + key + fates[fate]);
    const auto later = [&] {
      late_.push_back({[this, effect, what = std::string(call) + " " + key] {
                         trace("late: " + what);
                         (void)effect(objects_);
                       },
                       names(key, sent)});
    };
    if (fate == 1) cairn::fail(cairn::error_id::storage_no_space, "full", {.file = key});
    if (fate == 2) {
      later();
      cairn::fail(cairn::error_id::storage_unavailable, "it may come later", {.file = key});
    }
    if (fate == 4) later();
    auto answer = effect(objects_);
    if (fate == 3) cairn::fail(cairn::error_id::storage_unavailable, "the answer was lost", {.file = key});
    return answer;
  }
  /// A request that only reads.
  template <class Look>
  auto look(const std::string& key, Look look) {
    turn();
    if (here() != nullptr && astray != 0 && below(astray * 4) == 0)
      cairn::fail(cairn::error_id::storage_unavailable, "no answer", {.file = key});
    if (rules_.looks_are_fresh || here() == nullptr) return look(objects_);
    auto& unseen = here()->unseen;
    if (const auto at = unseen.find(key); at != unseen.end() && at->second != 0) {
      --at->second;
      static const objects nothing;
      return look(nothing);
    }
    auto answer = look(objects_);
    if (!answer) unseen[key] = below(4);
    return answer;
  }
  /// Printed where CAIRN_TEST_TRACE is set, with the client.
  void trace(const std::string& what) const {
    static const bool wanted = std::getenv("CAIRN_TEST_TRACE") != nullptr;
    if (!wanted) return;
    std::size_t number = 0;
    while (number < clients_.size() && clients_[number].get() != here()) ++number;
    std::fprintf(stderr, "client %zu: %s\n", number, what.c_str());
  }
  void know(const std::string& key) {
    if (here() != nullptr) here()->unseen.erase(key);
  }
  /// Called when a mark, or a manifest, was removed.
  void forget_manifests(std::int64_t step, std::uint64_t attempt) {
    if (!rules_.manifests_die_with_marks) return;
    if (objects_.contains(cairn::aborted_key(step, attempt))) return;
    std::erase_if(late_,
                  [&](const auto& l) { return l.manifest && *l.manifest == std::pair(step, attempt); });
  }

 private:
  struct client {
    std::binary_semaphore turn{0};
    bool ended = false;
    bool dead = false;
    std::map<std::string, std::uint64_t, std::less<>> unseen;
  };
  /// Only one client runs at a time, and on one CPU they switch fastest.
  struct one_cpu {
    one_cpu() {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
      if (::sched_getaffinity(0, sizeof before, &before) == 0) ::sched_setaffinity(0, sizeof one, &one);
    }
    ~one_cpu() { ::sched_setaffinity(0, sizeof before, &before); }
    one_cpu(const one_cpu&) = delete;
    one_cpu& operator=(const one_cpu&) = delete;
    cpu_set_t before = {};
  };
  struct late_request {
    std::function<void()> effect;
    std::optional<std::pair<std::int64_t, std::uint64_t>> manifest = {};  ///< whose it puts
  };
  /// Time advances only while somebody waits.
  class time_of_client final : public cairn::detail::simulated_waits {
   public:
    explicit time_of_client(zombie_world& world) : world_(world) {}
    bool wait(std::chrono::nanoseconds, cairn::deadline until) override {
      world_.turn();
      world_.now_ += std::chrono::milliseconds(10 + world_.below(100));
      if (!again_.empty() && world_.below(2) == 0) try_all_again();
      return !passed(until);
    }
    bool passed(cairn::deadline until) const override { return until.left() <= world_.now_; }
    void try_again(std::function<bool()> task) override { again_.push_back(std::move(task)); }
    void try_all_again() {
      for (int tries = 0; tries < 3 && !again_.empty(); ++tries) {
        auto tasks = std::exchange(again_, {});
        for (auto& task : tasks)
          if (!task()) again_.push_back(std::move(task));
      }
    }

   private:
    zombie_world& world_;
    std::vector<std::function<bool()>> again_;
  };

  static client*& here() {
    static thread_local client* self = nullptr;
    return self;
  }
  [[nodiscard]] client* next() {
    for (auto i = below(clients_.size());; i = (i + 1) % clients_.size())
      if (!clients_[i]->ended) return clients_[i].get();
  }
  void take_effect(std::size_t i, bool at_all) {
    auto request = std::move(late_[i]);
    late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
    if (at_all) request.effect();
  }
  [[nodiscard]] static std::optional<std::pair<std::int64_t, std::uint64_t>> names(
      const std::string& key, std::span<const std::byte> sent) {
    const auto parsed = cairn::parse_key(key);
    if (!parsed || parsed->object.kind != cairn::object_kind::manifest || sent.empty()) return {};
    cairn::manifest m;
    (void)cairn::detail::decode_manifest_header(sent, key, m);
    return std::pair(m.step, m.attempt);
  }

  zombie_rules rules_;
  std::mt19937_64 random_;
  objects objects_;
  std::vector<late_request> late_;
  std::vector<std::unique_ptr<client>> clients_;
  std::size_t running_ = 0;
  std::uint64_t requests_ = 0;
  std::chrono::nanoseconds now_{0};
  std::binary_semaphore all_ended_{0};
};

/// The world as the store of one client; copies belong to the same client.
class zombie_store {
  using bytes = zombie_world::bytes;

 public:
  explicit zombie_store(zombie_world& world) : world_(&world) {}

  class object_writer {
   public:
    void write(std::span<const cairn::write_range> parts) {
      for (const auto& p : parts) bytes_.insert(bytes_.end(), p.bytes.begin(), p.bytes.end());
    }
    void finish() { zombie_store(*world_).put_new(key_, bytes_); }

   private:
    friend zombie_store;
    object_writer(zombie_world& world, std::string_view key) : world_(&world), key_(key) {}
    zombie_world* world_;
    std::string key_;
    bytes bytes_;
  };

  object_writer create(std::string_view key, std::uint64_t) { return {*world_, key}; }
  [[nodiscard]] std::size_t io_alignment() const noexcept { return 1; }
  [[nodiscard]] std::size_t min_write_bytes() const noexcept { return 1; }
  void read(std::span<const cairn::read_range> ranges) {
    for (const auto& r : ranges) {
      const auto all = read_all(r.key, UINT64_MAX);
      if (!all)
        cairn::fail(cairn::error_id::storage_not_found, "no such object", {.file = std::string(r.key)});
      if (r.offset > all->size() || r.destination.size() > all->size() - r.offset)
        cairn::fail(cairn::error_id::corrupt_truncated, "short", {.file = std::string(r.key)});
      std::copy_n(all->begin() + static_cast<std::ptrdiff_t>(r.offset), r.destination.size(),
                  r.destination.begin());
    }
  }
  void put_new(std::string_view key, std::span<const std::byte> what) {
    if (!publish_new(key, what))
      cairn::fail(cairn::error_id::storage_exists, "exists", {.file = std::string(key)});
  }
  bool publish_new(std::string_view key, std::span<const std::byte> what) {
    const std::string name(key);
    world_->know(name);
    const auto put = [name, kept = bytes(what.begin(), what.end())](auto& objects) {
      return objects.try_emplace(name, kept).second;
    };
    if (world_->rules().publishing_is_atomic) return world_->change("publish", name, what, put);
    if (world_->look(name, [&](const auto& o) { return find(o, name); })) return false;
    return world_->change("publish", name, what,
                          [name, kept = bytes(what.begin(), what.end())](auto& objects) {
                            objects.insert_or_assign(name, kept);
                            return true;
                          });
  }
  /// As a service copies an object: when the request takes effect.
  void link(std::string_view from, std::string_view to) {
    enum class outcome { made, no_source, taken };
    const std::string source(from);
    const std::string name(to);
    world_->know(name);
    const auto copied = world_->change("link", name, {}, [source, name](auto& objects) {
      const auto at = objects.find(source);
      if (at == objects.end()) return outcome::no_source;
      return objects.try_emplace(name, at->second).second ? outcome::made : outcome::taken;
    });
    if (copied == outcome::taken) cairn::fail(cairn::error_id::storage_exists, "exists", {.file = name});
    if (copied == outcome::no_source && world_->rules().links_look)
      cairn::fail(cairn::error_id::storage_not_found, "no such object", {.file = source});
  }
  std::optional<bytes> read_all(std::string_view key, std::uint64_t cap) {
    const std::string name(key);
    auto found = world_->look(name, [&](const auto& o) { return find(o, name); });
    if (found && found->size() > cap) cairn::fail(cairn::error_id::corrupt_size_mismatch, "long");
    return found;
  }
  std::optional<std::uint64_t> size(std::string_view key) {
    const auto found = read_all(key, UINT64_MAX);
    return found ? std::optional<std::uint64_t>(found->size()) : std::nullopt;
  }
  std::vector<cairn::listed_object> list(std::string_view prefix) {
    world_->turn();
    std::vector<cairn::listed_object> found;
    for (auto at = world_->stored().lower_bound(prefix);
         at != world_->stored().end() && std::string_view(at->first).starts_with(prefix); ++at)
      found.push_back({at->first, at->second.size()});
    return found;
  }
  void remove(std::string_view key) {
    const std::string name(key);
    (void)world_->change("remove", name, {},
                         [name, world = world_](auto& objects) { return erase(*world, objects, name); });
  }
  bool remove_if(std::string_view key, std::span<const std::byte> what) {
    const std::string name(key);
    const bool compares = world_->rules().removals_compare;
    const auto holds = [name, kept = bytes(what.begin(), what.end())](const auto& objects) {
      const auto at = objects.find(name);
      return at == objects.end() || at->second == kept;
    };
    if (!compares && !world_->look(name, [&](const auto& o) {
          return holds(o) ? std::optional<bool>(true) : std::nullopt;
        }))
      return false;
    return world_->change("remove_if", name, {}, [name, holds, compares, world = world_](auto& objects) {
      if (compares && !holds(objects)) return false;
      return erase(*world, objects, name);
    });
  }
  std::vector<std::string> leftovers(std::string_view) { return {}; }
  void discard(std::string_view) {}
  std::optional<cairn::space_left> free_space() { return {}; }
  std::string describe() { return "a model"; }

 private:
  static std::optional<bytes> find(const zombie_world::objects& objects, const std::string& key) {
    const auto at = objects.find(key);
    return at == objects.end() ? std::nullopt : std::optional(at->second);
  }
  static bool erase(zombie_world& world, zombie_world::objects& objects, const std::string& key) {
    const auto at = objects.find(key);
    if (at == objects.end()) return true;
    const auto parsed = cairn::parse_key(key);
    std::optional<std::uint64_t> attempt;
    if (parsed && parsed->object.kind == cairn::object_kind::aborted) attempt = parsed->object.attempt;
    if (parsed && parsed->object.kind == cairn::object_kind::manifest) {
      cairn::manifest m;
      (void)cairn::detail::decode_manifest_header(at->second, key, m);
      attempt = m.attempt;
    }
    objects.erase(at);
    if (attempt) world.forget_manifests(parsed->step, *attempt);
    return true;
  }

  zombie_world* world_;
};

static_assert(cairn::ByteStore<zombie_store> && cairn::ConditionalRemove<zombie_store> &&
              cairn::LinksObjects<zombie_store>);

}  // namespace cairn_test
