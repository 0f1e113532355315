// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/tiers/disk_image.hpp>
#include <cairn/tiers/slot_rule.hpp>
#include <cairn/tiers/tier_slots.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY tier_slots::tier_slots(std::string directory, int keep, std::shared_ptr<tier_files> files)
    : directory_(std::move(directory), std::move(files)),
      // One that is being filled, and one that may be written to the store for long.
      depth_(keep + 2) {
  if (keep < 1 || keep > 64)
    fail(error_id::usage_bad_option, "a local tier keeps at least 1 image, and at most 64",
         {.got = std::to_string(keep)});
}

CAIRN_BODY void tier_slots::open(const tier_user& user) {
  directory_.open(user);
  const std::lock_guard lock(mutex_);
  adopt();
}

CAIRN_BODY void tier_slots::images_were_added() {
  const std::lock_guard lock(mutex_);
  // The image that waits for the next save may have had no file yet, and one that was added has its name now.
  if (ready_) slots_[*std::exchange(ready_, std::nullopt)].in_use = false;
  adopt();
}
/// Takes over the images that no process has any more. Under the lock.
CAIRN_BODY void tier_slots::adopt() {
  others_have_some_ = false;
  for (const auto& each : directory_.names()) {
    const auto number = parse_slot_name(each, directory_.user().rank);
    if (!number) continue;
    if (std::any_of(slots_.begin(), slots_.end(),
                    [&](const slot& s) { return s.number == *number && s.memory != nullptr; }))
      continue;
    if (directory_.on_disk()) {
      if (std::none_of(slots_.begin(), slots_.end(), [&](const slot& s) { return s.number == *number; }))
        slots_.push_back({.number = *number});
      continue;
    }
    auto file = make_owned<unforked_file>(directory_.path(each).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file->get() < 0) continue;
    if (::flock(file->get(), LOCK_EX | LOCK_NB) != 0) {
      others_have_some_ = true;  // the worker of an earlier run still writes it to the store
      continue;
    }
    struct stat s {};
    if (::fstat(file->get(), &s) != 0) continue;
    if (s.st_size == 0) {  // its process was killed before it had the memory
      directory_.files().remove(directory_.path(each));
      continue;
    }
    slot taken{.number = *number};
    taken.memory = std::make_shared<shared_segment>(std::move(file), static_cast<std::uint64_t>(s.st_size));
    const auto known =
        std::find_if(slots_.begin(), slots_.end(), [&](const slot& o) { return o.number == *number; });
    if (known == slots_.end())
      slots_.push_back(std::move(taken));
    else if (!known->in_use)
      *known = std::move(taken);
  }
}

CAIRN_BODY bool tier_slots::linked(const slot& s) const noexcept {
  struct stat now {};
  return s.memory != nullptr && ::fstat(s.memory->file(), &now) == 0 && now.st_nlink > 0;
}

