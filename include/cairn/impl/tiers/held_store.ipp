// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_context.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/digesting_copy.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/huge_mapping.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/tiers/held_store.hpp>
#include <cairn/tiers/tier_directory.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

[[noreturn]] inline void fail_read_only(const std::string& place) {
  fail(error_id::storage_permission, "nobody writes what a local tier holds", {.file = place});
}
CAIRN_BODY tier_plan plan_in_tier(const std::string& directory, std::uint64_t plan_digest) {
  const auto decode = [&](const std::string& name) {
    const auto path = directory + "/" + name;
    auto bytes = tier_file(path);
    if (!bytes)
      fail(error_id::corrupt_missing_file, "the local tier has lost the plan of a save", {.file = path});
    auto m = decode_manifest(*bytes, path);
    if (m.plan_digest != plan_digest)
      fail(error_id::corrupt_identity, "a plan of the local tier lies under another name than its own",
           {.file = path});
    return tier_plan{std::move(*bytes), std::move(m)};
  };
  try {
    return decode(plan_name(plan_digest));
  } catch (const corrupt_error&) {
    return decode(second_plan_name(plan_digest));
  }
}

CAIRN_BODY bool has_plan_in_tier(const std::string& directory, std::uint64_t plan_digest) {
  for (const auto& name : {plan_name(plan_digest), second_plan_name(plan_digest)})
    if (::access((directory + "/" + name).c_str(), F_OK) != 0) return false;
  return true;
}

CAIRN_BODY void held_store::object_writer::write(std::span<const write_range>) {
  fail_read_only("");
}
CAIRN_BODY void held_store::object_writer::finish() {
  fail_read_only("");
}

/// An image, and where it is mapped for those that look at it, once one does.
struct held_store::image_file {
  image_file(file_descriptor opened, bool in_memory) : file(std::move(opened)), in_memory_(in_memory) {}
  /// Empty where it cannot be mapped.
  [[nodiscard]] std::span<const std::byte> bytes() {
    const std::lock_guard lock(mutex_);
    if (mapping_ == nullptr) {
      struct stat s {};
      const bool fits = in_memory_ && ::fstat(file.get(), &s) == 0;
      mapping_ = std::make_unique<huge_mapping>(file.get(), fits ? static_cast<std::size_t>(s.st_size) : 0,
                                                PROT_READ);
    }
    return mapping_->bytes();
  }
  const file_descriptor file;

 private:
  const bool in_memory_;
  std::mutex mutex_;
  std::unique_ptr<huge_mapping> mapping_;
};
struct held_store::content {
  std::map<std::string, object, std::less<>> objects;
  std::vector<std::unique_ptr<image_file>> files;
  std::optional<std::vector<run_id>> runs;
};
CAIRN_BODY const std::optional<std::vector<run_id>>& held_store::runs() const noexcept {
  return content_->runs;
}

/// What a record says of its image.
struct held_store::part {
  record_header header;
  std::optional<std::vector<run_id>> runs;
};

[[noreturn]] inline void fail_missing_part(const std::string& directory, const std::string& what) {
  fail(error_id::corrupt_missing_file, "the local tier has lost a part of a save: " + what,
       {.file = directory});
}

