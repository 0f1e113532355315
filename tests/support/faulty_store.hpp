// SPDX-License-Identifier: Apache-2.0
#pragma once
// A ByteStore over another one, whose calls can be made to fail, or to run something before or after them: at
// the k-th call of a kind, or at the k-th of all. Also the hook for tests that kill a process at a named
// point of a save.
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/system/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn_test {

enum class store_call : std::uint8_t {
  create,
  write,
  finish,
  read,
  put_new,
  publish_new,
  read_all,
  size,
  list,
  remove,
  leftovers,
  discard,
  link,
  any  ///< every call counts
};

/// What happens to the calls of a faulty_store; shared by its copies and object writers. Any thread.
class store_faults {
 public:
  struct plan {
    store_call kind = store_call::any;
    std::uint64_t at = 0;           ///< the k-th call of this kind from now on, from 0
    bool after = false;             ///< after the call was carried out, else instead of it or before it
    bool for_ever = false;          ///< and all later ones of the kind
    std::string key_contains = {};  ///< only calls about such keys count
    std::function<void(std::string_view key)> action;  ///< the call throws what it throws
  };
  void add(plan p) {
    const std::lock_guard lock(mutex_);
    plans_.push_back({std::move(p), 0});
  }
  /// The k-th call of a kind throws instead of being carried out.
  void fail_at(store_call kind, std::uint64_t at, bool for_ever = false, bool after = false,
               cairn::error_id id = cairn::error_id::storage_io) {
    add({.kind = kind, .at = at, .after = after, .for_ever = for_ever, .action = [id](std::string_view key) {
           cairn::fail(id, "an injected fault", {.file = std::string(key)});
         }});
  }
  /// Listings show no keys that contain this, as those of a store that lags behind; looks at the objects find them.
  void hide_from_lists(std::string key_contains) {
    const std::lock_guard lock(mutex_);
    hidden_ = std::move(key_contains);
  }
  [[nodiscard]] bool is_listed(std::string_view key) {
    const std::lock_guard lock(mutex_);
    return hidden_.empty() || key.find(hidden_) == std::string_view::npos;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    plans_.clear();
    hidden_.clear();
  }
  /// Calls so far, of one kind or of all.
  [[nodiscard]] std::uint64_t count(store_call kind = store_call::any) {
    const std::lock_guard lock(mutex_);
    return counts_[static_cast<std::size_t>(kind)];
  }
  /// Actions that were run.
  [[nodiscard]] std::uint64_t triggered() {
    const std::lock_guard lock(mutex_);
    return triggered_;
  }

  template <class Call>
  auto around(store_call kind, std::string_view key, Call&& call) {
    run(begin(kind, key, false), key);
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      run(begin(kind, key, true), key);
    } else {
      auto result = call();
      run(begin(kind, key, true), key);
      return result;
    }
  }

 private:
  struct counted {
    plan what;
    std::uint64_t seen = 0;
  };
  using actions = std::vector<std::function<void(std::string_view)>>;
  [[nodiscard]] actions begin(store_call kind, std::string_view key, bool after) {
    const std::lock_guard lock(mutex_);
    if (!after) {
      ++counts_[static_cast<std::size_t>(kind)];
      ++counts_[static_cast<std::size_t>(store_call::any)];
    }
    actions due;
    for (auto& p : plans_) {
      if (p.what.after != after || (p.what.kind != kind && p.what.kind != store_call::any)) continue;
      if (key.find(p.what.key_contains) == std::string_view::npos) continue;
      const auto n = p.seen++;
      if (n == p.what.at || (p.what.for_ever && n > p.what.at)) due.push_back(p.what.action);
    }
    triggered_ += due.size();
    return due;
  }
  static void run(const actions& due, std::string_view key) {
    for (const auto& action : due) action(key);
  }

  std::mutex mutex_;
  std::vector<counted> plans_;
  std::string hidden_;
  std::array<std::uint64_t, static_cast<std::size_t>(store_call::any) + 1> counts_{};
  std::uint64_t triggered_ = 0;
};

template <cairn::ByteStore Inner>
class faulty_store {
  using inner_writer = decltype(std::declval<Inner&>().create(std::string_view{}, std::uint64_t{}));

