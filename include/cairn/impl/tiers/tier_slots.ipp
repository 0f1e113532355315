// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stage/memory_limits.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/tiers/slot_rule.hpp>
#include <cairn/tiers/tier_slots.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A file of this directory, made where there is none, locked by this process alone. Null where another one has it.
[[nodiscard]] inline std::unique_ptr<unforked_file> open_unforked(const std::string& path) {
  const fork_pause pause;
  file_descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.open()) fail_system(errno, "a file of the local tier could not be opened: " + path);
  return std::make_unique<unforked_file>(std::move(file), pause);
}
[[nodiscard]] inline bool lock_by(int file, deadline until) {
  for (backoff pause(std::chrono::microseconds(20), std::chrono::milliseconds(20));;) {
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR)
      fail_system(errno, "a file of the local tier could not be locked");
    if (!pause.wait(until)) return false;
  }
}

[[nodiscard]] inline bool has_hex_after(std::string_view text, std::string_view prefix, std::size_t digits) {
  return text.size() == prefix.size() + digits && text.starts_with(prefix) &&
         text.find_first_not_of("0123456789abcdef", prefix.size()) == text.npos;
}
[[nodiscard]] inline bool is_run_name(std::string_view text) {
  return has_hex_after(text, "run-", 32);
}
[[nodiscard]] inline bool is_plan_name(std::string_view text) {
  return has_hex_after(text, "plan.", 16);
}
/// Whether a tier makes files of this name.
[[nodiscard]] inline bool is_tier_name(std::string_view text) {
  return text == "." || text == ".." || text == "job" || text == "lock" || text.starts_with("new-") ||
         (text.starts_with("rank-") && text.ends_with(".lock")) || is_run_name(text) || is_plan_name(text) ||
         rank_of_slot_name(text) || parse_held_name(text);
}

/// While it lives, no other rank chooses an image, and none becomes held.
class tier_slots::exclusion {
 public:
  exclusion(const tier_slots& of, deadline until) : file_(of.choice_->get()) {
    if (!lock_by(file_, until))
      fail(error_id::timeout_staging, "another rank of this host keeps the local tier locked; is it stopped?",
           {.file = of.path("lock")});
  }
  exclusion(const exclusion&) = delete;
  exclusion& operator=(const exclusion&) = delete;
  ~exclusion() { ::flock(file_, LOCK_UN); }

 private:
  int file_;
};

CAIRN_BODY tier_slots::tier_slots(std::string directory, int keep, std::shared_ptr<tier_files> files)
    : directory_(std::move(directory)),
      // One that is being filled, and one that may be written to the store for long.
      depth_(keep + 2),
      files_(files != nullptr ? std::move(files) : std::make_shared<tier_files>()) {
  if (keep < 1 || keep > 64)
    fail(error_id::usage_bad_option, "a local tier keeps at least 1 image, and at most 64",
         {.got = std::to_string(keep)});
  if (directory_.empty() || directory_.front() != '/')
    fail(error_id::usage_bad_option,
         "the directory of a local tier is an absolute path, such as /dev/shm/my-run", {.file = directory_});
}

