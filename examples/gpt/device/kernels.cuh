// SPDX-License-Identifier: Apache-2.0
/// The kernels of a training step beside cuBLAS. Every sum runs in an order that the shapes alone decide:
/// there are no atomics.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpt::device {

inline constexpr unsigned threads = 256;
inline unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}
__device__ inline std::size_t index_here() {
  return std::size_t{blockIdx.x} * threads + threadIdx.x;
}

struct add_values {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct larger_value {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};
/// The values of a block's threads as one; every thread gets it.
template <class Operation>
__device__ inline float of_block(float value, Operation operation) {
  __shared__ float parts[threads];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] = operation(parts[threadIdx.x], parts[threadIdx.x + half]);
    __syncthreads();
  }
  const float result = parts[0];
  __syncthreads();
  return result;
}
__device__ inline float block_sum(float value) {
  return of_block(value, add_values{});
}

// --- Elementwise
// ----------------------------------------------------------------------------------------------------

static __global__ void add_to(std::size_t count, float* to, const float* from) {
  if (const auto i = index_here(); i < count) to[i] += from[i];
}
static __global__ void scale(std::size_t count, float* values, float factor) {
  if (const auto i = index_here(); i < count) values[i] *= factor;
}
static __global__ void add_bias(std::size_t count, std::size_t columns, float* to, const float* bias) {
  if (const auto i = index_here(); i < count) to[i] += bias[i % columns];
}
__device__ inline float gelu_gate(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 1 / (1 + expf(-2 * u));
}
static __global__ void gelu(std::size_t count, const float* in, float* out) {
  if (const auto i = index_here(); i < count) out[i] = in[i] * gelu_gate(in[i]);
}
static __global__ void gelu_backward(std::size_t count, const float* in, float* d) {
  const auto i = index_here();
  if (i >= count) return;
  const float x = in[i], gate = gelu_gate(x);
  const float slope = 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
  d[i] *= gate + 2 * x * gate * (1 - gate) * slope;
}
/// See gpt::adamw_update.
static __global__ void adamw(std::size_t count, float beta1, float beta2, float epsilon, float learning_rate,
                             float decay, float m_scale, float v_scale, const float* gradient,
                             float* parameter, float* m, float* v) {
  const auto i = index_here();
  if (i >= count) return;
  const float g = gradient[i];
  m[i] = beta1 * m[i] + (1 - beta1) * g;
  v[i] = beta2 * v[i] + (1 - beta2) * g * g;
  const float direction = (m[i] * m_scale) / (sqrtf(v[i] * v_scale) + epsilon);
  parameter[i] -= learning_rate * (direction + decay * parameter[i]);
}

// --- Embedding: tokens has context + 1 for each sequence
// --------------------------------------------------------------

__device__ inline std::size_t place_of(std::size_t row, std::size_t context) {
  return row + row / context;
}
static __global__ void embed(std::size_t rows, std::size_t width, std::size_t context,
                             const std::uint8_t* tokens, const float* wte, const float* wpe, float* out) {
  const auto i = index_here();
  if (i >= rows * width) return;
  const std::size_t row = i / width, column = i % width;
  out[i] = wte[tokens[place_of(row, context)] * width + column] + wpe[row % context * width + column];
}
/// A thread for each element of wte: adds the rows of its token in their order.
static __global__ void embed_backward(std::size_t rows, std::size_t width, std::size_t context,
                                      std::size_t vocabulary, const std::uint8_t* tokens, const float* d_x,
                                      float* d_wte) {
  const auto i = index_here();
  if (i >= vocabulary * width) return;
  float sum = d_wte[i];
  for (std::size_t row = 0; row < rows; ++row)
    if (tokens[place_of(row, context)] == i / width) sum += d_x[row * width + i % width];
  d_wte[i] = sum;
}
static __global__ void position_backward(std::size_t rows, std::size_t width, std::size_t context,
                                         const float* d_x, float* d_wpe) {
  const auto i = index_here();
  if (i >= context * width) return;
  float sum = 0;
  for (std::size_t row = i / width; row < rows; row += context) sum += d_x[row * width + i % width];
  d_wpe[i] = sum;
}

// --- A block for each row
// ---------------------------------------------------------------------------------------------

