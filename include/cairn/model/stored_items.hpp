// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/item.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// One name of a checkpoint. The chunks cover the global shape exactly once; per-rank items have one chunk
/// for each rank that has the item, each the whole of it; values and bytes have one chunk `whole({})`.
struct stored_item {
  std::string name;
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;
  extents global;
  bool per_rank = false;
  chunk_set chunks;
  std::uint16_t codec = 0;  ///< by which its bytes are compressed in files; 0: none
  friend bool operator==(const stored_item&, const stored_item&) = default;
};

/// Where the items of a stored_items come from when they are asked for: a manifest. Any thread. All functions
/// throw corrupt_error where what they look at is damaged; they look at nothing else.
class stored_item_source {
 public:
  virtual ~stored_item_source() = default;
  [[nodiscard]] virtual std::size_t size() const noexcept = 0;
  /// The index of a name. O(log n).
  [[nodiscard]] virtual std::optional<std::size_t> find(std::string_view name) const = 0;
  /// One item. @pre index < size()
  [[nodiscard]] virtual stored_item make(std::size_t index) const = 0;
  /// visit(index, name), in order.
  virtual void for_each_name(const std::function<void(std::size_t, std::string_view)>& visit) const = 0;
};

/// The items of a checkpoint, sorted by name: a list, or a view of a manifest that makes an item when it is
/// asked for and keeps it. References to items stay valid until the list is changed. A const object may be
/// used by several threads. What looks at all items makes all of them: begin(), ==, copies, and everything
/// that is not const.
class stored_items {
 public:
  using value_type = stored_item;
  using iterator = std::vector<stored_item>::iterator;
  using const_iterator = std::vector<stored_item>::const_iterator;

  stored_items() = default;
  stored_items(std::initializer_list<stored_item> items) : values_(items) {}
  explicit stored_items(std::vector<stored_item> items) : values_(std::move(items)) {}
  explicit stored_items(std::unique_ptr<const stored_item_source> source)
      : values_(source->size()), lazy_(std::make_unique<lazy>(std::move(source))) {}
  stored_items(const stored_items& other) : values_(other.all()) {}
  stored_items(stored_items&&) noexcept = default;
  stored_items& operator=(const stored_items& other) {
    if (this != &other) *this = stored_items(other);
    return *this;
  }
  stored_items& operator=(stored_items&&) noexcept = default;
  ~stored_items() = default;

  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  [[nodiscard]] bool empty() const noexcept { return values_.empty(); }
  /// @pre index < size(). @throws corrupt_error
  [[nodiscard]] const stored_item& operator[](std::size_t index) const {
    if (lazy_ != nullptr) make(index);
    return values_[index];
  }
  [[nodiscard]] const stored_item& at(std::size_t index) const {
    static_cast<void>(values_.at(index));
    return (*this)[index];
  }
  [[nodiscard]] const_iterator begin() const { return all().begin(); }
  [[nodiscard]] const_iterator end() const { return all().end(); }
  /// The item of a name, or nullptr. O(log n); of a manifest, nothing else of it is looked at. @throws
  /// corrupt_error
  [[nodiscard]] const stored_item* find(std::string_view name) const {
    const auto index = index_of(name);
    return index ? &(*this)[*index] : nullptr;
  }
  [[nodiscard]] std::optional<std::size_t> index_of(std::string_view name) const {
    if (lazy_ != nullptr) return lazy_->source->find(name);
    const auto found = std::lower_bound(values_.begin(), values_.end(), name,
                                        [](const stored_item& i, std::string_view n) { return i.name < n; });
    if (found == values_.end() || found->name != name) return std::nullopt;
    return static_cast<std::size_t>(found - values_.begin());
  }
  /// visit(index, name), in order; makes no item.
  template <class Visit>
  void for_each_name(Visit&& visit) const {
    if (lazy_ != nullptr) {
      lazy_->source->for_each_name(visit);
      return;
    }
    for (std::size_t i = 0; i < values_.size(); ++i) visit(i, std::string_view(values_[i].name));
  }
  /// How many items are there now.
  [[nodiscard]] std::size_t made() const noexcept {
    return lazy_ == nullptr ? values_.size() : lazy_->count.load(std::memory_order_relaxed);
  }
  /// Where the items lie; those that nobody asked for are empty.
  [[nodiscard]] const stored_item* data() const noexcept { return values_.data(); }

  [[nodiscard]] stored_item& operator[](std::size_t index) { return mutate()[index]; }
  [[nodiscard]] stored_item& back() { return mutate().back(); }
  [[nodiscard]] iterator begin() { return mutate().begin(); }
  [[nodiscard]] iterator end() { return mutate().end(); }
  stored_item& emplace_back() { return mutate().emplace_back(); }
  void push_back(stored_item item) { mutate().push_back(std::move(item)); }
  iterator insert(const_iterator before, stored_item item) {
    return mutate().insert(before, std::move(item));
  }
  void reserve(std::size_t count) { mutate().reserve(count); }
  void resize(std::size_t count) { mutate().resize(count); }
  void pop_back() { mutate().pop_back(); }
  iterator erase(const_iterator first, const_iterator last) { return mutate().erase(first, last); }
  void clear() noexcept { values_.clear(), lazy_.reset(); }

  friend bool operator==(const stored_items& a, const stored_items& b) { return a.all() == b.all(); }

 private:
  struct lazy {
    explicit lazy(std::unique_ptr<const stored_item_source> from)
        : source(std::move(from)), there(std::make_unique<std::atomic<bool>[]>(source->size())) {}
    std::unique_ptr<const stored_item_source> source;
    std::unique_ptr<std::atomic<bool>[]> there;
    std::atomic<std::size_t> count{0};
    std::mutex mutex;
  };
  void make(std::size_t index) const {
    if (lazy_->there[index].load(std::memory_order_acquire)) return;
    const std::lock_guard lock(lazy_->mutex);
    if (lazy_->there[index].load(std::memory_order_relaxed)) return;
    values_[index] = lazy_->source->make(index);
    lazy_->count.fetch_add(1, std::memory_order_relaxed);
    lazy_->there[index].store(true, std::memory_order_release);
  }
  const std::vector<stored_item>& all() const {
    if (lazy_ != nullptr)
      for (std::size_t i = 0; i < values_.size(); ++i) make(i);
    return values_;
  }
  std::vector<stored_item>& mutate() {
    static_cast<void>(all());
    lazy_.reset();
    return values_;
  }

  mutable std::vector<stored_item> values_;
  std::unique_ptr<lazy> lazy_;
};

}  // namespace v1
}  // namespace cairn
