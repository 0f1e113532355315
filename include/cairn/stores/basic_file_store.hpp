// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of basic_file_store, for any file system: see there.
#include <cairn/concepts/store_errors.hpp>
#include <cairn/stores/file/file_link.hpp>
#include <cairn/stores/file/file_names.hpp>
#include <cairn/stores/file/file_reader.hpp>
#include <cairn/stores/file/file_self_test.hpp>
#include <cairn/stores/file/file_write.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
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
namespace detail {

[[nodiscard]] inline std::string text_of(const file_identity& file) {
  std::string text;
  for (const auto part :
       {static_cast<std::int64_t>(file.device), static_cast<std::int64_t>(file.inode), file.born})
    text += std::to_string(part) + " ";
  return text;
}

/// @throws usage_closed for a writer that was moved from
template <class Write>
[[nodiscard]] Write& opened(const detail::owned<Write>& write) {
  if (!write) fail(error_id::usage_closed, "this writer was moved from: use the other one");
  return *write;
}

template <FileSystem F>
file_object_writer<F>::file_object_writer(detail::owned<file_write<F>> write) noexcept
    : write_(std::move(write)) {}
template <FileSystem F>
file_object_writer<F>::file_object_writer(file_object_writer&& other) noexcept = default;
template <FileSystem F>
file_object_writer<F>& file_object_writer<F>::operator=(file_object_writer&& other) noexcept = default;
template <FileSystem F>
file_object_writer<F>::~file_object_writer() = default;
template <FileSystem F>
void file_object_writer<F>::write(std::span<const write_range> parts) {
  opened(write_).write(parts);
}
template <FileSystem F>
void file_object_writer<F>::finish() {
  opened(write_).finish();
}
template <FileSystem F>
std::int64_t file_object_writer<F>::helper_cpu() const noexcept {
  return write_->helper_cpu();
}
template <FileSystem F>
int file_object_writer<F>::lock_descriptor() const noexcept {
  return write_->lock_descriptor();
}

template <FileSystem F>
shared_file_writer<F>::shared_file_writer(detail::owned<shared_file_write<F>> write) noexcept
    : write_(std::move(write)) {}
template <FileSystem F>
shared_file_writer<F>::shared_file_writer(shared_file_writer&& other) noexcept = default;
template <FileSystem F>
shared_file_writer<F>& shared_file_writer<F>::operator=(shared_file_writer&& other) noexcept = default;
template <FileSystem F>
shared_file_writer<F>::~shared_file_writer() = default;
template <FileSystem F>
void shared_file_writer<F>::write(std::span<const write_range> parts) {
  opened(write_).write(parts);
}
template <FileSystem F>
void shared_file_writer<F>::put(std::uint64_t offset, std::span<const std::byte> bytes) {
  opened(write_).put(offset, bytes);
}
template <FileSystem F>
bool shared_file_writer<F>::read(std::uint64_t offset, std::span<std::byte> destination) {
  return opened(write_).read(offset, destination);
}
template <FileSystem F>
void shared_file_writer<F>::sync() {
  opened(write_).sync();
}
template <FileSystem F>
void shared_file_writer<F>::finish(std::uint64_t bytes) {
  opened(write_).finish(bytes);
}
template <FileSystem F>
std::int64_t shared_file_writer<F>::helper_cpu() const noexcept {
  return write_->helper_cpu();
}

template <FileSystem F>
file_read_session<F>::file_read_session(detail::owned<file_reader<F>> reader) noexcept
    : reader_(std::move(reader)) {}
template <FileSystem F>
file_read_session<F>::file_read_session(file_read_session&& other) noexcept = default;
template <FileSystem F>
file_read_session<F>& file_read_session<F>::operator=(file_read_session&& other) noexcept = default;
template <FileSystem F>
file_read_session<F>::~file_read_session() = default;
template <FileSystem F>
void file_read_session<F>::read(std::span<const read_range> ranges) {
  opened(reader_).read(ranges);
}
template <FileSystem F>
bool file_read_session<F>::is_cached(std::string_view key, std::uint64_t offset, std::uint64_t bytes) {
  return opened(reader_).is_cached(key, offset, bytes);
}
template <FileSystem F>
bool file_read_session<F>::copy(std::string_view key, std::uint64_t offset, std::span<std::byte> destination,
                                std::uint64_t* digest) {
  return opened(reader_).copy(key, offset, destination, digest);
}
template <FileSystem F>
read_figures file_read_session<F>::figures() const noexcept {
  return reader_->figures();
}

}  // namespace detail

template <FileSystem F>
basic_file_store<F>::basic_file_store(std::string root, file_store_options options, F file_system)
    : tree_(detail::make_shared<detail::file_tree<F>>(detail::checked_root(std::move(root), options), options,
                                                      std::move(file_system), detail::file_block())) {}

