// SPDX-License-Identifier: Apache-2.0
// The C interface: a state of every kind goes from two ranks to one, and nothing that C can do wrong does
// harm.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cairn/cairn.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/interop/c_interface.hpp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <support/on_all_ranks.hpp>
#include <support/scratch_directory.hpp>
#include <support/still_threads.hpp>
#include <thread>
#include <vector>

namespace {

using cairn::error_id;

cairn_checkpointer* open_rank(const std::string& directory, const cairn::thread_group& group, int rank) {
  return cairn::open_for_c([&] {
    return cairn::checkpointer{cairn::file_store{directory}, group.communicator(rank), cairn::overlapped{},
                               cairn::checkpointer_options{.quiet = true}};
  });
}

}  // namespace

extern "C" cairn_checkpointer* cairn_open(const char* directory) {
  return cairn::open_for_c([&] {
    const std::string where = directory;
    return cairn::any_checkpointer{
        cairn::checkpointer{cairn::file_store{where}, cairn::thread_group{1}.communicator(0),
                            cairn::overlapped{}, cairn::checkpointer_options{.quiet = true}}};
  });
}

namespace {

int number(error_id id) {
  return static_cast<int>(id);
}
bool told(const std::string& part) {
  return std::string(cairn_error_message()).find(part) != std::string::npos;
}

/// The state of one rank of a C trainer.
struct rank_memory {
  std::vector<float> weights = std::vector<float>(12);
  std::vector<float> moment;        ///< a range of [3, 4], flattened
  std::vector<std::uint16_t> rows;  ///< some rows of [4, 3]
  double learning_rate = 0;
  std::int64_t samples = 0;
  bool warm = false;
  std::array<unsigned char, 5> loader{};
  std::uint64_t generator = 0;

  void add_to(cairn_checkpointer* ckpt, int rank, int ranks) {
    const std::array<std::int64_t, 2> shape{3, 4}, grid{4, 3};
    const std::int64_t begin = 12 * rank / ranks, end = 12 * (rank + 1) / ranks;
    moment.resize(static_cast<std::size_t>(end - begin));
    const std::array<std::int64_t, 2> offset{4 * rank / ranks, 0}, sizes{4 / ranks, 3};
    rows.resize(static_cast<std::size_t>(sizes[0] * 3));
    CHECK(cairn_tensor(ckpt, "weights", weights.data(), cairn_f32, 2, shape.data(), 0) == 0);
    CHECK(cairn_flat_range(ckpt, "moment", moment.data(), cairn_f32, 2, shape.data(), begin, end - begin,
                           0) == 0);
    CHECK(cairn_box(ckpt, "rows", rows.data(), cairn_bf16, 2, grid.data(), offset.data(), sizes.data(),
                    cairn_copy_now) == 0);
    CHECK(cairn_value(ckpt, "learning_rate", &learning_rate, cairn_f64, 0) == 0);
    CHECK(cairn_value(ckpt, "samples", &samples, cairn_i64, 0) == 0);
    CHECK(cairn_value(ckpt, "warm", &warm, cairn_boolean, 0) == 0);
    CHECK(cairn_bytes(ckpt, "loader", loader.data(), loader.size(), 0) == 0);
    CHECK(cairn_value(ckpt, "generator", &generator, cairn_u64, cairn_per_rank | cairn_optional) == 0);
  }
  void fill(int rank, int ranks) {
    std::iota(weights.begin(), weights.end(), 1.0f);
    std::iota(moment.begin(), moment.end(), static_cast<float>(100 + 12 * rank / ranks));
    std::iota(rows.begin(), rows.end(), static_cast<std::uint16_t>(200 + 12 * rank / ranks));
    learning_rate = 0.25;
    samples = std::int64_t{1} << 40;
    warm = true;
    loader = {1, 2, 3, 4, 5};
    generator = 70 + static_cast<std::uint64_t>(rank);
  }
};

/// An open checkpointer with one tensor, closed whatever happens.
struct one_tensor {
  explicit one_tensor(const std::string& directory) : ckpt(cairn_open(directory.c_str())) {
    REQUIRE(ckpt != nullptr);
    REQUIRE(cairn_tensor(ckpt, "w", weights.data(), cairn_f32, 1, shape.data(), 0) == 0);
  }
  one_tensor(const one_tensor&) = delete;
  one_tensor& operator=(const one_tensor&) = delete;
  ~one_tensor() {
    if (ckpt != nullptr) static_cast<void>(cairn_close(&ckpt));
  }
  std::array<std::int64_t, 1> shape{8};
  std::vector<float> weights = std::vector<float>(8, 1.0f);
  cairn_checkpointer* ckpt;
};

}  // namespace

