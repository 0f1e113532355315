// SPDX-License-Identifier: Apache-2.0
/// The few loops in which a training step spends its time. Every sum runs in an order that the shapes alone
/// decide, so that the same numbers give the same bits wherever a micro-batch is computed. (Build with
/// -ffp-contract=off and without -ffast-math: otherwise the compiler may change that order.)
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>

namespace gpt {

/// A vector of 16 bytes that g++ and clang keep in a register.
template <typename Real>
struct lanes;
template <>
struct lanes<float> {
  typedef float type __attribute__((vector_size(16)));
  static constexpr std::size_t count = 4;
};
template <>
struct lanes<double> {
  typedef double type __attribute__((vector_size(16)));
  static constexpr std::size_t count = 2;
};

/// A matrix to read: element (i, j) lies at data[i * row + j * column].
template <typename Real>
struct strided {
  const Real* data;
  std::size_t row;
  std::size_t column;
};

/// c[i, j] = (accumulate ? c[i, j] : 0) + sum of a[i, p] * b[p, j] over p = 0, 1, ..., k - 1, in that order
/// of p. Shapes: a is m x k with any strides, b is k x n and c is m x n with rows of b_row and c_row
/// elements.
template <typename Real>
void multiply(std::size_t m, std::size_t n, std::size_t k, strided<Real> a, const Real* b, std::size_t b_row,
              Real* c, std::size_t c_row, bool accumulate) {
  struct two {
    typename lanes<Real>::type low, high;
  };
  constexpr std::size_t rows = 4, width = lanes<Real>::count, columns = 2 * width;
  const auto load = [](const Real* from) {
    two values;
    std::memcpy(&values.low, from, sizeof values.low);
    std::memcpy(&values.high, from + width, sizeof values.high);
    return values;
  };
  const auto store = [](Real* to, const two& values) {
    std::memcpy(to, &values.low, sizeof values.low);
    std::memcpy(to + width, &values.high, sizeof values.high);
  };
  const std::size_t full_rows = m - m % rows, full_columns = n - n % columns;
  for (std::size_t j = 0; j < full_columns; j += columns) {
    for (std::size_t i = 0; i < full_rows; i += rows) {
      two sum0{}, sum1{}, sum2{}, sum3{};  // written out: an array would live in memory at -O2
      Real* const out = c + i * c_row + j;
      if (accumulate) {
        sum0 = load(out);
        sum1 = load(out + c_row);
        sum2 = load(out + 2 * c_row);
        sum3 = load(out + 3 * c_row);
      }
      const Real* left = a.data + i * a.row;
      const Real* right = b + j;
      for (std::size_t p = 0; p < k; ++p, left += a.column, right += b_row) {
        const two factor = load(right);
        sum0.low += left[0] * factor.low;
        sum0.high += left[0] * factor.high;
        sum1.low += left[a.row] * factor.low;
        sum1.high += left[a.row] * factor.high;
        sum2.low += left[2 * a.row] * factor.low;
        sum2.high += left[2 * a.row] * factor.high;
        sum3.low += left[3 * a.row] * factor.low;
        sum3.high += left[3 * a.row] * factor.high;
      }
      store(out, sum0);
      store(out + c_row, sum1);
      store(out + 2 * c_row, sum2);
      store(out + 3 * c_row, sum3);
    }
  }
  const auto one = [&](std::size_t i, std::size_t j) {
    Real sum = accumulate ? c[i * c_row + j] : Real{0};
    for (std::size_t p = 0; p < k; ++p) sum += a.data[i * a.row + p * a.column] * b[p * b_row + j];
    c[i * c_row + j] = sum;
  };
  for (std::size_t i = full_rows; i < m; ++i)
    for (std::size_t j = 0; j < full_columns; ++j) one(i, j);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = full_columns; j < n; ++j) one(i, j);
}

/// out (columns x rows) becomes the transpose of in (rows x columns, its rows in_row elements apart).
template <typename Real>
void transpose(std::size_t rows, std::size_t columns, const Real* in, std::size_t in_row, Real* out) {
  constexpr std::size_t block = 16;
  for (std::size_t i = 0; i < rows; i += block)
    for (std::size_t j = 0; j < columns; j += block)
      for (std::size_t jj = j; jj < columns && jj < j + block; ++jj)
        for (std::size_t ii = i; ii < rows && ii < i + block; ++ii)
          out[jj * rows + ii] = in[ii * in_row + jj];
}

