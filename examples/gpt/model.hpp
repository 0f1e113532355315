// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "random.hpp"

namespace gpt {

/// The shape of a model. Tokens are bytes unless vocabulary says otherwise.
struct model_config {
  std::size_t layers = 4;
  std::size_t width = 96;  ///< a multiple of heads
  std::size_t heads = 4;
  std::size_t context = 64;  ///< tokens of one sequence
  std::size_t vocabulary = 256;
  bool tied_head = false;  ///< the head is the transpose of the token embedding

  bool operator==(const model_config&) const = default;
};

/// A named tensor inside the flat buffer of all parameters, in row-major order.
struct named_tensor {
  std::string name;
  std::vector<std::size_t> shape;
  std::size_t offset = 0;  ///< of its first element, in elements
  std::size_t count = 0;
};

/// The tensors of a model, one after the other without gaps: offset + count is the offset of the next.
/// @throws std::invalid_argument if the shape is not one of a model.
inline std::vector<named_tensor> tensors_of(const model_config& config) {
  if (config.layers == 0 || config.width == 0 || config.heads == 0 || config.context == 0 ||
      config.vocabulary == 0)
    throw std::invalid_argument("layers, width, heads, context and vocabulary must be at least 1");
  if (config.width % config.heads != 0)
    throw std::invalid_argument("width " + std::to_string(config.width) + " is not a multiple of the " +
                                std::to_string(config.heads) + " heads");
  std::vector<named_tensor> tensors;
  const auto add = [&](std::string name, std::vector<std::size_t> shape) {
    std::size_t count = 1;
    for (const std::size_t extent : shape) count *= extent;
    const std::size_t offset = tensors.empty() ? 0 : tensors.back().offset + tensors.back().count;
    tensors.push_back({std::move(name), std::move(shape), offset, count});
  };
  const std::size_t width = config.width;
  add("wte", {config.vocabulary, width});
  add("wpe", {config.context, width});
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = "layer" + std::to_string(layer) + ".";
    add(prefix + "norm1.weight", {width});
    add(prefix + "norm1.bias", {width});
    add(prefix + "attention.qkv.weight", {width, 3 * width});
    add(prefix + "attention.qkv.bias", {3 * width});
    add(prefix + "attention.out.weight", {width, width});
    add(prefix + "attention.out.bias", {width});
    add(prefix + "norm2.weight", {width});
    add(prefix + "norm2.bias", {width});
    add(prefix + "mlp.up.weight", {width, 4 * width});
    add(prefix + "mlp.up.bias", {4 * width});
    add(prefix + "mlp.down.weight", {4 * width, width});
    add(prefix + "mlp.down.bias", {width});
  }
  add("norm.weight", {width});
  add("norm.bias", {width});
  if (!config.tied_head) add("head.weight", {width, config.vocabulary});
  return tensors;
}

/// A GPT with pre-layer-norm blocks: its parameters and their gradients in two flat buffers, and the
/// activations of one micro-batch. Real is float; the test of the gradients uses double.
/// One thread at a time may use a model.
template <typename Real>
class model {
 public:
  /// Allocates everything; parameters are zero until initialise() or a load.
  /// @param sequences the sequences of a micro-batch, each of config.context tokens
  model(const model_config& config, std::size_t sequences)
      : config_(config),
        sequences_(sequences),
        rows(sequences * config.context),
        tensors_(tensors_of(config)),
        parameters_(tensors_.back().offset + tensors_.back().count),
        gradients_(parameters_.size()) {
    if (sequences == 0) throw std::invalid_argument("a micro-batch has at least one sequence");
    const std::size_t width = config.width, size_of_head = width / config.heads;
    layers.resize(config.layers);
    for (activations& a : layers) {
      for (std::vector<Real>* part : {&a.in, &a.normal1, &a.mixed, &a.middle, &a.normal2})
        part->resize(rows * width);
      for (std::vector<Real>* part : {&a.mean1, &a.inverse1, &a.mean2, &a.inverse2}) part->resize(rows);
      for (std::vector<Real>* part : {&a.up, &a.gate, &a.active}) part->resize(rows * 4 * width);
      a.qkv.resize(rows * 3 * width);
      a.weights.resize(rows * config.heads * config.context);
    }
    for (std::vector<Real>* part : {&last, &normal, &d_x, &d_narrow}) part->resize(rows * width);
    for (std::vector<Real>* part : {&mean, &inverse}) part->resize(rows);
    logits.resize(rows * config.vocabulary);
    d_wide.resize(rows * 4 * width);
    scratch.resize(std::max(
        {4 * width * width, width * config.vocabulary, config.context * (size_of_head + config.context)}));
  }