TEST_CASE("C: a state of every kind is saved by two ranks and restored on one and on two") {
  const cairn_test::scratch_directory scratch;
  const auto train = [&](int ranks, std::int64_t expected_step, const auto& look) {
    const cairn::thread_group group{ranks};
    cairn_test::on_all_ranks(ranks, [&](int rank) {
      auto* ckpt = open_rank(scratch.path(), group, rank);
      REQUIRE(ckpt != nullptr);
      rank_memory memory;
      memory.add_to(ckpt, rank, ranks);
      std::int64_t step = 0;
      CHECK(cairn_resume(ckpt, &step) == 0);
      CHECK(step == expected_step);
      look(memory, rank);
      CHECK(cairn_before_update(ckpt) == 0);
      memory.fill(rank, ranks);
      CHECK(cairn_save(ckpt, step + 10) == 0);
      CHECK(cairn_before_update(ckpt) == 0);
      CHECK(cairn_close(&ckpt) == 0);
      CHECK(ckpt == nullptr);
    });
  };
  const auto is_filled = [](int ranks, int saved_ranks) {
    return [=](const rank_memory& got, int rank) {
      rank_memory wanted;
      wanted.moment.resize(got.moment.size());
      wanted.rows.resize(got.rows.size());
      wanted.fill(rank, ranks);
      CHECK(got.weights == wanted.weights);
      CHECK(got.moment == wanted.moment);
      CHECK(got.rows == wanted.rows);
      CHECK(got.learning_rate == 0.25);
      CHECK(got.samples == wanted.samples);
      CHECK(got.warm);
      CHECK(got.loader == wanted.loader);
      CHECK(got.generator == (rank < saved_ranks ? 70u + static_cast<unsigned>(rank) : 0u));
    };
  };
  train(2, 0, [](const rank_memory& memory, int) { CHECK(memory.weights == std::vector<float>(12)); });
  train(1, 10, is_filled(1, 2));
  train(2, 20, is_filled(2, 1));
}

TEST_CASE("C: what was registered is restored by C++ under the same names and kinds") {
  const cairn_test::scratch_directory scratch;
  std::vector<float> weights(8);
  {
    one_tensor trainer(scratch.path());
    std::int32_t counter = 7, step32 = 0;
    CHECK(cairn_value(trainer.ckpt, "counter", &counter, cairn_i32, 0) == 0);
    std::int64_t step = step32;
    REQUIRE(cairn_resume(trainer.ckpt, &step) == 0);
    REQUIRE(cairn_save(trainer.ckpt, 3) == 0);
    REQUIRE(cairn_close(&trainer.ckpt) == 0);
  }
  std::int32_t counter = 0;
  cairn::state_dict state;
  state.tensor("w", weights, {8});
  state.value("counter", counter);
  cairn::any_checkpointer ckpt{
      cairn::checkpointer{cairn::file_store{scratch.path()}, cairn::thread_group{1}.communicator(0),
                          cairn::overlapped{}, cairn::checkpointer_options{.quiet = true}}};
  CHECK(ckpt.resume(state) == 3);
  CHECK(weights == std::vector<float>(8, 1.0f));
  CHECK(counter == 7);
}

TEST_CASE("C: every call on a null checkpointer is refused") {
  std::int64_t step = 5;
  const std::int64_t shape = 1;
  float x = 0;
  const int closed = number(error_id::usage_closed);
  CHECK(closed == 107);
  CHECK(cairn_tensor(nullptr, "x", &x, cairn_f32, 1, &shape, 0) == closed);
  CHECK(cairn_flat_range(nullptr, "x", &x, cairn_f32, 1, &shape, 0, 1, 0) == closed);
  CHECK(cairn_box(nullptr, "x", &x, cairn_f32, 1, &shape, &shape, &shape, 0) == closed);
  CHECK(cairn_value(nullptr, "x", &x, cairn_f32, 0) == closed);
  CHECK(cairn_bytes(nullptr, "x", &x, sizeof x, 0) == closed);
  CHECK(cairn_rebind(nullptr, "x", &x) == closed);
  CHECK(cairn_resume(nullptr, &step) == closed);
  CHECK(cairn_before_update(nullptr) == closed);
  CHECK(cairn_save(nullptr, 1) == closed);
  CHECK(cairn_close(nullptr) == closed);
  cairn_checkpointer* none = nullptr;
  CHECK(cairn_close(&none) == closed);
  CHECK(told("[cairn.usage.closed]"));
  CHECK(step == 5);
}

