// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stage/memory_limits.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/tier_directory.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A file of this directory, made where there is none, for this process alone to lock.
[[nodiscard]] inline std::unique_ptr<unforked_file> open_unforked(const std::string& path) {
  auto file = std::make_unique<unforked_file>(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                                              ::mode_t{0600});
  if (file->get() < 0) fail_system(errno, "a file of the local tier could not be opened: " + path);
  return file;
}
/// Whether this is still the name of an open file.
[[nodiscard]] inline bool is_name_of(const std::string& path, int file) noexcept {
  struct stat named {};
  struct stat opened {};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(file, &opened) == 0 && named.st_ino == opened.st_ino &&
         named.st_dev == opened.st_dev;
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
[[nodiscard]] inline std::string run_name(const run_id& run) {
  return "run-" + to_string(run);
}
[[nodiscard]] inline bool is_run_name(std::string_view text) {
  return has_hex_after(text, "run-", 32);
}
[[nodiscard]] inline bool is_plan_name(std::string_view text) {
  if (text.ends_with(".2")) text.remove_suffix(2);
  return has_hex_after(text, "plan.", 16);
}
/// Whether `text` is one of the two files of a plan.
[[nodiscard]] inline bool is_of_plan(std::string_view text, std::uint64_t plan_digest) {
  return text == plan_name(plan_digest) || text == second_plan_name(plan_digest);
}
/// Whether one of the names is of an image or a piece that needs this file of a plan.
[[nodiscard]] inline bool is_used(std::string_view plan, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& each) {
    auto of = parse_held_name(each);
    if (!of) of = parse_kept_name(each);
    return of && is_of_plan(plan, of->plan_digest);
  });
}
/// Whether `text` is a file that is written before it gets its name.
[[nodiscard]] inline bool is_unfinished(std::string_view text) {
  return text.starts_with("new-");
}
/// The rank that writes such a file, "new-00003" or "new-piece-3"; nothing where it is no rank's own.
[[nodiscard]] inline std::optional<std::int32_t> rank_of_unfinished(std::string_view text) {
  const auto digits = text.substr(text.rfind('-') + 1);
  std::int32_t rank = 0;
  const auto* const end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, rank);
  if (digits.empty() || read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return rank;
}
/// The rank of "rank-00003.lock"; nothing for any other text.
[[nodiscard]] inline std::optional<std::int32_t> rank_of_lock(std::string_view text) {
  if (!text.starts_with("rank-") || !text.ends_with(".lock")) return std::nullopt;
  return rank_of_unfinished(text.substr(0, text.size() - 5));
}
/// Whether a tier makes files of this name.
[[nodiscard]] inline bool is_tier_name(std::string_view text) {
  return text == "." || text == ".." || text == "job" || text == "lock" || is_unfinished(text) ||
         (text.starts_with("rank-") && text.ends_with(".lock")) || is_run_name(text) || is_plan_name(text) ||
         rank_of_slot_name(text) || parse_held_name(text) || rank_of_piece_name(text) ||
         parse_kept_name(text);
}
[[nodiscard]] inline std::string numbered(const char* format, std::int32_t rank) {
  char text[32];
  std::snprintf(text, sizeof text, format, rank);
  return text;
}
[[nodiscard]] inline std::string rank_lock_name(std::int32_t rank) {
  return numbered("rank-%05d.lock", rank);
}

CAIRN_BODY void fail_unreadable(int code, const std::string& what, const std::string& path) {
  try {
    fail_system(code, what + ": " + path);
  } catch (const storage_error& e) {
    if (e.id() != error_id::storage_io) throw;
    fail(error_id::corrupt_missing_file, what, {.file = path, .got = std::generic_category().message(code)});
  }
}
CAIRN_BODY std::optional<std::vector<std::byte>> tier_file(const std::string& path) {
  const file_descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.open()) {
    if (errno == ENOENT) return std::nullopt;
    fail_unreadable(errno, "a file of the local tier could not be opened", path);
  }
  struct stat s {};
  if (::fstat(file.get(), &s) != 0 || !S_ISREG(s.st_mode) || s.st_size < 0 ||
      static_cast<std::uint64_t>(s.st_size) > max_manifest_bytes)
    fail(error_id::corrupt_size_mismatch, "a file of the local tier is none of those that it has",
         {.file = path});
  std::vector<std::byte> bytes(static_cast<std::size_t>(s.st_size));
  const int code = read_exactly(file.get(), 0, bytes);
  if (code == file_has_ended)
    fail(error_id::corrupt_truncated, "a file of the local tier ends early", {.file = path});
  if (code != 0) fail_unreadable(code, "a file of the local tier could not be read", path);
  return bytes;
}

