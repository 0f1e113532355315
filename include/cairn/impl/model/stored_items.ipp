// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/stored_items.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <atomic>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/item.hpp>
#include <cairn/system/error.hpp>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

struct stored_items::lazy {
  explicit lazy(std::unique_ptr<const stored_item_source> from)
      : source(std::move(from)), there(std::make_unique<std::atomic<bool>[]>(source->size())) {}
  std::unique_ptr<const stored_item_source> source;
  std::unique_ptr<std::atomic<bool>[]> there;
  std::atomic<std::size_t> count{0};
  std::mutex mutex;
};

CAIRN_BODY stored_items::stored_items(std::unique_ptr<const stored_item_source> source)
    : values_(source->size()), lazy_(detail::make_shared<lazy>(std::move(source))) {}

CAIRN_BODY std::optional<std::size_t> stored_items::index_of(std::string_view name) const {
  if (lazy_ != nullptr) return lazy_->source->find(name);
  const auto found = std::lower_bound(values_.begin(), values_.end(), name,
                                      [](const stored_item& i, std::string_view n) { return i.name < n; });
  if (found == values_.end() || found->name != name) return std::nullopt;
  return static_cast<std::size_t>(found - values_.begin());
}

CAIRN_BODY std::size_t stored_items::made() const noexcept {
  return lazy_ == nullptr ? values_.size() : lazy_->count.load(std::memory_order_relaxed);
}

CAIRN_BODY void stored_items::make(std::size_t index) const {
  if (lazy_->there[index].load(std::memory_order_acquire)) return;
  const std::lock_guard lock(lazy_->mutex);
  if (lazy_->there[index].load(std::memory_order_relaxed)) return;
  values_[index] = lazy_->source->make(index);
  lazy_->count.fetch_add(1, std::memory_order_relaxed);
  lazy_->there[index].store(true, std::memory_order_release);
}

CAIRN_BODY void stored_items::visit_names(const stored_name_visitor& visit) const {
  if (lazy_ != nullptr) {
    lazy_->source->for_each_name(visit);
    return;
  }
  for (std::size_t i = 0; i < values_.size(); ++i) visit(i, std::string_view(values_[i].name));
}

CAIRN_BODY const std::vector<stored_item>& stored_items::all() const {
  if (lazy_ != nullptr)
    for (std::size_t i = 0; i < values_.size(); ++i) make(i);
  return values_;
}

CAIRN_BODY stored_items& stored_items::operator=(const stored_items& other) {
  if (this != &other) *this = stored_items(other);
  return *this;
}

CAIRN_BODY stored_items::stored_items() noexcept = default;
CAIRN_BODY stored_items::stored_items(std::initializer_list<stored_item> items) : values_(items) {}
CAIRN_BODY stored_items::stored_items(std::vector<stored_item> items) : values_(std::move(items)) {}
CAIRN_BODY stored_items::stored_items(const stored_items& other) : values_(other.all()) {}
CAIRN_BODY stored_items::stored_items(stored_items&&) noexcept = default;
CAIRN_BODY stored_items& stored_items::operator=(stored_items&&) noexcept = default;
CAIRN_BODY stored_items::~stored_items() = default;

CAIRN_BODY stored_items::const_iterator stored_items::begin() const {
  return all().begin();
}
CAIRN_BODY stored_items::const_iterator stored_items::end() const {
  return all().end();
}
CAIRN_BODY stored_item& stored_items::operator[](std::size_t index) {
  return mutate()[index];
}
CAIRN_BODY stored_item& stored_items::back() {
  return mutate().back();
}
CAIRN_BODY stored_items::iterator stored_items::begin() {
  return mutate().begin();
}
CAIRN_BODY stored_items::iterator stored_items::end() {
  return mutate().end();
}
CAIRN_BODY stored_item& stored_items::emplace_back() {
  return mutate().emplace_back();
}
CAIRN_BODY void stored_items::push_back(stored_item item) {
  mutate().push_back(std::move(item));
}
CAIRN_BODY stored_items::iterator stored_items::insert(const_iterator before, stored_item item) {
  return mutate().insert(before, std::move(item));
}
CAIRN_BODY void stored_items::reserve(std::size_t count) {
  mutate().reserve(count);
}
CAIRN_BODY void stored_items::resize(std::size_t count) {
  mutate().resize(count);
}
CAIRN_BODY void stored_items::pop_back() {
  mutate().pop_back();
}
CAIRN_BODY stored_items::iterator stored_items::erase(const_iterator first, const_iterator last) {
  return mutate().erase(first, last);
}
CAIRN_BODY void stored_items::clear() noexcept {
  values_.clear(), lazy_.reset();
}
CAIRN_BODY bool operator==(const stored_items& a, const stored_items& b) {
  return a.all() == b.all();
}

CAIRN_BODY const stored_item& stored_items::operator[](std::size_t index) const {
  if (lazy_ != nullptr) make(index);
  return values_[index];
}

CAIRN_BODY const stored_item& stored_items::at(std::size_t index) const {
  static_cast<void>(values_.at(index));
  return (*this)[index];
}

CAIRN_BODY const stored_item* stored_items::find(std::string_view name) const {
  const auto index = index_of(name);
  return index ? &(*this)[*index] : nullptr;
}

CAIRN_BODY std::vector<stored_item>& stored_items::mutate() {
  static_cast<void>(all());
  lazy_.reset();
  return values_;
}

}  // namespace v1
}  // namespace cairn