TEST_CASE("C: a second close is refused and does no harm") {
  const cairn_test::scratch_directory scratch;
  one_tensor trainer(scratch.path());
  CHECK(cairn_close(&trainer.ckpt) == 0);
  CHECK(trainer.ckpt == nullptr);
  CHECK(cairn_close(&trainer.ckpt) == number(error_id::usage_closed));
  CHECK(cairn_save(trainer.ckpt, 1) == number(error_id::usage_closed));
}

TEST_CASE("C: a failed open returns null and says why") {
  CHECK(cairn_open(nullptr) == nullptr);
  CHECK(std::strlen(cairn_error_message()) > 0);
  const auto throws = [](auto what) {
    return cairn::open_for_c([&]() -> cairn::any_checkpointer { throw what; });
  };
  CHECK(throws(std::bad_alloc()) == nullptr);
  CHECK(told("memory ran out"));
  CHECK(throws(std::runtime_error("the network is down")) == nullptr);
  CHECK(told("the network is down"));
  CHECK(throws(17) == nullptr);
  CHECK(told("unknown type"));
  CHECK(cairn::open_for_c([] { return cairn::any_checkpointer(); }) == nullptr);
  CHECK(told("empty"));
  CHECK(throws(std::runtime_error("the network is down")) == nullptr);
  CHECK(cairn_save(nullptr, 1) == number(error_id::usage_closed));
  CHECK(told("opening it failed: the network is down"));
  const cairn_test::scratch_directory good;
  one_tensor trainer(good.path());
  CHECK(cairn_save(nullptr, 1) == number(error_id::usage_closed));
  CHECK_FALSE(told("network"));
}

