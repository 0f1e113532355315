// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../trainer.hpp"
#include "model.cuh"

namespace gpt::device {

/// The device that a rank trains on is chosen before anything is allocated.
class chosen_device {
 public:
  explicit chosen_device(std::size_t rank) {
    int count = 0;
    check(cudaGetDeviceCount(&count), "looking for a GPU");
    number_ = static_cast<int>(rank % static_cast<std::size_t>(std::max(count, 1)));
    check(cudaSetDevice(number_), "choosing a GPU");
  }
  int number() const { return number_; }

 private:
  int number_ = 0;
};

/// gpt::trainer on GPUs: the same batches, ranges and order of sums. Ranks exchange gradients through host
/// memory; a single rank leaves everything on its device.
class trainer {
 public:
  trainer(const training_settings& settings, const text& source, group& others)
      : settings_(settings),
        others_(others),
        device_(others.rank()),
        loader_(source, settings.seed, settings.micro_batches, settings.sequences, settings.shape.context),
        net_(on_, settings.shape, settings.sequences),
        range_(range_of(net_.parameters().size(), others.size(), others.rank())),
        m_(range_.size()),
        v_(range_.size()),
        sum_(range_.size()),
        learning_rate_(settings.learning_rate),
        generator_(settings.seed, others.rank()) {
    check_micro_batches(settings, others.size());
    if (others.size() > 1) {
      host_.resize(net_.parameters().size());
      host_sum_.resize(range_.size());
      received_.resize(range_.size() * others.size());
    }
    net_.initialise(settings.seed);
  }

  model& net() { return net_; }
  const context& on() const { return on_; }
  int device() const { return device_.number(); }
  owned_range range() const { return range_; }
  array<float>& m() { return m_; }
  array<float>& v() { return v_; }
  float& learning_rate() { return learning_rate_; }
  rank_generator& generator() { return generator_; }
  const data_loader& loader() const { return loader_; }

  /// See gpt::trainer.
  double accumulate(std::uint64_t step) {
    const std::size_t ranks = others_.size();
    check(cudaMemsetAsync(sum_.data(), 0, sum_.size() * sizeof(float), on_.stream()), "cudaMemset");
    std::fill(host_sum_.begin(), host_sum_.end(), 0.0f);
    double loss_sum = 0;
    for (std::size_t first = 0; first < settings_.micro_batches; first += ranks) {
      const std::vector<std::uint8_t> tokens = loader_.micro_batch(step, first + others_.rank());
      const float loss = static_cast<float>(net_.loss_and_gradients(tokens));
      if (ranks == 1) {
        on_device(sum_.size(), add_to, sum_.data(), net_.gradients().data());
        loss_sum += static_cast<double>(loss);
        continue;
      }
      on_.download(std::span(host_), net_.gradients().data());
      std::vector<std::span<const float>> outgoing;
      std::vector<std::span<float>> incoming;
      for (std::size_t r = 0; r < ranks; ++r) {
        const owned_range theirs = range_of(host_.size(), ranks, r);
        outgoing.push_back(std::span<const float>(host_).subspan(theirs.begin, theirs.size()));
        incoming.push_back(std::span(received_).subspan(r * range_.size(), range_.size()));
      }
      others_.exchange(outgoing, incoming);
      for (const std::span<float> part : incoming)
        for (std::size_t i = 0; i < host_sum_.size(); ++i) host_sum_[i] += part[i];
      std::vector<float> losses(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        outgoing[r] = {&loss, 1};
        incoming[r] = {&losses[r], 1};
      }
      others_.exchange(outgoing, incoming);
      for (const float one : losses) loss_sum += static_cast<double>(one);
    }
    if (ranks > 1) on_.upload(sum_.data(), std::span<const float>(host_sum_));
    on_device(sum_.size(), scale, sum_.data(), 1 / static_cast<float>(settings_.micro_batches));
    return loss_sum / static_cast<double>(settings_.micro_batches);
  }

  /// See gpt::trainer. With one rank it returns before the device has done it.
  void update(std::uint64_t step) {
    const adamw_settings& o = settings_.optimizer;
    const double t = static_cast<double>(step + 1);
    const auto correction = [&](float beta) {
      return static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta), t)));
    };
    for_each_in(range_, net_.tensors(), [&](const named_tensor& tensor, std::size_t begin, std::size_t end) {
      const std::size_t at = begin - range_.begin;
      const float decay = tensor.shape.size() > 1 ? o.weight_decay : 0.0f;
      on_device(end - begin, adamw, o.beta1, o.beta2, o.epsilon, learning_rate_, decay, correction(o.beta1),
                correction(o.beta2), sum_.data() + at, net_.parameters().data() + begin, m_.data() + at,
                v_.data() + at);
    });
    learning_rate_ *= settings_.decay;
    if (others_.size() == 1) return;
    on_.download(std::span(host_).subspan(range_.begin, range_.size()),
                 net_.parameters().data() + range_.begin);
    std::vector<std::span<const float>> outgoing;
    std::vector<std::span<float>> incoming;
    for (std::size_t r = 0; r < others_.size(); ++r) {
      const owned_range theirs = range_of(host_.size(), others_.size(), r);
      outgoing.push_back(std::span<const float>(host_).subspan(range_.begin, range_.size()));
      incoming.push_back(std::span(host_).subspan(theirs.begin, theirs.size()));
    }
    others_.exchange(outgoing, incoming);
    on_.upload(net_.parameters().data(), std::span<const float>(host_));
  }

 private:
  template <class... Parameters, class... Arguments>
  void on_device(std::size_t count, void (*kernel)(std::size_t, Parameters...),
                 Arguments... arguments) const {
    if (count == 0) return;
    kernel<<<blocks_for(count), threads, 0, on_.stream()>>>(count, arguments...);
    check(cudaGetLastError(), "a kernel of the update");
  }

  training_settings settings_;
  group& others_;
  chosen_device device_;
  context on_;
  data_loader loader_;
  model net_;
  owned_range range_;
  array<float> m_, v_, sum_;
  std::vector<float> host_, host_sum_, received_;  // of several ranks
  float learning_rate_;
  rank_generator generator_;
};

}  // namespace gpt::device
