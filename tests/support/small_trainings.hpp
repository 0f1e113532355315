// SPDX-License-Identifier: Apache-2.0
#pragma once
// Trainers of a few tensors, their ranks, and stagers, executors and clocks that a test holds up or that change
// their memory.
#include "on_all_ranks.hpp"

#include <cairn/cairn.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared_event.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test::small_trainings {

/// Runs `body(rank communicator)` as `n` ranks; the first failure is rethrown after all have ended.
inline void run_ranks(int n, const std::function<void(cairn::thread_communicator)>& body) {
  const cairn::thread_group group{n};
  on_all_ranks(n, [&](int rank) { body(group.communicator(rank)); });
}

inline const cairn::checkpointer_options quiet{
    .timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};

/// The state of one rank: a replicated tensor, a row shard, a flat shard of an odd range, values, bytes.
struct training {
  explicit training(int rank = 0, int world = 1, bool fill = true) {
    const std::int64_t rows = 37;
    const std::int64_t flat = 1003;
    const auto cut = [&](std::int64_t n, int r) { return n * r / world; };
    first_row = cut(rows, rank);
    shard.resize(static_cast<std::size_t>((cut(rows, rank + 1) - first_row) * 11));
    first = cut(flat, rank);
    moments.resize(static_cast<std::size_t>(cut(flat, rank + 1) - first));
    weights.resize(50 * 700);
    if (fill) {
      std::iota(weights.begin(), weights.end(), 0.5f);
      for (std::size_t i = 0; i < shard.size(); ++i)
        shard[i] = static_cast<double>(first_row * 11) + static_cast<double>(i);
      for (std::size_t i = 0; i < moments.size(); ++i)
        moments[i] = static_cast<std::int32_t>(first) + static_cast<std::int32_t>(i);
      learning_rate = 0.25;
      loader = "position 17";
      generator = {static_cast<std::uint8_t>(rank), 2, 3};
    }
    state.tensor("weights", weights, {50, 700});
    state.tensor("shard", shard, cairn::shard{{rows, 11}, {first_row, 0}});
    state.tensor("moments", moments, cairn::flat_shard{{17, 59}, first});
    state.value("learning_rate", learning_rate);
    state.bytes("loader", loader);
    state.bytes("generator", generator, cairn::per_rank);
  }
  void check_equal(const training& other) const {
    CHECK(weights == other.weights);
    CHECK(shard == other.shard);
    CHECK(moments == other.moments);
    CHECK(learning_rate == other.learning_rate);
    CHECK(loader == other.loader);
  }
  std::int64_t first_row = 0;
  std::int64_t first = 0;
  std::vector<float> weights;
  std::vector<double> shard;
  std::vector<std::int32_t> moments;
  double learning_rate = 0;
  std::string loader;
  std::vector<std::uint8_t> generator;
  cairn::state_dict state;
};

inline cairn::error_id id_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const cairn::error& e) {
    return e.id();
  }
}
inline cairn::error_fields fields_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const cairn::error& e) {
    return e.fields();
  }
}

/// A clock that advances only when somebody waits on it.
struct counting_clock : cairn::rate_clock {
  time_point now() noexcept override { return begin + std::chrono::nanoseconds(passed.load()); }
  void wait(cairn::shared_event&, std::uint32_t, time_point until) noexcept override {
    const auto wanted = (until - begin).count();
    for (auto at = passed.load(); at < wanted && !passed.compare_exchange_weak(at, wanted);) {
    }
  }
  [[nodiscard]] double seconds() const { return static_cast<double>(passed.load()) * 1e-9; }
  time_point begin = cairn::deadline::clock::now();
  std::atomic<std::int64_t> passed{0};
};
/// A clock that stands still: whoever waits on it goes on only when the limit is lifted.
struct stopped_clock : cairn::rate_clock {
  time_point now() noexcept override { return begin; }
  void wait(cairn::shared_event& word, std::uint32_t seen, time_point) noexcept override {
    ++waits;
    word.wait(seen, cairn::deadline::never());
  }
  time_point begin = cairn::deadline::clock::now();
  std::atomic<int> waits{0};
};
/// A stager that stops copying after its first MiB until somebody waits for the copy.
inline cairn::heap_stager stopping_stager(const std::shared_ptr<stopped_clock>& clock) {
  return cairn::heap_stager{{}, cairn::host_copy{{.threads = 2, .bytes_per_second = 1, .clock = clock}}};
}

