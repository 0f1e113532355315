// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/manage/chosen_names.hpp>
#include <cairn/manage/element_reads.hpp>
#include <cairn/manage/removed_step.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/json_text.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/large_buffer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Options of an export.
struct export_options {
  std::vector<std::string> items = {};  ///< globs of the names to export; empty: all
  /// A prefix that is removed from names that have it, such as "model." for a file that only a model reads.
  std::string strip_prefix = {};
  std::uint64_t max_shard_bytes = 5'000'000'000;  ///< of the data of a file, unless one tensor is longer
  std::string name = "model";  ///< of the files: NAME-00001-of-00002.safetensors; not empty, without '/'
  std::uint64_t memory_bytes = std::uint64_t{256} << 20;  ///< for buffers, about
  /// Called with the bytes written so far and the bytes in all.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
  /// Called between reads; true ends the export early.
  std::function<bool()> stop = {};
};

/// The result of an export.
struct export_report {
  std::vector<std::string> files = {};     ///< keys, in order; the index is the last
  std::vector<std::string> left_out = {};  ///< items that are no tensors of the whole job: bytes, per-rank
  /// Tensors in the files that were written.
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;  ///< of tensors
  bool complete = true;     ///< false: `stop` said so; the file that was begun is not there
};

namespace detail {

/// Writes one checkpoint as stock safetensors files. One use.
class safetensors_export {
 public:
  safetensors_export(safetensors_reader& reader, stored_checkpoint& checkpoint, const any_store& target,
                     const export_options& options)
      : reader_(reader), checkpoint_(checkpoint), target_(target), options_(options) {}

  export_report run() {
    const auto files = find_files();
    // Before the first byte: the index is put last, which may be hours later.
    for (std::size_t i = 0; i < files.size(); ++i) require_free(key_of_file(i, files.size()));
    require_free(index_key());
    const auto unit = std::max<std::uint64_t>(target_.io_alignment(), 1);
    const auto least = std::max<std::uint64_t>(options_.memory_bytes / 2, std::uint64_t{1} << 20);
    buffer_ = large_buffer(static_cast<std::size_t>((least + unit - 1) / unit * unit));
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (!write_file(files[i], key_of_file(i, files.size()))) {
        report_.complete = false;
        return report_;
      }
      report_.files.push_back(key_of_file(i, files.size()));
    }
    put_index(files);
    return report_;
  }

 private:
  struct tensor {
    std::uint32_t stored;  ///< index of the item
    std::string name;
    dtype type;
    extents shape;
    std::uint64_t bytes;
  };
  using file = std::vector<tensor>;
  /// The tensors in the order of their names, cut into files; in each by falling size of their elements.
  [[nodiscard]] std::vector<file> find_files() {
    std::vector<file> files;
    std::vector<std::string> names;
    std::uint64_t in_file = 0;
    const auto& items = checkpoint_.metadata().items;
    chosen_names wanted(options_.items);
    for (std::uint32_t i = 0; i < items.size(); ++i) {
      const auto& item = std::as_const(items)[i];
      if (!wanted.take(item.name)) continue;
      if (item.kind == item_kind::bytes || item.per_rank) {
        report_.left_out.push_back(item.name);
        continue;
      }
      auto name = item.name;
      if (!options_.strip_prefix.empty() && name.starts_with(options_.strip_prefix) &&
          name.size() > options_.strip_prefix.size()) {
        name.erase(0, options_.strip_prefix.size());
        if (const auto problem = name_problem(name); !problem.empty())
          fail(error_id::usage_bad_name,
               "the name that a tensor has without the prefix " + std::string(problem) +
                   ": export without the prefix removed",
               {.item = item.name, .got = name});
      }
      const auto bytes = checked_bytes(item.type, item.global).value_or(0);
      if (files.empty() ||
          (in_file != 0 && bytes > options_.max_shard_bytes - std::min(in_file, options_.max_shard_bytes)))
        files.emplace_back(), in_file = 0;
      in_file += bytes;
      names.push_back(name);
      files.back().push_back({i, std::move(name), item.type, item.global, bytes});
      all_ += bytes;
    }
    wanted.require_all_used([&](auto tell) {
      for (const auto& item : items) tell(item.name);
    });
    if (files.empty())
      fail(error_id::usage_unknown_name,
           "no tensor of step " + std::to_string(checkpoint_.manifest().step) + " is to be exported");
    detail::sort(names);
    if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
      fail(error_id::usage_duplicate_name, "two tensors have this name without the prefix", {.item = *twice});
    for (auto& f : files) {
      detail::sort(f, [](const tensor& a, const tensor& b) {
        return alignment_class(a.type) < alignment_class(b.type);
      });
      report_.tensors += f.size();
    }
    report_.bytes = all_;
    return files;
  }
  void require_free(const std::string& key) const {
    if (target_.size(key))
      fail(error_id::storage_exists,
           "the target has a file of this name, which an export does not touch: remove it, or export "
           "elsewhere or under another name",
           {.file = key});
  }
  [[nodiscard]] std::string index_key() const { return options_.name + ".safetensors.index.json"; }
  [[nodiscard]] std::string key_of_file(std::size_t i, std::size_t count) const {
    char text[64];
    std::snprintf(text, sizeof text, "-%05zu-of-%05zu.safetensors", i + 1, count);
    return options_.name + text;
  }