CAIRN_BODY void tier_slots::make_directory() const {
  if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST)
    fail_system(errno, "the directory of the local tier could not be made: " + directory_);
  constexpr long tmpfs = 0x01021994;
  struct statfs system {};
  if (::statfs(directory_.c_str(), &system) != 0)
    fail_system(errno, "the directory of the local tier could not be examined: " + directory_);
  if (static_cast<long>(system.f_type) != tmpfs)
    fail(error_id::usage_bad_option,
         "a local tier lies on a tmpfs, in memory that outlives its processes, and this directory does not: "
         "take "
         "one in /dev/shm, or mount a tmpfs for it (docs/tiers.md)",
         {.file = directory_});
  struct stat s {};
  if (::stat(directory_.c_str(), &s) != 0)
    fail_system(errno, "the directory of the local tier could not be examined: " + directory_);
  if (s.st_uid != ::geteuid() || (s.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    fail(error_id::usage_bad_option,
         "the directory of a local tier belongs to the user of the job, and nobody else may write there "
         "(chmod 700)",
         {.file = directory_});
}

CAIRN_BODY void tier_slots::check_job(const tier_user& user) const {
  const std::string wanted = "cairn local tier 1\n" + user.job + "\n";
  const auto there = kernel_file(path("job"));
  if (!there) {
    for (const auto& each : names())
      if (!is_tier_name(each))
        fail(error_id::usage_bad_option,
             "the directory of the local tier has files of something else: name one that is empty, or not "
             "there "
             "yet",
             {.file = path(each)});
    const auto text = std::as_bytes(std::span(wanted));
    files_->put(path("new-job"), text);
    return files_->rename(path("new-job"), path("job"));
  }
  if (*there != wanted)
    fail(
        error_id::usage_bad_option,
        "the directory of the local tier has what another job, or another version of cairn, left there: give "
        "each job a directory of its own, or remove this one",
        {.file = directory_, .expected = user.job, .got = there->substr(0, 300)});
}

CAIRN_BODY void tier_slots::open(const tier_user& user) {
  user_ = user;
  char name[64];
  std::snprintf(name, sizeof name, "run-%016llx%016llx", static_cast<unsigned long long>(user.run.high),
                static_cast<unsigned long long>(user.run.low));
  const std::string mark = name;
  if (user.rank == 0)
    make_directory();
  else if (::access(path(mark).c_str(), F_OK) != 0)
    fail(error_id::storage_not_shared,
         "a rank does not see the local tier of rank 0: all ranks of a job with a local tier are on one host",
         {.rank = user.rank, .file = directory_});
  std::snprintf(name, sizeof name, "rank-%05d.lock", user.rank);
  alive_ = open_unforked(path(name));
  if (!lock_by(alive_->get(), deadline::in(std::chrono::seconds(3))))
    fail(error_id::usage_bad_option,
         "another process is this rank of the local tier: give each job a directory of its own, and end the "
         "job "
         "before it is started again",
         {.rank = user.rank, .file = path(name)});
  choice_ = open_unforked(path("lock"));
  if (user.rank == 0) {
    check_job(user);
    const auto held = held_names();
    for (const auto& each : names()) {
      const auto used = [&](const held_name& h) { return plan_name(h.plan_digest) == each; };
      if (is_run_name(each) || (is_plan_name(each) && std::none_of(held.begin(), held.end(), used)))
        files_->remove(path(each));
    }
    files_->put(path(mark), {});
  }
  const std::lock_guard lock(mutex_);
  adopt();
}

CAIRN_BODY std::vector<std::string> tier_slots::names() const {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory_.c_str()),
                                                    [](DIR* d) { return ::closedir(d); });
  if (listing == nullptr) fail_system(errno, "the local tier could not be listed: " + directory_);
  std::vector<std::string> found;
  while (const auto* entry = ::readdir(listing.get())) found.emplace_back(entry->d_name);
  return found;
}
CAIRN_BODY std::vector<held_name> tier_slots::held_names() const {
  std::vector<held_name> found;
  for (const auto& each : names())
    if (const auto name = parse_held_name(each)) found.push_back(*name);
  return found;
}

