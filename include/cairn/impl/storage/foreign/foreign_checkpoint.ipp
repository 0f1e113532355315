// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/plan/summary/cover.hpp>
#include <cairn/storage/foreign/foreign_checkpoint.hpp>
#include <cairn/storage/foreign/weight_map.hpp>
#include <cairn/storage/safetensors/safetensors_entry.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/wire.hpp>

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

inline constexpr std::string_view foreign_magic = "cairn.headers.1";

CAIRN_BODY std::vector<std::byte> encode_headers(std::span<const foreign_header> headers,
                                                 std::string_view index_name, std::string_view index_text) {
  wire_writer out;
  out.put(foreign_magic).put(static_cast<std::uint64_t>(headers.size()));
  for (const auto& h : headers)
    out.put(std::string_view(h.name))
        .put(std::string_view(h.key))
        .put(h.file_bytes)
        .put(static_cast<std::uint64_t>(h.bytes.size()))
        .raw(h.bytes);
  out.put(index_name).put(static_cast<std::uint64_t>(index_text.size()));
  out.raw(std::as_bytes(std::span(index_text.data(), index_text.size())));
  return out.take();
}

/// What an index says of the files that it names. @throws corrupt_error where a file lacks what it should have
inline void check_against_index(std::span<const foreign_file> files,
                                const std::vector<std::pair<std::string, std::string>>& index,
                                std::string_view index_name, auto&& file_has) {
  std::vector<std::pair<std::string_view, std::uint32_t>> by_name;
  for (std::size_t i = 0; i < files.size(); ++i)
    by_name.emplace_back(files[i].name, static_cast<std::uint32_t>(i));
  detail::sort(by_name);
  for (const auto& [tensor, name] : index) {
    const auto at = std::lower_bound(by_name.begin(), by_name.end(), name,
                                     [](const auto& f, const std::string& n) { return f.first < n; });
    if (at == by_name.end() || at->first != name)
      fail(error_id::corrupt_missing_file, "the index names a file that is not there",
           {.item = tensor.substr(0, 200), .file = std::string(index_name), .expected = name.substr(0, 200)});
    if (!file_has(tensor, at->second))
      fail(error_id::corrupt_bad_value, "the index says that a file has a tensor that it does not have",
           {.item = tensor.substr(0, 200), .file = name, .expected = "as in " + std::string(index_name)});
  }
}

}  // namespace detail

struct foreign_checkpoint::found_tensor {
  safetensors_entry entry;
  chunk box;
  std::uint32_t file = 0;
};

CAIRN_BODY foreign_checkpoint::foreign_checkpoint(std::span<const std::byte> headers) {
  std::vector<found_tensor> found;
  std::vector<std::pair<std::string, std::string>> index;
  std::string index_name;
  try {
    wire_reader in(headers);
    if (in.get_string(64) != detail::foreign_magic) in.fail_here("these are no headers of safetensors files");
    const auto count = in.get_count(32);
    for (std::size_t i = 0; i < count; ++i) {
      auto& file = files_.emplace_back();
      file.name = in.get_string();
      file.key = in.get_string();
      file.bytes = in.get<std::uint64_t>();
      const auto text = in.take(in.get_count(1));
      file.data_begin = safetensors_header_bytes(text, file.bytes, file.name);
      file.header_digest = digest(text);
      auto header = decode_safetensors_header(text, file.bytes, file.name);
      file.metadata = std::move(header.metadata);
      for (auto& e : header.entries) {
        auto& f = found.emplace_back();
        f.box = e.sharded ? chunk{e.saved_offsets, e.shape} : whole(e.shape);
        if (!e.sharded) e.global_shape = e.shape;
        f.file = static_cast<std::uint32_t>(i);
        f.entry = std::move(e);
      }
    }
    index_name = in.get_string();
    const auto text = in.take(in.get_count(1));
    if (!index_name.empty())
      index = detail::parse_weight_map({reinterpret_cast<const char*>(text.data()), text.size()}, index_name);
    in.finish();
  } catch (const wire_error& e) {
    fail(error_id::corrupt_bad_value,
         std::string("the headers of safetensors files are damaged: ") + e.what());
  }
  detail::sort(found, [](const found_tensor& a, const found_tensor& b) {
    if (a.entry.key != b.entry.key) return a.entry.key < b.entry.key;
    return a.box == b.box ? a.file < b.file : a.box < b.box;
  });
  if (!index_name.empty()) {
    // The sort has put the parts of one name together.
    const auto first_of = [&](const std::string& name) {
      return std::lower_bound(found.begin(), found.end(), name,
                              [](const found_tensor& f, const std::string& n) { return f.entry.key < n; });
    };
    detail::check_against_index(files_, index, index_name, [&](const std::string& name, std::uint32_t file) {
      for (auto at = first_of(name); at != found.end() && at->entry.key == name; ++at)
        if (at->file == file) return true;
      return false;
    });
    // Of a tensor that several files have, the index names the one that is meant; parts of a tensor are all meant.
    auto named = index.begin();
    detail::erase_if(found, [&](const found_tensor& f) {
      while (named != index.end() && named->first < f.entry.key) ++named;
      return named != index.end() && named->first == f.entry.key && !f.entry.sharded &&
             files_[f.file].name != named->second;
    });
  }
  metadata_.world_size = static_cast<std::int32_t>(std::max<std::size_t>(files_.size(), 1));
  for (std::size_t first = 0; first < found.size();) {
    auto last = first + 1;
    while (last < found.size() && found[last].entry.key == found[first].entry.key) ++last;
    join(found.data() + first, found.data() + last);
    first = last;
  }
  firsts_.push_back(places_.size());
}

