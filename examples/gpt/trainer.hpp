// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "adamw.hpp"
#include "data.hpp"
#include "group.hpp"
#include "model.hpp"
#include "random.hpp"

namespace gpt {

struct training_settings {
  model_config shape;
  adamw_settings optimizer;
  std::size_t micro_batches = 8;  ///< of a step, whatever the number of ranks; a multiple of it
  std::size_t sequences = 1;      ///< of a micro-batch
  float learning_rate = 1e-3f;    ///< of the first step
  float decay = 0.9995f;          ///< the learning rate is multiplied by this after each step
  std::uint64_t seed = 1;
};

/// The contiguous range of a flat buffer of count elements that a rank owns; the last ranges may be shorter.
struct owned_range {
  std::size_t begin;
  std::size_t end;
  std::size_t size() const { return end - begin; }
};
inline owned_range range_of(std::size_t count, std::size_t ranks, std::size_t rank) {
  const std::size_t part = (count + ranks - 1) / ranks;
  return {std::min(count, part * rank), std::min(count, part * (rank + 1))};
}

/// visit(tensor, begin, end) for each tensor that lies in the range, with its part of it.
template <class Visit>
void for_each_in(const owned_range& range, const std::vector<named_tensor>& tensors, Visit&& visit) {
  for (const named_tensor& tensor : tensors) {
    const std::size_t begin = std::max(tensor.offset, range.begin);
    const std::size_t end = std::min(tensor.offset + tensor.count, range.end);
    if (begin < end) visit(tensor, begin, end);
  }
}
/// @throws std::invalid_argument if the micro-batches cannot be dealt out evenly
inline void check_micro_batches(const training_settings& settings, std::size_t ranks) {
  if (settings.micro_batches == 0 || settings.micro_batches % ranks != 0)
    throw std::invalid_argument(std::to_string(settings.micro_batches) +
                                " micro-batches are not a multiple of the " + std::to_string(ranks) +
                                " ranks");
}

/// The mean loss of a model of one sequence on a fixed batch of held-out text; the same bits on any rank.
template <class Net>
double evaluate(Net& net, const text& source, std::size_t count = 16) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    sum += net.loss(data_loader::held_out_sequence(source, net.config().context, i, count));
  return sum / static_cast<double>(count);
}

/// One rank of a data-parallel run. All ranks hold the parameters; each owns a range of the flattened
/// optimizer state (ZeRO-1), updates that range, and gives it to the others. A step has a fixed number of
/// micro-batches, and its gradients are summed in their order, so that losses and parameters are bit for bit
/// the same on any number of ranks. All ranks call accumulate and update alike.
class trainer {
 public:
  /// others and source must outlive the trainer.
  /// @throws std::invalid_argument if the micro-batches cannot be dealt out evenly
  trainer(const training_settings& settings, const text& source, group& others)
      : settings_(settings),
        others_(others),
        loader_(source, settings.seed, settings.micro_batches, settings.sequences, settings.shape.context),
        net_(settings.shape, settings.sequences),
        range_(range_of(net_.parameters().size(), others.size(), others.rank())),
        m_(range_.size()),
        v_(range_.size()),
        sum(range_.size()),
        received(range_.size() * others.size()),
        learning_rate_(settings.learning_rate),
        generator_(settings.seed, others.rank()) {
    check_micro_batches(settings, others.size());
    net_.initialise(settings.seed);
  }

  /// What a checkpoint keeps. @{
  model<float>& net() { return net_; }
  owned_range range() const { return range_; }  ///< of m() and v() in the flattened parameters
  std::vector<float>& m() { return m_; }
  std::vector<float>& v() { return v_; }
  float& learning_rate() { return learning_rate_; }
  rank_generator& generator() { return generator_; }
  const data_loader& loader() const { return loader_; }
  /// @}