TEST_CASE("C: impossible registrations are refused, and remembered") {
  const cairn_test::scratch_directory scratch;
  std::array<double, 4> memory{};
  const std::array<std::int64_t, 9> sizes{2, 2, 1, 1, 1, 1, 1, 1, 1};
  const std::array<std::int64_t, 3> negative{2, -1, 1}, huge{std::int64_t{1} << 62, 4, 4}, none{0, 1, 1};
  const std::array<std::int64_t, 3> empty_huge{0, std::int64_t{1} << 62, std::int64_t{1} << 62};
  char* const bytes = reinterpret_cast<char*>(memory.data());
  using attempt = std::function<int(cairn_checkpointer*)>;
  const int shape = number(error_id::usage_bad_shape), option = number(error_id::usage_bad_option),
            name = number(error_id::usage_bad_name), twice = number(error_id::usage_duplicate_name);
  const std::vector<std::pair<int, attempt>> attempts{
      {name, [&](auto* c) { return cairn_tensor(c, nullptr, bytes, cairn_f64, 2, sizes.data(), 0); }},
      {name, [&](auto* c) { return cairn_tensor(c, "", bytes, cairn_f64, 2, sizes.data(), 0); }},
      {name, [&](auto* c) { return cairn_bytes(c, "\xff", bytes, 4, 0); }},
      {twice, [&](auto* c) { return cairn_tensor(c, "w", bytes, cairn_f64, 2, sizes.data(), 0); }},
      {shape, [&](auto* c) { return cairn_tensor(c, "x", nullptr, cairn_f64, 2, sizes.data(), 0); }},
      {shape, [&](auto* c) { return cairn_tensor(c, "x", bytes, cairn_f64, 2, nullptr, 0); }},
      {shape, [&](auto* c) { return cairn_tensor(c, "x", bytes, cairn_f64, -1, sizes.data(), 0); }},
      {shape, [&](auto* c) { return cairn_tensor(c, "x", bytes, cairn_f64, 9, sizes.data(), 0); }},
      {shape, [&](auto* c) { return cairn_tensor(c, "x", bytes, cairn_f64, 3, negative.data(), 0); }},
      {shape, [&](auto* c) { return cairn_tensor(c, "x", bytes, cairn_f64, 3, huge.data(), 0); }},
      {shape, [&](auto* c) { return cairn_tensor(c, "x", bytes, cairn_f4, 2, &sizes[2], 0); }},
      {option, [&](auto* c) { return cairn_tensor(c, "x", bytes, cairn_dtype_limit, 2, sizes.data(), 0); }},
      {option,
       [&](auto* c) {
         return cairn_tensor(c, "x", bytes, static_cast<cairn_dtype>(20), 2, sizes.data(), 0);
       }},
      {option, [&](auto* c) { return cairn_tensor(c, "x", bytes, cairn_f64, 2, sizes.data(), 16); }},
      {shape, [&](auto* c) { return cairn_flat_range(c, "x", bytes, cairn_f64, 2, sizes.data(), 0, -1, 0); }},
      {shape, [&](auto* c) { return cairn_flat_range(c, "x", bytes, cairn_f64, 2, sizes.data(), -1, 1, 0); }},
      {shape, [&](auto* c) { return cairn_flat_range(c, "x", bytes, cairn_f64, 2, sizes.data(), 3, 2, 0); }},
      {shape,
       [&](auto* c) {
         return cairn_flat_range(c, "x", bytes, cairn_f64, 2, sizes.data(), 1,
                                 std::numeric_limits<std::int64_t>::max(), 0);
       }},
      {shape,
       [&](auto* c) { return cairn_flat_range(c, "x", nullptr, cairn_f64, 2, sizes.data(), 0, 1, 0); }},
      {shape,
       [&](auto* c) {
         return cairn_box(c, "x", bytes, cairn_f64, 2, sizes.data(), nullptr, sizes.data(), 0);
       }},
      {shape,
       [&](auto* c) {
         return cairn_box(c, "x", bytes, cairn_f64, 2, sizes.data(), &sizes[1], sizes.data(), 0);
       }},
      {shape, [&](auto* c) { return cairn_value(c, "x", nullptr, cairn_f64, 0); }},
      {shape, [&](auto* c) { return cairn_value(c, "x", bytes + 1, cairn_f64, 0); }},
      {option, [&](auto* c) { return cairn_value(c, "x", bytes, cairn_bf16, 0); }},
      {shape, [&](auto* c) { return cairn_bytes(c, "x", nullptr, 1, 0); }},
      {option, [&](auto* c) { return cairn_bytes(c, "x", bytes, 1, 16); }},
  };
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    CAPTURE(i);
    one_tensor trainer(scratch.path());
    const auto& [expected, run] = attempts[i];
    CHECK(run(trainer.ckpt) == expected);
    const std::string why = cairn_error_message();
    CHECK(why.find("[cairn.usage.") == 0);
    // A trainer that checks only resume gets the same error; nothing is saved while a registration is
    // missing.
    float later = 0;
    CHECK(cairn_value(trainer.ckpt, "later", &later, cairn_f32, 0) == 0);
    std::int64_t step = 9;
    CHECK(cairn_resume(trainer.ckpt, &step) == expected);
    CHECK(why == cairn_error_message());
    CHECK(cairn_save(trainer.ckpt, 1) == expected);
    CHECK(step == 9);
  }
  one_tensor trainer(scratch.path());
  std::int64_t step = 9;
  CHECK(cairn_tensor(trainer.ckpt, "empty", nullptr, cairn_f32, 3, none.data(), 0) == 0);
  CHECK(cairn_tensor(trainer.ckpt, "empty too", nullptr, cairn_f32, 3, empty_huge.data(), 0) == 0);
  CHECK(cairn_flat_range(trainer.ckpt, "nothing", nullptr, cairn_f32, 3, none.data(), 0, 0, 0) == 0);
  CHECK(cairn_bytes(trainer.ckpt, "no bytes", nullptr, 0, 0) == 0);
  CHECK(cairn_resume(trainer.ckpt, &step) == 0);
  CHECK(step == 9);  // there is no checkpoint
  CHECK(cairn_save(trainer.ckpt, 1) == 0);
  CHECK(cairn_close(&trainer.ckpt) == 0);
}

