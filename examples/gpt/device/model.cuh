// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "../model.hpp"
#include "kernels.cuh"
#include "memory.cuh"

namespace gpt::device {

/// Matrices of one shape, one for each head.
struct matrix_batch {
  std::size_t count = 1, a = 0, b = 0, c = 0;  ///< and how far apart they are
};

/// gpt::model<float> on a GPU: the same tensors in the same order, cuBLAS for the products. One thread at a
/// time; everything runs on the stream of the context, which outlives the model.
class model {
 public:
  model(const context& on, const model_config& config, std::size_t sequences)
      : on_(on),
        config_(config),
        sequences_(sequences),
        rows_(sequences * config.context),
        tensors_(tensors_of(config)),
        parameters_(tensors_.back().offset + tensors_.back().count),
        gradients_(parameters_.size()),
        tokens_(rows_ + sequences),
        last_(rows_ * config.width),
        normal_(rows_ * config.width),
        mean_(rows_),
        inverse_(rows_),
        logits_(rows_ * config.vocabulary),
        losses_(rows_),
        d_x_(rows_ * config.width),
        d_narrow_(rows_ * config.width),
        d_wide_(rows_ * 4 * config.width),
        d_weights_(config.heads * config.context * config.context) {
    if (sequences == 0) throw std::invalid_argument("a micro-batch has at least one sequence");
    for (std::size_t l = 0; l < config.layers; ++l) layers_.emplace_back(config, sequences);
  }

  const model_config& config() const { return config_; }
  const std::vector<named_tensor>& tensors() const { return tensors_; }
  const array<float>& parameters() const { return parameters_; }
  const array<float>& gradients() const { return gradients_; }

  /// The weights that gpt::model begins with.
  void initialise(std::uint64_t seed) {
    gpt::model<float> first(config_, 1);
    first.initialise(seed);
    on_.upload(parameters_.data(), std::span<const float>(first.parameters()));
  }
  /// See gpt::model. Waits for the device.
  double loss(std::span<const std::uint8_t> tokens) {
    forward(tokens);
    cross_entropy<<<row_count(), threads, 0, on_.stream()>>>(config_.context, config_.vocabulary,
                                                             tokens_.data(), logits_.data(), losses_.data());
    check(cudaGetLastError(), "cross_entropy");
    std::vector<float> losses(rows_);
    on_.download(std::span(losses), losses_.data());
    double sum = 0;
    for (const float one : losses) sum += static_cast<double>(one);
    return sum / static_cast<double>(rows_);
  }
  /// See gpt::model. The gradients are there in the order of the stream.
  double loss_and_gradients(std::span<const std::uint8_t> tokens) {
    const double result = loss(tokens);
    backward();
    return result;
  }
  std::span<const float> next_logits(std::span<const std::uint8_t> tokens) {
    std::vector<std::uint8_t> padded(tokens.begin(), tokens.end());
    padded.push_back(0);
    forward(padded);
    next_.resize(config_.vocabulary);
    on_.download(std::span(next_), logits_.data() + (rows_ - 1) * config_.vocabulary);
    return next_;
  }

 private:
  struct activations {
    activations(const model_config& c, std::size_t sequences) {
      const std::size_t rows = sequences * c.context, width = c.width;
      for (auto* part : {&in, &normal1, &mixed, &middle, &normal2}) *part = array<float>(rows * width);
      for (auto* part : {&mean1, &inverse1, &mean2, &inverse2}) *part = array<float>(rows);
      for (auto* part : {&up, &active}) *part = array<float>(rows * 4 * width);
      qkv = array<float>(rows * 3 * width);
      weights = array<float>(rows * c.heads * c.context);
    }
    array<float> in, normal1, mean1, inverse1, qkv, weights, mixed, middle;
    array<float> normal2, mean2, inverse2, up, active;
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
  enum class form { plain, transposed };