static __global__ void layer_norm(std::size_t width, const float* in, const float* weight, const float* bias,
                                  float* out, float* mean, float* inverse) {
  const std::size_t row = blockIdx.x;
  in += row * width, out += row * width;
  float sum = 0;
  for (std::size_t j = threadIdx.x; j < width; j += threads) sum += in[j];
  const float m = block_sum(sum) / static_cast<float>(width);
  float squares = 0;
  for (std::size_t j = threadIdx.x; j < width; j += threads) squares += (in[j] - m) * (in[j] - m);
  const float inv = 1 / sqrtf(block_sum(squares) / static_cast<float>(width) + 1e-5f);
  for (std::size_t j = threadIdx.x; j < width; j += threads) out[j] = (in[j] - m) * inv * weight[j] + bias[j];
  if (threadIdx.x == 0) mean[row] = m, inverse[row] = inv;
}
/// Adds to d_in, where the residual path has written.
static __global__ void layer_norm_backward(std::size_t width, const float* in, const float* weight,
                                           const float* mean, const float* inverse, const float* d_out,
                                           float* d_in) {
  const std::size_t row = blockIdx.x;
  in += row * width, d_out += row * width, d_in += row * width;
  const float m = mean[row], inv = inverse[row];
  float sum = 0, product = 0;
  for (std::size_t j = threadIdx.x; j < width; j += threads) {
    const float d_normal = d_out[j] * weight[j];
    sum += d_normal;
    product += d_normal * ((in[j] - m) * inv);
  }
  sum = block_sum(sum) / static_cast<float>(width);
  product = block_sum(product) / static_cast<float>(width);
  for (std::size_t j = threadIdx.x; j < width; j += threads)
    d_in[j] += (d_out[j] * weight[j] - sum - (in[j] - m) * inv * product) * inv;
}
/// Rows of attention weights of one sequence, context of them for each head: softmax of what is not in the
/// future.
static __global__ void causal_softmax(std::size_t context, float factor, float* weights) {
  float* row = weights + std::size_t{blockIdx.x} * context;
  const std::size_t last = blockIdx.x % context;
  float highest = -INFINITY;  // not row[0], which another thread scales meanwhile
  for (std::size_t j = threadIdx.x; j <= last; j += threads) {
    row[j] *= factor;
    highest = larger_value{}(highest, row[j]);
  }
  highest = of_block(highest, larger_value{});
  float sum = 0;
  for (std::size_t j = threadIdx.x; j <= last; j += threads) sum += row[j] = expf(row[j] - highest);
  sum = block_sum(sum);
  for (std::size_t j = threadIdx.x; j < context; j += threads) row[j] = j <= last ? row[j] / sum : 0;
}
static __global__ void causal_softmax_backward(std::size_t context, float factor, const float* weights,
                                               float* d_weights) {
  const float* row = weights + std::size_t{blockIdx.x} * context;
  float* d_row = d_weights + std::size_t{blockIdx.x} * context;
  const std::size_t last = blockIdx.x % context;
  float sum = 0;
  for (std::size_t j = threadIdx.x; j <= last; j += threads) sum += d_row[j] * row[j];
  sum = block_sum(sum);
  for (std::size_t j = threadIdx.x; j < context; j += threads)
    d_row[j] = j <= last ? row[j] * (d_row[j] - sum) * factor : 0;
}
/// Turns logits into probabilities, and tells the loss of each row.
static __global__ void cross_entropy(std::size_t context, std::size_t vocabulary, const std::uint8_t* tokens,
                                     float* logits, float* losses) {
  float* row = logits + std::size_t{blockIdx.x} * vocabulary;
  float highest = row[0];
  for (std::size_t j = threadIdx.x; j < vocabulary; j += threads) highest = larger_value{}(highest, row[j]);
  highest = of_block(highest, larger_value{});
  const float margin = row[tokens[place_of(blockIdx.x, context) + 1]] - highest;
  __syncthreads();
  float sum = 0;
  for (std::size_t j = threadIdx.x; j < vocabulary; j += threads) sum += row[j] = expf(row[j] - highest);
  sum = block_sum(sum);
  for (std::size_t j = threadIdx.x; j < vocabulary; j += threads) row[j] /= sum;
  if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) - margin;
}
static __global__ void cross_entropy_backward(std::size_t context, std::size_t vocabulary,
                                              const std::uint8_t* tokens, float share, float* logits) {
  float* row = logits + std::size_t{blockIdx.x} * vocabulary;
  const std::size_t wanted = tokens[place_of(blockIdx.x, context) + 1];
  for (std::size_t j = threadIdx.x; j < vocabulary; j += threads)
    row[j] = (row[j] - (j == wanted ? 1.0f : 0.0f)) * share;
}

// --- A thread for each column: sums over the rows in their order
// -------------------------------------------------------

static __global__ void column_sums(std::size_t rows, std::size_t columns, const float* in, float* sums) {
  const auto j = index_here();
  if (j >= columns) return;
  float sum = 0;
  for (std::size_t i = 0; i < rows; ++i) sum += in[i * columns + j];
  sums[j] = sum;
}
static __global__ void norm_column_sums(std::size_t rows, std::size_t width, const float* in,
                                        const float* mean, const float* inverse, const float* d_out,
                                        float* d_weight, float* d_bias) {
  const auto j = index_here();
  if (j >= width) return;
  float weight = 0, bias = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    weight += d_out[i * width + j] * ((in[i * width + j] - mean[i]) * inverse[i]);
    bias += d_out[i * width + j];
  }
  d_weight[j] = weight, d_bias[j] = bias;
}

}  // namespace gpt::device