TEST_CASE("C: calls in the wrong order are refused") {
  const cairn_test::scratch_directory scratch;
  one_tensor trainer(scratch.path());
  CHECK(cairn_before_update(trainer.ckpt) == 0);
  CHECK(cairn_save(trainer.ckpt, 1) == number(error_id::usage_wrong_order));
  CHECK(number(error_id::usage_wrong_order) == 113);
  CHECK(told("cairn_resume"));
  CHECK(cairn_resume(trainer.ckpt, nullptr) == number(error_id::usage_bad_option));
  CHECK(cairn_save(trainer.ckpt, 1) == number(error_id::usage_wrong_order));
  std::int64_t step = 0;
  CHECK(cairn_resume(trainer.ckpt, &step) == 0);
  float late = 0;
  CHECK(cairn_value(trainer.ckpt, "late", &late, cairn_f32, 0) == number(error_id::usage_wrong_order));
  CHECK(told("item late"));
  CHECK(cairn_save(trainer.ckpt, 1) == number(error_id::usage_wrong_order));
}

TEST_CASE("C: errors of saves, loads and close are reported") {
  const cairn_test::scratch_directory scratch;
  std::array<unsigned char, 6> blob{1, 2, 3, 4, 5, 6};
  std::int64_t step = 0;
  {
    one_tensor trainer(scratch.path());
    CHECK(cairn_bytes(trainer.ckpt, "blob", blob.data(), blob.size(), 0) == 0);
    REQUIRE(cairn_resume(trainer.ckpt, &step) == 0);
    CHECK(cairn_save(trainer.ckpt, -1) == number(error_id::usage_bad_option));
    CHECK(cairn_save(trainer.ckpt, 4) == 0);
    CHECK(cairn_before_update(trainer.ckpt) == 0);
    CHECK(cairn_save(trainer.ckpt, 4) == 0);  // the checkpoint exists: told at the end
    CHECK(cairn_close(&trainer.ckpt) == number(error_id::storage_already_committed));
    CHECK(trainer.ckpt == nullptr);
  }
  {
    one_tensor trainer(scratch.path());  // blob is missing here, and another size next
    CHECK(cairn_resume(trainer.ckpt, &step) == number(error_id::plan_unexpected_item));
    CHECK(told("blob"));
  }
  {
    one_tensor trainer(scratch.path());
    CHECK(cairn_bytes(trainer.ckpt, "blob", blob.data(), 3, 0) == 0);
    const int status = cairn_resume(trainer.ckpt, &step);
    CHECK(status == number(error_id::usage_size_changed));
    CHECK(told("blob"));
  }
  CHECK(step == 0);
}

TEST_CASE("C: memory that moves can be rebound to its new address") {
  const cairn_test::scratch_directory scratch;
  std::array<unsigned char, 2> blob{1, 2}, moved_blob{3, 4};
  double value = 1, moved_value = 2;
  std::int64_t step = 0;
  {
    one_tensor trainer(scratch.path());
    std::vector<float> moved(8, 5.0f);
    CHECK(cairn_bytes(trainer.ckpt, "blob", blob.data(), blob.size(), 0) == 0);
    CHECK(cairn_value(trainer.ckpt, "value", &value, cairn_f64, 0) == 0);
    const std::int64_t shape[2] = {3, 4};
    CHECK(cairn_flat_range(trainer.ckpt, "range", trainer.weights.data(), cairn_f32, 2, shape, 0, 12 - 5,
                           0) == 0);
    CHECK(cairn_flat_range(trainer.ckpt, "rest", trainer.weights.data(), cairn_f32, 2, shape, 0, 0, 0) == 0);
    CHECK(cairn_rebind(trainer.ckpt, "gone", moved.data()) == number(error_id::usage_unknown_name));
    CHECK(cairn_rebind(trainer.ckpt, nullptr, moved.data()) == number(error_id::usage_bad_name));
    CHECK(cairn_rebind(trainer.ckpt, "w", nullptr) == number(error_id::usage_bad_shape));
    CHECK(cairn_rebind(trainer.ckpt, "blob", nullptr) == number(error_id::usage_bad_shape));
    CHECK(cairn_rebind(trainer.ckpt, "value", reinterpret_cast<char*>(&moved_value) + 1) ==
          number(error_id::usage_bad_shape));
    CHECK(cairn_rebind(trainer.ckpt, "w", moved.data()) == 0);
    CHECK(cairn_rebind(trainer.ckpt, "blob", moved_blob.data()) == 0);
    CHECK(cairn_rebind(trainer.ckpt, "value", &moved_value) == 0);
    CHECK(cairn_close(&trainer.ckpt) == 0);
  }
  {
    one_tensor trainer(scratch.path());
    std::vector<float> moved(8, 5.0f);
    CHECK(cairn_bytes(trainer.ckpt, "blob", blob.data(), blob.size(), 0) == 0);
    CHECK(cairn_value(trainer.ckpt, "value", &value, cairn_f64, 0) == 0);
    REQUIRE(cairn_resume(trainer.ckpt, &step) == 0);
    CHECK(cairn_rebind(trainer.ckpt, "w", moved.data()) == 0);
    CHECK(cairn_rebind(trainer.ckpt, "blob", moved_blob.data()) == 0);
    CHECK(cairn_rebind(trainer.ckpt, "value", &moved_value) == 0);
    CHECK(cairn_save(trainer.ckpt, 1) == 0);
    CHECK(cairn_close(&trainer.ckpt) == 0);
  }
  one_tensor trainer(scratch.path());
  CHECK(cairn_bytes(trainer.ckpt, "blob", blob.data(), blob.size(), 0) == 0);
  CHECK(cairn_value(trainer.ckpt, "value", &value, cairn_f64, 0) == 0);
  CHECK(cairn_resume(trainer.ckpt, &step) == 0);
  CHECK(step == 1);
  CHECK(trainer.weights == std::vector<float>(8, 5.0f));
  CHECK(blob == moved_blob);
  CHECK(value == 2.0);
}