/// out = in * weight + bias. Shapes: in rows x n_in, weight n_in x n_out, bias n_out, out rows x n_out.
template <typename Real>
void linear(std::size_t rows, std::size_t n_in, std::size_t n_out, const Real* in, const Real* weight,
            const Real* bias, Real* out) {
  for (std::size_t i = 0; i < rows; ++i) std::memcpy(out + i * n_out, bias, n_out * sizeof(Real));
  multiply<Real>(rows, n_out, n_in, {in, n_in, 1}, weight, n_out, out, n_out, true);
}

/// The gradients of linear: adds to d_weight and d_bias, replaces d_in. scratch: n_in * n_out elements.
template <typename Real>
void linear_backward(std::size_t rows, std::size_t n_in, std::size_t n_out, const Real* in,
                     const Real* weight, const Real* d_out, Real* d_in, Real* d_weight, Real* d_bias,
                     Real* scratch) {
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < n_out; ++j) d_bias[j] += d_out[i * n_out + j];
  multiply<Real>(n_in, n_out, rows, {in, 1, n_in}, d_out, n_out, d_weight, n_out, true);
  transpose(n_in, n_out, weight, n_out, scratch);
  multiply<Real>(rows, n_in, n_out, {d_out, n_out, 1}, scratch, n_in, d_in, n_in, false);
}

/// Layer normalisation of each row; mean and inverse (1 / standard deviation) are kept for the backward pass.
template <typename Real>
void layer_norm(std::size_t rows, std::size_t width, const Real* in, const Real* weight, const Real* bias,
                Real* out, Real* mean, Real* inverse) {
  for (std::size_t i = 0; i < rows; ++i, in += width, out += width) {
    Real sum = 0, squares = 0;
    for (std::size_t j = 0; j < width; ++j) sum += in[j];
    mean[i] = sum / static_cast<Real>(width);
    for (std::size_t j = 0; j < width; ++j) squares += (in[j] - mean[i]) * (in[j] - mean[i]);
    inverse[i] = 1 / std::sqrt(squares / static_cast<Real>(width) + Real(1e-5));
    for (std::size_t j = 0; j < width; ++j) out[j] = (in[j] - mean[i]) * inverse[i] * weight[j] + bias[j];
  }
}

/// The gradients of layer_norm: adds to d_in (the residual path has written there), d_weight and d_bias.
template <typename Real>
void layer_norm_backward(std::size_t rows, std::size_t width, const Real* in, const Real* weight,
                         const Real* mean, const Real* inverse, const Real* d_out, Real* d_in, Real* d_weight,
                         Real* d_bias) {
  for (std::size_t i = 0; i < rows; ++i, in += width, d_out += width, d_in += width) {
    Real sum = 0, product = 0;
    for (std::size_t j = 0; j < width; ++j) {
      const Real normal = (in[j] - mean[i]) * inverse[i], d_normal = d_out[j] * weight[j];
      sum += d_normal;
      product += d_normal * normal;
      d_weight[j] += d_out[j] * normal;
      d_bias[j] += d_out[j];
    }
    sum /= static_cast<Real>(width);
    product /= static_cast<Real>(width);
    for (std::size_t j = 0; j < width; ++j) {
      const Real normal = (in[j] - mean[i]) * inverse[i];
      d_in[j] += (d_out[j] * weight[j] - sum - normal * product) * inverse[i];
    }
  }
}

/// GELU in its tanh form, written as in * gate with gate = sigmoid(2 u); the gate is kept for the backward
/// pass.
template <typename Real>
void gelu(std::size_t count, const Real* in, Real* gate, Real* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const Real x = in[i], u = Real(0.7978845608028654) * (x + Real(0.044715) * x * x * x);
    gate[i] = 1 / (1 + std::exp(-2 * u));
    out[i] = x * gate[i];
  }
}

/// Turns the gradient d of gelu's output into that of its input, in place.
template <typename Real>
void gelu_backward(std::size_t count, const Real* in, const Real* gate, Real* d) {
  for (std::size_t i = 0; i < count; ++i) {
    const Real x = in[i], slope = Real(0.7978845608028654) * (1 + 3 * Real(0.044715) * x * x);
    d[i] *= gate[i] + 2 * x * gate[i] * (1 - gate[i]) * slope;
  }
}

}  // namespace gpt
