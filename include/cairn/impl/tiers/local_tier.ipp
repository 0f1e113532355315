// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/memory_limits.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/tiers/disk_image.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/held_store.hpp>
#include <cairn/tiers/local_tier.hpp>
#include <cairn/tiers/spread_images.hpp>
#include <cairn/tiers/tier_slots.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Holds saves; see image_tier::writer().
class tier_writer {
 public:
  explicit tier_writer(std::shared_ptr<tier_slots> slots) : slots_(std::move(slots)) {}

  [[nodiscard]] image_layout layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                                    int rank) const {
    return safetensors_layout(plan, item_bytes, rank);
  }
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return 0; }
  record write(const save_context& c, const staged_image& image, deadline until) {
    slots_->hold(c, image, until);
    return {};
  }
  void commit(const save_context&, const metadata&, deadline) {}
  void await_commit(const save_context&, deadline) {}
  void abort(const save_context&, std::exception_ptr) noexcept {}
  void remove(std::int64_t) {}
  bool quarantine(std::int64_t) { return false; }
  std::uint64_t clean(run_id) { return 0; }
  void check_space(space_needed) {}

 private:
  std::shared_ptr<tier_slots> slots_;
};
static_assert(StorageWriter<tier_writer>);

/// Reads what a tier holds. It models no SharingReader: each rank reads the memory of its host by itself.
class held_reader {
 public:
  using checkpoint_type = safetensors_reader::checkpoint_type;
  explicit held_reader(held_store store) : inner_(any_store(std::move(store))) {}
  [[nodiscard]] std::vector<std::int64_t> list() { return inner_.list(); }
  [[nodiscard]] std::vector<std::byte> fetch(std::int64_t step) { return inner_.fetch(step); }
  [[nodiscard]] checkpoint_type open(std::int64_t step, std::span<const std::byte> manifest_bytes) {
    return inner_.open(step, manifest_bytes);
  }
  std::uint64_t read(checkpoint_type& checkpoint, const state_dict& state, const load_plan& plan,
                     const target_resolver& resolver, read_options options, deadline until) {
    return inner_.read(checkpoint, state, plan, resolver, options, until);
  }
  std::uint64_t verify(checkpoint_type& checkpoint, deadline until) {
    return inner_.verify(checkpoint, until);
  }

 private:
  safetensors_reader inner_;
};
static_assert(StorageReader<held_reader>);

}  // namespace detail

CAIRN_BODY local_tier::local_tier(std::string directory, local_tier_options options)
    : slots_(
          std::make_shared<detail::tier_slots>(std::move(directory), options.keep, std::move(options.files))),
      copy_(std::move(options.copy)) {}
CAIRN_BODY local_tier::local_tier(local_tier&&) noexcept = default;
CAIRN_BODY local_tier::~local_tier() = default;

CAIRN_BODY std::string local_tier::describe() const {
  const auto& directory = slots_->directory();
  if (directory.on_disk()) return "a local tier in " + directory.path() + " (on a disk of this host)";
  const auto page = slots_->page_bytes();
  return "a local tier in " + directory.path() + " (in memory" +
         (page == 0 ? std::string() : ", pages of " + std::to_string(page >> 10) + " KiB") + ")";
}
CAIRN_BODY any_stager local_tier::stager() {
  return any_stager(tier_stager(slots_, copy_));
}
CAIRN_BODY void local_tier::open(const tier_user& user) {
  slots_->open(user);
}
CAIRN_BODY std::uint64_t local_tier::missing(const image_layout& layout) {
  return slots_->missing(layout.bytes + layout.blocks * sizeof(std::uint64_t));
}
CAIRN_BODY void local_tier::check_room(std::uint64_t bytes) {
  slots_->directory().check_room(bytes);
}
CAIRN_BODY void local_tier::keep_plan(std::uint64_t plan_digest, const metadata& stored) {
  slots_->directory().keep_plan(plan_digest, stored, static_cast<std::size_t>(slots_->depth()));
}
CAIRN_BODY any_writer local_tier::writer() {
  return any_writer(detail::tier_writer(slots_));
}

