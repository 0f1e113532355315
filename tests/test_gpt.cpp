// SPDX-License-Identifier: Apache-2.0
// threaded
// optimised
// cost: 12
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../examples/gpt/trainer.hpp"
#include "support/gpt_ranks.hpp"

namespace {

gpt::text some_text(std::size_t bytes = 20000) {
  std::vector<std::uint8_t> all;
  for (std::size_t i = 0; i < bytes; ++i)
    all.push_back(static_cast<std::uint8_t>('a' + gpt::random_at({7, i / 3}) % 26));
  return gpt::text(all);
}

gpt::training_settings small() {
  gpt::training_settings settings;
  settings.shape = {.layers = 2, .width = 20, .heads = 2, .context = 9, .vocabulary = 256};
  settings.sequences = 2;
  return settings;
}

struct whole_state {
  std::vector<float> parameters, m, v;
  float learning_rate = 0;
  bool operator==(const whole_state&) const = default;
};

/// Trains steps [begin, end) on a number of ranks, from a state if one is given; returns the losses of each
/// rank.
std::vector<std::vector<double>> train(std::size_t ranks, std::uint64_t begin, std::uint64_t end,
                                       whole_state& state) {
  const gpt::text source = some_text();
  std::vector<std::vector<double>> losses(ranks);
  const std::size_t count = gpt::model<float>(small().shape, 1).parameters().size();
  whole_state last{std::vector<float>(count), std::vector<float>(count), std::vector<float>(count), 0};
  cairn_test::run_gpt_ranks(ranks, [&](gpt::group& others) {
    gpt::trainer one(small(), source, others);
    const auto at = static_cast<std::ptrdiff_t>(one.range().begin);
    if (begin != 0) {
      std::copy(state.parameters.begin(), state.parameters.end(), one.net().parameters().begin());
      std::copy_n(state.m.begin() + at, one.m().size(), one.m().begin());
      std::copy_n(state.v.begin() + at, one.v().size(), one.v().begin());
      one.learning_rate() = state.learning_rate;
    }
    for (std::uint64_t step = begin; step < end; ++step) {
      losses[others.rank()].push_back(one.accumulate(step));
      one.update(step);
    }
    std::copy(one.m().begin(), one.m().end(), last.m.begin() + at);
    std::copy(one.v().begin(), one.v().end(), last.v.begin() + at);
    if (others.rank() == 0) {
      last.parameters.assign(one.net().parameters().begin(), one.net().parameters().end());
      last.learning_rate = one.learning_rate();
    }
  });
  state = last;
  return losses;
}

}  // namespace

TEST_CASE("gpt: the tensors fill the flat buffer without gaps") {
  for (const bool tied : {false, true}) {
    gpt::model_config config;
    config.tied_head = tied;
    std::size_t next = 0;
    for (const gpt::named_tensor& tensor : gpt::tensors_of(config)) {
      CHECK(tensor.offset == next);
      std::size_t count = 1;
      for (const std::size_t extent : tensor.shape) count *= extent;
      CHECK(tensor.count == count);
      next += count;
    }
    CHECK(gpt::model<float>(config, 1).parameters().size() == next);
  }
  CHECK_THROWS_AS(gpt::tensors_of({.width = 10, .heads = 4}), std::invalid_argument);
}

TEST_CASE("gpt: gradients agree with finite differences") {
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    gpt::model<double> net(
        {.layers = 2, .width = 12, .heads = 3, .context = 5, .vocabulary = 11, .tied_head = tied}, 2);
    const std::span<double> values = net.parameters();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = gpt::uniform(gpt::random_at({3, i})) - 0.5;
    std::vector<std::uint8_t> tokens;
    for (std::size_t i = 0; i < 12; ++i)
      tokens.push_back(static_cast<std::uint8_t>(gpt::random_at({5, i}) % 11));

    const double loss = net.loss_and_gradients(tokens);
    CHECK(loss == net.loss(tokens));
    CHECK(loss > 0);
    const std::vector<double> gradients(net.gradients().begin(), net.gradients().end());
    for (const gpt::named_tensor& tensor : net.tensors()) {
      CAPTURE(tensor.name);
      double largest_error = 0, largest = 0;
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.count; ++i) {
        const double kept = values[i], h = 1e-5;
        values[i] = kept + h;
        const double above = net.loss(tokens);
        values[i] = kept - h;
        const double below = net.loss(tokens);
        values[i] = kept;
        largest_error = std::max(largest_error, std::abs((above - below) / (2 * h) - gradients[i]));
        largest = std::max(largest, std::abs(gradients[i]));
      }
      CHECK(largest > 1e-4);
      CHECK(largest_error < 1e-8);
    }
  }
}