  std::size_t place(std::size_t layer, block_tensor which) const {
    return tensors_[2 + layer * block_tensors + which].offset;
  }
  std::size_t norm_place() const { return tensors_[2 + config_.layers * block_tensors].offset; }
  float* parameter(std::size_t offset) const { return parameters_.data() + offset; }
  float* gradient(std::size_t offset) const { return gradients_.data() + offset; }
  unsigned row_count() const { return static_cast<unsigned>(rows_); }

  template <class... Parameters, class... Arguments>
  void each(std::size_t count, void (*kernel)(std::size_t, Parameters...), Arguments... arguments) const {
    kernel<<<blocks_for(count), threads, 0, on_.stream()>>>(count, arguments...);
    check(cudaGetLastError(), "a kernel");
  }

  /// c (m x n) = a (m x k) * b (k x n) + keep * c, all row-major with rows of *_row elements; a transposed
  /// one is given as it lies.
  void multiply(std::size_t m, std::size_t n, std::size_t k, const float* a, std::size_t a_row, form a_form,
                const float* b, std::size_t b_row, form b_form, float* c, std::size_t c_row, float keep = 0,
                matrix_batch heads = {}) const {
    const auto operation = [](form f) { return f == form::plain ? CUBLAS_OP_N : CUBLAS_OP_T; };
    const auto number = [](std::size_t x) { return static_cast<int>(x); };
    const float one = 1;
    // What is row-major here is column-major and transposed there.
    check(cublasSgemmStridedBatched(on_.blas(), operation(b_form), operation(a_form), number(n), number(m),
                                    number(k), &one, b, number(b_row), static_cast<long long>(heads.b), a,
                                    number(a_row), static_cast<long long>(heads.a), &keep, c, number(c_row),
                                    static_cast<long long>(heads.c), number(heads.count)),
          "cublasSgemmStridedBatched");
  }
  void linear(std::size_t n_in, std::size_t n_out, const float* in, std::size_t weight, std::size_t bias,
              float* out) const {
    multiply(rows_, n_out, n_in, in, n_in, form::plain, parameter(weight), n_out, form::plain, out, n_out);
    each(rows_ * n_out, add_bias, n_out, out, parameter(bias));
  }
  void linear_backward(std::size_t n_in, std::size_t n_out, const float* in, std::size_t weight,
                       std::size_t bias, const float* d_out, float* d_in) const {
    column_sums<<<blocks_for(n_out), threads, 0, on_.stream()>>>(rows_, n_out, d_out, gradient(bias));
    multiply(n_in, n_out, rows_, in, n_in, form::transposed, d_out, n_out, form::plain, gradient(weight),
             n_out);
    multiply(rows_, n_in, n_out, d_out, n_out, form::plain, parameter(weight), n_out, form::transposed, d_in,
             n_in);
  }
  void norm(const float* in, std::size_t weight, std::size_t bias, float* out, float* mean,
            float* inverse) const {
    layer_norm<<<row_count(), threads, 0, on_.stream()>>>(config_.width, in, parameter(weight),
                                                          parameter(bias), out, mean, inverse);
  }
  void norm_backward(const float* in, std::size_t weight, std::size_t bias, const float* mean,
                     const float* inverse, const float* d_out, float* d_in) const {
    layer_norm_backward<<<row_count(), threads, 0, on_.stream()>>>(config_.width, in, parameter(weight), mean,
                                                                   inverse, d_out, d_in);
    norm_column_sums<<<blocks_for(config_.width), threads, 0, on_.stream()>>>(
        rows_, config_.width, in, mean, inverse, d_out, gradient(weight), gradient(bias));
  }