CAIRN_BODY void foreign_checkpoint::join(const found_tensor* first, const found_tensor* last) {
  const auto& name = first->entry.key;
  const auto bad = [&](error_id id, std::string_view what, const found_tensor& in, std::string expected,
                       std::string got) {
    fail(id, what,
         {.item = name.substr(0, 200),
          .file = files_[in.file].name,
          .expected = std::move(expected),
          .got = std::move(got)});
  };
  if (const auto problem = name_problem(name); !problem.empty())
    bad(error_id::corrupt_bad_value, "the name of a tensor " + std::string(problem), *first, {}, {});
  stored_item item;
  item.name = name;
  item.type = first->entry.type;
  item.global = first->entry.global_shape;
  for (const auto* f = first + 1; f != last; ++f) {
    if (f->entry.type != item.type)
      bad(error_id::corrupt_bad_value, "files hold parts of one tensor with different dtypes", *f,
          std::string(name_of(item.type)) + " as in " + files_[first->file].name,
          std::string(name_of(f->entry.type)));
    if (f->entry.global_shape.rank() != item.global.rank())
      bad(error_id::corrupt_bad_value, "files hold parts of one tensor with different numbers of dimensions",
          *f, to_string(item.global) + " as in " + files_[first->file].name,
          to_string(f->entry.global_shape));
    for (int d = 0; d < item.global.rank(); ++d)
      item.global.set(d, std::max(item.global[d], f->entry.global_shape[d]));
  }
  if (!checked_bytes(item.type, item.global))
    bad(error_id::corrupt_bad_value, "the size of a tensor overflows", *first, {}, to_string(item.global));
  const bool empty = item.global.volume() == 0;
  firsts_.push_back(places_.size());
  const auto begin = places_.size();
  std::vector<stored_chunk> chunks;
  for (const auto* f = first; f != last; ++f) {
    // Empty parts say nothing; of a tensor without elements one is enough.
    if (f->box.empty() && (!empty || f != first)) continue;
    const auto box = empty ? whole(item.global) : f->box;
    places_.push_back(
        {box, f->file, files_[f->file].data_begin + f->entry.begin, f->entry.end - f->entry.begin});
    chunks.push_back({box, static_cast<std::int32_t>(f->file)});
  }
  const auto box_at = [&](std::size_t i) -> const chunk& { return places_[begin + i].box; };
  const auto count = places_.size() - begin;
  if (!empty && !(count == 1 && box_at(0) == whole(item.global)) &&
      !detail::tiles(whole(item.global), count, box_at)) {
    std::vector<chunk> boxes;
    for (std::size_t i = 0; i < count; ++i) boxes.push_back(box_at(i));
    const detail::box_search search(boxes);
    const auto file_of = [&](std::size_t i) { return files_[places_[begin + i].file].name; };
    if (const auto two = search.overlap(whole(item.global)))
      fail(error_id::corrupt_bad_value,
           "two files hold the same part of a tensor; name the files that belong together, or the index",
           {.item = name.substr(0, 200),
            .file = file_of(two->second),
            .expected = "each element once",
            .got = to_string(boxes[two->second]) + ", as in " + file_of(two->first)});
    const auto hole = search.uncovered(whole(item.global));
    bad(error_id::corrupt_bad_value, "the files hold only a part of a tensor; is one of them missing?",
        *first, to_string(item.global), hole ? "nothing at " + to_string(*hole) : "less");
  }
  item.chunks = chunk_set::from(chunks);
  metadata_.items.push_back(std::move(item));
}

CAIRN_BODY const foreign_checkpoint::place& foreign_checkpoint::place_of(std::uint32_t item,
                                                                         std::uint64_t chunk) const {
  const auto& items = metadata_.items;
  if (item >= items.size() || chunk >= items[item].chunks.size())
    fail(error_id::plan_out_of_bounds,
         "a load plan names what this checkpoint does not hold; it was made for another one");
  const auto box = items[item].chunks[chunk].box;
  const auto first = places_.begin() + static_cast<std::ptrdiff_t>(firsts_[item]);
  const auto last = places_.begin() + static_cast<std::ptrdiff_t>(firsts_[item + 1]);
  // Boxes of one item differ in their offsets.
  return *std::lower_bound(first, last, box, [](const place& p, const cairn::chunk& b) { return p.box < b; });
}

CAIRN_BODY std::uint32_t foreign_checkpoint::item_of(std::size_t index) const noexcept {
  const auto after = std::upper_bound(firsts_.begin(), firsts_.end(), index);
  return static_cast<std::uint32_t>(after - firsts_.begin() - 1);
}

}  // namespace v1
}  // namespace cairn