CAIRN_BODY std::optional<std::size_t> tier_slots::take(std::uint64_t bytes, deadline until) {
  const std::lock_guard lock(mutex_);
  directory_.come_back();
  give_up_left();
  bytes_ = bytes;
  if (ready_) return std::exchange(ready_, std::nullopt);
  const tier_directory::exclusion alone(directory_, until);
  return choose(bytes, false);
}
/// Has an image ready for the next save, if one may go by now; else that save chooses.
CAIRN_BODY void tier_slots::choose_next() noexcept {
  if (ready_ || bytes_ == 0) return;
  try {
    ready_ = choose(bytes_, true);
  } catch (...) {  // the next save tries again, and tells
  }
}
CAIRN_BODY std::optional<std::size_t> tier_slots::choose(std::uint64_t bytes, bool early) {
  if (others_have_some_) adopt();
  const auto& user = directory_.user();
  const auto held = directory_.held_names();
  // Saves of earlier runs in the order of their steps, then those of this run as they were made.
  using key = std::tuple<bool, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  const auto key_of = [&](const held_name& h) {
    const bool own = h.run == user.run;
    return key{own, own ? save_count_of(h.run, h.step, h.attempt) : static_cast<std::uint64_t>(h.step),
               h.run.high, h.run.low, h.attempt};
  };
  std::map<key, std::pair<std::int32_t, std::int32_t>> known;  // ranks that hold it, and that there are
  for (const auto& h : held) {
    auto& of = known[key_of(h)];
    ++of.first, of.second = h.world_size;
  }
  std::uint64_t newest_complete = 0;
  std::map<key, std::uint64_t> numbers;
  for (const auto& [which, ranks] : known) {
    const std::uint64_t number = numbers.size() + 1;
    numbers[which] = number;
    // What this rank sees is not what there is, where others hold saves elsewhere.
    const bool complete = !directory_.is_spread() ? ranks.first >= ranks.second
                          : std::get<0>(which)    ? std::get<1>(which) <= held_by_all_
                                               : static_cast<std::int64_t>(std::get<1>(which)) <= base_step_;
    if (complete) newest_complete = number;
  }
  while (slots_.size() < static_cast<std::size_t>(depth_)) {
    std::int32_t number = 0;
    while (std::any_of(slots_.begin(), slots_.end(), [&](const slot& s) { return s.number == number; }) ||
           ::access(directory_.path(slot_name(user.rank, number)).c_str(), F_OK) == 0)
      ++number;
    slots_.push_back({.number = number});
  }
  std::vector<slot_state> states;
  std::size_t allocated = 0;
  for (const auto& s : slots_) {
    slot_state state{.in_use = s.in_use || s.pins != 0,
                     .allocated = s.memory != nullptr && s.memory->bytes().size() >= bytes && linked(s)};
    allocated += s.memory != nullptr;
    for (const auto& h : held)
      if (h.rank == user.rank && h.slot == s.number) {
        state.generation = std::max(state.generation, numbers[key_of(h)]);
        // What the job goes on from is the oldest of those that are there where it has gone back.
        state.in_use |= base_ && h.step == base_->step;
      }
    states.push_back(state);
  }
  // More than are wanted: of a run that kept more, or had a worker that lived on.
  for (std::size_t i = 0; i < slots_.size() && allocated > static_cast<std::size_t>(depth_); ++i) {
    if (states[i].generation != 0 || states[i].in_use || slots_[i].memory == nullptr) continue;
    directory_.files().remove(directory_.path(slot_name(user.rank, slots_[i].number)));
    slots_[i].memory = nullptr;
    states[i].allocated = false;
    --allocated;
  }
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (allocated >= static_cast<std::size_t>(depth_) && slots_[i].memory == nullptr) states[i].in_use = true;
  if (directory_.is_spread())
    // Where this rank keeps a piece of a save, others keep pieces of its own image.
    for (const auto& each : directory_.names())
      if (const auto kept = parse_kept_name(each); kept && kept->rank == user.rank)
        for (const auto& h : held)
          for (std::size_t i = 0; i < slots_.size(); ++i)
            if (h.rank == user.rank && h.slot == slots_[i].number && h.run == kept->run &&
                h.attempt == kept->attempt)
              states[i].has_pieces = true;
  const auto chosen = choose_slot(states, newest_complete, early, directory_.is_spread());
  if (!chosen) return std::nullopt;
  for (const auto& h : held)
    if (h.rank == user.rank && h.slot == slots_[*chosen].number) directory_.remove_record(h);
  if (user.rank == 0 && !directory_.is_spread()) {
    std::vector<std::uint64_t> generations;
    for (const auto& h : held) generations.push_back(numbers[key_of(h)]);
    remove_of_lost_ranks(held, newest_complete, generations);
  }
  slots_[*chosen].in_use = true;
  return chosen;
}