/// Takes over the images that no process has any more. Under the lock.
CAIRN_BODY void tier_slots::adopt() {
  others_have_some_ = false;
  for (const auto& each : names()) {
    const auto number = parse_slot_name(each, user_.rank);
    if (!number) continue;
    if (std::any_of(slots_.begin(), slots_.end(),
                    [&](const slot& s) { return s.number == *number && s.memory != nullptr; }))
      continue;
    file_descriptor file(::open(path(each).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!file.open()) continue;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      others_have_some_ = true;  // the worker of an earlier run still writes it to the store
      continue;
    }
    struct stat s {};
    if (::fstat(file.get(), &s) != 0 || s.st_size == 0) continue;
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
  if (others_have_some_) adopt();
  const exclusion alone(*this, until);
  const auto held = held_names();
  // Saves of earlier runs in the order of their steps, then those of this run as they were made.
  using key = std::tuple<bool, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  const auto key_of = [&](const held_name& h) {
    const bool own = h.run == user_.run;
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
    if (ranks.first >= ranks.second) newest_complete = number;
  }
  while (slots_.size() < static_cast<std::size_t>(depth_)) {
    std::int32_t number = 0;
    while (std::any_of(slots_.begin(), slots_.end(), [&](const slot& s) { return s.number == number; }) ||
           ::access(path(slot_name(user_.rank, number)).c_str(), F_OK) == 0)
      ++number;
    slots_.push_back({.number = number});
  }
  std::vector<slot_state> states;
  std::size_t allocated = 0;
  for (const auto& s : slots_) {
    slot_state state{.in_use = s.in_use,
                     .allocated = s.memory != nullptr && s.memory->bytes().size() >= bytes && linked(s)};
    allocated += s.memory != nullptr;
    for (const auto& h : held)
      if (h.rank == user_.rank && h.slot == s.number)
        state.generation = std::max(state.generation, numbers[key_of(h)]);
    states.push_back(state);
  }
  // More than are wanted: of a run that kept more, or had a worker that lived on.
  for (std::size_t i = 0; i < slots_.size() && allocated > static_cast<std::size_t>(depth_); ++i) {
    if (states[i].generation != 0 || states[i].in_use || slots_[i].memory == nullptr) continue;
    files_->remove(path(slot_name(user_.rank, slots_[i].number)));
    slots_[i].memory = nullptr;
    states[i].allocated = false;
    --allocated;
  }
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (allocated >= static_cast<std::size_t>(depth_) && slots_[i].memory == nullptr) states[i].in_use = true;
  const auto chosen = choose_slot(states, newest_complete);
  if (!chosen) return std::nullopt;
  for (const auto& h : held)
    if (h.rank == user_.rank && h.slot == slots_[*chosen].number) remove(h);
  if (user_.rank == 0) {
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
  bool any = false;
  bool needed = false;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i].rank < user_.world_size) continue;
    any = true;
    if (generations[i] < newest_complete)
      remove(held[i]);
    else
      needed = true;
  }
  if (!any || needed) return;
  for (const auto& each : names())
    if (const auto rank = rank_of_slot_name(each); rank && *rank >= user_.world_size)
      files_->remove(path(each));
}