TEST_CASE("gpt: a prediction sees what stands before it and nothing else") {
  const gpt::model_config longer{.layers = 2, .width = 12, .heads = 3, .context = 6, .vocabulary = 11};
  gpt::model_config shorter = longer;
  shorter.context = 5;
  gpt::model<double> whole(longer, 1), prefix(shorter, 1);
  for (std::size_t i = 0; i < whole.parameters().size(); ++i)
    whole.parameters()[i] = gpt::uniform(gpt::random_at({3, i})) - 0.5;
  for (std::size_t t = 0; t < whole.tensors().size(); ++t)
    std::copy_n(whole.parameters().begin() + static_cast<std::ptrdiff_t>(whole.tensors()[t].offset),
                prefix.tensors()[t].count,
                prefix.parameters().begin() + static_cast<std::ptrdiff_t>(prefix.tensors()[t].offset));

  // If the first five predictions ignore the sixth token, what is left is a distribution over the seventh.
  std::vector<std::uint8_t> tokens{1, 7, 3, 9, 0, 4, 0};
  const double before = 5 * prefix.loss(std::span(tokens).first(6));
  double sum = 0;
  for (std::uint8_t last = 0; last < 11; ++last) {
    tokens[6] = last;
    sum += std::exp(before - 6 * whole.loss(tokens));
  }
  CHECK(sum == doctest::Approx(1).epsilon(1e-10));
}

TEST_CASE("gpt: the losses are the same bits on 1, 2, 4 and 8 ranks") {
  whole_state expected_state;
  const std::vector<double> expected = train(1, 0, 5, expected_state)[0];
  REQUIRE(expected.size() == 5);
  CHECK(expected[4] < expected[0]);
  for (const std::size_t ranks : {2u, 4u, 8u}) {
    CAPTURE(ranks);
    whole_state state;
    for (const std::vector<double>& losses : train(ranks, 0, 5, state)) CHECK(losses == expected);
    CHECK(state == expected_state);
  }
}

TEST_CASE("gpt: going on from a copied state on another number of ranks gives the same losses") {
  whole_state whole;
  const std::vector<double> expected = train(2, 0, 6, whole)[0];
  whole_state state;
  std::vector<double> losses = train(4, 0, 3, state)[0];
  CHECK(state != whole);
  const std::vector<double> rest = train(2, 3, 6, state)[1];
  losses.insert(losses.end(), rest.begin(), rest.end());
  CHECK(losses == expected);
  CHECK(state == whole);
}

TEST_CASE("gpt: training depends on every part of the saved state") {
  whole_state whole;
  const std::vector<double> expected = train(1, 0, 6, whole)[0];
  whole_state kept;
  train(1, 0, 3, kept);
  const auto continued = [&](whole_state state) { return train(1, 3, 6, state)[0][2] == expected[5]; };
  CHECK(continued(kept));
  whole_state other = kept;
  other.parameters.back() += 0.5f;
  CHECK_FALSE(continued(other));
  other = kept;
  other.m.assign(other.m.size(), 0);
  CHECK_FALSE(continued(other));
  other = kept;
  other.v.assign(other.v.size(), 1);
  CHECK_FALSE(continued(other));
  other = kept;
  other.learning_rate *= 2;
  CHECK_FALSE(continued(other));
}

TEST_CASE("gpt: micro-batches that cannot be dealt out are refused, on every rank") {
  const gpt::text source = some_text();
  const auto run = [&] {
    cairn_test::run_gpt_ranks(
        3, [&](gpt::group& others) { gpt::trainer(small(), source, others).accumulate(0); });
  };
  CHECK_THROWS_AS(run(), std::invalid_argument);
}

TEST_CASE("gpt: a rank that fails ends the others") {
  const gpt::text source = some_text();
  const auto run = [&] {
    cairn_test::run_gpt_ranks(4, [&](gpt::group& others) {
      gpt::trainer one(small(), source, others);
      one.accumulate(0);
      if (others.rank() == 2) throw std::domain_error("rank 2 ends");
      one.update(0);
      one.accumulate(1);
    });
  };
  CHECK_THROWS_WITH_AS(run(), "rank 2 ends", std::domain_error);
}

TEST_CASE("gpt: an exchange brings each rank what the others have for it, on any number of ranks") {
  for (const std::size_t ranks : {1u, 2u, 3u, 5u, 8u}) {
    CAPTURE(ranks);
    std::vector<std::vector<float>> received(ranks, std::vector<float>(ranks));
    cairn_test::run_gpt_ranks(ranks, [&](gpt::group& others) {
      std::vector<float> sent(ranks);
      std::vector<std::span<const float>> outgoing;
      std::vector<std::span<float>> incoming;
      for (std::size_t to = 0; to < ranks; ++to) {
        sent[to] = static_cast<float>(100 * others.rank() + to);
        outgoing.emplace_back(&sent[to], 1);
        incoming.emplace_back(&received[others.rank()][to], 1);
      }
      others.exchange(outgoing, incoming);
      others.barrier();
    });
    for (std::size_t to = 0; to < ranks; ++to)
      for (std::size_t from = 0; from < ranks; ++from)
        CHECK(received[to][from] == static_cast<float>(100 * from + to));
  }
}

