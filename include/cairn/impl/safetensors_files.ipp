// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/safetensors_files.hpp>
#include <cairn/storage/foreign/foreign_listing.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

struct closes_directory {
  void operator()(DIR* d) const noexcept { ::closedir(d); }
};
struct frees_text {
  void operator()(char* text) const noexcept { std::free(text); }
};

[[noreturn]] inline void fail_path(const std::string& path, int code) {
  fail(code == ENOENT || code == ENOTDIR ? error_id::storage_not_found
       : code == EACCES                  ? error_id::storage_permission
                                         : error_id::storage_io,
       std::string("safetensors files could not be found: ") + std::strerror(code), {.file = path});
}

/// The path without links. @throws storage_error
[[nodiscard]] inline std::string resolved(const std::string& path) {
  const std::unique_ptr<char, frees_text> real(::realpath(path.c_str(), nullptr));
  if (real == nullptr) fail_path(path, errno);
  return real.get();
}
[[nodiscard]] inline bool resolves(const std::string& path) {
  return std::unique_ptr<char, frees_text>(::realpath(path.c_str(), nullptr)) != nullptr;
}
[[nodiscard]] inline bool is_directory(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) fail_path(path, errno);
  return S_ISDIR(s.st_mode);
}
[[nodiscard]] inline std::vector<std::string> names_in(const std::string& directory) {
  const std::unique_ptr<DIR, closes_directory> open(::opendir(directory.c_str()));
  if (open == nullptr) fail_path(directory, errno);
  std::vector<std::string> names;
  errno = 0;
  while (const auto* entry = ::readdir(open.get()))
    if (is_foreign_name(entry->d_name)) names.emplace_back(entry->d_name);
  if (errno != 0) fail_path(directory, errno);
  return names;
}
/// Drops what the index does not name: links among it would lead the store to wherever they point. An index that cannot
/// be read drops nothing, and makes this false; whoever opens the files says what is wrong with it.
inline bool drop_unnamed(foreign_listing& listing) {
  const auto slash = listing.index.key.rfind('/') + 1;
  try {
    const auto text = any_store(file_store(listing.index.key.substr(0, slash)))
                          .read_all(listing.index.key.substr(slash), max_safetensors_json);
    if (text)
      keep_named(listing.files, {reinterpret_cast<const char*>(text->data()), text->size()},
                 listing.index.name);
    return true;
  } catch (const cairn::error&) {
    return false;
  }
}
/// A file by its name and, as its key, its whole path; until it is known in which directory all of them lie.
[[nodiscard]] inline foreign_name name_at(const std::string& path) {
  const auto slash = path.rfind('/');
  return {slash == std::string::npos ? path : path.substr(slash + 1), resolved(path)};
}

}  // namespace detail

CAIRN_BODY safetensors_files::safetensors_files(std::vector<std::string> paths)
    : safetensors_files(locate(paths)) {}

CAIRN_BODY std::string safetensors_files::describe() const {
  return "safetensors files in " + std::string(store_.describe());
}

CAIRN_BODY std::optional<detail::foreign_listing> safetensors_files::chosen_keys(
    std::vector<std::string> keys) {
  if (keys.empty()) return std::nullopt;
  detail::foreign_listing listing;
  for (auto& key : keys) listing.files.push_back({key, key});
  return listing;
}

CAIRN_BODY safetensors_files::located safetensors_files::locate(const std::vector<std::string>& paths) {
  detail::foreign_listing listing;
  if (paths.empty()) fail(error_id::usage_bad_option, "safetensors_files needs a directory or files");
  const auto choose_in = [&](const std::string& directory) {
    std::vector<detail::foreign_name> names;
    for (const auto& name : detail::names_in(directory)) names.push_back({name, directory + "/" + name});
    return names;
  };
  // Beside an index may lie what it does not name and nobody can read: whoever reads the index misses what it names.
  bool all_named = true;
  const auto resolve_files = [&] {
    if (!listing.index.name.empty()) {
      all_named = detail::drop_unnamed(listing);
      std::erase_if(listing.files, [](const auto& f) { return !detail::resolves(f.key); });
    }
    for (auto& f : listing.files) f.key = detail::resolved(f.key);
  };
  const auto& first = paths.front();
  if (paths.size() == 1 && detail::is_directory(first)) {
    listing = detail::choose_files(choose_in(first), first);
    if (listing.index.name.empty())
      detail::require_all_parts(listing, first);
    else
      listing.index.key = detail::resolved(listing.index.key);
    resolve_files();
  } else if (paths.size() == 1 && first.ends_with(".json")) {
    const auto index = detail::name_at(first);
    const auto slash = first.rfind('/');
    auto names = choose_in(slash == std::string::npos ? "." : first.substr(0, slash + 1));
    std::erase_if(names, [](const auto& n) { return !n.name.ends_with(".safetensors"); });
    listing = detail::choose_files(std::move(names), first);
    listing.index = index;
    resolve_files();
  } else {
    for (const auto& path : paths) {
      if (detail::is_directory(path))
        fail(error_id::usage_bad_option, "safetensors_files is given a directory or files, not both",
             {.file = path});
      listing.files.push_back(detail::name_at(path));
    }
  }
  // The store's root: the directory that holds all of them. A store follows no links, so they are resolved before.
  std::vector<detail::foreign_name*> all;
  for (auto& f : listing.files) all.push_back(&f);
  if (!listing.index.name.empty()) all.push_back(&listing.index);
  std::string root = all.front()->key.substr(0, all.front()->key.rfind('/') + 1);
  for (const auto* f : all)
    while (!f->key.starts_with(root)) root.resize(root.rfind('/', root.size() - 2) + 1);
  for (auto* f : all) f->key.erase(0, root.size());
  if (!all_named) {
    std::erase_if(listing.files, [](const auto& f) { return !valid_key(f.key); });
    all.assign(1, &listing.index);
  }
  for (const auto* f : all) {
    if (!valid_key(f->key))
      fail(error_id::usage_bad_option,
           "the path of a safetensors file has characters that are none of [A-Za-z0-9._-]: give it another "
           "name, "
           "or put it into one directory with the others",
           {.file = root + f->key});
  }
  return {any_store(file_store(root)), std::move(listing)};
}

}  // namespace v1
}  // namespace cairn
