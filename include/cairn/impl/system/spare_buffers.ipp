// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/shared.hpp>
#include <cairn/system/spare_buffers.hpp>

#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

struct spare_buffers::inside {
  static constexpr std::size_t most_bytes = std::size_t{64} << 20;  // a few windows of an exchange

  void keep(std::vector<std::byte>&& buffer) noexcept {
    if (!is_worth_it(buffer.size())) return;
    const std::lock_guard lock(mutex);
    if (buffer.capacity() > most_bytes - kept_bytes) return;
    try {
      const auto bytes = buffer.capacity();
      kept.push_back(std::move(buffer));
      kept_bytes += bytes;
    } catch (...) {  // freed instead
    }
  }

  std::mutex mutex;
  std::vector<std::vector<std::byte>> kept;
  std::size_t kept_bytes = 0;
  bool was_used = false;
};

CAIRN_BODY spare_buffers::spare_buffers() : in_(detail::make_shared<inside>()) {}

CAIRN_BODY std::vector<std::byte> spare_buffers::take(std::size_t bytes) noexcept {
  if (!is_worth_it(bytes)) return {};
  std::vector<std::byte> found;
  {
    const std::lock_guard lock(in_->mutex);
    in_->was_used = true;
    for (auto i = in_->kept.size(); i-- > 0;) {
      auto& each = in_->kept[i];
      if (each.capacity() < bytes) continue;
      found = std::move(each);
      in_->kept.erase(in_->kept.begin() + static_cast<std::ptrdiff_t>(i));
      in_->kept_bytes -= found.capacity();
      break;
    }
  }
  if (!found.empty()) found.resize(bytes);
  return found;
}

CAIRN_BODY std::shared_ptr<std::byte[]> spare_buffers::share(std::vector<std::byte> buffer) const {
  struct shared_buffer {
    shared_buffer(std::vector<std::byte>&& own, const std::shared_ptr<inside>& of)
        : bytes(std::move(own)), home(of) {}
    shared_buffer(const shared_buffer&) = delete;
    shared_buffer& operator=(const shared_buffer&) = delete;
    ~shared_buffer() {
      if (const auto still = home.lock()) still->keep(std::move(bytes));
    }
    std::vector<std::byte> bytes;
    std::weak_ptr<inside> home;
  };
  const auto made = detail::make_shared<shared_buffer>(std::move(buffer), in_);
  return {made, made->bytes.data()};
}

CAIRN_BODY void spare_buffers::drop_unused() noexcept {
  std::vector<std::vector<std::byte>> dropped;  // after the lock
  const std::lock_guard lock(in_->mutex);
  if (std::exchange(in_->was_used, false)) return;
  dropped.swap(in_->kept);
  in_->kept_bytes = 0;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
