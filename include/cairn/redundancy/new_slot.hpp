// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/background_thread.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/huge_mapping.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A new file of a tier for an image that is rebuilt; removed again unless it is kept. In memory it gets its room by a
/// thread, ahead of what comes: the kernel takes as long for that as a fast network for the bytes. One thread uses it.
class new_slot {
 public:
  /// @throws storage_error where there is no room for it
  new_slot(std::shared_ptr<tier_files> files, const std::string& directory, std::int32_t rank,
           std::uint64_t bytes);
  new_slot(const new_slot&) = delete;
  new_slot& operator=(const new_slot&) = delete;
  ~new_slot();

  /// The memory of some bytes, which have their room then; null on a disk. @throws storage_error
  [[nodiscard]] std::byte* at(std::uint64_t offset, std::uint64_t bytes);
  /// Nothing is copied where `bytes` are in that memory. @throws storage_error
  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Waits until all of it has its room. @throws storage_error
  void keep();
  [[nodiscard]] std::int32_t number() const { return number_; }

 private:
  [[noreturn]] void fail_for_room(int code) const;
  void give_room() noexcept;
  void await_room(std::uint64_t end);

  std::shared_ptr<tier_files> files_;
  std::int32_t number_ = 0;
  std::string path_;
  file_descriptor file_;
  std::optional<huge_mapping> mapped_;  // in memory alone
  std::uint64_t bytes_ = 0;
  bool kept_ = false;

  std::atomic<std::uint64_t> there_{0};  // so many bytes have their room
  std::atomic<int> code_{0};             // why no more will
  std::atomic<bool> stopped_{false};
  background_thread giving_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/new_slot.ipp>
#endif
