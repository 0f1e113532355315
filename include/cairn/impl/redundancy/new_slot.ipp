// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/new_slot.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/tier_directory.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY new_slot::new_slot(std::shared_ptr<tier_files> files, const std::string& directory,
                              std::int32_t rank, std::uint64_t bytes)
    : files_(std::move(files)), bytes_(bytes) {
  const bool in_memory = lies_in_memory(directory);
  if (in_memory) bytes_ = tier_image_size(bytes_);
  check_memory(directory, bytes_);
  for (;; ++number_) {
    path_ = directory + "/" + slot_name(rank, number_);
    file_ = file_descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file_.open()) break;
    if (errno != EEXIST) fail_system(errno, "an image of the local tier could not be made: " + path_);
  }
  if (in_memory) mapped_.emplace(file_.get(), static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE);
  if (mapped_ && mapped_->bytes().empty()) mapped_.reset();
  const int code = mapped_ ? size_new_file(file_.get(), bytes_) : allocate_new_file(file_.get(), bytes_);
  if (code != 0) {
    static_cast<void>(::unlink(path_.c_str()));
    fail_for_room(code);
  }
  if (!mapped_) {
    there_ = bytes_;
  } else {
    bool begun = false;
    try {
      begun = giving_.start("cairn room", [this] { give_room(); });
    } catch (const std::bad_alloc&) {  // it takes its time here then
    }
    if (!begun) give_room();
  }
}

CAIRN_BODY new_slot::~new_slot() {
  stopped_ = true;
  giving_.join();
  if (!kept_) static_cast<void>(::unlink(path_.c_str()));
}

CAIRN_BODY void new_slot::fail_for_room(int code) const {
  fail_system(code,
              "there is no room in the local tier for an image that is rebuilt; nothing was given up: "
              "make room there and start again, or remove the local tiers to go on from the store: " +
                  path_);
}

CAIRN_BODY void new_slot::give_room() noexcept {
  // The first window waits for the first part, and each part for all cores.
  constexpr std::uint64_t first_part = 4 * huge_mapping::unit, max_part = 16 * huge_mapping::unit;
  std::size_t bytes = 0;
  for (std::uint64_t at = 0; at < bytes_ && !stopped_; at += bytes) {
    bytes = static_cast<std::size_t>(std::min(at == 0 ? first_part : max_part, bytes_ - at));
    const int code =
        allocate_part(file_.get(), at, mapped_->bytes().subspan(static_cast<std::size_t>(at), bytes));
    code_ = code;
    there_ = code == 0 ? at + bytes : UINT64_MAX;  // who waits looks at the code then
    there_.notify_all();
    if (code != 0) return;
  }
}

CAIRN_BODY void new_slot::await_room(std::uint64_t end) {
  for (auto there = there_.load(); there < end; there = there_.load()) there_.wait(there);
  if (code_ != 0) fail_for_room(code_);
}

CAIRN_BODY std::byte* new_slot::at(std::uint64_t offset, std::uint64_t bytes) {
  if (!mapped_ || bytes_ < offset + bytes) return nullptr;
  await_room(offset + bytes);
  auto* const found = mapped_->bytes().data() + offset;
  populate_destination(found, static_cast<std::size_t>(bytes));
  return found;
}

// Memory that is mapped costs a fault for each page.
CAIRN_BODY void new_slot::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (mapped_ && bytes.data() == mapped_->bytes().data() + offset) return;  // they came there
  await_room(offset + bytes.size());
  files_->write(path_, file_.get(), offset, bytes);
}

CAIRN_BODY void new_slot::keep() {
  await_room(bytes_);
  kept_ = true;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