template <FileSystem F>
std::vector<std::byte> basic_file_store<F>::description() const
  requires std::is_empty_v<F>
{
  const auto& o = tree_->options;
  wire_writer out;
  const auto mode = [&](std::optional<unsigned> m) { out.put(m ? static_cast<std::int32_t>(*m) : -1); };
  out.put(tree_->root).put(static_cast<std::uint8_t>(o.direct_io));
  const auto number = [&](auto n) { out.put(static_cast<std::uint64_t>(n)); };
  number(o.write_bytes), number(o.writes_in_flight), number(o.read_bytes), number(o.reads_in_flight);
  mode(o.file_mode), mode(o.directory_mode);
  out.put(static_cast<std::uint8_t>(o.root)).put(static_cast<std::uint8_t>(o.single_writer));
  out.put(static_cast<std::uint8_t>(o.keep_cached));
  return out.take();
}

template <FileSystem F>
basic_file_store<F> basic_file_store<F>::from_description(std::span<const std::byte> bytes)
  requires std::is_empty_v<F>
{
  wire_reader in(bytes);
  const auto mode = [&]() -> std::optional<unsigned> {
    const auto m = in.get<std::int32_t>();
    return m < 0 ? std::nullopt : std::optional<unsigned>(static_cast<unsigned>(m));
  };
  auto root = in.get_string();
  file_store_options o;
  o.direct_io = in.get<std::uint8_t>() != 0;
  o.write_bytes = in.get<std::uint64_t>(), o.writes_in_flight = in.get<std::uint64_t>();
  o.read_bytes = in.get<std::uint64_t>(), o.reads_in_flight = in.get<std::uint64_t>();
  o.file_mode = mode(), o.directory_mode = mode();
  o.root = in.get_enum(root_directory::make_parents);
  o.single_writer = in.get<std::uint8_t>() != 0;
  o.keep_cached = in.get<std::uint8_t>() != 0;
  in.finish();
  return basic_file_store(std::move(root), o);
}

template <FileSystem F>
detail::file_object_writer<F> basic_file_store<F>::create(std::string_view key, std::uint64_t size_hint) {
  tree_->check_key(key);
  if (detail::file_names(*tree_).occupied(key)) detail::file_names(*tree_).fail_exists(key);
  return object_writer(detail::make_owned<detail::file_write<F>>(tree_, key, size_hint));
}

template <FileSystem F>
detail::shared_file_writer<F> basic_file_store<F>::share(std::string_view key, std::uint64_t tag) {
  tree_->check_key(key);
  if (detail::file_names(*tree_).occupied(key)) detail::file_names(*tree_).fail_exists(key);
  return shared_writer(detail::make_owned<detail::shared_file_write<F>>(
      tree_, detail::part_file<F>(tree_, key, tag ^ detail::host_number()), true));
}

template <FileSystem F>
std::optional<detail::shared_file_writer<F>> basic_file_store<F>::join(std::string_view key,
                                                                       std::uint64_t tag) {
  tree_->check_key(key);
  detail::part_file<F> part(typename detail::part_file<F>::joined{}, tree_, key, tag ^ detail::host_number());
  if (!part.valid()) return {};
  return shared_writer(detail::make_owned<detail::shared_file_write<F>>(tree_, std::move(part), false));
}

template <FileSystem F>
std::size_t basic_file_store<F>::io_alignment() const noexcept {
  return tree_->io_alignment;
}

template <FileSystem F>
std::size_t basic_file_store<F>::min_write_bytes() const noexcept {
  return std::size_t{1} << 20;
}

template <FileSystem F>
void basic_file_store<F>::read(std::span<const read_range> ranges) {
  detail::file_reader<F>(tree_).read(ranges);
}

template <FileSystem F>
void basic_file_store<F>::put_new(std::string_view key, std::span<const std::byte> bytes) {
  if (!publish_new(key, bytes)) detail::file_names(*tree_).fail_exists(key);
}

template <FileSystem F>
bool basic_file_store<F>::publish_new(std::string_view key, std::span<const std::byte> bytes) {
  tree_->check_key(key);
  const detail::file_size_signal_blocked guard;
  auto part = detail::before_publishing([&] {
    detail::part_file<F> unnamed(tree_, key);
    const auto t = detail::write_fully(tree_->fs, unnamed.file(), bytes.data(), bytes.size(), 0);
    if (t.error != 0)
      tree_->fail_at(t.error, "pwrite", unnamed.path(), unnamed.directory(),
                     static_cast<std::int64_t>(t.done), bytes.size() - t.done);
    unnamed.complete([] { return 0; });
    return unnamed;
  });
  return part.give_name();
}

