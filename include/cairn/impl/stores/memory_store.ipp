// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/concepts/store_errors.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

struct memory_store::shared_bytes {
  std::mutex mutex;
  std::vector<std::byte> bytes;
};

struct memory_store::objects {
  using bytes_ptr = std::shared_ptr<const std::vector<std::byte>>;
  std::mutex mutex;
  std::map<std::string, bytes_ptr, std::less<>> by_key;
  std::map<std::string, std::shared_ptr<shared_bytes>, std::less<>> begun;  ///< by key and tag

  [[nodiscard]] bytes_ptr find(std::string_view key);
  [[nodiscard]] bool add(std::string_view key, bytes_ptr bytes);
};

CAIRN_BODY memory_store::memory_store() : objects_(detail::make_shared<objects>()) {}

CAIRN_BODY memory_store::objects::bytes_ptr memory_store::objects::find(std::string_view key) {
  const std::lock_guard lock(mutex);
  const auto at = by_key.find(key);
  return at == by_key.end() ? nullptr : at->second;
}

CAIRN_BODY bool memory_store::objects::add(std::string_view key, bytes_ptr bytes) {
  const std::lock_guard lock(mutex);
  return by_key.try_emplace(std::string(key), std::move(bytes)).second;
}

CAIRN_BODY void memory_store::object_writer::write(std::span<const write_range> parts) {
  buffer_.write(parts);
}

CAIRN_BODY void memory_store::object_writer::finish() {
  if (!objects_->add(buffer_.key(), detail::make_shared<const std::vector<std::byte>>(buffer_.take())))
    fail_object_exists(buffer_.key());
}

CAIRN_BODY void memory_store::shared_writer::write(std::span<const write_range> parts) {
  for (const auto& part : parts) put(part.offset, part.bytes);
}

CAIRN_BODY void memory_store::shared_writer::put(std::uint64_t offset, std::span<const std::byte> bytes) {
  const std::lock_guard lock(shared_->mutex);
  std::uint64_t end = 0;
  if (__builtin_add_overflow(offset, std::uint64_t{bytes.size()}, &end) || end > shared_->bytes.max_size())
    fail(error_id::usage_overflow, "a range ends beyond the largest possible object", {.file = key_});
  if (end > shared_->bytes.size()) shared_->bytes.resize(static_cast<std::size_t>(end));
  if (!bytes.empty()) std::memcpy(shared_->bytes.data() + offset, bytes.data(), bytes.size());
}

CAIRN_BODY bool memory_store::shared_writer::read(std::uint64_t offset, std::span<std::byte> destination) {
  const std::lock_guard lock(shared_->mutex);
  if (offset > shared_->bytes.size() || destination.size() > shared_->bytes.size() - offset) return false;
  if (!destination.empty())
    std::memcpy(destination.data(), shared_->bytes.data() + offset, destination.size());
  return true;
}

CAIRN_BODY void memory_store::shared_writer::finish(std::uint64_t bytes) {
  if (!began_)
    fail(error_id::usage_closed, "an object is finished once, by the writer that began it", {.file = key_});
  end();
  const std::lock_guard lock(shared_->mutex);
  shared_->bytes.resize(static_cast<std::size_t>(bytes));
  if (!objects_->add(key_, detail::make_shared<const std::vector<std::byte>>(shared_->bytes)))
    fail_object_exists(key_);
}

CAIRN_BODY memory_store::shared_writer& memory_store::shared_writer::operator=(
    shared_writer&& other) noexcept {
  if (this != &other) {
    end();
    objects_ = std::move(other.objects_);
    shared_ = std::move(other.shared_);
    key_ = std::move(other.key_), name_ = std::move(other.name_);
    began_ = other.began_;
  }
  return *this;
}

CAIRN_BODY memory_store::shared_writer::~shared_writer() {
  end();
}

CAIRN_BODY memory_store::shared_writer::shared_writer(std::shared_ptr<objects> into,
                                                      std::shared_ptr<shared_bytes> shared,
                                                      std::string_view key, std::string name, bool began)
    : objects_(std::move(into)),
      shared_(std::move(shared)),
      key_(key),
      name_(std::move(name)),
      began_(began) {}

CAIRN_BODY void memory_store::shared_writer::end() noexcept {
  if (!objects_ || !began_) return;
  began_ = false;
  const std::lock_guard lock(objects_->mutex);
  objects_->begun.erase(name_);
}

