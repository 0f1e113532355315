// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <math.h>
#include <string.h>

enum { inputs = context * width };

int64_t model_layout(tensor_place places[tensor_count]) {
  static const tensor_place wanted[tensor_count] = {
      {"embedding", 2, {symbols, width}, 0, 0}, {"hidden.weight", 2, {hidden, inputs}, 0, 0},
      {"hidden.bias", 1, {hidden, 0}, 0, 0},    {"output.weight", 2, {symbols, hidden}, 0, 0},
      {"output.bias", 1, {symbols, 0}, 0, 0},
  };
  int64_t all = 0;
  for (int i = 0; i < tensor_count; ++i) {
    places[i] = wanted[i];
    places[i].begin = all;
    places[i].size = wanted[i].shape[0] * (wanted[i].dimensions == 2 ? wanted[i].shape[1] : 1);
    all += places[i].size;
  }
  return all;
}

uint64_t next_random(uint64_t* state) {
  uint64_t x = *state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return *state = x;
}

void model_init(float* params, uint64_t seed) {
  tensor_place places[tensor_count];
  const int64_t all = model_layout(places);
  for (int64_t i = 0; i < all; ++i)
    params[i] = 0.2f * ((float)(next_random(&seed) >> 40) / 16777216.0f - 0.5f);
}

double model_forward_backward(const float* params, float* grads, const unsigned char* text, const int64_t* at,
                              int count) {
  tensor_place places[tensor_count];
  model_layout(places);
  const float *embedding = params + places[0].begin, *weight1 = params + places[1].begin;
  const float *bias1 = params + places[2].begin, *weight2 = params + places[3].begin;
  const float* bias2 = params + places[4].begin;
  float *d_embedding = grads + places[0].begin, *d_weight1 = grads + places[1].begin;
  float *d_bias1 = grads + places[2].begin, *d_weight2 = grads + places[3].begin;
  float* d_bias2 = grads + places[4].begin;
  const float scale = 1.0f / (float)count;
  double loss = 0;
  for (int sample = 0; sample < count; ++sample) {
    const unsigned char* bytes = text + at[sample];
    float x[inputs], h[hidden], p[symbols], dx[inputs] = {0}, dh[hidden] = {0};
    for (int c = 0; c < context; ++c)
      memcpy(x + c * width, embedding + bytes[c] * width, sizeof(float) * width);
    for (int j = 0; j < hidden; ++j) {
      float sum = bias1[j];
      for (int i = 0; i < inputs; ++i) sum += weight1[j * inputs + i] * x[i];
      h[j] = tanhf(sum);
    }
    float largest = -INFINITY, total = 0;
    for (int k = 0; k < symbols; ++k) {
      p[k] = bias2[k];
      for (int j = 0; j < hidden; ++j) p[k] += weight2[k * hidden + j] * h[j];
      largest = fmaxf(largest, p[k]);
    }
    for (int k = 0; k < symbols; ++k) total += p[k] = expf(p[k] - largest);
    for (int k = 0; k < symbols; ++k) p[k] /= total;
    const int next = bytes[context];
    loss -= log((double)p[next] + 1e-30) / count;

    for (int k = 0; k < symbols; ++k) {
      const float d = scale * (p[k] - (k == next ? 1.0f : 0.0f));
      d_bias2[k] += d;
      for (int j = 0; j < hidden; ++j) {
        d_weight2[k * hidden + j] += d * h[j];
        dh[j] += d * weight2[k * hidden + j];
      }
    }
    for (int j = 0; j < hidden; ++j) {
      const float d = dh[j] * (1.0f - h[j] * h[j]);
      d_bias1[j] += d;
      for (int i = 0; i < inputs; ++i) {
        d_weight1[j * inputs + i] += d * x[i];
        dx[i] += d * weight1[j * inputs + i];
      }
    }
    for (int c = 0; c < context; ++c)
      for (int i = 0; i < width; ++i) d_embedding[bytes[c] * width + i] += dx[c * width + i];
  }
  return loss;
}

void adamw(float* params, const float* grads, float* m, float* v, int64_t count, double learning_rate,
           int64_t step) {
  const float beta1 = 0.9f, beta2 = 0.99f, decay = 0.01f;
  const float correct1 = (float)(1.0 - pow(beta1, (double)step)),
              correct2 = (float)(1.0 - pow(beta2, (double)step));
  for (int64_t i = 0; i < count; ++i) {
    m[i] = beta1 * m[i] + (1.0f - beta1) * grads[i];
    v[i] = beta2 * v[i] + (1.0f - beta2) * grads[i] * grads[i];
    const float change = m[i] / correct1 / (sqrtf(v[i] / correct2) + 1e-8f) + decay * params[i];
    params[i] -= (float)learning_rate * change;
  }
}
