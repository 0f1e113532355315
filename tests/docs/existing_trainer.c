// SPDX-License-Identifier: Apache-2.0
// A toy with the shape of a trainer that exists already: what docs/integrate-a-c-trainer.md adds to
// one is tried here. The names are those of a well-known trainer in C, the bodies are ours: it fits a line.
#include "existing_trainer.h"

#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cairn/interop/c_interface.h>

typedef struct GPT2 {
  size_t num_parameters;
  float *params_memory, *grads_memory, *m_memory, *v_memory;
  float mean_loss;
} GPT2;

typedef struct DataLoader {
  uint64_t shuffle_rng;
  float input;
} DataLoader;

static float random_f32(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (float)(*state >> 40) / 16777216.0f;
}

static void gpt2_build(GPT2* model) {
  *model = (GPT2){.num_parameters = 2};
  model->params_memory = (float*)calloc(model->num_parameters, sizeof(float));
  model->grads_memory = (float*)calloc(model->num_parameters, sizeof(float));
}

static void dataloader_init(DataLoader* loader) {
  *loader = (DataLoader){.shuffle_rng = 42};
}

static void dataloader_next_batch(DataLoader* loader) {
  loader->input = random_f32(&loader->shuffle_rng);
}

static void gpt2_forward_backward(GPT2* model, float x, float noise) {
  const float error =
      model->params_memory[0] * x + model->params_memory[1] - (3.0f * x - 1.0f) - 0.1f * noise;
  model->mean_loss = error * error;
  model->grads_memory[0] = 2.0f * error * x;
  model->grads_memory[1] = 2.0f * error;
}

static void gpt2_update(GPT2* model, float learning_rate, int t) {
  if (model->m_memory == NULL) {
    model->m_memory = (float*)calloc(model->num_parameters, sizeof(float));
    model->v_memory = (float*)calloc(model->num_parameters, sizeof(float));
  }
  for (size_t i = 0; i < model->num_parameters; i++) {
    const float g = model->grads_memory[i];
    model->m_memory[i] = 0.9f * model->m_memory[i] + 0.1f * g;
    model->v_memory[i] = 0.99f * model->v_memory[i] + 0.01f * g * g;
    const float m = model->m_memory[i] / (1.0f - powf(0.9f, (float)t));
    model->params_memory[i] -= learning_rate * m / (sqrtf(model->v_memory[i]) + 0.01f);
  }
}

static void gpt2_free(GPT2* model) {
  free(model->params_memory);
  free(model->grads_memory);
  free(model->m_memory);
  free(model->v_memory);
}

int existing_trainer(int last_step, int kill_before, float* losses) {
  GPT2 model;
  gpt2_build(&model);
  DataLoader train_loader;
  dataloader_init(&train_loader);
  uint64_t rng_state = 1337;

  // gpt2_update allocates these at its first call: too late to be restored
  model.m_memory = (float*)calloc(model.num_parameters, sizeof(float));
  model.v_memory = (float*)calloc(model.num_parameters, sizeof(float));

  cairn_checkpointer* ckpt = cairn_open("checkpoints");
  const int64_t n = (int64_t)model.num_parameters;
  cairn_tensor(ckpt, "model.params", model.params_memory, cairn_f32, 1, &n, 0);
  cairn_tensor(ckpt, "adam.m", model.m_memory, cairn_f32, 1, &n, 0);
  cairn_tensor(ckpt, "adam.v", model.v_memory, cairn_f32, 1, &n, 0);
  cairn_value(ckpt, "rng_state", &rng_state, cairn_u64, 0);
  int64_t done = 0;  // completed updates
  if (cairn_resume(ckpt, &done) != 0) {
    fprintf(stderr, "%s\n", cairn_error_message());
    exit(EXIT_FAILURE);
  }
  for (int64_t i = 0; i < done; i++) dataloader_next_batch(&train_loader);

  for (int step = (int)done; step <= last_step; step++) {
    if (step == kill_before) raise(SIGKILL);
    dataloader_next_batch(&train_loader);
    gpt2_forward_backward(&model, train_loader.input, random_f32(&rng_state));
    losses[step] = model.mean_loss;
    cairn_before_update(ckpt);
    gpt2_update(&model, 0.1f, step + 1);
    if ((step + 1) % 10 == 0 && cairn_save(ckpt, step + 1) != 0) {
      fprintf(stderr, "%s\n", cairn_error_message());
    }
  }

  if (cairn_close(&ckpt) != 0) fprintf(stderr, "%s\n", cairn_error_message());
  gpt2_free(&model);
  return (int)done;
}