/// Ranks that an earlier run had and this one has not: their images go when a newer save is complete.
CAIRN_BODY void tier_slots::remove_of_lost_ranks(const std::vector<held_name>& held,
                                                 std::uint64_t newest_complete,
                                                 const std::vector<std::uint64_t>& generations) const {
  const auto world_size = directory_.user().world_size;
  bool any = false;
  bool needed = false;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i].rank < world_size) continue;
    any = true;
    if (generations[i] < newest_complete)
      directory_.remove_record(held[i]);
    else
      needed = true;
  }
  if (!any || needed) return;
  for (const auto& each : directory_.names())
    if (const auto rank = rank_of_slot_name(each); rank && *rank >= world_size)
      directory_.files().remove(directory_.path(each));
}

CAIRN_BODY std::shared_ptr<shared_segment> tier_slots::allocate(std::int32_t number,
                                                                std::uint64_t bytes) const {
  const auto rounded = tier_image_size(bytes);
  const auto file_name = directory_.path(slot_name(directory_.user().rank, number));
  directory_.files().remove(file_name);  // first: a smaller one that it replaces has room that counts
  directory_.check_room(rounded);
  // Children that are forked meanwhile would keep its lock, and then its memory, when this process has ended.
  auto file = make_owned<unforked_file>(file_name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                                        ::mode_t{0600});
  if (file->get() < 0) fail_system(errno, "an image of the local tier could not be made: " + file_name);
  // All of it before it is mapped: what is not there would be SIGBUS when it is touched.
  const int code =
      ::flock(file->get(), LOCK_EX | LOCK_NB) != 0 ? errno : allocate_new_file(file->get(), rounded);
  if (code != 0) {
    static_cast<void>(::unlink(file_name.c_str()));
    if (code == ENOSPC) directory_.check_room(rounded);
    fail_system(code, "an image of the local tier could not be allocated: " + file_name);
  }
  auto memory = std::make_shared<shared_segment>(std::move(file), rounded);
  static_cast<void>(populate(memory->bytes(), 0));
  return memory;
}

CAIRN_BODY tier_slots::lease tier_slots::acquire(std::uint64_t bytes, deadline until) {
  for (;;) {
    const auto seen = returned_.current();
    if (const auto index = take(bytes, until)) {
      lease held(this->shared_from_this(), *index);
      slot now;
      {
        const std::lock_guard lock(mutex_);
        now = slots_[*index];
        if (now.memory != nullptr && (now.memory->bytes().size() < bytes || !linked(now)))
          now.memory = slots_[*index].memory = nullptr;
      }
      if (now.memory == nullptr) {
        now.memory = allocate(now.number, bytes);
        const std::lock_guard lock(mutex_);
        slots_[*index].memory = now.memory;
      }
      held.block_.emplace(now.memory);
      return held;
    }
    if (until.passed())
      fail(error_id::timeout_staging,
           "no image of the local tier became free in time: earlier saves are still being written to the "
           "store",
           {.file = directory_.path(), .expected = "less than " + std::to_string(depth_) + " images in use"});
    // What other ranks do is not told.
    returned_.wait(seen, deadline::in(std::chrono::milliseconds(20)).earlier(until));
  }
}
CAIRN_BODY void tier_slots::reserve(std::uint64_t bytes, deadline until) {
  if (directory_.on_disk()) return;
  std::vector<std::int32_t> numbers;
  {
    const std::lock_guard lock(mutex_);
    const tier_directory::exclusion alone(directory_, until);
    bytes_ = bytes;
    if (ready_) slots_[*std::exchange(ready_, std::nullopt)].in_use = false;  // it may have no memory
    std::size_t there = 0;
    for (const auto& s : slots_) there += s.memory != nullptr;
    for (std::int32_t n = 0; there < static_cast<std::size_t>(depth_); ++n) {
      if (std::any_of(slots_.begin(), slots_.end(),
                      [&](const slot& s) { return s.number == n && (s.memory != nullptr || s.in_use); }) ||
          ::access(directory_.path(slot_name(directory_.user().rank, n)).c_str(), F_OK) == 0)
        continue;
      numbers.push_back(n);
      ++there;
    }
  }
  for (const auto n : numbers) {
    auto memory = allocate(n, bytes);
    const std::lock_guard lock(mutex_);
    const auto known =
        std::find_if(slots_.begin(), slots_.end(), [&](const slot& s) { return s.number == n; });
    if (known == slots_.end())
      slots_.push_back({.number = n, .memory = std::move(memory)});
    else
      known->memory = std::move(memory);
  }
  const std::lock_guard lock(mutex_);
  const tier_directory::exclusion alone(directory_, until);
  choose_next();
}
CAIRN_BODY std::shared_ptr<const tier_slots::pin> tier_slots::pin_image(const held_name& name,
                                                                        deadline until) {
  const std::lock_guard lock(mutex_);
  const tier_directory::exclusion alone(directory_, until);
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const slot& s) {
    return s.number == name.slot && (s.memory != nullptr || directory_.on_disk());
  });
  if (found == slots_.end() || !contains(directory_.held_names(), name)) return nullptr;
  auto made = std::make_shared<pin>(this->shared_from_this(),
                                    static_cast<std::size_t>(found - slots_.begin()), found->memory);
  ++found->pins;
  return made;
}
CAIRN_BODY tier_slots::pin::~pin() {
  {
    const std::lock_guard lock(owner_->mutex_);
    --owner_->slots_[slot_].pins;
  }
  owner_->returned_.notify();
}
CAIRN_BODY tier_slots::lease::~lease() {
  if (owner_ != nullptr) owner_->give_back(slot_);
}
CAIRN_BODY void tier_slots::give_back(std::size_t index) noexcept {
  {
    const std::lock_guard lock(mutex_);
    slots_[index].in_use = false;
  }
  returned_.notify();
}

