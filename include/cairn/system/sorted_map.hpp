// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/algorithm.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A map of few keys in ascending order: std::map makes 120 functions for each pair of types, this one about fifteen.
/// An entry stays at its address until it is erased; adding and erasing end iterators. Finding takes O(log n), adding and
/// erasing O(n), of pointers that are moved: nothing where keys are added in order.
template <class Key, class Value, class Before = less>
class sorted_map {
 public:
  struct entry {
    const Key first;
    Value second;
  };
  template <class Entry>
  class position {
   public:
    explicit position(void* const* at) noexcept : at_(at) {}
    [[nodiscard]] Entry& operator*() const noexcept { return *static_cast<Entry*>(*at_); }
    [[nodiscard]] Entry* operator->() const noexcept { return static_cast<Entry*>(*at_); }
    position& operator++() noexcept {
      ++at_;
      return *this;
    }
    [[nodiscard]] bool operator==(const position& other) const noexcept { return at_ == other.at_; }

   private:
    friend sorted_map;
    void* const* at_;
  };
  using iterator = position<entry>;
  using const_iterator = position<const entry>;
  struct result {
    iterator first;
    bool second;  ///< whether it was added
  };

  sorted_map() noexcept = default;
  sorted_map(sorted_map&& other) noexcept : entries_(std::move(other.entries_)) {}
  sorted_map& operator=(sorted_map&& other) noexcept {
    if (this == &other) return *this;
    clear();
    entries_.swap(other.entries_);
    return *this;
  }
  ~sorted_map() { clear(); }

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  [[nodiscard]] iterator begin() noexcept { return iterator(entries_.data()); }
  [[nodiscard]] iterator end() noexcept { return iterator(entries_.data() + entries_.size()); }
  [[nodiscard]] const_iterator begin() const noexcept { return const_iterator(entries_.data()); }
  [[nodiscard]] const_iterator end() const noexcept {
    return const_iterator(entries_.data() + entries_.size());
  }
  [[nodiscard]] iterator find(const Key& key) noexcept {
    return iterator(entries_.data() + (holds(key) ? place_of(key) : entries_.size()));
  }
  [[nodiscard]] const_iterator find(const Key& key) const noexcept {
    return const_iterator(entries_.data() + (holds(key) ? place_of(key) : entries_.size()));
  }
  [[nodiscard]] bool holds(const Key& key) const noexcept {
    const auto at = place_of(key);
    return at < entries_.size() && !Before()(key, at_place(at).first);
  }
  /// The value of a key, which is made of `from` where there is none.
  template <class... From>
  result try_emplace(Key key, From&&... from) {
    const auto at = place_of(key);
    const bool added = at == entries_.size() || Before()(key, at_place(at).first);
    if (added) {
      owned<entry> made(new entry{std::move(key), Value(std::forward<From>(from)...)});
      entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(at), made.get());
      made.release();
    }
    return {iterator(entries_.data() + at), added};
  }
  Value& operator[](Key key) { return try_emplace(std::move(key)).first->second; }
  void erase(iterator at) noexcept {
    delete &*at;
    entries_.erase(entries_.begin() + (at.at_ - entries_.data()));
  }
  /// Where the key is in the map.
  void erase(const Key& key) noexcept {
    if (holds(key)) erase(find(key));
  }
  void clear() noexcept {
    for (auto* each : entries_) delete static_cast<entry*>(each);
    entries_.clear();
  }

 private:
  [[nodiscard]] const entry& at_place(std::size_t at) const noexcept {
    return *static_cast<const entry*>(entries_[at]);
  }
  /// The place of the first element that is not less than the key.
  [[nodiscard]] std::size_t place_of(const Key& key) const noexcept {
    std::size_t begin = 0;
    for (std::size_t count = entries_.size(); count > 0;) {
      const auto half = count / 2;
      const bool after = Before()(at_place(begin + half).first, key);
      if (after) begin += half + 1;
      count = after ? count - half - 1 : half;
    }
    return begin;
  }
  vector<void*> entries_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
