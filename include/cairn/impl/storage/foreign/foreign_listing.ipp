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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
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

/// A name that counts files: PREFIX-NUMBER-of-COUNT.safetensors.
struct counted_name {
  std::string prefix;
  std::string count;  ///< as it is written: its digits are those of the numbers, too
  std::uint64_t number = 0;
};

/// PyTorch puts a shard of each rank before that; a shard has those of the files alone of which it holds something.
[[nodiscard]] inline std::optional<counted_name> counted(std::string_view name) {
  constexpr std::string_view of = "-of-", shard = "shard-";
  const auto digits_at_end = [](std::string_view text) {
    std::size_t count = 0;
    while (count < text.size() && text[text.size() - 1 - count] >= '0' &&
           text[text.size() - 1 - count] <= '9')
      ++count;
    return count;
  };
  if (!name.ends_with(safetensors_ending)) return std::nullopt;
  name.remove_suffix(safetensors_ending.size());
  constexpr std::size_t max_digits = 9;
  const auto count = name.substr(name.size() - digits_at_end(name));
  name.remove_suffix(count.size());
  if (count.empty() || count.size() > max_digits || !name.ends_with(of)) return std::nullopt;
  name.remove_suffix(of.size());
  const auto number = name.substr(name.size() - digits_at_end(name));
  name.remove_suffix(number.size());
  if (number.empty() || number.size() > max_digits || !name.ends_with('-')) return std::nullopt;
  if (name.starts_with(shard)) {
    const auto rest = name.find_first_not_of("0123456789", shard.size());
    if (rest != std::string_view::npos && rest > shard.size() && name[rest] == '-')
      name.remove_prefix(rest + 1);
  }
  return counted_name{std::string(name), std::string(count), std::stoull(std::string(number))};
}

CAIRN_BODY void require_all_parts(const foreign_listing& listing, const std::string& place) {
  std::vector<counted_name> found;
  for (const auto& f : listing.files)
    if (auto name = counted(f.name)) found.push_back(std::move(*name));
  detail::sort(found, [](const counted_name& a, const counted_name& b) {
    return std::tie(a.prefix, a.count, a.number) < std::tie(b.prefix, b.count, b.number);
  });
  for (std::size_t first = 0; first < found.size();) {
    const auto& one = found[first];
    auto last = first;
    while (last < found.size() && found[last].prefix == one.prefix && found[last].count == one.count) ++last;
    // Some count from 0.
    const std::uint64_t begin = one.number == 0 ? 0 : 1, end = begin + std::stoull(one.count);
    constexpr std::size_t max_told = 5;
    std::string missing;
    std::size_t told = 0;
    auto at = first;
    for (auto number = begin; number < end && told <= max_told; ++number) {
      while (at < last && found[at].number < number) ++at;
      if (at < last && found[at].number == number) continue;
      if (++told > max_told) {
        missing += ", ...";
        break;
      }
      auto digits = std::to_string(number);
      digits.insert(0, one.count.size() - std::min(one.count.size(), digits.size()), '0');
      missing += (told == 1 ? "" : ", ") + one.prefix + digits + "-of-" + one.count;
      missing += safetensors_ending;
    }
    if (!missing.empty())
      fail(
          error_id::corrupt_missing_file,
          "there is only a part of these safetensors files here, by their names, and no index: what wrote or "
          "copied them did not end. To read those that are here all the same, name them",
          {.file = place, .expected = std::move(missing)});
    first = last;
  }
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