  void forward(std::span<const std::uint8_t> tokens) {
    const std::size_t width = config_.width, vocabulary = config_.vocabulary;
    if (tokens.size() != rows_ + sequences_)
      throw std::invalid_argument("a micro-batch has sequences * (context + 1) tokens");
    if (*std::max_element(tokens.begin(), tokens.end()) >= vocabulary)
      throw std::invalid_argument("a token is not in the vocabulary");
    on_.upload(tokens_.data(), tokens);
    embed<<<blocks_for(rows_ * width), threads, 0, on_.stream()>>>(
        rows_, width, config_.context, tokens_.data(), parameters_.data(), parameter(tensors_[1].offset),
        layers_[0].in.data());
    for (std::size_t l = 0; l < config_.layers; ++l) {
      activations& a = layers_[l];
      float* const out = l + 1 < config_.layers ? layers_[l + 1].in.data() : last_.data();
      norm(a.in.data(), place(l, norm1_weight), place(l, norm1_bias), a.normal1.data(), a.mean1.data(),
           a.inverse1.data());
      linear(width, 3 * width, a.normal1.data(), place(l, qkv_weight), place(l, qkv_bias), a.qkv.data());
      attention(a);
      linear(width, width, a.mixed.data(), place(l, out_weight), place(l, out_bias), a.middle.data());
      each(rows_ * width, add_to, a.middle.data(), a.in.data());
      norm(a.middle.data(), place(l, norm2_weight), place(l, norm2_bias), a.normal2.data(), a.mean2.data(),
           a.inverse2.data());
      linear(width, 4 * width, a.normal2.data(), place(l, up_weight), place(l, up_bias), a.up.data());
      each(a.up.size(), gelu, a.up.data(), a.active.data());
      linear(4 * width, width, a.active.data(), place(l, down_weight), place(l, down_bias), out);
      each(rows_ * width, add_to, out, a.middle.data());
    }
    norm(last_.data(), norm_place(), norm_place() + width, normal_.data(), mean_.data(), inverse_.data());
    if (config_.tied_head)
      multiply(rows_, vocabulary, width, normal_.data(), width, form::plain, parameters_.data(), width,
               form::transposed, logits_.data(), vocabulary);
    else
      multiply(rows_, vocabulary, width, normal_.data(), width, form::plain,
               parameter(tensors_.back().offset), vocabulary, form::plain, logits_.data(), vocabulary);
  }

  float attention_factor() const { return 1 / std::sqrt(static_cast<float>(config_.width / config_.heads)); }
  void attention(activations& a) {
    const std::size_t width = config_.width, steps = config_.context, size = width / config_.heads;
    for (std::size_t s = 0; s < sequences_; ++s) {
      const float* q = a.qkv.data() + s * steps * 3 * width;
      float* weights = a.weights.data() + s * config_.heads * steps * steps;
      multiply(steps, steps, size, q, 3 * width, form::plain, q + width, 3 * width, form::transposed, weights,
               steps, 0, {config_.heads, size, size, steps * steps});
      causal_softmax<<<static_cast<unsigned>(config_.heads * steps), threads, 0, on_.stream()>>>(
          steps, attention_factor(), weights);
      multiply(steps, size, steps, weights, steps, form::plain, q + 2 * width, 3 * width, form::plain,
               a.mixed.data() + s * steps * width, width, 0, {config_.heads, steps * steps, size, size});
    }
  }
  void attention_backward(const activations& a, const float* d_mixed, float* d_qkv) {
    const std::size_t width = config_.width, steps = config_.context, size = width / config_.heads;
    const std::size_t square = steps * steps;
    for (std::size_t s = 0; s < sequences_; ++s) {
      const float* q = a.qkv.data() + s * steps * 3 * width;
      const float* weights = a.weights.data() + s * config_.heads * square;
      const float* d_out = d_mixed + s * steps * width;
      float* d_q = d_qkv + s * steps * 3 * width;
      multiply(steps, size, steps, weights, steps, form::transposed, d_out, width, form::plain,
               d_q + 2 * width, 3 * width, 0, {config_.heads, square, size, size});
      multiply(steps, steps, size, d_out, width, form::plain, q + 2 * width, 3 * width, form::transposed,
               d_weights_.data(), steps, 0, {config_.heads, size, size, square});
      causal_softmax_backward<<<static_cast<unsigned>(config_.heads * steps), threads, 0, on_.stream()>>>(
          steps, attention_factor(), weights, d_weights_.data());
      multiply(steps, size, steps, d_weights_.data(), steps, form::plain, q + width, 3 * width, form::plain,
               d_q, 3 * width, 0, {config_.heads, square, size, size});
      multiply(steps, size, steps, d_weights_.data(), steps, form::transposed, q, 3 * width, form::plain,
               d_q + width, 3 * width, 0, {config_.heads, square, size, size});
    }
  }