CAIRN_BODY std::uint64_t tier_slots::missing(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::uint64_t missing = static_cast<std::uint64_t>(depth_) * bytes;
  for (const auto& s : slots_) {
    std::uint64_t there = s.memory != nullptr ? s.memory->bytes().size() : 0;
    struct stat file {};
    if (directory_.on_disk() &&
        ::stat(directory_.path(slot_name(directory_.user().rank, s.number)).c_str(), &file) == 0)
      there = static_cast<std::uint64_t>(file.st_size);
    missing -= std::min<std::uint64_t>({missing, bytes, there});
  }
  return missing;
}
CAIRN_BODY std::uint64_t tier_slots::page_bytes() {
  const std::lock_guard lock(mutex_);
  struct stat file {};  // a tmpfs tells huge pages as the size of its blocks
  for (const auto& s : slots_)
    if (s.memory != nullptr && ::fstat(s.memory->file(), &file) == 0)
      return static_cast<std::uint64_t>(file.st_blksize);
  return 0;
}
CAIRN_BODY void tier_slots::end() noexcept {
  const std::lock_guard lock(mutex_);
  directory_.end();
}

CAIRN_BODY void tier_slots::go_on_from(const tier_base& base) {
  const std::lock_guard lock(mutex_);
  give_up_left();
  runs_ = base.runs;
  base_step_ = base.step.value_or(-1);
  base_ = base;
  give_up_left();
}
/// Gives up what the job has left by going back, once a save that goes on from there survives.
CAIRN_BODY void tier_slots::give_up_left() noexcept {
  if (!base_) return;
  try {
    const auto& user = directory_.user();
    const auto since = [&](const held_name& n) {
      return n.run == user.run && save_count_of(n.run, n.step, n.attempt) > base_->saves;
    };
    const auto held = directory_.held_names();
    const auto is_complete = [&](const held_name& n) {
      return since(n) && std::count_if(held.begin(), held.end(), [&](const held_name& other) {
                           return other.run == n.run && other.attempt == n.attempt;
                         }) >= n.world_size;
    };
    if (!base_->is_stored && (directory_.is_spread() ? held_by_all_ <= base_->saves
                                                     : std::none_of(held.begin(), held.end(), is_complete)))
      return;
    // Of each rank of this run that is here, it is told itself.
    const auto is_looked_after = [&](const held_name& n) {
      return n.rank == user.rank || (directory_.first_here() && directory_.is_elsewhere(n.rank));
    };
    const auto is_left = [&](const held_name& n) {
      return !since(n) && (!base_->step || n.step > *base_->step);
    };
    for (const auto& n : held)
      if (is_left(n) && (!directory_.is_spread() || is_looked_after(n))) directory_.remove_record(n);
    directory_.remove_pieces([&](const held_name& n) { return is_left(n) && is_looked_after(n); });
    base_.reset();
  } catch (...) {  // the next save tries again; until then is_left_behind() tells
  }
}
CAIRN_BODY void tier_slots::held_by_all(const held_step& which) noexcept {
  const std::lock_guard lock(mutex_);
  held_by_all_ = std::max(held_by_all_, save_count_of(which.run, which.step, which.attempt));
  if (directory_.is_spread()) give_up_left();
}
CAIRN_BODY std::optional<held_name> tier_slots::name_of(const held_step& which) const {
  for (const auto& n : directory_.held_names())
    if (n.run == which.run && n.attempt == which.attempt && n.step == which.step &&
        n.rank == directory_.user().rank)
      return n;
  return std::nullopt;
}
/// The file of a disk that a save is written into, until it is held or was given up.
class tier_slots::chosen_slot {
 public:
  chosen_slot(tier_slots& of, std::optional<std::size_t> index) : of_(of), index_(index.value_or(0)) {
    if (!index)
      fail(error_id::timeout_staging, "no image of the local tier is free: all of them are being read",
           {.file = of.directory_.path()});
    const std::lock_guard lock(of_.mutex_);
    number_ = of_.slots_[index_].number;
  }
  chosen_slot(const chosen_slot&) = delete;
  chosen_slot& operator=(const chosen_slot&) = delete;
  ~chosen_slot() { of_.give_back(index_); }
  [[nodiscard]] std::int32_t number() const noexcept { return number_; }

