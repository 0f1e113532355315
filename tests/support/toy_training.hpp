// SPDX-License-Identifier: Apache-2.0
#pragma once
// A training whose state after n updates is a function of n alone, in every bit, on any number of ranks; an
// update changes what is in memory. So is its loss, a number to which each rank adds a part.
#include <cairn/model/state_dict.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace cairn_test {

class toy_training {
 public:
  toy_training(int rank, int world) : rank_(rank) {
    for (int which = 0; which < 3; ++which) {
      first_[which] = cut(lengths[which], which == 0 ? 0 : rank, which == 0 ? 1 : world);
      last_[which] = cut(lengths[which], which == 0 ? 1 : rank + 1, which == 0 ? 1 : world);
    }
    weights_.resize(lengths[0]);
    rows_.resize(static_cast<std::size_t>(last_[1] - first_[1]) * columns);
    moments_.resize(static_cast<std::size_t>(last_[2] - first_[2]));
    generator_.resize(24);
    state.tensor("weights", weights_, {lengths[0]});
    state.tensor("rows", rows_, cairn::shard{{lengths[1], columns}, {first_[1], 0}});
    state.tensor("moments", moments_, cairn::flat_shard{{17, 59}, first_[2]});
    state.value("updates", updates_);
    state.bytes("loader", loader_);
    state.bytes("generator", generator_, cairn::per_rank, cairn::optional);
    begin();
  }
  toy_training(const toy_training&) = delete;
  toy_training& operator=(const toy_training&) = delete;

  /// The state before the first update.
  void begin() {
    each([](auto& value, std::uint64_t which, std::int64_t index) { set(value, begins(which, index)); });
    updates_ = 0;
    loader_ = position(0);
    make_generator();
  }
  void update() {
    each([](auto& value, std::uint64_t which, std::int64_t index) {
      set(value, (static_cast<std::uint64_t>(value) + grows(which, index)) & mask);
    });
    ++updates_;
    loader_ = position(updates_);
    make_generator();
  }
  /// Called after a resume: gives a rank that no earlier run had its generator; returns whether it is such a
  /// rank.
  bool join() {
    std::uint64_t seen = 0;
    std::memcpy(&seen, generator_.data(), sizeof seen);
    if (seen != 0 || updates_ == 0) return false;
    make_generator();
    return true;
  }
  [[nodiscard]] std::int64_t updates() const { return static_cast<std::int64_t>(updates_); }
  /// Says what differs from the state after `n` updates; empty: nothing.
  [[nodiscard]] std::string wrong(std::int64_t n) {
    std::string found;
    each([&](const auto& value, std::uint64_t which, std::int64_t index) {
      if (found.empty() && static_cast<std::uint64_t>(value) != after(n, which, index))
        found = "item " + std::to_string(which) + ", element " + std::to_string(index);
    });
    if (updates() != n) found = "the count of updates is " + std::to_string(updates());
    if (loader_ != position(static_cast<std::uint64_t>(n))) found = "the loader's position is " + loader_;
    const auto mine = generator_;
    make_generator();
    if (mine != generator_) found = "the generator";
    return found;
  }
  /// This rank's part of the loss.
  [[nodiscard]] std::uint64_t loss() {
    std::uint64_t sum = 0;
    each([&](const auto& value, std::uint64_t which, std::int64_t index) {
      if (which != 0 || rank_ == 0) sum += weight(static_cast<std::uint64_t>(value), which, index);
    });
    return sum;
  }
  /// The loss after `n` updates: the sum of all ranks' parts.
  [[nodiscard]] static std::uint64_t expected_loss(std::int64_t n) {
    std::uint64_t sum = 0;
    for (std::uint64_t which = 0; which < 3; ++which)
      for (std::int64_t i = 0; i < lengths[which] * (which == 1 ? columns : 1); ++i)
        sum += weight(after(n, which, i), which, i);
    return sum;
  }

  cairn::state_dict state;

 private:
  // 80 KB, above what is always copied at once; rows; 17 x 59 of them in odd ranges.
  static constexpr std::int64_t lengths[] = {20'000, 37, 1'003};
  static constexpr std::int64_t columns = 11;
  static constexpr std::uint64_t mask = 0xFFFFF;  // exact in a float

  static std::uint64_t mix(std::uint64_t which, std::int64_t index) {
    auto z = which * 0xD1B54A32D192ED03u + static_cast<std::uint64_t>(index) * 0xBF58476D1CE4E5B9u + 1;
    z = (z ^ (z >> 29)) * 0x94D049BB133111EBu;
    return z ^ (z >> 32);
  }
  static std::uint64_t begins(std::uint64_t which, std::int64_t index) { return mix(which, index) & mask; }
  static std::uint64_t grows(std::uint64_t which, std::int64_t index) {
    return (mix(which, index) >> 40 & 0xFFFF) | 1;
  }
  static std::uint64_t after(std::int64_t n, std::uint64_t which, std::int64_t index) {
    return (begins(which, index) + static_cast<std::uint64_t>(n) * grows(which, index)) & mask;
  }
  static std::uint64_t weight(std::uint64_t value, std::uint64_t which, std::int64_t index) {
    return (value + 1) * (which * 1'000'003 + static_cast<std::uint64_t>(index) * 2 + 1);
  }
  template <class T>
  static void set(T& value, std::uint64_t to) {
    value = static_cast<T>(to);
  }
  static std::int64_t cut(std::int64_t n, int rank, int world) { return n * rank / world; }
  static std::string position(std::uint64_t updates) {
    return "position " + std::to_string(updates * 1'000'003);
  }
  /// Its first word is the count of updates.
  void make_generator() {
    for (std::size_t i = 0; i < 3; ++i) {
      const std::uint64_t word =
          i == 0 ? updates_ : updates_ * 31 + static_cast<std::uint64_t>(rank_) * 7 + i;
      std::memcpy(generator_.data() + 8 * i, &word, sizeof word);
    }
  }
  template <class Visit>
  void each(Visit visit) {
    const auto over = [&](auto& item, std::uint64_t which, std::int64_t first) {
      for (std::size_t i = 0; i < item.size(); ++i)
        visit(item[i], which, first + static_cast<std::int64_t>(i));
    };
    over(weights_, 0, 0);
    over(rows_, 1, first_[1] * columns);
    over(moments_, 2, first_[2]);
  }

  int rank_;
  std::int64_t first_[3] = {};
  std::int64_t last_[3] = {};
  std::vector<float> weights_;
  std::vector<double> rows_;
  std::vector<std::int32_t> moments_;
  std::vector<std::uint8_t> generator_;
  std::uint64_t updates_ = 0;
  std::string loader_;
};

}  // namespace cairn_test
