// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/linked_files.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void linked_files::link(deadline until) {
  for (const auto& of : context_.link_from) {
    require_time(until);
    auto found = record_with_files(of);
    if (!found || !link_all(of, until)) continue;
    source_ = std::move(*found);
    return;
  }
  const auto step = context_.link_from.empty() ? context_.step : context_.link_from.back().step;
  fail(error_id::storage_not_found,
       "the files of frozen items, to which this save was to link its own, are gone: was the checkpoint of "
       "step " +
           std::to_string(step) + " removed? The next save writes these items anew",
       {.rank = context_.rank, .file = step_directory(step)});
}

CAIRN_BODY void linked_files::require_time(deadline until) const {
  if (until.passed())
    fail(
        error_id::timeout_write,
        "the files of frozen items were not linked in time: where the store copies them, that takes its time "
        "(checkpointer_options::timeout)",
        {.rank = context_.rank, .file = step_directory(context_.step)});
}

CAIRN_BODY std::optional<record> linked_files::record_with_files(const save_attempt& of) const {
  const auto key = record_key(of.step, context_.rank, of.attempt, place_);
  try {
    const auto bytes = store_.read_all(key, max_record_bytes);
    if (!bytes) return {};
    auto r = decode_record(*bytes, key);
    if (r.run != context_.run || r.attempt != of.attempt || r.step != of.step || r.rank != context_.rank ||
        r.files.size() != first_ + files_.size())
      return {};
    for (std::size_t k = 0; k < files_.size(); ++k) {
      linked_file there{r.files[first_ + k].bytes, 0, 0, files_[k].header};
      digest_stream contents;
      contents.put(static_cast<std::uint32_t>(first_ + k));
      for (const auto& i : r.items) {
        if (i.file != first_ + k) continue;
        contents.put(i.key.name).put(i.key.box).put(i.offset).put(i.bytes);
        ++there.items;
      }
      there.contents = contents.value();
      if (there != files_[k]) return {};
    }
    return r;
  } catch (const corrupt_error&) {  // of a rank that failed, or damaged: not to be built upon
    return {};
  }
}

CAIRN_BODY bool linked_files::link_all(const save_attempt& of, deadline until) const {
  const auto own = [&](std::size_t k) {
    return data_key(context_.step, context_.rank, context_.attempt, first_ + static_cast<std::uint32_t>(k),
                    place_);
  };
  for (std::size_t k = 0; k < files_.size(); ++k) try {
      require_time(until);
      const auto index = first_ + static_cast<std::uint32_t>(k);
      store_.link(data_key(of.step, context_.rank, of.attempt, index, place_), own(k), until);
    } catch (const storage_error& e) {
      if (e.id() != error_id::storage_not_found) throw;
      for (std::size_t made = 0; made < k; ++made) store_.remove(own(made));
      return false;
    }
  return true;
}

CAIRN_BODY void linked_files::add_to(record& written) const {
  for (std::size_t k = 0; k < files_.size(); ++k) {
    written.files.push_back({files_[k].bytes});
    for (auto i : source_.items) {
      if (i.file != first_ + k) continue;
      const auto begin = source_.blocks.begin() + static_cast<std::ptrdiff_t>(i.first_block);
      i.first_block = written.blocks.size();
      written.items.push_back(i);
      written.blocks.insert(written.blocks.end(), begin,
                            begin + static_cast<std::ptrdiff_t>(block_count(i.bytes)));
    }
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