CAIRN_BODY std::vector<held_step> local_tier::held(std::vector<std::string>& damaged) {
  const auto& directory = slots_->directory();
  return detail::complete_saves(directory.path(), directory.held_names(), damaged);
}
CAIRN_BODY std::vector<held_step> local_tier::left_by_redundancy() {
  const auto& directory = slots_->directory();
  const auto held = directory.held_names();
  std::vector<held_step> found;
  for (const auto& each : directory.names()) {
    const auto kept = detail::parse_kept_name(each);
    if (!kept) continue;
    // A rank of which there are other images of that run was here, and had no time for this one.
    bool was_elsewhere = false;
    for (std::int32_t rank = 0; rank < kept->world_size && !was_elsewhere; ++rank)
      was_elsewhere = std::none_of(held.begin(), held.end(), [&](const detail::held_name& h) {
        return h.run == kept->run && h.world_size == kept->world_size && h.rank == rank;
      });
    held_step which{kept->step, kept->run, kept->attempt, kept->world_size};
    if (!was_elsewhere || detail::contains(found, which)) continue;
    found.push_back(std::move(which));
  }
  for (auto& which : found)
    for (const auto& h : held)
      if (h.run == which.run && h.attempt == which.attempt && h.step == which.step && h.rank == 0) try {
          const auto file = directory.path(to_string(h));
          const auto bytes = detail::tier_file(file);
          if (bytes) which.runs = detail::decode_held(*bytes, h, file).runs;
        } catch (const corrupt_error&) {  // then nobody tells
        }
  detail::sort(found, [](const held_step& a, const held_step& b) { return a.step < b.step; });
  return found;
}
CAIRN_BODY any_reader local_tier::reader(const held_step& which) {
  return any_reader(detail::held_reader(
      detail::held_store(slots_->directory().path(), which, slots_->directory().held_names())));
}
CAIRN_BODY bool local_tier::is_stored_as(const held_step& which, std::span<const std::byte> stored) {
  try {
    const auto m = decode_manifest(stored, "the manifest of a step that is held, too");
    return m.run == which.run && m.step == which.step && m.attempt == which.attempt;
  } catch (const corrupt_error&) {  // the store does not have it whole
    return false;
  }
}
CAIRN_BODY std::optional<held_image> local_tier::image(const held_step& which) {
  auto& directory = slots_->directory();
  if (const auto named = slots_->name_of(which)) {
    const auto& n = *named;
    const auto pinned = slots_->pin_image(n, deadline::in(std::chrono::seconds(30)));
    if (pinned == nullptr) return std::nullopt;
    const auto file = directory.path(to_string(n));
    auto bytes = detail::tier_file(file);
    if (!bytes) return std::nullopt;
    const auto held = detail::decode_held(*bytes, n, file);
    auto r = decode_record(held.record, file);
    if (held.begins.size() != r.files.size())
      fail(error_id::corrupt_identity, "a record of the local tier is of another save", {.file = file});
    std::uint64_t end = 0;
    for (std::size_t k = 0; k < r.files.size(); ++k) end = std::max(end, held.begins[k] + r.files[k].bytes);
    end = (end + image_alignment - 1) / image_alignment * image_alignment;
    held_image found{.bytes = pinned->bytes(),
                     .digests = std::move(r.blocks),
                     .description = std::move(*bytes),
                     .plan = detail::plan_in_tier(directory.path(), n.plan_digest).bytes,
                     .memory = pinned,
                     .pin = pinned};
    if (directory.on_disk()) {
      // The kernel would end this process where it takes memory that is not there.
      if (const auto room = detail::room_for_memory(); end > room.bytes) detail::fail_for_memory(end, room);
      // The pin stays with what was read: the file is not filled again as long as somebody has the image.
      struct pinned_copy {
        std::shared_ptr<const void> pin;
        std::vector<std::byte> bytes;
      };
      auto read = std::make_shared<const pinned_copy>(pinned_copy{
          pinned, detail::read_disk_image(directory.path(detail::slot_name(n.rank, n.slot)), end)});
      found.bytes = read->bytes;
      found.memory = std::move(read);
    }
    if (end > found.bytes.size())
      fail(error_id::corrupt_truncated, "an image of the local tier is shorter than its record says",
           {.file = file});
    found.bytes = found.bytes.first(end);
    return found;
  }
  return std::nullopt;
}
CAIRN_BODY void local_tier::when_held(detail::callback<void(const held_step&)> call) {
  slots_->when_held(std::move(call));
}
CAIRN_BODY void local_tier::withdraw(const held_step& which) {
  for (const auto& n : slots_->directory().held_names())
    if (n.run == which.run && n.attempt == which.attempt && n.step == which.step)
      slots_->directory().remove_record(n);
  // Of its pieces nobody rebuilds it.
  slots_->directory().remove_pieces([&](const detail::held_name& n) {
    return n.run == which.run && n.attempt == which.attempt && n.step == which.step;
  });
}
CAIRN_BODY void local_tier::go_on_from(const tier_base& base) {
  slots_->go_on_from(base);
}
CAIRN_BODY void local_tier::end() noexcept {
  slots_->end();
}