template <FileSystem F>
detail::file_read_session<F> basic_file_store<F>::begin_reads() {
  return read_session(detail::make_owned<detail::file_reader<F>>(tree_, true));
}

template <FileSystem F>
std::optional<std::vector<std::byte>> basic_file_store<F>::read_all(std::string_view key, std::uint64_t cap) {
  return detail::file_reader<F>(tree_).read_all(key, cap);
}

template <FileSystem F>
std::optional<std::uint64_t> basic_file_store<F>::size(std::string_view key) {
  tree_->check_key(key);
  const auto s = detail::file_names(*tree_).status(key);
  if (!s || s->kind != file_kind::regular) return {};
  return s->bytes;
}

template <FileSystem F>
std::optional<object_identity> basic_file_store<F>::identify(std::string_view key) {
  file_status s;
  int error = 0;
  const auto file = detail::file_names(*tree_).status_opened(key, s, error);
  if (error < 0) detail::fail_io(-error, "open", tree_->path_of(key));
  if (!file) return {};
  object_identity found{s.bytes};
  found.version = detail::text_of(s.identity);
  for (const auto part : {static_cast<std::int64_t>(s.bytes), s.modified, s.changed})
    found.version += std::to_string(part) + " ";
  if constexpr (MappingFileSystem<F>) {
    const int code = tree_->fs.lease(file.get());
    if (code == 0) tree_->fs.end_lease(file.get());
    // A large write, and stores through a mapping, move no time stamp while they go on.
    found.open_for_writing = code == -EAGAIN;
  }
  return found;
}

template <FileSystem F>
std::vector<listed_object> basic_file_store<F>::list(std::string_view prefix) {
  std::vector<listed_object> found;
  detail::file_names(*tree_).visit(
      prefix, [&](auto& directory, const std::string& key, const std::string& name) {
        if (detail::is_part_name(name) || !valid_key(key)) return;
        const auto s = detail::file_names(*tree_).status_in(directory, name, key);
        if (s && s->kind == file_kind::regular) found.push_back({key, s->bytes});
      });
  detail::sort(found, [](const auto& a, const auto& b) { return a.key < b.key; });
  return found;
}

template <FileSystem F>
std::vector<std::string> basic_file_store<F>::keys(std::string_view prefix, std::size_t parts) {
  std::vector<std::string> found;
  detail::file_names(*tree_).visit(
      prefix,
      [&](auto&, const std::string& key, std::string_view name) {
        if (!detail::is_part_name(name) && valid_key(key)) found.push_back(key);
      },
      parts);
  detail::sort(found);
  return found;
}

template <FileSystem F>
void basic_file_store<F>::link(std::string_view from, std::string_view to, deadline until) {
  tree_->check_key(from), tree_->check_key(to);
  detail::file_link<F>(tree_, from, to, until).run();
}

template <FileSystem F>
void basic_file_store<F>::remove(std::string_view key) {
  tree_->check_key(key);
  detail::file_names(*tree_).unlink(key);
}

template <FileSystem F>
bool basic_file_store<F>::remove_if(std::string_view key, std::span<const std::byte> bytes) {
  file_status opened;
  int error = 0;
  auto file = detail::file_names(*tree_).status_opened(key, opened, error);
  if (error < 0) detail::fail_io(-error, "open of a file that is to be removed", tree_->path_of(key));
  if (!file) {
    if (detail::file_names(*tree_).occupied(key))
      detail::fail_io(EIO, "open of a file that is to be removed", tree_->path_of(key));
    remove(key);  // so that what removed it before has come to its fsync
    return true;
  }
  if (opened.bytes != bytes.size()) return false;
  const auto there = read_all(key, bytes.size());
  if (there && !std::equal(there->begin(), there->end(), bytes.begin(), bytes.end())) return false;
  if (const auto now = detail::file_names(*tree_).status(key); now && now->identity != opened.identity)
    return false;
  detail::file_names(*tree_).unlink(key, std::move(file));
  return true;
}

template <FileSystem F>
std::vector<std::string> basic_file_store<F>::leftovers(std::string_view prefix) {
  using names = detail::file_names<F>;
  return names(*tree_).unfinished(prefix, names::writer::dead);
}

template <FileSystem F>
std::vector<std::string> basic_file_store<F>::live_writers(std::string_view prefix) {
  using names = detail::file_names<F>;
  return names(*tree_).unfinished(prefix, names::writer::lives);
}