TEST_CASE("C: memory that could not be rebound is not saved as it was before") {
  const cairn_test::scratch_directory scratch;
  std::vector<float> moved(8, 5.0f);
  std::int64_t step = 0;
  {
    one_tensor trainer(scratch.path());
    REQUIRE(cairn_resume(trainer.ckpt, &step) == 0);
    CHECK(cairn_save(trainer.ckpt, 1) == 0);
    // As a trainer does that checks resume, save and close alone.
    CHECK(cairn_rebind(trainer.ckpt, "w", nullptr) == number(error_id::usage_bad_shape));
    CHECK(cairn_save(trainer.ckpt, 2) == number(error_id::usage_bad_shape));
    CHECK(told("item w"));
    CHECK(cairn_rebind(trainer.ckpt, "weights", moved.data()) == number(error_id::usage_unknown_name));
    CHECK(cairn_rebind(trainer.ckpt, "w", moved.data()) == 0);
    CHECK(cairn_save(trainer.ckpt, 3) == number(error_id::usage_unknown_name));
    CHECK(told("item weights"));
    CHECK(cairn_close(&trainer.ckpt) == 0);
  }
  {
    one_tensor trainer(scratch.path());
    CHECK(cairn_rebind(trainer.ckpt, "w", nullptr) == number(error_id::usage_bad_shape));
    CHECK(cairn_resume(trainer.ckpt, &step) == number(error_id::usage_bad_shape));
    CHECK(cairn_rebind(trainer.ckpt, "w", moved.data()) == 0);
    CHECK(cairn_resume(trainer.ckpt, &step) == 0);
    CHECK(step == 1);
    CHECK(cairn_save(trainer.ckpt, 4) == 0);
  }
}

TEST_CASE("C: the message describes this thread's last failure") {
  CHECK(cairn_save(nullptr, 1) != 0);
  CHECK(told("cairn_close"));
  std::string elsewhere = "?";
  std::thread([&] { elsewhere = cairn_error_message(); }).join();
  CHECK(elsewhere.empty());
}

TEST_CASE("C: a child of fork() is refused, and its parent goes on") {
  const cairn_test::scratch_directory scratch;
  one_tensor trainer(scratch.path());
  std::int64_t step = 0;
  REQUIRE(cairn_resume(trainer.ckpt, &step) == 0);
  cairn_test::await_still_threads();
  const pid_t child = ::fork();
  if (child == 0) {
    const int wrong = number(error_id::usage_wrong_process);
    const bool good = cairn_save(trainer.ckpt, 1) == wrong && cairn_before_update(trainer.ckpt) == wrong &&
                      cairn_close(&trainer.ckpt) == wrong && trainer.ckpt == nullptr;
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(cairn_save(trainer.ckpt, 1) == 0);
  CHECK(cairn_close(&trainer.ckpt) == 0);
}