  const model_config& config() const { return config_; }
  std::size_t sequences() const { return sequences_; }
  const std::vector<named_tensor>& tensors() const { return tensors_; }
  std::span<Real> parameters() { return parameters_; }
  std::span<const Real> parameters() const { return parameters_; }
  std::span<const Real> gradients() const { return gradients_; }

  /// Random weights that depend on the seed alone: uniform with standard deviation 0.02, less for what ends
  /// on the residual path; norms are 1, biases 0.
  void initialise(std::uint64_t seed) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const named_tensor& tensor = tensors_[t];
      const bool norm = tensor.name.find("norm") != std::string::npos;
      const bool residual = tensor.name.ends_with("out.weight") || tensor.name.ends_with("down.weight");
      const double depth = residual ? std::sqrt(2.0 * static_cast<double>(config_.layers)) : 1.0;
      const double bound = 0.02 * std::sqrt(3.0) / depth;
      for (std::size_t i = 0; i < tensor.count; ++i) {
        double value = norm && tensor.name.ends_with("weight") ? 1.0 : 0.0;
        if (tensor.shape.size() == 2) value = bound * (2 * uniform(random_at({seed, 0x696e6974, t, i})) - 1);
        parameters_[tensor.offset + i] = static_cast<Real>(value);
      }
    }
  }

  /// The mean cross entropy, in nats, of predicting each next token.
  /// @param tokens sequences() * (context + 1) tokens: each sequence, and the token that follows it
  double loss(std::span<const std::uint8_t> tokens) {
    forward(tokens);
    double sum = 0;
    for (std::size_t i = 0; i < rows; ++i) sum += row_loss(i, target(tokens, i));
    return sum / static_cast<double>(rows);
  }

  /// loss(), and its gradients: replaces gradients().
  double loss_and_gradients(std::span<const std::uint8_t> tokens) {
    const double result = loss(tokens);
    backward(tokens);
    return result;
  }

  /// The logits of the last token's successor, for a model of one sequence.
  /// @param tokens context tokens
  std::span<const Real> next_logits(std::span<const std::uint8_t> tokens) {
    std::vector<std::uint8_t> padded(tokens.begin(), tokens.end());
    padded.push_back(0);
    forward(padded);
    return std::span<const Real>(logits).last(config_.vocabulary);
  }

 private:
  struct activations {
    std::vector<Real> in, normal1, mean1, inverse1, qkv, weights, mixed, middle;
    std::vector<Real> normal2, mean2, inverse2, up, gate, active;
  };
  /// The places of a block's parameters in tensors_, in their order there.
  enum block_tensor : std::size_t {
    norm1_weight,
    norm1_bias,
    qkv_weight,
    qkv_bias,
    out_weight,
    out_bias,
    norm2_weight,
    norm2_bias,
    up_weight,
    up_bias,
    down_weight,
    down_bias,
    block_tensors
  };

  std::size_t block_offset(std::size_t layer, block_tensor which) const {
    return tensors_[2 + layer * block_tensors + which].offset;
  }
  std::size_t norm_offset() const { return tensors_[2 + config_.layers * block_tensors].offset; }
  Real* parameter(std::size_t offset) { return parameters_.data() + offset; }
  Real* gradient(std::size_t offset) { return gradients_.data() + offset; }

  std::size_t token(std::span<const std::uint8_t> tokens, std::size_t row) const {
    return tokens[row + row / config_.context];
  }
  std::size_t target(std::span<const std::uint8_t> tokens, std::size_t row) const {
    return tokens[row + row / config_.context + 1];
  }

  /// Turns the logits of a row into probabilities and returns the loss of that row.
  double row_loss(std::size_t row, std::size_t wanted) {
    Real* values = logits.data() + row * config_.vocabulary;
    Real highest = values[0], sum = 0;
    for (std::size_t j = 1; j < config_.vocabulary; ++j) highest = std::max(highest, values[j]);
    const Real margin = values[wanted] - highest;
    for (std::size_t j = 0; j < config_.vocabulary; ++j) sum += values[j] = std::exp(values[j] - highest);
    for (std::size_t j = 0; j < config_.vocabulary; ++j) values[j] /= sum;
    return static_cast<double>(std::log(sum) - margin);
  }

  void forward(std::span<const std::uint8_t> tokens) {
    const std::size_t width = config_.width, vocabulary = config_.vocabulary;
    if (tokens.size() != rows + sequences_)
      throw std::invalid_argument("a micro-batch has sequences * (context + 1) tokens");
    const Real* position = parameter(tensors_[1].offset);
    for (std::size_t i = 0; i < rows; ++i) {
      if (token(tokens, i) >= vocabulary || target(tokens, i) >= vocabulary)
        throw std::invalid_argument("a token is not in the vocabulary");
      const Real* embedding = parameters_.data() + token(tokens, i) * width;
      const Real* place = position + i % config_.context * width;
      for (std::size_t j = 0; j < width; ++j) layers[0].in[i * width + j] = embedding[j] + place[j];
    }
    for (std::size_t l = 0; l < config_.layers; ++l) {
      activations& a = layers[l];
      const auto at = [&](block_tensor which) { return parameter(block_offset(l, which)); };
      std::vector<Real>& out = l + 1 < config_.layers ? layers[l + 1].in : last;
      layer_norm(rows, width, a.in.data(), at(norm1_weight), at(norm1_bias), a.normal1.data(), a.mean1.data(),
                 a.inverse1.data());
      linear(rows, width, 3 * width, a.normal1.data(), at(qkv_weight), at(qkv_bias), a.qkv.data());
      attention(a);
      linear(rows, width, width, a.mixed.data(), at(out_weight), at(out_bias), a.middle.data());
      for (std::size_t i = 0; i < a.in.size(); ++i) a.middle[i] += a.in[i];
      layer_norm(rows, width, a.middle.data(), at(norm2_weight), at(norm2_bias), a.normal2.data(),
                 a.mean2.data(), a.inverse2.data());
      linear(rows, width, 4 * width, a.normal2.data(), at(up_weight), at(up_bias), a.up.data());
      gelu(a.up.size(), a.up.data(), a.gate.data(), a.active.data());
      linear(rows, 4 * width, width, a.active.data(), at(down_weight), at(down_bias), out.data());
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += a.middle[i];
    }
    layer_norm(rows, width, last.data(), parameter(norm_offset()), parameter(norm_offset() + width),
               normal.data(), mean.data(), inverse.data());
    const Real* head = parameter(tensors_.back().offset);
    if (config_.tied_head) {
      transpose(vocabulary, width, parameters_.data(), width, scratch.data());
      head = scratch.data();
    }
    multiply<Real>(rows, vocabulary, width, {normal.data(), width, 1}, head, vocabulary, logits.data(),
                   vocabulary, false);
  }

  /// For each sequence and head: softmax(q * k^T / sqrt(size), causal) * v.
  void attention(activations& a) {
    const std::size_t width = config_.width, steps = config_.context, size = width / config_.heads;
    const Real scale = 1 / std::sqrt(static_cast<Real>(size));
    for (std::size_t s = 0; s < sequences_; ++s) {
      for (std::size_t h = 0; h < config_.heads; ++h) {
        const Real* q = a.qkv.data() + s * steps * 3 * width + h * size;
        Real* weights = a.weights.data() + (s * config_.heads + h) * steps * steps;
        transpose(steps, size, q + width, 3 * width, scratch.data());
        multiply<Real>(steps, steps, size, {q, 3 * width, 1}, scratch.data(), steps, weights, steps, false);
        for (std::size_t i = 0; i < steps; ++i) {
          Real* row = weights + i * steps;
          Real highest = row[0] * scale, sum = 0;
          for (std::size_t j = 0; j <= i; ++j) highest = std::max(highest, row[j] *= scale);
          for (std::size_t j = 0; j <= i; ++j) sum += row[j] = std::exp(row[j] - highest);
          for (std::size_t j = 0; j <= i; ++j) row[j] /= sum;
          std::fill(row + i + 1, row + steps, Real{0});
        }
        multiply<Real>(steps, size, steps, {weights, steps, 1}, q + 2 * width, 3 * width,
                       a.mixed.data() + s * steps * width + h * size, width, false);
      }
    }
  }

  /// d_mixed is the gradient of a.mixed; d_qkv is replaced.
  void attention_backward(const activations& a, const Real* d_mixed, Real* d_qkv) {
    const std::size_t width = config_.width, steps = config_.context, size = width / config_.heads;
    const Real scale = 1 / std::sqrt(static_cast<Real>(size));
    Real* const transposed = scratch.data();
    Real* const d_weights = scratch.data() + steps * size;
    for (std::size_t s = 0; s < sequences_; ++s) {
      for (std::size_t h = 0; h < config_.heads; ++h) {
        const std::size_t place = s * steps * 3 * width + h * size;
        const Real* q = a.qkv.data() + place;
        const Real* weights = a.weights.data() + (s * config_.heads + h) * steps * steps;
        const Real* d_out = d_mixed + s * steps * width + h * size;
        multiply<Real>(steps, size, steps, {weights, 1, steps}, d_out, width, d_qkv + place + 2 * width,
                       3 * width, false);
        transpose(steps, size, q + 2 * width, 3 * width, transposed);
        multiply<Real>(steps, steps, size, {d_out, width, 1}, transposed, steps, d_weights, steps, false);
        for (std::size_t i = 0; i < steps; ++i) {
          const Real* row = weights + i * steps;
          Real* d_row = d_weights + i * steps;
          Real sum = 0;
          for (std::size_t j = 0; j <= i; ++j) sum += d_row[j] * row[j];
          for (std::size_t j = 0; j < steps; ++j)
            d_row[j] = j <= i ? row[j] * (d_row[j] - sum) * scale : Real{0};
        }
        multiply<Real>(steps, size, steps, {d_weights, steps, 1}, q + width, 3 * width, d_qkv + place,
                       3 * width, false);
        multiply<Real>(steps, size, steps, {d_weights, 1, steps}, q, 3 * width, d_qkv + place + width,
                       3 * width, false);
      }
    }
  }

  void backward(std::span<const std::uint8_t> tokens) {
    const std::size_t width = config_.width, vocabulary = config_.vocabulary;
    std::fill(gradients_.begin(), gradients_.end(), Real{0});
    const Real share = 1 / static_cast<Real>(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      Real* row = logits.data() + i * vocabulary;
      row[target(tokens, i)] -= 1;
      for (std::size_t j = 0; j < vocabulary; ++j) row[j] *= share;
    }
    if (config_.tied_head) {
      multiply<Real>(vocabulary, width, rows, {logits.data(), 1, vocabulary}, normal.data(), width,
                     gradients_.data(), width, true);
      multiply<Real>(rows, width, vocabulary, {logits.data(), vocabulary, 1}, parameters_.data(), width,
                     d_narrow.data(), width, false);
    } else {
      const std::size_t head = tensors_.back().offset;
      multiply<Real>(width, vocabulary, rows, {normal.data(), 1, width}, logits.data(), vocabulary,
                     gradient(head), vocabulary, true);
      transpose(width, vocabulary, parameter(head), vocabulary, scratch.data());
      multiply<Real>(rows, width, vocabulary, {logits.data(), vocabulary, 1}, scratch.data(), width,
                     d_narrow.data(), width, false);
    }
    std::fill(d_x.begin(), d_x.end(), Real{0});
    layer_norm_backward(rows, width, last.data(), parameter(norm_offset()), mean.data(), inverse.data(),
                        d_narrow.data(), d_x.data(), gradient(norm_offset()),
                        gradient(norm_offset() + width));
    for (std::size_t l = config_.layers; l-- > 0;) {
      const activations& a = layers[l];
      const auto at = [&](block_tensor which) { return parameter(block_offset(l, which)); };
      const auto d_at = [&](block_tensor which) { return gradient(block_offset(l, which)); };
      linear_backward(rows, 4 * width, width, a.active.data(), at(down_weight), d_x.data(), d_wide.data(),
                      d_at(down_weight), d_at(down_bias), scratch.data());
      gelu_backward(d_wide.size(), a.up.data(), a.gate.data(), d_wide.data());
      linear_backward(rows, width, 4 * width, a.normal2.data(), at(up_weight), d_wide.data(), d_narrow.data(),
                      d_at(up_weight), d_at(up_bias), scratch.data());
      layer_norm_backward(rows, width, a.middle.data(), at(norm2_weight), a.mean2.data(), a.inverse2.data(),
                          d_narrow.data(), d_x.data(), d_at(norm2_weight), d_at(norm2_bias));
      linear_backward(rows, width, width, a.mixed.data(), at(out_weight), d_x.data(), d_narrow.data(),
                      d_at(out_weight), d_at(out_bias), scratch.data());
      attention_backward(a, d_narrow.data(), d_wide.data());
      linear_backward(rows, width, 3 * width, a.normal1.data(), at(qkv_weight), d_wide.data(),
                      d_narrow.data(), d_at(qkv_weight), d_at(qkv_bias), scratch.data());
      layer_norm_backward(rows, width, a.in.data(), at(norm1_weight), a.mean1.data(), a.inverse1.data(),
                          d_narrow.data(), d_x.data(), d_at(norm1_weight), d_at(norm1_bias));
    }
    for (std::size_t i = 0; i < rows; ++i) {
      Real* embedding = gradients_.data() + token(tokens, i) * width;
      Real* place = gradient(tensors_[1].offset) + i % config_.context * width;
      for (std::size_t j = 0; j < width; ++j) {
        embedding[j] += d_x[i * width + j];
        place[j] += d_x[i * width + j];
      }
    }
  }

  model_config config_;
  std::size_t sequences_;
  std::size_t rows;
  std::vector<named_tensor> tensors_;
  std::vector<Real> parameters_, gradients_;
  std::vector<activations> layers;
  std::vector<Real> last, normal, mean, inverse, logits, d_x, d_narrow, d_wide, scratch;
};

}  // namespace gpt
