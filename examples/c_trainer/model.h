// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small language model on bytes: a hidden layer over the embeddings of the last bytes tells the next one.
#include <stdint.h>

enum { context = 8, width = 16, hidden = 32, symbols = 256, tensor_count = 5 };

/// One tensor of the flat buffer of all parameters.
typedef struct tensor_place {
  const char* name;
  int dimensions;
  int64_t shape[2];
  int64_t begin;  ///< of its first element in the buffer
  int64_t size;   ///< elements
} tensor_place;

/// The tensors in the order of the buffer; returns the number of parameters.
int64_t model_layout(tensor_place places[tensor_count]);

/// The same weights for the same seed.
void model_init(float* params, uint64_t seed);

/// The mean loss of `count` samples; adds their gradient to `grads`. Sample i reads the bytes
/// text[at[i]] to text[at[i] + context].
double model_forward_backward(const float* params, float* grads, const unsigned char* text, const int64_t* at,
                              int count);

/// One AdamW step (number `step`, from 1) for `count` parameters.
void adamw(float* params, const float* grads, float* m, float* v, int64_t count, double learning_rate,
           int64_t step);

/// A random number that changes the generator's state; never 0 in, never 0 out.
uint64_t next_random(uint64_t* state);
