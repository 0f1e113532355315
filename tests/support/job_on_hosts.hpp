// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parts of a job on several hosts, which tell a rank's process of each step that they make: ranks are processes, hosts
// are directories, links are TLS.
#include "process_ranks.hpp"
#include "scratch_directory.hpp"

#include <cairn/cairn.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/links/tls_link.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// Steps that threads of a rank come to, where its process may be killed.
class points {
 public:
  /// `beside`: is told each of them as well.
  explicit points(rank_process& me, std::function<void(const std::string&)> beside = {})
      : me_(me), beside_(std::move(beside)) {}
  void pass(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (beside_) beside_(name);
    me_.point(name);
    me_.point("any");
  }

 private:
  rank_process& me_;
  std::function<void(const std::string&)> beside_;
  std::mutex mutex_;
};

/// What a file of a tier is: "held" of held.f95c, "new-piece" of new-piece-0.
inline std::string kind_of(const std::string& path) {
  auto name = std::filesystem::path(path).filename().string();
  name.resize(std::min(name.find_first_of(".0123456789"), name.size()));
  while (name.ends_with('-')) name.pop_back();
  return name;
}

/// Changes of the files of a tier.
class told_files final : public cairn::tier_files {
 public:
  explicit told_files(points& at) : at_(at) {}
  void put(const std::string& path, std::span<const std::byte> bytes) override {
    at_.pass("before put " + kind_of(path));
    cairn::tier_files::put(path, bytes);
    at_.pass("after put " + kind_of(path));
  }
  void rename(const std::string& from, const std::string& to) override {
    at_.pass("before rename " + kind_of(to));
    cairn::tier_files::rename(from, to);
    at_.pass("after rename " + kind_of(to));
  }
  void remove(const std::string& path) override {
    at_.pass("before remove " + kind_of(path));
    cairn::tier_files::remove(path);
    at_.pass("after remove " + kind_of(path));
  }
  void write(const std::string& path, int file, std::uint64_t offset,
             std::span<const std::byte> bytes) override {
    at_.pass("before write " + kind_of(path));
    cairn::tier_files::write(path, file, offset, bytes);
  }

 private:
  points& at_;
};

/// "message", while it tells.
class told_communicator {
 public:
  using cairn_role = cairn::role::communicator;
  told_communicator(cairn::shared_memory_communicator inner, points& at, const bool& tells)
      : inner_(std::move(inner)), at_(&at), tells_(&tells) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void send(int to, std::span<const std::byte> bytes, cairn::deadline until) {
    if (*tells_) at_->pass("message");
    inner_.send(to, bytes, until);
  }
  [[nodiscard]] std::vector<std::byte> receive(int from, cairn::deadline until) {
    if (*tells_) at_->pass("message");
    return inner_.receive(from, until);
  }

 private:
  cairn::shared_memory_communicator inner_;
  points* at_;
  const bool* tells_;
};

/// Calls of a link.
class told_link {
 public:
  told_link(cairn::tls_link inner, points& at) : inner_(std::move(inner)), at_(&at) {}
  [[nodiscard]] int rank() const noexcept { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept { return inner_.size(); }
  void offer(const cairn::offer_key& key, std::span<const std::span<const std::byte>> parts) {
    at_->pass("before offer");
    inner_.offer(key, parts);
    at_->pass("after offer");
  }
  void withdraw(const cairn::offer_key& key, cairn::deadline until) noexcept {
    at_->pass("before withdraw");
    inner_.withdraw(key, until);
  }
  std::uint64_t await_offer(int peer, const cairn::offer_key& key, cairn::deadline until) {
    return inner_.await_offer(peer, key, until);
  }
  std::uint64_t fetch(int peer, const cairn::offer_key& key, std::span<const cairn::fetch_range> ranges,
                      cairn::deadline until) {
    at_->pass("before fetch");
    const auto got = inner_.fetch(peer, key, ranges, until);
    at_->pass("after fetch");
    return got;
  }
  [[nodiscard]] bool is_gone(int peer) const noexcept { return inner_.is_gone(peer); }

 private:
  cairn::tls_link inner_;
  points* at_;
};
struct told_links {
  using cairn_role = cairn::role::link;
  points* at;
  [[nodiscard]] told_link connect(cairn::collectives& job, cairn::deadline until) const {
    return {cairn::tls_links{}.connect(job, until), *at};
  }
};

/// A rank's part of a tensor, and a value, whose elements follow from the step. The state refers to them.
class state_of_steps {
 public:
  state_of_steps(int rank, int size, std::int64_t elements) : first_(elements * rank / size) {
    part_.resize(static_cast<std::size_t>(elements * (rank + 1) / size - first_), -1.0F);
    state.tensor("part", part_, cairn::shard{{elements}, {first_}});
    state.value("value", value_);
  }
  state_of_steps(const state_of_steps&) = delete;
  state_of_steps& operator=(const state_of_steps&) = delete;
  void fill(std::int64_t step) {
    for (std::size_t i = 0; i < part_.size(); ++i)
      part_[i] = static_cast<float>((step * 7919 + first_ + static_cast<std::int64_t>(i)) % 65521);
    value_ = step * 3;
  }
  /// @throws std::runtime_error unless it is that of this step
  void require(std::int64_t step) {
    const auto read = part_;
    const auto value = value_;
    fill(step);
    if (value != value_ || part_ != read)
      throw std::runtime_error("the state is not that of step " + std::to_string(step));
  }

  cairn::state_dict state;

 private:
  std::int64_t first_;
  std::vector<float> part_;
  std::int64_t value_ = -1;
};

/// Where the hosts of a job have their memory, and the store.
struct places {
  scratch_directory memory{"/dev/shm"};
  scratch_directory disk;
  [[nodiscard]] std::string tier(int rank) const { return memory.path() + "/host" + std::to_string(rank); }
  void lose(int host) const { std::filesystem::remove_all(tier(host)); }
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(memory.path()); }
};

}  // namespace cairn_test
