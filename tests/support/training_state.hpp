// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of one rank of a small training whose every bit follows from the step, so that a test can tell
// whether a loaded state is that of a step.
#include <cairn/model/state_dict.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace cairn_test {

struct training_sizes {
  std::int64_t weights = 4'000;  ///< floats, replicated
  std::int64_t rows = 37;        ///< of 61 doubles, sharded by rows
  std::int64_t moments = 1'003;  ///< 17 x 59 of them, a flat shard of odd ranges
};

class training_state {
 public:
  explicit training_state(int rank = 0, int world = 1, training_sizes sizes = {})
      : first_row_(cut(sizes.rows, rank, world)),
        first_moment_(cut(sizes.moments, rank, world)),
        rank_(rank) {
    weights.resize(static_cast<std::size_t>(sizes.weights));
    rows.resize(static_cast<std::size_t>((cut(sizes.rows, rank + 1, world) - first_row_) * 61));
    moments.resize(static_cast<std::size_t>(cut(sizes.moments, rank + 1, world) - first_moment_));
    generator.resize(24);
    state.tensor("weights", weights, {sizes.weights});
    state.tensor("rows", rows, cairn::shard{{sizes.rows, 61}, {first_row_, 0}});
    state.tensor("moments", moments, cairn::flat_shard{{17, 59}, first_moment_});
    state.value("rate", rate);
    state.bytes("loader", loader);
    state.bytes("generator", generator, cairn::per_rank);
  }
  training_state(const training_state&) = delete;
  training_state& operator=(const training_state&) = delete;

  void fill(std::int64_t step) {
    each([&](auto& item, std::uint64_t which, std::int64_t first) {
      // By pointers: builds without optimisation do this often.
      for (auto *at = item.data(), *end = at + item.size(); at != end; ++at, ++first)
        *at = make<std::remove_reference_t<decltype(*at)>>(step, which, first);
    });
    rate = static_cast<double>(step) / 7;
    loader = "position " + std::to_string(step * 1'000'003);
  }
  /// Overwrites the memory, as training does when it may change it.
  void spoil() { fill(-1); }
  /// True if every bit is that of the step.
  [[nodiscard]] bool is(std::int64_t step) {
    bool same =
        rate == static_cast<double>(step) / 7 && loader == "position " + std::to_string(step * 1'000'003);
    each([&](auto& item, std::uint64_t which, std::int64_t first) {
      for (auto *at = item.data(), *end = at + item.size(); same && at != end; ++at, ++first)
        same = *at == make<std::remove_reference_t<decltype(*at)>>(step, which, first);
    });
    return same;
  }

  cairn::state_dict state;
  std::vector<float> weights;
  std::vector<double> rows;
  std::vector<std::int32_t> moments;
  std::vector<std::uint8_t> generator;
  double rate = 0;
  std::string loader;

 private:
  static std::int64_t cut(std::int64_t n, int rank, int world) { return n * rank / world; }
  template <class T>
  static T make(std::int64_t step, std::uint64_t which, std::int64_t index) {
    auto z = static_cast<std::uint64_t>(step) * 0x9E3779B97F4A7C15u + which * 0xD1B54A32D192ED03u +
             static_cast<std::uint64_t>(index) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 29)) * 0x94D049BB133111EBu;
    return static_cast<T>((z >> 40) & (sizeof(T) == 1 ? 0xFFu : 0xFFFFFFu));
  }
  template <class Visit>
  void each(Visit visit) {
    visit(weights, 1, 0);
    visit(rows, 2, first_row_ * 61);
    visit(moments, 3, first_moment_);
    visit(generator, 4, rank_ * 1'000);
  }

  std::int64_t first_row_;
  std::int64_t first_moment_;
  std::int64_t rank_;
};

}  // namespace cairn_test
