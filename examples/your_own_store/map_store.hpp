// SPDX-License-Identifier: Apache-2.0
#pragma once
// The smallest complete store: objects in a map, which copies of the store share. They last as long as the
// process.
#include <cairn/concepts/byte_store.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

class map_store {
  using enum cairn::error_id;
  using object = std::vector<std::byte>;
  static void check(bool good, cairn::error_id id, const char* otherwise, std::string_view key) {
    if (!good) cairn::fail(id, otherwise, {.file = std::string(key)});
  }
  struct shared_objects {
    std::mutex lock;
    std::map<std::string, std::shared_ptr<const object>, std::less<>> by_key;

    std::shared_ptr<const object> find(std::string_view key) {
      check(cairn::valid_key(key), storage_bad_key, "this is no key of a store", key);
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
  struct object_writer {
    std::shared_ptr<shared_objects> into;  // null when it has ended
    std::string key;
    object bytes = {};
    std::uint64_t written = 0;

    std::shared_ptr<shared_objects> take() {  // an error ends it
      check(into != nullptr, usage_closed, "this object has ended; begin another one", key);
      return std::exchange(into, nullptr);
    }
    void write(std::span<const cairn::write_range> ranges) {
      const auto open = take();
      for (const auto& range : ranges) {
        bytes.resize(std::max<std::size_t>(bytes.size(), range.offset + range.bytes.size()));
        std::copy(range.bytes.begin(), range.bytes.end(), bytes.data() + range.offset);
        written += range.bytes.size();
      }
      into = open;
    }
    void finish() {
      const auto open = take();
      check(written == bytes.size(), usage_incomplete_object, "bytes are missing", key);
      check(open->put(key, std::move(bytes)), storage_exists, "this key was taken meanwhile", key);
    }
  };
  object_writer create(std::string_view key, std::uint64_t) {
    check(!objects_->find(key), storage_exists, "an object of this key exists; it was not touched", key);
    return {objects_, std::string(key)};
  }
  bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    return !objects_->find(key) && objects_->put(key, {bytes.begin(), bytes.end()});
  }
  void read(std::span<const cairn::read_range> ranges) {
    for (const auto& range : ranges) {
      const auto found = objects_->find(range.key);
      check(found != nullptr, storage_not_found, "there is no such object", range.key);
      const auto begin = static_cast<std::size_t>(std::min<std::uint64_t>(range.offset, found->size()));
      const auto left = found->size() - begin, wanted = range.destination.size();
      if (left < wanted || begin < range.offset)
        cairn::fail(corrupt_truncated, "the object ends before the bytes that are wanted",
                    {.file = std::string(range.key),
                     .offset = static_cast<std::int64_t>(begin),
                     .expected = std::to_string(wanted) + " bytes",
                     .got = std::to_string(left) + " bytes"});
      std::copy_n(found->data() + begin, wanted, range.destination.data());
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