  void backward() {
    const std::size_t width = config_.width, vocabulary = config_.vocabulary;
    check(cudaMemsetAsync(gradients_.data(), 0, gradients_.size() * sizeof(float), on_.stream()),
          "cudaMemset");
    check(cudaMemsetAsync(d_x_.data(), 0, d_x_.size() * sizeof(float), on_.stream()), "cudaMemset");
    cross_entropy_backward<<<row_count(), threads, 0, on_.stream()>>>(
        config_.context, vocabulary, tokens_.data(), 1 / static_cast<float>(rows_), logits_.data());
    if (config_.tied_head) {
      multiply(vocabulary, width, rows_, logits_.data(), vocabulary, form::transposed, normal_.data(), width,
               form::plain, gradients_.data(), width);
      multiply(rows_, width, vocabulary, logits_.data(), vocabulary, form::plain, parameters_.data(), width,
               form::plain, d_narrow_.data(), width);
    } else {
      const std::size_t head = tensors_.back().offset;
      multiply(width, vocabulary, rows_, normal_.data(), width, form::transposed, logits_.data(), vocabulary,
               form::plain, gradient(head), vocabulary);
      multiply(rows_, width, vocabulary, logits_.data(), vocabulary, form::plain, parameter(head), vocabulary,
               form::transposed, d_narrow_.data(), width);
    }
    norm_backward(last_.data(), norm_place(), norm_place() + width, mean_.data(), inverse_.data(),
                  d_narrow_.data(), d_x_.data());
    for (std::size_t l = config_.layers; l-- > 0;) {
      const activations& a = layers_[l];
      linear_backward(4 * width, width, a.active.data(), place(l, down_weight), place(l, down_bias),
                      d_x_.data(), d_wide_.data());
      each(d_wide_.size(), gelu_backward, a.up.data(), d_wide_.data());
      linear_backward(width, 4 * width, a.normal2.data(), place(l, up_weight), place(l, up_bias),
                      d_wide_.data(), d_narrow_.data());
      norm_backward(a.middle.data(), place(l, norm2_weight), place(l, norm2_bias), a.mean2.data(),
                    a.inverse2.data(), d_narrow_.data(), d_x_.data());
      linear_backward(width, width, a.mixed.data(), place(l, out_weight), place(l, out_bias), d_x_.data(),
                      d_narrow_.data());
      attention_backward(a, d_narrow_.data(), d_wide_.data());
      linear_backward(width, 3 * width, a.normal1.data(), place(l, qkv_weight), place(l, qkv_bias),
                      d_wide_.data(), d_narrow_.data());
      norm_backward(a.in.data(), place(l, norm1_weight), place(l, norm1_bias), a.mean1.data(),
                    a.inverse1.data(), d_narrow_.data(), d_x_.data());
    }
    embed_backward<<<blocks_for(vocabulary * width), threads, 0, on_.stream()>>>(
        rows_, width, config_.context, vocabulary, tokens_.data(), d_x_.data(), gradients_.data());
    position_backward<<<blocks_for(config_.context * width), threads, 0, on_.stream()>>>(
        rows_, width, config_.context, d_x_.data(), gradient(tensors_[1].offset));
    check(cudaGetLastError(), "a kernel of the backward pass");
  }

  const context& on_;
  model_config config_;
  std::size_t sequences_;
  std::size_t rows_;
  std::vector<named_tensor> tensors_;
  array<float> parameters_, gradients_;
  std::vector<activations> layers_;
  array<std::uint8_t> tokens_;
  array<float> last_, normal_, mean_, inverse_, logits_, losses_, d_x_, d_narrow_, d_wide_, d_weights_;
  std::vector<float> next_;
};

}  // namespace gpt::device