/// Nothing where there is none; one that cannot be read now is not absent. @throws as tier_file()
[[nodiscard]] inline std::optional<std::string> tier_text(const std::string& path) {
  const auto bytes = tier_file(path);
  if (!bytes) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

CAIRN_BODY tier_directory::exclusion::exclusion(const tier_directory& of, deadline until)
    : file_(of.choice_->get()) {
  if (!lock_by(file_, until))
    fail(error_id::timeout_staging, "another rank of this host keeps the local tier locked; is it stopped?",
         {.file = of.path("lock")});
}
CAIRN_BODY tier_directory::exclusion::~exclusion() {
  ::flock(file_, LOCK_UN);
}

CAIRN_BODY tier_directory::tier_directory(std::string directory, std::shared_ptr<tier_files> files)
    : directory_(std::move(directory)),
      files_(files != nullptr ? std::move(files) : std::make_shared<tier_files>()) {
  if (directory_.empty() || directory_.front() != '/')
    fail(error_id::usage_bad_option,
         "the directory of a local tier is an absolute path, such as /dev/shm/my-run", {.file = directory_});
}

CAIRN_BODY bool tier_directory::make() const {
  const bool made = ::mkdir(directory_.c_str(), 0700) == 0;
  if (!made && errno != EEXIST)
    fail_system(errno, "the directory of the local tier could not be made: " + directory_);
  // Others may write in /dev/shm: what they put in the place of the directory is not followed.
  const file_descriptor opened(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!opened.open() && errno == ENOENT) return make();  // an earlier job has just ended
  if (!opened.open() && (errno == ELOOP || errno == ENOTDIR))
    fail(error_id::usage_bad_option,
         "the directory of a local tier is a link to another place, or no directory: name the place itself, "
         "or remove what is there",
         {.file = directory_});
  struct stat s {};
  if (!opened.open() || ::fstat(opened.get(), &s) != 0)
    fail_system(errno, "the directory of the local tier could not be examined: " + directory_);
  if (s.st_uid != ::geteuid() || (s.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    fail(error_id::usage_bad_option,
         "the directory of a local tier belongs to the user of the job, and nobody else may write there "
         "(chmod 700)",
         {.file = directory_});
  return made;
}

inline constexpr std::uint64_t tmpfs_type = 0x01021994;

CAIRN_BODY bool lies_in_memory(const std::string& directory) noexcept {
  struct statfs system {};
  return ::statfs(directory.c_str(), &system) == 0 &&
         (static_cast<std::uint64_t>(system.f_type) & 0xFFFFFFFF) == tmpfs_type;
}

CAIRN_BODY void check_memory(const std::string& directory, std::uint64_t bytes) {
  if (!lies_in_memory(directory)) return;
  if (const auto room = room_for_memory(); bytes > room.bytes) fail_for_memory(bytes, room);
}
CAIRN_BODY void tier_directory::look_at_place() {
  // ext4, XFS, Btrfs, F2FS, ZFS, bcachefs, and what containers have in front of one of them
  constexpr std::uint64_t disks[] = {0xEF53,     0x58465342, 0x9123683E, 0xF2F52010,
                                     0x2FC12FC1, 0xCA451A4E, 0x794C7630};
  struct statfs system {};
  if (::statfs(directory_.c_str(), &system) != 0)
    fail_system(errno, "the directory of the local tier could not be examined: " + directory_);
  const auto type = static_cast<std::uint64_t>(system.f_type) & 0xFFFFFFFF;
  on_disk_ = std::find(std::begin(disks), std::end(disks), type) != std::end(disks);
  if (type != tmpfs_type && !on_disk_)
    fail(
        error_id::usage_bad_option,
        "a local tier lies on a tmpfs, in memory that outlives its processes, or on a disk of this host, and "
        "this directory does neither: take one in /dev/shm, or mount a tmpfs for it (docs/tiers.md)",
        {.file = directory_});
}

CAIRN_BODY void tier_directory::sync_file(const std::string& path) const {
  if (on_disk_) files_->sync(path, -1);
}
CAIRN_BODY void tier_directory::sync_names() const {
  if (on_disk_) files_->sync(directory_, -1);
}
CAIRN_BODY void tier_directory::sync_parent() const {
  if (on_disk_) files_->sync(directory_.substr(0, std::max<std::size_t>(directory_.rfind('/'), 1)), -1);
}
CAIRN_BODY void tier_directory::put_durably(const std::string& temporary, const std::string& name,
                                            std::span<const std::byte> bytes) const {
  detail::put_durably(*files_, directory_, temporary, name, bytes, on_disk_);
}

CAIRN_BODY void tier_directory::check_job() const {
  const std::string wanted = "cairn local tier 2\n" + user_.job + "\n";
  const auto there = tier_text(path("job"));
  if (!there) {
    for (const auto& each : names())
      if (!is_tier_name(each))
        fail(error_id::usage_bad_option,
             "the directory of the local tier has files of something else: name one that is empty, or not "
             "there yet",
             {.file = path(each)});
    return put_durably("new-job", "job", std::as_bytes(std::span(wanted)));
  }
  if (*there != wanted)
    fail(
        error_id::usage_bad_option,
        "the directory of the local tier has what another job, or another version of cairn, left there: give "
        "each job a directory of its own, or remove this one",
        {.file = directory_, .expected = user_.job, .got = there->substr(0, 300)});
}

CAIRN_BODY void tier_directory::open(const tier_user& user) {
  user_ = user;
  const auto mark = run_name(user.run);
  bool made = false;
  if (user.rank == 0 || spread_)
    made = make();
  else if (::access(path(mark).c_str(), F_OK) != 0)
    fail(error_id::storage_not_shared,
         "a rank does not see the local tier of rank 0: give all ranks of a host the same directory; on "
         "several hosts a local tier needs partner_copies or parity, and links between them (docs/tiers.md)",
         {.rank = user.rank, .file = directory_});
  look_at_place();
  if (made) sync_parent();
  take_rank();
  choice_ = open_unforked(path("lock"));
  if (spread_) {
    const exclusion alone(*this, deadline::in(std::chrono::seconds(30)));
    if (const auto first = tier_text(path(mark)))
      first_rank_ = static_cast<std::int32_t>(std::strtol(first->c_str(), nullptr, 10));
    else
      take_over(mark);
  } else if (user.rank == 0) {
    take_over(mark);
  }
}
CAIRN_BODY void tier_directory::take_rank() {
  const auto own = path(rank_lock_name(user_.rank));
  std::unique_ptr<unforked_file> lock;
  const auto until = deadline::in(std::chrono::seconds(3));
  for (backoff pause(std::chrono::microseconds(20), std::chrono::milliseconds(20));;) {
    // A job that ends beside this removes the file, and the directory where nothing else is there: a lock of what has no
    // name any more keeps nobody away.
    if (user_.rank == 0 || spread_) {
      if (make()) sync_parent();
    }
    if (lock == nullptr || !is_name_of(own, lock->get()))
      lock = std::make_unique<unforked_file>(own.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                                             ::mode_t{0600});
    const int code = lock->get() < 0 ? errno : 0;
    if (code == 0 && ::flock(lock->get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_name_of(own, lock->get())) break;
    } else if (code == 0 && errno != EWOULDBLOCK && errno != EINTR) {
      fail_system(errno, "a file of the local tier could not be locked");
    }
    if (code != 0 && code != ENOENT)
      fail_system(code, "a file of the local tier could not be opened: " + own);
    if (pause.wait(until)) continue;
    if (code != 0) fail_system(code, "a file of the local tier could not be opened: " + own);
    fail(error_id::usage_bad_option,
         "another process is this rank of the local tier: give each job a directory of its own, and end the "
         "job before it is started again",
         {.rank = user_.rank, .file = own});
  }
  // So that the others of this host can tell a rank of this run that was killed from one that this run has elsewhere.
  const auto mark = run_name(user_.run);
  if (::ftruncate(lock->get(), 0) != 0 ||
      ::pwrite(lock->get(), mark.data(), mark.size(), 0) != static_cast<::ssize_t>(mark.size()))
    fail_system(errno, "a file of the local tier could not be written: " + own);
  const std::lock_guard guard(mutex_);
  alive_ = std::move(lock);
  known_.reset();
}
CAIRN_BODY void tier_directory::come_back() {
  if (::access(path(rank_lock_name(user_.rank)).c_str(), F_OK) == 0 || errno != ENOENT) return;
  if (make()) sync_parent();
  if (first_here()) check_job();
  take_rank();
}
CAIRN_BODY void tier_directory::take_over(const std::string& mark) {
  first_rank_ = user_.rank;
  check_job();
  const auto there = names();
  for (const auto& each : there)
    if (is_run_name(each) || (is_plan_name(each) && !is_used(each, there))) files_->remove(path(each));
  const auto own = std::to_string(user_.rank) + "\n";
  files_->put(path(mark), std::as_bytes(std::span(own)));
}

CAIRN_BODY bool tier_directory::is_elsewhere(std::int32_t rank) const {
  if (rank == user_.rank) return false;
  const unforked_file file(path(rank_lock_name(rank)).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file.get() < 0) return errno == ENOENT;  // for want of a descriptor nobody is elsewhere
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
  // Free, and of this run: it was killed here, and what it holds is for whoever starts the job again.
  char of[64];
  const auto bytes = ::pread(file.get(), of, sizeof of, 0);
  return bytes >= 0 && std::string_view(of, static_cast<std::size_t>(bytes)) != run_name(user_.run);
}
CAIRN_BODY void tier_directory::remove_of_others() const {
  // Records before what they name.
  std::vector<std::string> rest;
  std::map<std::int32_t, bool> known;
  const auto elsewhere = [&](std::int32_t rank) {
    const auto [found, added] = known.try_emplace(rank);
    if (added) found->second = is_elsewhere(rank);
    return found->second;
  };
  for (const auto& each : names()) {
    if (const auto held = parse_held_name(each)) {
      if (elsewhere(held->rank)) remove_record(*held);
    } else if (const auto kept = parse_kept_name(each)) {
      if (elsewhere(kept->rank)) files_->remove(path(each));
    } else if (auto of = rank_of_slot_name(each); of || (of = rank_of_piece_name(each))) {
      if (elsewhere(*of)) rest.push_back(each);
    } else if (const auto locked = rank_of_lock(each); locked && elsewhere(*locked)) {
      rest.push_back(each);
    } else if (const auto unfinished = is_unfinished(each) ? rank_of_unfinished(each) : std::nullopt;
               unfinished && elsewhere(*unfinished)) {
      rest.push_back(each);
    }
  }
  for (const auto& each : rest) files_->remove(path(each));
}

CAIRN_BODY std::vector<std::string> tier_directory::names() const {
  return names_in_tier(directory_);
}
CAIRN_BODY std::vector<held_name> tier_directory::held_names() const {
  const std::lock_guard lock(mutex_);
  if (known_) return *known_;
  std::vector<held_name> found;
  for (const auto& each : names())
    if (const auto name = parse_held_name(each)) found.push_back(*name);
  if (user_.world_size == 1 && !spread_ && alive_ != nullptr) known_ = found;
  return found;
}

CAIRN_BODY void tier_directory::put_record(const held_name& name, const held_record& content) const {
  const auto temporary = path(numbered("new-%05d", name.rank));
  files_->put(temporary, encode_held(name, content));
  sync_file(temporary);
}
CAIRN_BODY void tier_directory::publish_record(const held_name& name) const {
  const std::lock_guard lock(mutex_);
  if (known_) known_->reserve(known_->size() + 1);
  files_->rename(path(numbered("new-%05d", name.rank)), path(to_string(name)));
  try {
    sync_names();
  } catch (...) {
    // The save failed: nobody is to find it.
    known_.reset();
    try {
      files_->remove(path(to_string(name)));
    } catch (...) {  // the first failure tells more
    }
    throw;
  }
  if (known_) known_->push_back(name);
}
CAIRN_BODY void tier_directory::remove_record(const held_name& name) const {
  files_->remove(path(to_string(name)));
  const std::lock_guard lock(mutex_);
  if (known_) std::erase(*known_, name);
}

CAIRN_BODY void tier_directory::remove_pieces(function_ref<bool(const held_name&)> which) const {
  for (const auto& each : names())
    if (const auto kept = parse_kept_name(each); kept && which(*kept)) files_->remove(path(each));
}

CAIRN_BODY void tier_directory::keep_plan(std::uint64_t plan_digest, const metadata& stored,
                                          std::size_t most) {
  const bool is_last = !plans_.empty() && plans_.back() == plan_digest;
  const auto is_there = [&](const std::string& name) { return ::access(path(name).c_str(), F_OK) == 0; };
  if (is_last && is_there(plan_name(plan_digest)) && is_there(second_plan_name(plan_digest))) return;
  manifest m;
  m.plan_digest = plan_digest;
  m.content = stored;
  // Those of a save take their places when it is read.
  for (std::int32_t rank = 0; rank < stored.world_size; ++rank)
    m.records.push_back({.rank = rank, .files = 1});
  const auto bytes = encode_manifest(m);
  put_durably("new-plan", second_plan_name(plan_digest), bytes);
  put_durably("new-plan", plan_name(plan_digest), bytes);
  // A job whose plan changes with each save would fill the memory with plans. Those of saves that are not held
  // yet are among the last of them, as each has an image.
  if (!is_last) plans_.push_back(plan_digest);
  if (plans_.size() <= most) return;
  plans_.erase(plans_.begin());
  const auto there = names();
  for (const auto& each : there)
    if (is_plan_name(each) && !is_used(each, there) &&
        std::none_of(plans_.begin(), plans_.end(), [&](std::uint64_t of) { return is_of_plan(each, of); }))
      files_->remove(path(each));
}

CAIRN_BODY void tier_directory::check_room(std::uint64_t bytes) const {
  if (bytes == 0) return;
  struct statvfs tier {};
  if (::statvfs(directory_.c_str(), &tier) != 0)
    fail_system(errno, "the local tier could not be examined: " + directory_);
  const auto free = static_cast<std::uint64_t>(tier.f_bavail) * tier.f_frsize;
  const auto most = static_cast<std::uint64_t>(tier.f_blocks) * tier.f_frsize;
  memory_room room = on_disk_ ? memory_room() : room_for_memory();
  // A tmpfs without a size of its own has no blocks.
  if (most != 0)
    room.take(free, most, on_disk_ ? "the disk" : "the size of the tmpfs (mount -o remount,size=...)",
              error_id::storage_no_space);
  if (bytes <= room.bytes) return;
  fail(room.id,
       "the images of the local tier in " + directory_ + " cannot be allocated: " + std::to_string(bytes) +
           " bytes are needed and " + std::to_string(room.bytes) + " are free; the limit is " + room.limit +
           " of " + std::to_string(room.most) + " bytes. Raise it, keep fewer images (each rank has " +
           (spread_ ? "keep + 4, and needs room for two pieces besides" : "keep + 2") +
           "), or leave local_tier out",
       {.file = directory_,
        .expected = std::to_string(bytes) + " bytes",
        .got = std::to_string(room.bytes) + " bytes"});
}

CAIRN_BODY void tier_directory::end() noexcept {
  if (alive_ == nullptr) return;
  try {
    if (spread_ && first_here()) remove_of_others();
    for (const auto& h : held_names())
      if (h.rank == user_.rank || h.rank >= user_.world_size) remove_record(h);
    for (const auto& each : names()) {
      auto of = rank_of_slot_name(each);
      if (!of) of = rank_of_piece_name(each);
      if (const auto kept = parse_kept_name(each)) of = kept->rank;
      const auto unfinished = is_unfinished(each);
      if (unfinished) of = rank_of_unfinished(each);
      const bool shared_one = first_here() && (each == "job" || each == "lock" || (unfinished && !of) ||
                                               is_plan_name(each) || is_run_name(each));
      // Of ranks that an earlier run had.
      const auto locked = rank_of_lock(each);
      const bool of_lost_rank = first_here() && locked && *locked >= user_.world_size;
      if (shared_one || of_lost_rank || (of && (*of == user_.rank || *of >= user_.world_size)))
        files_->remove(path(each));
    }
    // Last: the next job may take this rank from here on, and makes what it needs.
    files_->remove(path(rank_lock_name(user_.rank)));
    static_cast<void>(::rmdir(directory_.c_str()));  // by the last rank, for which it is empty
  } catch (...) {                                    // what is left is taken over by the next run
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