  /// False if it was to stop.
  [[nodiscard]] bool write_file(const file& tensors, const std::string& key) {
    safetensors_header header;
    header.metadata.emplace_back("format", "pt");
    std::uint64_t end = 0;
    for (const auto& t : tensors) {
      safetensors_entry e;
      e.key = t.name, e.type = t.type, e.shape = t.shape;
      e.begin = end, e.end = end += t.bytes;
      header.entries.push_back(std::move(e));
    }
    const auto head = encode_safetensors_header(header);
    auto writer = target_.create(key, head.size() + end);
    const write_range first{0, head};
    writer.write({&first, 1});
    // Buffer by buffer, whatever lies in it: a part of a tensor, or many small ones.
    std::uint64_t at = head.size();
    std::uint64_t filled = 0;
    element_reads wanted(checkpoint_.metadata(), [&](const load_plan& plan, const target_resolver& resolver) {
      return reader_.read(checkpoint_, state_dict(), plan, resolver,
                          {.memory_budget = options_.memory_bytes / 2}, deadline::never());
    });
    const auto flush = [&] {
      if (filled == 0) return true;
      if (options_.stop && options_.stop()) return false;
      (void)wanted.read();
      const write_range part{at, {buffer_.data(), static_cast<std::size_t>(filled)}};
      writer.write({&part, 1});
      at += filled, done_ += filled;
      filled = 0;
      if (options_.progress) options_.progress(done_, all_);
      return true;
    };
    for (const auto& t : tensors) {
      const auto granule = granule_of(t.type);
      const auto granule_bytes = bytes_of(t.type, granule);
      const auto elements = t.bytes / granule_bytes * static_cast<std::uint64_t>(granule);
      for (std::uint64_t begin = 0; begin < elements;) {
        const auto room = (buffer_.size() - filled) / granule_bytes * static_cast<std::uint64_t>(granule);
        if (room == 0) {
          if (!flush()) return false;
          continue;
        }
        const auto count = std::min(room, elements - begin);
        wanted.want(t.stored, whole(t.shape), begin, count, buffer_.data() + filled);
        filled += bytes_of(t.type, static_cast<std::int64_t>(count));
        begin += count;
      }
    }
    if (!flush() || (options_.stop && options_.stop())) return false;
    writer.finish();
    return true;
  }
  void put_index(const std::vector<file>& files) {
    std::vector<std::pair<std::string, std::size_t>> names;
    for (std::size_t i = 0; i < files.size(); ++i)
      for (const auto& t : files[i]) names.emplace_back(t.name, i);
    detail::sort(names);
    std::string text =
        "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(all_) + "\n  },\n  \"weight_map\": {\n";
    for (std::size_t i = 0; i < names.size(); ++i) {
      text += "    ";
      append_json(text, names[i].first);
      text += ": ";
      append_json(text, key_of_file(names[i].second, files.size()));
      text += i + 1 < names.size() ? ",\n" : "\n";
    }
    text += "  }\n}\n";
    auto key = index_key();
    target_.put_new(key, std::as_bytes(std::span(text.data(), text.size())));
    report_.files.push_back(std::move(key));
  }

  safetensors_reader& reader_;
  stored_checkpoint& checkpoint_;
  any_store target_;
  const export_options& options_;
  large_buffer buffer_;
  std::uint64_t all_ = 0;
  std::uint64_t done_ = 0;
  export_report report_;
};

}  // namespace detail

/// Writes the whole tensors and the values of one checkpoint, with their dtypes, as safetensors files
/// without ranks and with the index that Hugging Face's libraries read: NAME-00001-of-0000N.safetensors
/// and NAME.safetensors.index.json, the index last. Works for any number of ranks that saved, and however
/// tensors were cut or compressed. Verifies every block before it writes it. Values become tensors
/// without dimensions. Leaves out items of bytes and per-rank items, and lists them in the report. Holds a lease, as
/// verify_checkpoint() does.
/// @throws storage_error: storage_not_committed, also where the checkpoint is removed meanwhile; storage_exists where the target has a file of such a name,
/// which is not touched, before anything is written; corrupt_error; usage_error if there is no tensor, a pattern
/// matches no item, the name of the files is none (usage_bad_option), or a tensor would have no name that an item may
/// have (usage_bad_name), or that of another one (usage_duplicate_name), without the prefix
template <ByteStore Target>
export_report export_safetensors(safetensors_reader& reader, std::int64_t step, Target& target,
                                 const export_options& options = {}) {
  // The index names files beside it.
  if (options.name.empty() || options.name.find('/') != std::string::npos)
    fail(error_id::usage_bad_option, "the name of exported files is empty or has a '/': it is no path",
         {.got = "'" + options.name + "'"});
  const auto manifest_bytes = reader.fetch(step);
  const auto lease = detail::lease_to_read(reader.store(), step);
  auto checkpoint = reader.open(step, manifest_bytes);
  return detail::read_committed(reader.store(), step, digest(manifest_bytes), [&] {
    return detail::safetensors_export(reader, checkpoint, any_store::lent(target), options).run();
  });
}

}  // namespace v1
}  // namespace cairn
