// SPDX-License-Identifier: Apache-2.0
#pragma once
// The smallest complete store: objects in a map, which copies of the store share. They last as long as the
// process.
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_errors.hpp>
#include <cairn/stores/object_buffer.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

class map_store {
  using object = std::vector<std::byte>;
  struct shared_objects {
    std::mutex lock;
    std::map<std::string, std::shared_ptr<const object>, std::less<>> by_key;

    std::shared_ptr<const object> find(std::string_view key) {
      cairn::check_key(key);
      const std::lock_guard guard(lock);
      const auto at = by_key.find(key);
      return at == by_key.end() ? nullptr : at->second;
    }
    bool put(std::string_view key, object bytes) {  // of several under one key, one wins
      const std::lock_guard guard(lock);
      return by_key.try_emplace(std::string(key), std::make_shared<object>(std::move(bytes))).second;
    }
  };
  std::shared_ptr<shared_objects> objects_ = std::make_shared<shared_objects>();

 public:
  struct object_writer : cairn::object_buffer {
    std::shared_ptr<shared_objects> into;

    void finish() {
      if (!into->put(key(), take())) cairn::fail_object_exists(key());
    }
  };
  object_writer create(std::string_view key, std::uint64_t size_hint) {
    if (objects_->find(key)) cairn::fail_object_exists(key);
    return {cairn::object_buffer(key, size_hint), objects_};
  }
  bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    return !objects_->find(key) && objects_->put(key, {bytes.begin(), bytes.end()});
  }
  void read(std::span<const cairn::read_range> ranges) {
    for (const auto& range : ranges) {
      const auto found = objects_->find(range.key);
      if (!found) cairn::fail_no_object(range.key);
      cairn::check_range(range, found->size());
      std::copy_n(found->data() + range.offset, range.destination.size(), range.destination.data());
    }
  }
  std::optional<std::uint64_t> size(std::string_view key) {
    const auto found = objects_->find(key);
    return found ? std::optional<std::uint64_t>(found->size()) : std::nullopt;
  }
  std::vector<cairn::listed_object> list(std::string_view prefix) {
    const std::lock_guard guard(objects_->lock);
    std::vector<cairn::listed_object> found;
    for (const auto& [key, bytes] : objects_->by_key)
      if (key.starts_with(prefix)) found.push_back({key, bytes->size()});
    return found;
  }
  void remove(std::string_view key) {
    if (!objects_->find(key)) return;
    const std::lock_guard guard(objects_->lock);
    objects_->by_key.erase(std::string(key));
  }
  std::string describe() { return "objects in a map"; }
};