TEST_CASE("gpt: the rank that is missing is named on all others, also on those that wait for another one") {
  std::vector<int> named(5, -1);
  const auto run = [&] {
    cairn_test::run_gpt_ranks(5, [&](gpt::group& others) {
      others.barrier();
      if (others.rank() == 3) return;
      try {
        for (int i = 0; i < 2; ++i) others.barrier();
      } catch (const cairn::error& error) {
        named[others.rank()] = error.fields().rank;
        throw;
      }
    });
  };
  CHECK_THROWS_AS(run(), cairn::peer_error);
  CHECK(named == std::vector<int>{3, 3, 3, -1, 3});
}

TEST_CASE("gpt: a rank that misses another one in a call of cairn names the one for which that gave up") {
  std::atomic<bool> told = false;
  std::vector<int> named(3, -1);
  cairn_test::run_gpt_ranks(3, [&](gpt::group& others) {
    if (others.rank() == 1) return;
    if (others.rank() == 0) {
      try {
        others.barrier();
      } catch (const cairn::error& error) {
        named[0] = error.fields().rank;
      }
      told = true;
      told.notify_all();
      return;
    }
    told.wait(false);
    try {
      others.give_up(cairn::peer_error(cairn::error_id::peer_lost, "gone: rank 0", {.rank = 0}));
    } catch (const cairn::error& error) {
      named[2] = error.fields().rank;
    }
  });
  CHECK(named == std::vector<int>{1, -1, 1});
}

TEST_CASE("gpt: a part of another length is refused") {
  const auto run = [&] {
    cairn_test::run_gpt_ranks(2, [&](gpt::group& others) {
      std::vector<float> memory(4);
      const std::vector<std::span<const float>> outgoing(2, std::span(memory).first(1 + others.rank()));
      const std::vector<std::span<float>> incoming(2, std::span(memory).first(1 + others.rank()));
      others.exchange(outgoing, incoming);
    });
  };
  CHECK_THROWS_AS(run(), std::logic_error);
}

TEST_CASE("gpt: a batch is a function of seed, step and micro-batch, and the loader knows its stream") {
  const gpt::text source = some_text();
  const gpt::data_loader loader(source, 1, 8, 2, 9);
  CHECK(loader.micro_batch(3, 4).size() == 20);
  CHECK(loader.micro_batch(3, 4) == gpt::data_loader(source, 1, 8, 2, 9).micro_batch(3, 4));
  CHECK(loader.micro_batch(3, 4) != loader.micro_batch(4, 4));
  CHECK(loader.micro_batch(3, 4) != loader.micro_batch(3, 5));
  CHECK(loader.micro_batch(3, 4) != gpt::data_loader(source, 2, 8, 2, 9).micro_batch(3, 4));

  CHECK_NOTHROW(loader.check(loader.save(3), 3));
  CHECK_THROWS_AS(loader.check(loader.save(3), 4), std::runtime_error);
  CHECK_THROWS_AS(loader.check(gpt::data_loader(source, 2, 8, 2, 9).save(3), 3), std::runtime_error);
  CHECK_THROWS_AS(loader.check(gpt::data_loader(source, 1, 4, 2, 9).save(3), 3), std::runtime_error);
  CHECK_THROWS_AS(loader.check({}, 3), std::runtime_error);
  const gpt::text other = some_text(20001);
  CHECK_THROWS_AS(loader.check(gpt::data_loader(other, 1, 8, 2, 9).save(3), 3), std::runtime_error);
  CHECK_THROWS_AS(gpt::data_loader(source, 1, 8, 2, 5000), std::runtime_error);
}

TEST_CASE("gpt: a rank's generator goes on from its saved state") {
  gpt::rank_generator first(1, 0), other(1, 1);
  CHECK(first() != other());
  const std::vector<std::byte> state = first.save();
  const std::uint64_t next = first();
  other.restore(state);
  CHECK(other() == next);
  CHECK_THROWS_AS(other.restore({}), std::runtime_error);
}

TEST_CASE("gpt: text is read in the order of names; what cannot be read is named") {
  std::string directory = (std::filesystem::temp_directory_path() / "gpt-text-XXXXXX").string();
  REQUIRE(::mkdtemp(directory.data()) != nullptr);
  for (const std::string name : {"b", "c", "a"}) std::ofstream(directory + "/" + name) << name << name;
  std::filesystem::create_symlink("a", directory + "/d");
  const auto digest_of = [](const std::string& bytes) {
    return gpt::text(std::vector<std::uint8_t>(bytes.begin(), bytes.end())).digest();
  };
  CHECK(gpt::text::read({directory}).digest() == digest_of("aabbcc"));
  CHECK(gpt::text::read({directory + "/c", directory + "/a"}).digest() == digest_of("aacc"));
  std::filesystem::remove_all(directory);

  const gpt::text licences = gpt::text::read({});
  CHECK(licences.size() > 100000);
  CHECK(licences.digest() == gpt::text::read({"/usr/share/common-licenses"}).digest());
  CHECK(licences.training().size() + licences.held_out().size() == licences.size());
  CHECK_THROWS_WITH_AS(gpt::text::read({"/does/not/exist"}),
                       "cannot read /does/not/exist; give readable files with --text", std::runtime_error);
}
