// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/storage/foreign/foreign_checkpoint.hpp>
#include <cairn/storage/foreign/foreign_listing.hpp>
#include <cairn/storage/foreign/weight_map.hpp>
#include <cairn/storage/safetensors/safetensors_entry.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/parallel.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

inline constexpr std::string_view safetensors_ending = ".safetensors";
inline constexpr std::string_view index_ending = ".safetensors.index.json";
inline constexpr std::string_view usual_index = "model.safetensors.index.json";

CAIRN_BODY bool is_foreign_name(std::string_view name) noexcept {
  return name.ends_with(safetensors_ending) || name.ends_with(index_ending);
}

CAIRN_BODY foreign_listing choose_files(std::vector<foreign_name> names, const std::string& place) {
  foreign_listing chosen;
  std::vector<foreign_name> indices;
  for (auto& n : names) {
    if (n.name.ends_with(index_ending))
      indices.push_back(std::move(n));
    else if (n.name.ends_with(safetensors_ending))
      chosen.files.push_back(std::move(n));
  }
  const auto by_name = [](const foreign_name& a, const foreign_name& b) { return a.name < b.name; };
  detail::sort(chosen.files, by_name);
  detail::sort(indices, by_name);
  for (auto& n : indices)
    if (n.name == usual_index || indices.size() == 1) chosen.index = std::move(n);
  if (!indices.empty() && chosen.index.name.empty())
    fail(error_id::usage_bad_option,
         "there are several indices of safetensors files here: name the one that is meant, or the files",
         {.file = place, .got = indices[0].name + ", " + indices[1].name});
  if (chosen.files.empty())
    fail(error_id::storage_not_found,
         "there is no safetensors file here; checkpoints that cairn wrote are opened by their store, such as "
         "cairn::file_store",
         {.file = place});
  return chosen;
}

// Most headers are shorter than what the first request asks for.
CAIRN_BODY foreign_header read_header(const any_store& store, const foreign_name& file) {
  constexpr std::uint64_t first_request = std::uint64_t{64} << 10;
  const auto size = store.size(file.key);
  if (!size) fail(error_id::corrupt_missing_file, "a safetensors file is not there", {.file = file.name});
  foreign_header h{file.name, file.key, *size, {}};
  h.bytes.resize(static_cast<std::size_t>(std::min(*size, first_request)));
  if (!h.bytes.empty()) {
    const read_range range{file.key, 0, h.bytes};
    store.read({&range, 1});
  }
  const auto had = h.bytes.size();
  const auto length = safetensors_header_bytes(h.bytes, *size, file.name);
  h.bytes.resize(static_cast<std::size_t>(length));
  if (h.bytes.size() > had) {
    const read_range range{file.key, had, std::span(h.bytes).subspan(had)};
    store.read({&range, 1});
  }
  return h;
}

CAIRN_BODY void keep_named(std::vector<foreign_name>& files, std::string_view index, std::string_view name) {
  const auto map = parse_weight_map(index, name);
  std::vector<std::string_view> named;
  for (const auto& [tensor, file] : map) named.push_back(file);
  detail::sort(named);
  detail::erase_if(files, [&](const foreign_name& f) {
    return !std::binary_search(named.begin(), named.end(), std::string_view(f.name));
  });
}

CAIRN_BODY std::vector<std::byte> read_headers(const any_store& store, const foreign_listing& listing) {
  std::vector<std::byte> index;
  auto files = listing.files;
  if (!listing.index.name.empty()) {
    auto text = store.read_all(listing.index.key, max_safetensors_json);
    if (!text)
      fail(error_id::corrupt_missing_file, "the index of safetensors files is not there",
           {.file = listing.index.name});
    index = std::move(*text);
    // Those that are named and not there are reported with the tensor, by who takes the headers.
    keep_named(files, {reinterpret_cast<const char*>(index.data()), index.size()}, listing.index.name);
  }
  std::vector<foreign_header> headers(files.size());
  parallel_for(files.size(), static_cast<std::size_t>(load_threads()),
               [&](std::size_t i, std::size_t) { headers[i] = read_header(store, files[i]); });
  return encode_headers(headers, listing.index.name,
                        {reinterpret_cast<const char*>(index.data()), index.size()});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
