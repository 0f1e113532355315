// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Overwrites memory in a way that the compiler does not leave out.
inline void wipe(void* memory, std::size_t bytes) noexcept {
  auto* const at = static_cast<volatile unsigned char*>(memory);
  for (std::size_t i = 0; i < bytes; ++i) at[i] = 0;
}

/// Bytes that may be secret: wiped when they go.
class secret_bytes {
 public:
  secret_bytes() = default;
  explicit secret_bytes(std::vector<std::byte> bytes) noexcept : bytes_(std::move(bytes)) {}
  secret_bytes(secret_bytes&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  secret_bytes& operator=(secret_bytes&& other) noexcept {
    bytes_.swap(other.bytes_);
    return *this;
  }
  ~secret_bytes() { wipe(bytes_.data(), bytes_.size()); }
  [[nodiscard]] std::span<const std::byte> view() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// What a trainer answers when a worker process of its own asks for what no description holds: fresh
/// credentials. Called by the executor's thread while a save runs; what it throws is the worker's answer.
class credential_provider {
 public:
  credential_provider() = default;
  credential_provider(const credential_provider&) = delete;
  credential_provider& operator=(const credential_provider&) = delete;
  virtual ~credential_provider() = default;
  [[nodiscard]] virtual secret_bytes answer(std::span<const std::byte> question) = 0;
};

/// The credential providers of this process, by the numbers that are in descriptions. A number alone opens
/// nothing: questions come over the socket of a worker that this process started. Any thread.
class credential_broker {
 public:
  static credential_broker& here() {
    static credential_broker desk;
    return desk;
  }
  /// A number under which `who` answers for as long as it lives.
  [[nodiscard]] std::uint64_t offer(std::weak_ptr<credential_provider> who) {
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
    std::uint64_t number = 0;
    while (number == 0 || known_.contains(number)) number = random_();
    known_.emplace(number, std::move(who));
    return number;
  }
  /// Nothing if nobody answers under this number.
  [[nodiscard]] std::shared_ptr<credential_provider> find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto at = known_.find(number);
    return at == known_.end() ? nullptr : at->second.lock();
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 random_{(std::uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  std::map<std::uint64_t, std::weak_ptr<credential_provider>> known_;
};

/// How a worker process asks its trainer, bounded in time; set once, before anybody may ask, in workers
/// alone.
using ask_function = std::function<secret_bytes(std::uint64_t number, std::span<const std::byte> question)>;
[[nodiscard]] inline ask_function& ask_of_this_process() {
  static ask_function ask;
  return ask;
}

/// The answer of the trainer whose description held `number`. @throws what the answer is, or peer_error
/// (peer_lost) where there is no trainer any more, timeout_error.
[[nodiscard]] inline secret_bytes ask_trainer(std::uint64_t number, std::span<const std::byte> question) {
  if (const auto& ask = ask_of_this_process()) return ask(number, question);
  if (const auto here = credential_broker::here().find(number)) return here->answer(question);
  fail(error_id::peer_lost, "this process is not a worker, so there is no trainer to ask");
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