/// Layers of a few MiB in all, and what is small.
struct layers {
  static constexpr int count = 8;
  static constexpr std::int64_t size = 100'003;  // floats
  layers() {
    for (int i = 0; i < count; ++i) {
      auto& layer = weights[static_cast<std::size_t>(i)];
      layer.resize(size);
      auto* const w = layer.data();
      for (std::int64_t k = 0; k < size; ++k) w[k] = static_cast<float>(k * (i + 1) % 1013);
      state.tensor("layer" + std::to_string(i) + ".weight", layer, {size});
      state.tensor("layer" + std::to_string(i) + ".bias", biases[static_cast<std::size_t>(i)], {16});
    }
    state.value("rate", rate);
    state.bytes("loader", loader);
    state.bytes("generator", generator, cairn::per_rank);
  }
  void update(int i) {
    auto* const w = weights[static_cast<std::size_t>(i)].data();
    const auto step = static_cast<float>(rate);
    for (std::int64_t k = 0; k < size; ++k) w[k] = w[k] * 0.75f + step;
    for (auto& b : biases[static_cast<std::size_t>(i)]) b += 0.5f;
  }
  void end_update() {
    rate += 0.125;
    loader += "x";
    generator[0] += 3;
  }
  [[nodiscard]] bool equals(const layers& other) const {
    for (std::size_t i = 0; i < count; ++i)
      if (std::memcmp(weights[i].data(), other.weights[i].data(), size * sizeof(float)) != 0) return false;
    return biases == other.biases && rate == other.rate && loader == other.loader &&
           generator == other.generator;
  }
  std::array<std::vector<float>, count> weights;
  std::array<std::array<float, 16>, count> biases{};
  double rate = 0.5;
  std::string loader = "position ";
  std::vector<std::uint8_t> generator{7, 8};
  cairn::state_dict state;
};

/// A stager and an executor that are chosen at run time, and change memory of training before they begin.
struct meddling_stager {
  using cairn_role = cairn::role::stager;
  bool buffered = true;
  std::shared_ptr<std::function<void()>> meddle;
  cairn::heap_stager heap = {};
  cairn::no_staging none = {};
  cairn::staged_image stage(std::shared_ptr<const cairn::image_layout> layout,
                            std::vector<cairn::item_source> sources, cairn::stage_options options,
                            cairn::deadline until) {
    if (*meddle) (*meddle)();
    return buffered ? heap.stage(std::move(layout), std::move(sources), options, until)
                    : none.stage(std::move(layout), std::move(sources), options, until);
  }
  void prepare(const cairn::image_layout&, cairn::deadline) {}
  [[nodiscard]] int depth() const { return 1; }
};
struct meddling_executor {
  using cairn_role = cairn::role::executor;
  template <class Writer>
  static constexpr bool accepts = true;
  bool in_caller = false;
  std::shared_ptr<std::function<void()>> meddle;
  cairn::thread_executor thread = {};
  void submit(cairn::save_job job) {
    if (*meddle) (*meddle)();
    if (in_caller) return cairn::run_save_job(std::move(job));
    thread.submit(std::move(job));
  }
  [[nodiscard]] bool drain(cairn::deadline until) { return thread.drain(until); }
};

template <class... Policies>
void round_trip(Policies... policies) {
  cairn::memory_store store;
  training saved;
  {
    cairn::checkpointer ckpt{store, quiet, std::move(policies)...};
    CHECK_FALSE(ckpt.resume(saved.state).has_value());
    auto handle = ckpt.save(saved.state, 12);
    ckpt.before_update();
    CHECK(handle.released());
    handle.wait();
    CHECK(handle.committed());
    CHECK(handle.written());
    CHECK(handle.report().bytes > 0);
    ckpt.close();
  }
  training loaded(0, 1, false);
  cairn::checkpointer reader{store, quiet};
  CHECK(reader.resume(loaded.state) == 12);
  loaded.check_equal(saved);
  CHECK(loaded.generator == saved.generator);
}

/// Trains three steps with a save after each, by `before(step, layer)` ahead of each layer's update. `save`
/// gives a handle, or none where the checkpointer waits itself.
template <class Checkpointer>
void train(Checkpointer& ckpt, layers& t, const std::function<void(int)>& before) {
  std::vector<cairn::save_handle> saves;
  for (int step = 1; step <= 3; ++step) {
    for (int i = layers::count; i-- > 0;) {
      before(i);
      t.update(i);
    }
    t.end_update();
    saves.push_back(ckpt.save(t.state, step));
  }
  ckpt.close();
  for (const auto& s : saves) CHECK(s.committed());
}

/// heap_stager that notes whether it was asked for digests.
struct asked_stager : cairn::heap_stager {
  explicit asked_stager(std::shared_ptr<std::optional<bool>> note) : asked(std::move(note)) {}
  cairn::staged_image stage(std::shared_ptr<const cairn::image_layout> layout,
                            const cairn::source_table& sources, cairn::stage_options options,
                            cairn::deadline until) {
    *asked = options.digest;
    return heap_stager::stage(std::move(layout), sources, options, until);
  }
  std::shared_ptr<std::optional<bool>> asked;
};

}  // namespace cairn_test::small_trainings