CAIRN_BODY held_store::part held_store::add_image(content& to, const std::string& directory,
                                                  const held_name& name) {
  const auto record_path = directory + "/" + to_string(name);
  const auto bytes = tier_file(record_path);
  if (!bytes) fail_missing_part(directory, record_path);
  auto held = decode_held(*bytes, name, record_path);
  const auto r = decode_record(held.record, record_path);
  const auto header = decode_record_header(held.record, record_path);
  if (!(header.run == name.run) || header.attempt != name.attempt || header.step != name.step ||
      header.rank != name.rank || header.plan_digest != name.plan_digest ||
      held.begins.size() != r.files.size())
    fail(error_id::corrupt_identity, "a record of the local tier is of another save", {.file = record_path});
  const auto image_path = directory + "/" + slot_name(name.rank, name.slot);
  file_descriptor file(::open(image_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat s {};
  if (!file.open() && errno != ENOENT)
    fail_unreadable(errno, "an image of the local tier could not be opened", image_path);
  if (!file.open() || ::fstat(file.get(), &s) != 0) fail_missing_part(directory, image_path);
  std::vector<object> files;
  for (std::uint32_t k = 0; k < r.files.size(); ++k) {
    const auto end = held.begins[k] + r.files[k].bytes;
    if (end < held.begins[k] || end > static_cast<std::uint64_t>(s.st_size))
      fail(error_id::corrupt_truncated, "an image of the local tier is shorter than its record says",
           {.file = image_path});
    files.push_back({.bytes = {},
                     .file = to.files.size(),
                     .begin = held.begins[k],
                     .size = r.files[k].bytes,
                     .data = true});
  }
  to.files.push_back(std::make_unique<image_file>(std::move(file), lies_in_memory(directory)));
  for (std::uint32_t k = 0; k < files.size(); ++k)
    to.objects.insert_or_assign(data_key(name.step, name.rank, name.attempt, k), std::move(files[k]));
  object record{.bytes = std::move(held.record)};
  record.size = record.bytes.size();
  to.objects.insert_or_assign(record_key(name.step, name.rank, name.attempt), std::move(record));
  return {header, std::move(held.runs)};
}

CAIRN_BODY held_store::held_store(const std::string& directory, std::span<const held_name> names)
    : describe_("local tier " + directory) {
  auto made = std::make_shared<content>();
  for (const auto& name : names) try {
      static_cast<void>(add_image(*made, directory, name));
    } catch (const corrupt_error&) {  // who wants it finds it missing
    }
  content_ = std::move(made);
}

CAIRN_BODY held_store::held_store(std::span<const std::string> directories,
                                  std::span<const std::vector<held_name>> names, std::int64_t step,
                                  std::vector<std::byte> manifest)
    : describe_("local tiers in " + std::to_string(directories.size()) + " directories") {
  auto made = std::make_shared<content>();
  for (std::size_t i = 0; i < directories.size(); ++i)
    for (const auto& name : names[i]) {
      if (made->objects.contains(record_key(name.step, name.rank, name.attempt))) continue;
      try {
        static_cast<void>(add_image(*made, directories[i], name));
      } catch (const corrupt_error&) {  // who wants it finds it missing
      }
    }
  object whole{.bytes = std::move(manifest)};
  whole.size = whole.bytes.size();
  made->objects.insert_or_assign(manifest_key(step), std::move(whole));
  content_ = std::move(made);
}

CAIRN_BODY held_store::held_store(const std::string& directory, const held_step& which,
                                  std::span<const held_name> names)
    : describe_("local tier " + directory) {
  auto made = std::make_shared<content>();
  manifest m;
  for (std::int32_t rank = 0; rank < which.world_size; ++rank) {
    const auto name = std::find_if(names.begin(), names.end(), [&](const held_name& n) {
      return n.run == which.run && n.attempt == which.attempt && n.step == which.step &&
             n.world_size == which.world_size && n.rank == rank;
    });
    if (name == names.end()) fail_missing_part(directory, "the record of rank " + std::to_string(rank));
    if (rank == 0) {
      m = plan_in_tier(directory, name->plan_digest).content;
      if (m.content.world_size != which.world_size)
        fail(error_id::corrupt_identity, "a plan of the local tier is of another number of ranks",
             {.file = directory + "/" + plan_name(name->plan_digest)});
      m.run = which.run, m.step = which.step, m.attempt = which.attempt;
      m.records.clear();
    }
    auto [header, runs] = add_image(*made, directory, *name);
    if (header.plan_digest != m.plan_digest)
      fail(error_id::corrupt_identity, "a record of the local tier is of another save",
           {.file = directory + "/" + to_string(*name)});
    m.records.push_back(
        {header.step, header.attempt, header.rank, header.files, header.header_digest, header.data_bytes});
    if (rank == 0) made->runs = std::move(runs);
  }
  object whole{.bytes = encode_manifest(m)};
  whole.size = whole.bytes.size();
  made->objects.insert_or_assign(manifest_key(which.step), std::move(whole));
  content_ = std::move(made);
}

CAIRN_BODY held_store::object_writer held_store::create(std::string_view, std::uint64_t) {
  fail_read_only(describe_);
}
CAIRN_BODY bool held_store::publish_new(std::string_view, std::span<const std::byte>) {
  fail_read_only(describe_);
}
CAIRN_BODY void held_store::remove(std::string_view) {
  fail_read_only(describe_);
}

CAIRN_BODY void held_store::read(std::span<const read_range> ranges) const {
  for (const auto& range : ranges) {
    const auto found = content_->objects.find(range.key);
    if (found == content_->objects.end())
      fail(error_id::storage_not_found, "the local tier does not have this file",
           {.file = std::string(range.key)});
    const auto& o = found->second;
    if (range.offset > o.size || range.destination.size() > o.size - range.offset)
      fail(error_id::corrupt_truncated, "a file of the local tier ends before what is wanted of it",
           {.file = std::string(range.key)});
    if (!o.data) {
      if (!range.destination.empty())
        std::memcpy(range.destination.data(), o.bytes.data() + range.offset, range.destination.size());
      continue;
    }
    const int code =
        read_exactly(content_->files[o.file]->file.get(), o.begin + range.offset, range.destination);
    if (code == file_has_ended)
      fail(error_id::corrupt_truncated, "an image of the local tier has become shorter",
           {.file = std::string(range.key)});
    if (code != 0)
      fail_unreadable(code, "an image of the local tier could not be read", std::string(range.key));
  }
}
CAIRN_BODY const std::byte* held_store::lent(std::string_view key, std::uint64_t offset,
                                             std::uint64_t bytes) const noexcept {
  const auto found = content_->objects.find(key);
  if (found == content_->objects.end() || !found->second.data) return nullptr;
  const auto& o = found->second;
  try {
    const auto all = content_->files[o.file]->bytes();
    if (offset > o.size || bytes > o.size - offset || o.begin + offset + bytes > all.size()) return nullptr;
    const auto* const at = all.data() + o.begin + offset;
    // read() tells what is wrong with the others.
    return populate_source(at, static_cast<std::size_t>(bytes)) ? at : nullptr;
  } catch (...) {  // such as no memory for the mapping: it can be read
    return nullptr;
  }
}
CAIRN_BODY std::optional<std::uint64_t> held_store::size(std::string_view key) const {
  const auto found = content_->objects.find(key);
  if (found == content_->objects.end()) return std::nullopt;
  return found->second.size;
}
CAIRN_BODY std::vector<listed_object> held_store::list(std::string_view prefix) const {
  std::vector<listed_object> found;
  for (const auto& [key, o] : content_->objects)
    if (key.starts_with(prefix)) found.push_back({key, o.size});
  return found;
}
CAIRN_BODY held_session held_store::begin_reads() const {
  return held_session(*this);
}
CAIRN_BODY void held_session::read(std::span<const read_range> ranges) {
  store_.read(ranges);
  for (const auto& range : ranges) bytes_->fetch_add(range.destination.size(), std::memory_order_relaxed);
}

CAIRN_BODY bool held_session::copy(std::string_view key, std::uint64_t offset,
                                   std::span<std::byte> destination, std::uint64_t* digest) {
  const auto* const at = store_.lent(key, offset, destination.size());
  if (at == nullptr) return false;
  copy_and_digest(destination.data(), at, destination.size(), digest);
  bytes_->fetch_add(destination.size(), std::memory_order_relaxed);
  return true;
}

CAIRN_BODY std::vector<held_step> complete_saves(const std::string& directory,
                                                 std::span<const held_name> names,
                                                 std::vector<std::string>& damaged) {
  using key =
      std::tuple<std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::int32_t>;
  std::map<key, std::int32_t> ranks;
  for (const auto& n : names)
    ++ranks[{n.step, n.run.high, n.run.low, save_count_of(n.run, n.step, n.attempt), n.attempt,
             n.world_size}];
  std::vector<held_step> found;
  for (const auto& [which_save, count] : ranks) {
    const auto& [step, high, low, save_count, attempt, world_size] = which_save;
    static_cast<void>(save_count);  // it puts those of one run in their order
    held_step which{step, {high, low}, attempt, world_size};
    if (count < world_size) continue;  // some rank did not come so far
    try {
      const held_store whole(directory, which, names);
      which.runs = whole.runs();
      found.push_back(std::move(which));
    } catch (const storage_error&) {  // such as a limit of open files: it is there as it was
      throw;
    } catch (const error& e) {
      damaged.push_back("the save of step " + std::to_string(step) + " in the local tier: " + e.what());
    }
  }
  order_by_runs(found, [](const held_step& h) -> const held_step& { return h; });
  return found;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