template <FileSystem F>
bool basic_file_store<F>::writer_lives(std::string_view key) {
  tree_->check_key(key);
  const auto where = detail::split(key);
  int error = 0;
  const auto directory = tree_->open_directory(where.directory, error);
  if (error == -ENOENT || error == -ENOTDIR || error == -ELOOP) return false;
  if (error < 0) detail::fail_io(-error, "open of the directory", tree_->path_of(where.directory));
  using names = detail::file_names<F>;
  return names(*tree_).ask(directory, std::string(where.name), key).of == names::writer::lives;
}

template <FileSystem F>
void basic_file_store<F>::discard(std::string_view key) {
  const auto where = detail::split(key);
  if (!detail::is_part_name(where.name) || !valid_key(key.substr(0, key.size() - detail::part_suffix_bytes)))
    fail(error_id::storage_bad_key,
         "only unfinished objects are discarded, under the keys that leftovers() gives",
         {.file = std::string(key.substr(0, 600))});
  int error = 0;
  const auto directory = tree_->open_directory(where.directory, error);
  if (error == -ENOENT || error == -ENOTDIR) return;
  if (error < 0) detail::fail_io(-error, "open of the directory", tree_->path_of(where.directory));
  file_status s;
  if (tree_->fs.status_at(directory.get(), std::string(where.name).c_str(), s) == -ENOENT)
    return detail::file_names(*tree_).unlink(key);
  using names = detail::file_names<F>;
  // Its file is kept open, so that nobody else takes it for his.
  auto asked = names(*tree_).ask(directory, std::string(where.name), key);
  if (asked.of == names::writer::no_file) return;
  if (asked.of == names::writer::lives)
    fail(error_id::storage_exists,
         "the unfinished object belongs to a writer that lives: it was not discarded",
         {.file = tree_->path_of(key)});
  names(*tree_).unlink(key, std::move(asked.file));
}

template <FileSystem F>
void basic_file_store<F>::make_directory(std::string_view directory) {
  tree_->check_key(directory);
  (void)tree_->make_directory(directory);
}

template <FileSystem F>
bool basic_file_store<F>::adopt_directory(std::string_view directory) {
  tree_->check_key(directory);
  return tree_->adopt_directory(directory);
}

template <FileSystem F>
void basic_file_store<F>::make_name_durable(std::string_view key) {
  tree_->check_key(key);
  const auto where = detail::split(key).directory;
  int error = 0;
  const auto directory = tree_->open_directory(where, error);
  if (error == 0) return tree_->sync_directory(directory, tree_->path_of(where));
  if (error != -ENOENT && error != -ENOTDIR)
    detail::fail_io(-error, "open of the directory", tree_->path_of(where));
}

template <FileSystem F>
void basic_file_store<F>::note_durable(std::string_view key) noexcept {
  try {
    file_status s;
    if (const auto file = detail::file_names(*tree_).status_opened(key, s))
      static_cast<void>(tree_->fs.change_mode(file.get(), s.mode | detail::file_names<F>::durable_bit));
  } catch (...) {  // nobody relies on a note
  }
}

template <FileSystem F>
bool basic_file_store<F>::is_noted_durable(std::string_view key) {
  file_status s;
  return detail::file_names(*tree_).status_opened(key, s) &&
         (s.mode & detail::file_names<F>::durable_bit) != 0;
}

template <FileSystem F>
std::optional<space_left> basic_file_store<F>::free_space() {
  auto path = tree_->root;
  for (;;) {  // of the nearest directory above while the root is not made yet
    const int r = detail::uninterrupted([&] { return tree_->fs.open_directory(path.c_str()); });
    if (r >= 0) return tree_->free_space(detail::file_handle<F>(tree_->fs, r));
    const auto slash = path.find_last_of('/');
    if (r != -ENOENT || slash == std::string::npos || path == "/") return {};
    path.resize(slash == 0 ? 1 : slash);
  }
}

template <FileSystem F>
std::optional<std::string> basic_file_store<F>::root_identity() {
  int error = 0;
  const auto directory = tree_->open_directory("", error);
  if (error == -ENOENT || error == -ENOTDIR) return {};
  file_status s;
  if (error == 0) error = tree_->fs.status(directory.get(), s);
  if (error < 0) detail::fail_io(-error, "open of the directory", tree_->root);
  return detail::text_of(s.identity);
}

template <FileSystem F>
store_test_report basic_file_store<F>::self_test() {
  return detail::file_self_test<F>(*tree_).run();
}

template <FileSystem F>
std::string basic_file_store<F>::describe() const {
  const auto kind = tree_->kind();
  return "directory " + tree_->root + (kind.empty() ? "" : " (" + kind + ")");
}

template <FileSystem F>
const std::string& basic_file_store<F>::root() const noexcept {
  return tree_->root;
}

template <FileSystem F>
const file_store_options& basic_file_store<F>::options() const noexcept {
  return tree_->options;
}

}  // namespace v1
}  // namespace cairn