CAIRN_BODY memory_store::shared_writer memory_store::share(std::string_view key, std::uint64_t tag) {
  check_key(key);
  if (objects_->find(key)) fail_object_exists(key);
  auto name = std::string(key) + ":" + std::to_string(tag);
  auto bytes = detail::make_shared<shared_bytes>();
  const std::lock_guard lock(objects_->mutex);
  if (!objects_->begun.try_emplace(name, bytes).second) fail_object_exists(key);
  return {objects_, std::move(bytes), key, std::move(name), true};
}

CAIRN_BODY std::optional<memory_store::shared_writer> memory_store::join(std::string_view key,
                                                                         std::uint64_t tag) {
  check_key(key);
  auto name = std::string(key) + ":" + std::to_string(tag);
  const std::lock_guard lock(objects_->mutex);
  const auto at = objects_->begun.find(name);
  if (at == objects_->begun.end()) return {};
  return shared_writer(objects_, at->second, key, std::move(name), false);
}

CAIRN_BODY memory_store::object_writer memory_store::create(std::string_view key, std::uint64_t size_hint) {
  check_key(key);
  if (objects_->find(key)) fail_object_exists(key);
  return {objects_, key, size_hint};
}

CAIRN_BODY void memory_store::read(std::span<const read_range> ranges) {
  for (const auto& range : ranges) {
    check_key(range.key);
    const auto bytes = objects_->find(range.key);
    if (!bytes) fail_no_object(range.key);
    check_range(range, bytes->size());
    const auto wanted = range.destination.size();
    if (wanted > 0) std::memcpy(range.destination.data(), bytes->data() + range.offset, wanted);
  }
}

CAIRN_BODY void memory_store::put_new(std::string_view key, std::span<const std::byte> bytes) {
  if (!publish_new(key, bytes)) fail_object_exists(key);
}

CAIRN_BODY bool memory_store::publish_new(std::string_view key, std::span<const std::byte> bytes) {
  check_key(key);
  return objects_->add(key, detail::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()));
}

CAIRN_BODY std::optional<std::vector<std::byte>> memory_store::read_all(std::string_view key,
                                                                        std::uint64_t cap) {
  check_key(key);
  const auto bytes = objects_->find(key);
  if (!bytes) return {};
  if (bytes->size() > cap)
    fail(error_id::corrupt_size_mismatch, "the object is longer than it can be",
         {.file = std::string(key),
          .expected = "at most " + std::to_string(cap) + " bytes",
          .got = std::to_string(bytes->size()) + " bytes"});
  return *bytes;
}

CAIRN_BODY std::optional<std::uint64_t> memory_store::size(std::string_view key) {
  check_key(key);
  const auto bytes = objects_->find(key);
  if (!bytes) return {};
  return bytes->size();
}

CAIRN_BODY std::vector<listed_object> memory_store::list(std::string_view prefix) {
  const std::lock_guard lock(objects_->mutex);
  std::vector<listed_object> found;
  for (auto at = objects_->by_key.lower_bound(prefix);
       at != objects_->by_key.end() && std::string_view(at->first).starts_with(prefix); ++at)
    found.push_back({at->first, at->second->size()});
  return found;
}

CAIRN_BODY void memory_store::link(std::string_view from, std::string_view to) {
  check_key(from), check_key(to);
  auto bytes = objects_->find(from);
  if (!bytes) fail_no_object(from);
  if (!objects_->add(to, std::move(bytes))) fail_object_exists(to);
}

CAIRN_BODY void memory_store::remove(std::string_view key) {
  check_key(key);
  const std::lock_guard lock(objects_->mutex);
  if (const auto at = objects_->by_key.find(key); at != objects_->by_key.end()) objects_->by_key.erase(at);
}

CAIRN_BODY bool memory_store::remove_if(std::string_view key, std::span<const std::byte> bytes) {
  check_key(key);
  const std::lock_guard lock(objects_->mutex);
  const auto at = objects_->by_key.find(key);
  if (at == objects_->by_key.end()) return true;
  if (!std::equal(at->second->begin(), at->second->end(), bytes.begin(), bytes.end())) return false;
  objects_->by_key.erase(at);
  return true;
}

CAIRN_BODY std::string memory_store::describe() const {
  return "memory of this process";
}

static_assert(SharedStore<memory_store> && ConditionalRemove<memory_store> && LinksObjects<memory_store>);

}  // namespace v1
}  // namespace cairn