 private:
  tier_slots& of_;
  std::size_t index_;
  std::int32_t number_ = 0;
};

CAIRN_BODY void tier_slots::hold(const save_context& c, const staged_image& image, deadline until) {
  held_record content;
  held_name name{.run = c.run,
                 .attempt = c.attempt,
                 .plan_digest = c.plan_digest,
                 .step = c.step,
                 .world_size = c.world_size,
                 .rank = c.rank};
  std::optional<chosen_slot> written;
  if (directory_.on_disk()) {
    written.emplace(*this, take(image.layout().bytes, until));
    name.slot = written->number();
    write_disk_image(directory_.files(), directory_.path(slot_name(c.rank, name.slot)), image, until);
  } else {
    image.wait_for(image.layout().bytes, until);
    image.wait_released(until);
    name.slot = slot_of(image, c.rank);
  }
  auto r = record_of(image.layout(), image.digests());
  identify(r, c);
  content.record = encode_record(r);
  for (const auto& s : image.layout().segments) content.begins.push_back(s.begin);
  {
    const std::lock_guard lock(mutex_);
    content.runs = runs_;
  }
  directory_.put_record(name, content);
  {
    // Between two choices: one that did not see it could give up a save that this completes.
    const std::lock_guard lock(mutex_);
    const tier_directory::exclusion alone(directory_, until);
    directory_.publish_record(name);
    give_up_left();
    choose_next();
  }
  if (held_call_) held_call_({c.step, c.run, c.attempt, c.world_size});
}
CAIRN_BODY std::int32_t tier_slots::slot_of(const staged_image& image, std::int32_t rank) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const slot& s) {
    return s.in_use && s.memory != nullptr && s.memory->bytes().data() == image.bytes().data();
  });
  if (found == slots_.end() || !linked(*found))
    fail(error_id::storage_not_found,
         "the image of a save is no more in the local tier: its file was removed by somebody else, such as "
         "a clean-up of /dev/shm when its user logs out (RemoveIPC of systemd-logind)",
         {.rank = rank, .file = directory_.path()});
  return found->number;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