 public:
  class object_writer {
   public:
    void write(std::span<const cairn::write_range> parts) {
      faults_->around(store_call::write, key_, [&] { inner_.write(parts); });
    }
    void finish() {
      faults_->around(store_call::finish, key_, [&] { inner_.finish(); });
    }
    [[nodiscard]] int lock_descriptor() const
      requires requires(const inner_writer& w) { w.lock_descriptor(); }
    {
      return inner_.lock_descriptor();
    }

   private:
    friend faulty_store;
    object_writer(inner_writer inner, std::shared_ptr<store_faults> faults, std::string_view key)
        : inner_(std::move(inner)), faults_(std::move(faults)), key_(key) {}
    inner_writer inner_;
    std::shared_ptr<store_faults> faults_;
    std::string key_;
  };

  faulty_store(Inner inner, std::shared_ptr<store_faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  object_writer create(std::string_view key, std::uint64_t hint) {
    return object_writer(faults_->around(store_call::create, key, [&] { return inner_.create(key, hint); }),
                         faults_, key);
  }
  [[nodiscard]] std::size_t io_alignment() { return inner_.io_alignment(); }
  [[nodiscard]] std::size_t min_write_bytes() { return inner_.min_write_bytes(); }
  void read(std::span<const cairn::read_range> ranges) {
    faults_->around(store_call::read, ranges.empty() ? std::string_view{} : ranges[0].key,
                    [&] { inner_.read(ranges); });
  }
  void put_new(std::string_view key, std::span<const std::byte> bytes) {
    faults_->around(store_call::put_new, key, [&] { inner_.put_new(key, bytes); });
  }
  bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    return faults_->around(store_call::publish_new, key, [&] { return inner_.publish_new(key, bytes); });
  }
  std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    return faults_->around(store_call::read_all, key, [&] { return inner_.read_all(key, cap); });
  }
  std::optional<std::uint64_t> size(std::string_view key) {
    return faults_->around(store_call::size, key, [&] { return inner_.size(key); });
  }
  /// Counts as size().
  std::optional<cairn::object_identity> identify(std::string_view key)
    requires cairn::IdentifiesObjects<Inner>
  {
    return faults_->around(store_call::size, key, [&] { return inner_.identify(key); });
  }
  /// Does not count.
  std::optional<std::string> root_identity()
    requires cairn::IdentifiesRoot<Inner>
  {
    return inner_.root_identity();
  }
  std::vector<cairn::listed_object> list(std::string_view prefix) {
    auto found = faults_->around(store_call::list, prefix, [&] { return inner_.list(prefix); });
    std::erase_if(found, [&](const auto& o) { return !faults_->is_listed(o.key); });
    return found;
  }
  void remove(std::string_view key) {
    faults_->around(store_call::remove, key, [&] { inner_.remove(key); });
  }
  bool remove_if(std::string_view key, std::span<const std::byte> bytes)
    requires cairn::ConditionalRemove<Inner>
  {
    return faults_->around(store_call::remove, key, [&] { return inner_.remove_if(key, bytes); });
  }
  /// The key that counts is that of the new object.
  void link(std::string_view from, std::string_view to)
    requires cairn::LinksObjects<Inner>
  {
    faults_->around(store_call::link, to, [&] { inner_.link(from, to); });
  }
  void link(std::string_view from, std::string_view to, cairn::deadline until)
    requires cairn::LinksUntil<Inner>
  {
    faults_->around(store_call::link, to, [&] { inner_.link(from, to, until); });
  }
  std::vector<std::string> leftovers(std::string_view prefix) {
    return faults_->around(store_call::leftovers, prefix, [&] { return inner_.leftovers(prefix); });
  }
  std::vector<std::string> live_writers(std::string_view prefix)
    requires requires(Inner& i) { i.live_writers(prefix); }
  {
    return inner_.live_writers(prefix);
  }
  bool writer_lives(std::string_view key)
    requires requires(Inner& i) { i.writer_lives(key); }
  {
    return inner_.writer_lives(key);
  }
  void discard(std::string_view key) {
    faults_->around(store_call::discard, key, [&] { inner_.discard(key); });
  }
  std::optional<cairn::space_left> free_space() { return inner_.free_space(); }
  std::string describe() { return std::string(inner_.describe()); }

 private:
  Inner inner_;
  std::shared_ptr<store_faults> faults_;
};

}  // namespace cairn_test