  /// Forward and backward of a step, and the reduction of the gradients: reads the parameters, changes
  /// nothing that a checkpoint keeps. Returns the step's mean loss, the same on all ranks.
  /// @param step the count of completed updates
  double accumulate(std::uint64_t step) {
    const std::size_t ranks = others_.size();
    std::fill(sum.begin(), sum.end(), 0.0f);
    double loss_sum = 0;
    // Micro-batch i belongs to rank i % ranks, so each round brings the next ones in their order.
    for (std::size_t first = 0; first < settings_.micro_batches; first += ranks) {
      const std::vector<std::uint8_t> tokens = loader_.micro_batch(step, first + others_.rank());
      const float loss = static_cast<float>(net_.loss_and_gradients(tokens));
      std::vector<std::span<const float>> outgoing;
      std::vector<std::span<float>> incoming;
      for (std::size_t r = 0; r < ranks; ++r) {
        const owned_range theirs = range_of(net_.gradients().size(), ranks, r);
        outgoing.push_back(net_.gradients().subspan(theirs.begin, theirs.size()));
        incoming.push_back(std::span(received).subspan(r * range_.size(), range_.size()));
      }
      others_.exchange(outgoing, incoming);
      for (const std::span<float> part : incoming)
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];

      std::vector<float> losses(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        outgoing[r] = {&loss, 1};
        incoming[r] = {&losses[r], 1};
      }
      others_.exchange(outgoing, incoming);
      for (const float one : losses) loss_sum += static_cast<double>(one);
    }
    const float share = 1 / static_cast<float>(settings_.micro_batches);
    for (float& value : sum) value *= share;
    return loss_sum / static_cast<double>(settings_.micro_batches);
  }

  /// The optimizer's step with the gradients of accumulate(step): changes parameters, m, v and learning rate.
  void update(std::uint64_t step) {
    for_each_in(range_, net_.tensors(), [&](const named_tensor& tensor, std::size_t begin, std::size_t end) {
      const std::size_t at = begin - range_.begin, count = end - begin;
      const float decay = tensor.shape.size() > 1 ? settings_.optimizer.weight_decay : 0.0f;
      adamw_update(settings_.optimizer, learning_rate_, decay, step + 1, std::span(sum).subspan(at, count),
                   net_.parameters().subspan(begin, count), std::span(m_).subspan(at, count),
                   std::span(v_).subspan(at, count));
    });
    learning_rate_ *= settings_.decay;

    std::vector<std::span<const float>> outgoing;
    std::vector<std::span<float>> incoming;
    for (std::size_t r = 0; r < others_.size(); ++r) {
      const owned_range theirs = range_of(net_.parameters().size(), others_.size(), r);
      outgoing.push_back(net_.parameters().subspan(range_.begin, range_.size()));
      incoming.push_back(net_.parameters().subspan(theirs.begin, theirs.size()));
    }
    others_.exchange(outgoing, incoming);
  }

 private:
  training_settings settings_;
  group& others_;
  data_loader loader_;
  model<float> net_;
  owned_range range_;
  std::vector<float> m_, v_;
  std::vector<float> sum;       ///< the step's gradient of the owned range
  std::vector<float> received;  ///< the gradients of the owned range, one after the other by rank
  float learning_rate_;
  rank_generator generator_;
};

/// Text that the model writes after prompt, drawn with the rank's generator. net: a model of one sequence.
template <class Net>
std::string sample(Net& net, rank_generator& generator, std::string prompt, std::size_t count) {
  const std::size_t context = net.config().context;
  std::string out = prompt;
  prompt.insert(0, context, '\n');
  for (std::size_t i = 0; i < count; ++i) {
    const std::string window = prompt.substr(prompt.size() - context);
    const std::span<const float> logits =
        net.next_logits({reinterpret_cast<const std::uint8_t*>(window.data()), window.size()});
    const float highest = *std::max_element(logits.begin(), logits.end());
    std::vector<double> sums;
    double total = 0;
    for (const float logit : logits) sums.push_back(total += std::exp(static_cast<double>(logit - highest)));
    const double point = uniform(generator()) * total;
    const auto byte = std::upper_bound(sums.begin(), sums.end() - 1, point) - sums.begin();
    prompt.push_back(static_cast<char>(byte));
    out.push_back(static_cast<char>(byte));
  }
  return out;
}

}  // namespace gpt
