// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/any_store_model.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/system/algorithm.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void any_store::object_writer::write(std::span<const write_range> parts) {
  object_->write(parts);
}
CAIRN_BODY void any_store::object_writer::write_stable(std::span<const write_range> parts) {
  object_->write_stable(parts);
}
CAIRN_BODY void any_store::object_writer::until(deadline when) {
  object_->until(when);
}
CAIRN_BODY void any_store::object_writer::finish() {
  object_->finish();
}
CAIRN_BODY void any_store::object_writer::announce() {
  object_->announce();
}
CAIRN_BODY bool any_store::object_writer::announced() const noexcept {
  return object_->announced();
}
CAIRN_BODY int any_store::object_writer::lock_descriptor() const {
  return object_->lock_descriptor();
}
CAIRN_BODY std::int64_t any_store::object_writer::helper_cpu() const {
  return object_->helper_cpu();
}
CAIRN_BODY void any_store::shared_object_writer::write(std::span<const write_range> parts) {
  object_->write(parts);
}
CAIRN_BODY void any_store::shared_object_writer::put(std::uint64_t offset, std::span<const std::byte> bytes) {
  object_->put(offset, bytes);
}
CAIRN_BODY bool any_store::shared_object_writer::read(std::uint64_t offset,
                                                      std::span<std::byte> destination) const {
  return object_->read(offset, destination);
}
CAIRN_BODY void any_store::shared_object_writer::sync() {
  object_->sync();
}
CAIRN_BODY void any_store::shared_object_writer::finish(std::uint64_t bytes) {
  object_->finish(bytes);
}
CAIRN_BODY std::int64_t any_store::shared_object_writer::helper_cpu() const {
  return object_->helper_cpu();
}
CAIRN_BODY any_store::read_session::read_session(std::shared_ptr<detail::store_face> store)
    : store_(std::move(store)), session_(store_->begin_reads()) {}
CAIRN_BODY void any_store::read_session::read(std::span<const read_range> ranges) const {
  session_ != nullptr ? session_->read(ranges) : store_->read(ranges);
}
CAIRN_BODY bool any_store::read_session::is_cached(std::string_view key, std::uint64_t offset,
                                                   std::uint64_t bytes) const {
  return session_ != nullptr && session_->is_cached(key, offset, bytes);
}
CAIRN_BODY bool any_store::read_session::copy(std::string_view key, std::uint64_t offset,
                                              std::span<std::byte> destination, std::uint64_t* digest) const {
  return session_ != nullptr && session_->copy(key, offset, destination, digest);
}
CAIRN_BODY read_figures any_store::read_session::figures() const {
  return session_ != nullptr ? session_->figures() : read_figures{};
}
CAIRN_BODY void any_store::open_connections() const noexcept {
  face_->open_connections();
}
CAIRN_BODY any_store::read_session any_store::begin_reads() const {
  return read_session(face_);
}
CAIRN_BODY any_store::object_writer any_store::create(std::string_view key, std::uint64_t size_hint) const {
  return object_writer(face_->create(key, size_hint));
}
CAIRN_BODY any_store::object_writer any_store::show(std::string_view key) const {
  return object_writer(face_->show(key));
}
CAIRN_BODY bool any_store::publish_new(std::string_view key, std::span<const std::byte> bytes) const {
  return face_->publish_new(key, bytes);
}
CAIRN_BODY void any_store::read(std::span<const read_range> ranges) const {
  face_->read(ranges);
}
CAIRN_BODY std::optional<std::uint64_t> any_store::size(std::string_view key) const {
  return face_->size(key);
}
CAIRN_BODY std::optional<std::string> any_store::root_identity() const {
  return innermost().face_->root_identity();
}
CAIRN_BODY std::optional<object_identity> any_store::identify(std::string_view key) const {
  return face_->identify(key);
}
CAIRN_BODY std::vector<listed_object> any_store::list(std::string_view prefix) const {
  return face_->list(prefix);
}
CAIRN_BODY void any_store::remove(std::string_view key) const {
  face_->remove(key);
}
CAIRN_BODY std::string any_store::describe() const {
  return face_->describe();
}
CAIRN_BODY void any_store::put_new(std::string_view key, std::span<const std::byte> bytes) const {
  face_->put_new(key, bytes);
}
CAIRN_BODY std::optional<std::vector<std::byte>> any_store::read_all(std::string_view key,
                                                                     std::uint64_t cap) const {
  return face_->read_all(key, cap);
}
CAIRN_BODY std::size_t any_store::io_alignment() const {
  return face_->io_alignment();
}
CAIRN_BODY std::size_t any_store::min_write_bytes() const {
  return face_->min_write_bytes();
}
CAIRN_BODY std::vector<std::string> any_store::leftovers(std::string_view prefix) const {
  return face_->leftovers(prefix);
}
CAIRN_BODY void any_store::discard(std::string_view key) const {
  face_->discard(key);
}
CAIRN_BODY std::vector<listed_unfinished> any_store::unfinished(
    std::span<const std::string_view> prefixes) const {
  if (auto found = face_->unfinished(prefixes)) return std::move(*found);
  std::vector<listed_unfinished> all;
  for (const auto prefix : prefixes) {
    // First: of a writer that dies meanwhile both lists have the object, and neither loses it.
    std::vector<std::string> living;
    if (tracks_writers()) living = live_writers(prefix);
    auto left = leftovers(prefix);
    for (auto& key : living)
      if (!detail::contains(left, key)) all.push_back({std::move(key), true});
    for (auto& key : left) all.push_back({std::move(key), false});
  }
  detail::sort(all, [](const auto& a, const auto& b) { return a.key < b.key; });
  return all;
}
CAIRN_BODY std::optional<space_left> any_store::free_space() const {
  return face_->free_space();
}
CAIRN_BODY std::optional<std::vector<std::string>> any_store::keys_after(std::string_view prefix,
                                                                         std::string_view after,
                                                                         std::size_t parts) const {
  return face_->keys_after(prefix, after, parts);
}
CAIRN_BODY std::vector<std::string> any_store::keys(std::string_view prefix, std::size_t parts) const {
  return face_->keys(prefix, parts);
}
CAIRN_BODY bool any_store::remove_all(std::span<const std::string> keys) const {
  return face_->remove_all(keys);
}
CAIRN_BODY bool any_store::remove_if(std::string_view key, std::span<const std::byte> bytes) const {
  return face_->remove_if(key, bytes);
}
CAIRN_BODY std::size_t any_store::reads_at_once() const {
  return face_->reads_at_once();
}

