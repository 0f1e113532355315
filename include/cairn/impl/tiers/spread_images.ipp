// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/held_store.hpp>
#include <cairn/tiers/spread_images.hpp>
#include <cairn/tiers/tier_directory.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Reads what a place holds of a save, and what others hold with them; see surveyed_tier::spread_reader.
class spread_held_reader {
 public:
  using checkpoint_type = safetensors_reader::checkpoint_type;
  spread_held_reader(held_store store, std::shared_ptr<const file_holders> holders)
      : inner_(any_store(std::move(store)), std::move(holders)) {}
  [[nodiscard]] std::vector<std::int64_t> list() { return inner_.list(); }
  [[nodiscard]] std::vector<std::byte> fetch(std::int64_t step) { return inner_.fetch(step); }
  [[nodiscard]] checkpoint_type open(std::int64_t step, std::span<const std::byte> manifest_bytes) {
    return inner_.open(step, manifest_bytes);
  }
  std::uint64_t read(checkpoint_type& checkpoint, const state_dict& state, const load_plan& plan,
                     const target_resolver& resolver, read_options options, deadline until) {
    return inner_.read(checkpoint, state, plan, resolver, options, until);
  }
  std::uint64_t read_shared(checkpoint_type& checkpoint, const state_dict& state, const load_plan& plan,
                            const target_resolver& resolver, read_options options, read_exchange& exchange,
                            deadline until) {
    return inner_.read_shared(checkpoint, state, plan, resolver, options, exchange, until);
  }
  std::uint64_t verify(checkpoint_type& checkpoint, deadline until) {
    return inner_.verify(checkpoint, until);
  }

 private:
  safetensors_reader inner_;
};
static_assert(SharingReader<spread_held_reader>);

[[nodiscard]] inline bool is_of(const held_name& name, const surveyed_save& save) {
  return name.run == save.run && name.attempt == save.attempt && name.step == save.step &&
         name.world_size == save.world_size && name.plan_digest == save.plan_digest;
}
[[nodiscard]] inline std::vector<held_name> names_of_save(const std::string& directory,
                                                          const surveyed_save& save) {
  std::vector<held_name> found;
  for (const auto& each : names_in_tier(directory))
    if (const auto name = parse_held_name(each); name && is_of(*name, save)) found.push_back(*name);
  return found;
}

[[nodiscard]] inline bool has_file_of_plan(const std::string& directory, std::uint64_t plan_digest) {
  for (const auto& name : {plan_name(plan_digest), second_plan_name(plan_digest)})
    if (::access((directory + "/" + name).c_str(), F_OK) == 0 || errno != ENOENT) return true;
  return false;
}

CAIRN_BODY std::vector<surveyed_save> survey_images(const std::string& directory,
                                                    std::vector<std::string>& damaged) {
  using key = std::tuple<std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                         std::uint64_t, std::int32_t>;
  std::map<key, surveyed_save> saves;
  std::map<std::uint64_t, bool> plans;
  for (const auto& each : names_in_tier(directory)) {
    const auto name = parse_held_name(each);
    if (!name) continue;
    auto& save =
        saves[{name->step, name->run.high, name->run.low, save_count_of(name->run, name->step, name->attempt),
               name->attempt, name->plan_digest, name->world_size}];
    save.run = name->run, save.attempt = name->attempt, save.step = name->step;
    save.world_size = name->world_size, save.plan_digest = name->plan_digest;
    try {
      const auto path = directory + "/" + each;
      const auto bytes = tier_file(path);
      if (!bytes) continue;
      auto held = decode_held(*bytes, *name, path);
      const auto r = decode_record(held.record, path);
      const auto header = decode_record_header(held.record, path);
      const auto image = directory + "/" + slot_name(name->rank, name->slot);
      struct stat s {};
      if (::stat(image.c_str(), &s) != 0)
        fail(error_id::corrupt_missing_file, "the local tier has lost the image of a save", {.file = image});
      for (std::size_t k = 0; k < r.files.size(); ++k)
        if (k >= held.begins.size() ||
            held.begins[k] + r.files[k].bytes > static_cast<std::uint64_t>(s.st_size))
          fail(error_id::corrupt_truncated, "an image of the local tier is shorter than its record says",
               {.file = image});
      if (!(header.run == name->run) || header.attempt != name->attempt || header.step != name->step ||
          header.rank != name->rank || header.plan_digest != name->plan_digest)
        fail(error_id::corrupt_identity, "a record of the local tier is of another save", {.file = path});
      const auto known = [&](const surveyed_image& i) { return i.rank == name->rank; };
      if (std::none_of(save.images.begin(), save.images.end(), known))
        save.images.push_back({name->rank, header.files, header.header_digest, header.data_bytes});
      if (name->rank == 0 && held.runs) save.has_runs = true, save.runs = std::move(*held.runs);
      const auto [plan, added] = plans.try_emplace(name->plan_digest);
      // A place may hold an image before it gets the plan from another one.
      if (added && has_file_of_plan(directory, name->plan_digest)) {
        static_cast<void>(plan_in_tier(directory, name->plan_digest));
        plan->second = true;
      }
    } catch (const corrupt_error& e) {
      damaged.push_back("the save of step " + std::to_string(name->step) + " in the local tier: " + e.what());
    }
  }
  std::vector<surveyed_save> found;
  for (auto& [which, save] : saves) {
    save.has_plan = plans[save.plan_digest];
    std::sort(save.images.begin(), save.images.end(),
              [](const auto& a, const auto& b) { return a.rank < b.rank; });
    found.push_back(std::move(save));
  }
  return found;
}