CAIRN_BODY void local_tier::spread() {
  slots_->spread();
}
CAIRN_BODY std::string local_tier::directory() const {
  return slots_->directory().path();
}
CAIRN_BODY std::shared_ptr<tier_files> local_tier::files() const {
  return slots_->directory().shared_files();
}
CAIRN_BODY std::int32_t local_tier::first_rank() const {
  return slots_->directory().first_rank();
}
CAIRN_BODY std::optional<pinned_save> local_tier::pin(const held_step& which) {
  const auto name = slots_->name_of(which);
  if (!name) return std::nullopt;
  auto pinned = slots_->pin_image(*name, deadline::in(std::chrono::seconds(30)));
  if (pinned == nullptr) return std::nullopt;
  return pinned_save{std::move(pinned), name->plan_digest};
}
CAIRN_BODY void local_tier::held_by_all(const held_step& which) noexcept {
  slots_->held_by_all(which);
}
CAIRN_BODY void local_tier::redundant() noexcept {
  const auto& directory = slots_->directory();
  if (!directory.first_here()) return;
  try {
    directory.remove_of_others();
  } catch (...) {  // the next one tries again
  }
}
CAIRN_BODY bool local_tier::holds_any() {
  return !slots_->directory().held_names().empty();
}
CAIRN_BODY std::vector<surveyed_save> local_tier::survey(std::vector<std::string>& damaged) {
  return detail::survey_images(slots_->directory().path(), damaged);
}
CAIRN_BODY std::vector<std::byte> local_tier::manifest_of(const surveyed_save& all) {
  return detail::spread_manifest(slots_->directory().path(), all);
}
CAIRN_BODY any_reader local_tier::spread_reader(const surveyed_save& which,
                                                std::shared_ptr<const file_holders> holders) {
  return detail::spread_reader(slots_->directory().path(), which, std::move(holders));
}
CAIRN_BODY std::vector<std::string> local_tier::give_up_damaged(const surveyed_save& which) {
  return detail::give_up_damaged_images(slots_->directory().path(), which, slots_->directory().files());
}
CAIRN_BODY std::vector<std::byte> local_tier::plan_of(const surveyed_save& which) {
  return detail::plan_in_tier(slots_->directory().path(), which.plan_digest).bytes;
}
CAIRN_BODY void local_tier::take_plan(const surveyed_save& which, std::span<const std::byte> plan) {
  detail::take_plan(slots_->directory().path(), which, plan, slots_->directory().files());
}
CAIRN_BODY void local_tier::images_were_added() {
  slots_->images_were_added();
}

}  // namespace v1
}  // namespace cairn