CAIRN_BODY std::uint64_t any_store::read_bytes(std::uint64_t total) const {
  return face_->read_bytes(total);
}
CAIRN_BODY void any_store::make_directory(std::string_view directory) const {
  face_->make_directory(directory);
}
CAIRN_BODY bool any_store::adopt_directory(std::string_view directory) const {
  return face_->adopt_directory(directory);
}
CAIRN_BODY void any_store::make_name_durable(std::string_view key) const {
  face_->make_name_durable(key);
}
CAIRN_BODY void any_store::note_durable(std::string_view key) const noexcept {
  face_->note_durable(key);
}
CAIRN_BODY bool any_store::is_noted_durable(std::string_view key) const {
  return face_->is_noted_durable(key);
}
CAIRN_BODY bool any_store::tracks_writers() const {
  return face_->tracks_writers();
}
CAIRN_BODY std::vector<std::string> any_store::live_writers(std::string_view prefix) const {
  return face_->live_writers(prefix);
}
CAIRN_BODY bool any_store::writer_lives(std::string_view key) const {
  return face_->writer_lives(key);
}
CAIRN_BODY bool any_store::announces_writers() const {
  return face_->announces_writers();
}
CAIRN_BODY bool any_store::shares() const {
  return face_->shares();
}
CAIRN_BODY any_store::shared_object_writer any_store::share(std::string_view key, std::uint64_t tag) const {
  return shared_object_writer(face_->share(key, tag));
}
CAIRN_BODY std::optional<any_store::shared_object_writer> any_store::join(std::string_view key,
                                                                          std::uint64_t tag) const {
  auto joined = face_->join(key, tag);
  if (joined == nullptr) return std::nullopt;
  return shared_object_writer(std::move(joined));
}
CAIRN_BODY std::unique_ptr<change_watch> any_store::watch(std::string_view prefix) const {
  return face_->watch(prefix);
}
CAIRN_BODY bool any_store::links() const {
  return face_->links();
}
CAIRN_BODY void any_store::link(std::string_view from, std::string_view to, deadline until) const {
  face_->link(from, to, until);
}
CAIRN_BODY bool any_store::decodes(std::uint16_t codec) const {
  return face_->decodes(codec);
}
CAIRN_BODY store_test_report any_store::self_test() const {
  return face_->self_test();
}
CAIRN_BODY bool any_store::is_layered() const {
  return face_->inner() != nullptr;
}

CAIRN_BODY any_store any_store::innermost() const {
  auto found = *this;
  while (auto below = found.face_->inner()) found.face_ = std::move(below);
  return found;
}
CAIRN_BODY std::vector<std::byte> any_store::inner_description() const {
  return face_->description();
}

static_assert(ByteStore<any_store> && ConditionalRemove<any_store> && ListsKeys<any_store> &&
              DurabilityHints<any_store> && MayTrackWriters<any_store> && MayShare<any_store> &&
              MayLink<any_store> && DecodingStore<any_store> && ListsUnfinished<any_store> &&
              ShowsWriters<any_store> && IdentifiesObjects<any_store> && IdentifiesRoot<any_store>);

}  // namespace v1
}  // namespace cairn