CAIRN_BODY std::vector<std::byte> spread_manifest(const std::string& directory, const surveyed_save& all,
                                                  std::int64_t unix_time) {
  auto m = plan_in_tier(directory, all.plan_digest).content;
  if (m.content.world_size != all.world_size)
    fail(error_id::corrupt_identity, "a plan of the local tier is of another number of ranks",
         {.file = directory + "/" + plan_name(all.plan_digest)});
  m.run = all.run, m.step = all.step, m.attempt = all.attempt, m.unix_time = unix_time;
  m.records.clear();
  for (const auto& i : all.images)
    m.records.push_back({all.step, all.attempt, i.rank, i.files, i.record_digest, i.data_bytes});
  return encode_manifest(m);
}

CAIRN_BODY any_reader spread_reader(const std::string& directory, const surveyed_save& which,
                                    std::shared_ptr<const file_holders> holders) {
  return any_reader(
      spread_held_reader(held_store(directory, names_of_save(directory, which)), std::move(holders)));
}

/// @throws corrupt_error, storage_error
inline void verify_image(const std::string& directory, const held_name& name) {
  const auto path = directory + "/" + to_string(name);
  const auto bytes = tier_file(path);
  if (!bytes) return;  // given up meanwhile
  const auto held = decode_held(*bytes, name, path);
  const auto r = decode_record(held.record, path);
  const auto image = directory + "/" + slot_name(name.rank, name.slot);
  const file_descriptor file(::open(image.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.open()) fail_unreadable(errno, "an image of the local tier could not be opened", image);
  std::vector<std::byte> room(digest_block_bytes);
  for (const auto& item : r.items)
    for (std::uint64_t at = 0; at < item.bytes; at += digest_block_bytes) {
      const auto block = std::span(room).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(item.bytes - at, digest_block_bytes)));
      const int code = read_exactly(file.get(), held.begins.at(item.file) + item.offset + at, block);
      if (code == file_has_ended)
        fail(error_id::corrupt_truncated, "an image of the local tier has become shorter", {.file = image});
      if (code != 0) fail_unreadable(code, "an image of the local tier could not be read", image);
      if (digest(block) != r.blocks[item.first_block + at / digest_block_bytes])
        fail(error_id::corrupt_digest, "a block of an image of the local tier is not what was saved",
             {.file = image, .offset = static_cast<std::int64_t>(held.begins[item.file] + item.offset + at)});
    }
}

CAIRN_BODY std::vector<std::string> give_up_damaged_images(const std::string& directory,
                                                           const surveyed_save& which, tier_files& files) {
  const auto names = names_of_save(directory, which);
  std::vector<std::string> why(names.size());
  parallel_for(names.size(), load_threads(), [&](std::size_t i, std::size_t) {
    try {
      verify_image(directory, names[i]);
    } catch (const corrupt_error& e) {
      why[i] = "the image of rank " + std::to_string(names[i].rank) + " of step " +
               std::to_string(names[i].step) + " is given up: " + e.what();
    }
  });
  std::vector<std::string> given_up;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (why[i].empty()) continue;
    files.remove(directory + "/" + to_string(names[i]));
    given_up.push_back(std::move(why[i]));
  }
  return given_up;
}

CAIRN_BODY void take_plan(const std::string& directory, const surveyed_save& which,
                          std::span<const std::byte> plan, tier_files& files) {
  for (const auto& name : {second_plan_name(which.plan_digest), plan_name(which.plan_digest)}) {
    if (::access((directory + "/" + name).c_str(), F_OK) == 0) {
      try {
        if (decode_manifest(*tier_file(directory + "/" + name), name).plan_digest == which.plan_digest)
          continue;
      } catch (const corrupt_error&) {  // this one is whole
      }
    }
    put_durably(files, directory, "new-plan-of-others", name, plan, !lies_in_memory(directory));
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