CAIRN_BODY std::shared_ptr<shared_segment> tier_slots::allocate(std::int32_t number,
                                                                std::uint64_t bytes) const {
  constexpr std::uint64_t unit = std::uint64_t{2} << 20;
  const std::uint64_t rounded = (bytes + unit - 1) / unit * unit;
  const auto file_name = path(slot_name(user_.rank, number));
  files_->remove(file_name);  // first: a smaller one that it replaces has room that counts
  check_room(rounded);
  file_descriptor file(::open(file_name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.open()) fail_system(errno, "an image of the local tier could not be made: " + file_name);
  int result = ::flock(file.get(), LOCK_EX | LOCK_NB);
  // All of it before it is mapped: what is not there would be SIGBUS when it is touched.
  if (result == 0) do {
      result = ::fallocate(file.get(), 0, 0, static_cast<off_t>(rounded));
    } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int code = errno;
    static_cast<void>(::unlink(file_name.c_str()));
    if (code == ENOSPC) check_room(rounded);
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
           {.file = directory_, .expected = "less than " + std::to_string(depth_) + " images in use"});
    // What other ranks do is not told.
    returned_.wait(seen, deadline::in(std::chrono::milliseconds(20)).earlier(until));
  }
}
CAIRN_BODY void tier_slots::reserve(std::uint64_t bytes, deadline until) {
  std::vector<std::int32_t> numbers;
  {
    const std::lock_guard lock(mutex_);
    const exclusion alone(*this, until);
    std::size_t there = 0;
    for (const auto& s : slots_) there += s.memory != nullptr;
    for (std::int32_t n = 0; there < static_cast<std::size_t>(depth_); ++n) {
      if (std::any_of(slots_.begin(), slots_.end(),
                      [&](const slot& s) { return s.number == n && (s.memory != nullptr || s.in_use); }) ||
          ::access(path(slot_name(user_.rank, n)).c_str(), F_OK) == 0)
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
  for (const auto& s : slots_)
    if (s.memory != nullptr) missing -= std::min<std::uint64_t>({missing, bytes, s.memory->bytes().size()});
  return missing;
}
CAIRN_BODY void tier_slots::check_room(std::uint64_t bytes) const {
  if (bytes == 0) return;
  struct statvfs tier {};
  if (::statvfs(directory_.c_str(), &tier) != 0)
    fail_system(errno, "the local tier could not be examined: " + directory_);
  const auto free = static_cast<std::uint64_t>(tier.f_bavail) * tier.f_frsize;
  const auto most = static_cast<std::uint64_t>(tier.f_blocks) * tier.f_frsize;
  memory_room room = room_for_memory();
  // A tmpfs without a size of its own has no blocks.
  if (most != 0)
    room.take(free, most, "the size of the tmpfs (mount -o remount,size=...)", error_id::storage_no_space);
  if (bytes <= room.bytes) return;
  fail(room.id,
       "the images of the local tier in " + directory_ + " cannot be allocated: " + std::to_string(bytes) +
           " bytes are needed and " + std::to_string(room.bytes) + " are free; the limit is " + room.limit +
           " of " + std::to_string(room.most) +
           " bytes. Raise it, keep fewer images (each rank has keep + 2), or leave " + "local_tier out",
       {.file = directory_,
        .expected = std::to_string(bytes) + " bytes",
        .got = std::to_string(room.bytes) + " bytes"});
}

CAIRN_BODY void tier_slots::keep_plan(std::uint64_t plan_digest, const metadata& stored) {
  manifest m;
  m.plan_digest = plan_digest;
  m.content = stored;
  // Those of a save take their places when it is read.
  for (std::int32_t rank = 0; rank < stored.world_size; ++rank)
    m.records.push_back({.rank = rank, .files = 1});
  files_->put(path("new-plan"), encode_manifest(m));
  files_->rename(path("new-plan"), path(plan_name(plan_digest)));
  // A job whose plan changes with each save would fill the memory with plans. Those of saves that are not held
  // yet are among the last of them, as each has an image.
  plans_.push_back(plan_digest);
  if (plans_.size() <= static_cast<std::size_t>(depth_)) return;
  plans_.erase(plans_.begin());
  const auto held = held_names();
  for (const auto& each : names())
    if (is_plan_name(each) &&
        std::none_of(held.begin(), held.end(),
                     [&](const held_name& h) { return plan_name(h.plan_digest) == each; }) &&
        std::none_of(plans_.begin(), plans_.end(), [&](std::uint64_t of) { return plan_name(of) == each; }))
      files_->remove(path(each));
}

CAIRN_BODY void tier_slots::hold(const save_context& c, const staged_image& image, deadline until) {
  held_name name{.run = c.run,
                 .attempt = c.attempt,
                 .plan_digest = c.plan_digest,
                 .step = c.step,
                 .world_size = c.world_size,
                 .rank = c.rank};
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const slot& s) {
      return s.in_use && s.memory != nullptr && s.memory->bytes().data() == image.bytes().data();
    });
    if (found == slots_.end() || !linked(*found))
      fail(error_id::storage_not_found,
           "the image of a save is no more in the local tier: its file was removed by somebody else, such as "
           "a "
           "clean-up of /dev/shm when its user logs out (RemoveIPC of systemd-logind)",
           {.rank = c.rank, .file = directory_});
    name.slot = found->number;
  }
  auto r = record_of(image.layout(), image.digests());
  identify(r, c);
  held_record content{.begins = {}, .record = encode_record(r)};
  for (const auto& s : image.layout().segments) content.begins.push_back(s.begin);
  char temporary[32];
  std::snprintf(temporary, sizeof temporary, "new-%05d", c.rank);
  files_->put(path(temporary), encode_held(name, content));
  // Between two choices: one that did not see it could give up a save that this completes.
  const std::lock_guard lock(mutex_);
  const exclusion alone(*this, until);
  files_->rename(path(temporary), path(to_string(name)));
}

CAIRN_BODY void tier_slots::end() noexcept {
  if (alive_ == nullptr) return;
  try {
    const std::lock_guard lock(mutex_);
    char own[32];
    std::snprintf(own, sizeof own, "%05d", user_.rank);
    for (const auto& h : held_names())
      if (h.rank == user_.rank || h.rank >= user_.world_size) remove(h);
    for (const auto& each : names()) {
      const auto of = rank_of_slot_name(each);
      const bool shared_one =
          user_.rank == 0 && (each == "job" || each == "lock" || each == "new-job" || each == "new-plan" ||
                              is_plan_name(each) || is_run_name(each));
      if (shared_one || (of && (*of == user_.rank || *of >= user_.world_size)) ||
          each == "rank-" + std::string(own) + ".lock" || each == "new-" + std::string(own))
        files_->remove(path(each));
    }
    static_cast<void>(::rmdir(directory_.c_str()));  // by the last rank, for which it is empty
  } catch (...) {                                    // what is left is taken over by the next run
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
