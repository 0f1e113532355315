// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/item.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
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
  std::string name;  ///< unique in its checkpoint
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;   ///< of the elements, as they are stored
  extents global;           ///< the shape of the whole tensor
  bool per_rank = false;    ///< each rank has an item of its own under this name
  chunk_set chunks;         ///< where its boxes are: which rank wrote which
  std::uint16_t codec = 0;  ///< by which its bytes are compressed in files; 0: none
  friend bool operator==(const stored_item&, const stored_item&) = default;
};

/// What is called with the index and the name of each item; refers to a function object that outlives it.
class stored_name_visitor {
 public:
  template <class Visit>
  explicit stored_name_visitor(Visit& visit) noexcept
      : visit_(const_cast<void*>(static_cast<const void*>(&visit))),
        call_([](void* to, std::size_t index, std::string_view name) {
          (*static_cast<Visit*>(to))(index, name);
        }) {}
  void operator()(std::size_t index, std::string_view name) const { call_(visit_, index, name); }

 private:
  void* visit_;
  void (*call_)(void* visit, std::size_t index, std::string_view name);
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
  /// In order.
  virtual void for_each_name(const stored_name_visitor& visit) const = 0;
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

  stored_items() noexcept;
  stored_items(std::initializer_list<stored_item> items);
  explicit stored_items(std::vector<stored_item> items);
  explicit stored_items(std::unique_ptr<const stored_item_source> source);
  stored_items(const stored_items& other);
  stored_items(stored_items&&) noexcept;
  stored_items& operator=(const stored_items& other);
  stored_items& operator=(stored_items&&) noexcept;
  ~stored_items();

  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  /// True if there is no item.
  [[nodiscard]] bool empty() const noexcept { return values_.empty(); }
  /// @pre index < size(). @throws corrupt_error
  [[nodiscard]] const stored_item& operator[](std::size_t index) const;
  /// As [], but checks the index. @throws std::out_of_range, corrupt_error
  [[nodiscard]] const stored_item& at(std::size_t index) const;
  /// With end(): all items, in order of name. Makes those that nobody asked for. @throws corrupt_error
  [[nodiscard]] const_iterator begin() const;
  /// One past the last item; see begin().
  [[nodiscard]] const_iterator end() const;
  /// The item of a name, or nullptr. O(log n); of a manifest, nothing else of it is looked at. @throws
  /// corrupt_error
  [[nodiscard]] const stored_item* find(std::string_view name) const;
  /// The place of a name; nothing if there is no such item. O(log n). @throws corrupt_error
  [[nodiscard]] std::optional<std::size_t> index_of(std::string_view name) const;
  /// visit(index, name), in order; makes no item.
  template <class Visit>
  void for_each_name(Visit&& visit) const {
    visit_names(stored_name_visitor(visit));
  }
  /// How many items are there now.
  [[nodiscard]] std::size_t made() const noexcept;
  /// Where the items lie; those that nobody asked for are empty.
  [[nodiscard]] const stored_item* data() const noexcept { return values_.data(); }

  [[nodiscard]] stored_item& operator[](std::size_t index);
  /// The last item, to be changed. Makes a list of all items. @pre not empty()
  [[nodiscard]] stored_item& back();
  [[nodiscard]] iterator begin();
  [[nodiscard]] iterator end();
  /// Adds an empty item at the end; references to other items are not valid any more.
  stored_item& emplace_back();
  /// Adds an item at the end; references to other items are not valid any more.
  void push_back(stored_item item);
  /// Puts an item before another one; references to items are not valid any more.
  iterator insert(const_iterator before, stored_item item);
  /// Makes room for so many items in all.
  void reserve(std::size_t count);
  /// Drops the last items, or adds empty ones, until there are `count`.
  void resize(std::size_t count);
  /// Drops the last item. @pre not empty()
  void pop_back();
  /// Drops the items from `first` to before `last`; returns the place of the next one.
  iterator erase(const_iterator first, const_iterator last);
  /// Drops all items, and the manifest that they came from.
  void clear() noexcept;

  friend bool operator==(const stored_items& a, const stored_items& b);

 private:
  struct lazy;
  void make(std::size_t index) const;
  void visit_names(const stored_name_visitor& visit) const;
  const std::vector<stored_item>& all() const;
  std::vector<stored_item>& mutate();

  mutable std::vector<stored_item> values_;
  std::shared_ptr<lazy> lazy_;  // of this object alone
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/stored_items.ipp>
#endif
