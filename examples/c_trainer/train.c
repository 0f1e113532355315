// SPDX-License-Identifier: Apache-2.0
// A trainer in C with the memory that many have: one flat buffer each for parameters, gradients and the two
// moments of AdamW. Each rank is a process; it holds all parameters, and of the moments the range that it
// updates (ZeRO-1). Started again with the same directory, it goes on from the newest checkpoint, on any
// number of ranks, with the same losses bit for bit.
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoints.h"
#include "model.h"

enum { micro_batches = 4, samples = 16, max_ranks = 4 };

/// What all ranks share: made by the process that starts them, at the same address in each.
typedef struct job {
  int64_t steps, every, kill_after;
  int ranks;
  const char* directory;
  char name[64];
  unsigned char* text;
  int64_t text_size;
  int64_t num_parameters;
  float* grads[micro_batches];  ///< summed in this order, whatever the number of ranks
  double losses[micro_batches];
  float* updated;  ///< the parameters, put together from the ranges of all ranks
  pthread_barrier_t barrier;
} job;

/// Where a rank is in the stream of data: it is the same on all ranks.
typedef struct data_loader {
  uint64_t random;
  int64_t samples_drawn;
} data_loader;

static void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("c_trainer: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

/// Ends the program if a call of cairn failed.
static void check(int status) {
  if (status != 0) fail("%s", cairn_error_message());
}

static void* allocate(int64_t count, size_t size) {
  void* memory = calloc((size_t)count, size);
  if (memory == NULL) fail("memory ran out");
  return memory;
}

/// Zeroed memory that processes forked from now on share with this one.
static void* allocate_shared(int64_t count, size_t size) {
  void* memory = mmap(NULL, (size_t)count * size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("memory ran out");
  return memory;
}

/// Registers everything that the next step depends on; gradients are made anew in each.
static void register_state(cairn_checkpointer* ckpt, float* params, float* m, float* v, int64_t begin,
                           int64_t end, double* learning_rate, data_loader* loader) {
  tensor_place places[tensor_count];
  model_layout(places);
  for (int i = 0; i < tensor_count; ++i) {
    const tensor_place* t = &places[i];
    char name[64];
    snprintf(name, sizeof name, "model.%s", t->name);
    cairn_tensor(ckpt, name, params + t->begin, cairn_f32, t->dimensions, t->shape, 0);

    // The part of this tensor that lies in this rank's range of the buffer: a range of the flattened tensor.
    const int64_t first = begin > t->begin ? begin : t->begin;
    const int64_t last = end < t->begin + t->size ? end : t->begin + t->size;
    const int64_t length = last > first ? last - first : 0;
    const int64_t place = length > 0 ? first - t->begin : 0, held = length > 0 ? first - begin : 0;
    snprintf(name, sizeof name, "adam.m.%s", t->name);
    cairn_flat_range(ckpt, name, m + held, cairn_f32, t->dimensions, t->shape, place, length, 0);
    snprintf(name, sizeof name, "adam.v.%s", t->name);
    cairn_flat_range(ckpt, name, v + held, cairn_f32, t->dimensions, t->shape, place, length, 0);
  }
  cairn_value(ckpt, "learning_rate", learning_rate, cairn_f64, 0);
  cairn_bytes(ckpt, "data_loader", loader, sizeof *loader, 0);
}

/// What one rank does.
static void train(job* shared, int rank) {
  const int64_t all = shared->num_parameters;
  const int64_t begin = all * rank / shared->ranks, end = all * (rank + 1) / shared->ranks;
  float* params = allocate(all, sizeof(float));
  float* m = allocate(end - begin, sizeof(float));
  float* v = allocate(end - begin, sizeof(float));
  float* sum = allocate(end - begin, sizeof(float));
  double learning_rate = 0.01;
  data_loader loader = {.random = 1337, .samples_drawn = 0};
  model_init(params, 42);

  cairn_checkpointer* ckpt = open_checkpoints(shared->directory, shared->name, rank, shared->ranks);
  if (ckpt == NULL) fail("%s", cairn_error_message());
  register_state(ckpt, params, m, v, begin, end, &learning_rate, &loader);
  int64_t step = 0;
  check(cairn_resume(ckpt, &step));
  if (rank == 0 && step > 0) printf("resumed at step %lld\n", (long long)step);

  while (step < shared->steps) {
    int64_t at[micro_batches][samples];
    for (int i = 0; i < micro_batches * samples; ++i)
      at[i / samples][i % samples] =
          (int64_t)(next_random(&loader.random) % (uint64_t)(shared->text_size - context));
    loader.samples_drawn += micro_batches * samples;
    for (int i = rank; i < micro_batches; i += shared->ranks) {
      memset(shared->grads[i], 0, (size_t)all * sizeof(float));
      shared->losses[i] = model_forward_backward(params, shared->grads[i], shared->text, at[i], samples);
    }
    pthread_barrier_wait(&shared->barrier);
    double loss = 0;
    for (int i = 0; i < micro_batches; ++i) loss += shared->losses[i] / micro_batches;
    for (int64_t k = 0; k < end - begin; ++k) {
      sum[k] = 0;
      for (int i = 0; i < micro_batches; ++i) sum[k] += shared->grads[i][begin + k] / micro_batches;
    }

    check(cairn_before_update(ckpt));  // from here on memory changes
    adamw(params + begin, sum, m, v, end - begin, learning_rate, step + 1);
    memcpy(shared->updated + begin, params + begin, (size_t)(end - begin) * sizeof(float));
    pthread_barrier_wait(&shared->barrier);
    memcpy(params, shared->updated, (size_t)all * sizeof(float));
    learning_rate *= 0.999;
    ++step;

    if (rank == 0) {
      printf("step %lld loss %.4f (%a)\n", (long long)step, loss, loss);
      fflush(stdout);
    }
    if (step % shared->every == 0) check(cairn_save(ckpt, step));
    if (rank == 0 && step == shared->kill_after) raise(SIGKILL);
  }
  check(cairn_close(&ckpt));
  free(params);
  free(m);
  free(v);
  free(sum);
}

/// Starts the ranks and waits for them; where one fails, the others cannot go on and are ended.
static int run_ranks(job* shared) {
  pid_t processes[max_ranks];
  const pid_t launcher = getpid();
  fflush(stdout);
  for (int rank = 0; rank < shared->ranks; ++rank) {
    processes[rank] = fork();
    if (processes[rank] < 0) fail("no process could be started");
    if (processes[rank] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // ranks end with the process that started them
      if (getppid() != launcher) _exit(1);
      train(shared, rank);
      exit(0);
    }
  }
  int failures = 0, status = 0;
  for (pid_t ended; (ended = wait(&status)) > 0;) {
    const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    for (int rank = 0; rank < shared->ranks; ++rank) {
      if (processes[rank] == ended) {
        processes[rank] = 0;
        if (!good && failures == 0)
          fprintf(stderr, "c_trainer: rank %d ended with %s %d\n", rank,
                  WIFSIGNALED(status) ? "signal" : "status",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
      } else if (!good && processes[rank] > 0) {
        kill(processes[rank], SIGKILL);
      }
    }
    if (!good) ++failures;
  }
  return failures == 0 ? 0 : 1;
}

static void read_text(job* shared, const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) fail("cannot read %s; give another text with --text", path);
  const int64_t most = 1 << 20;
  shared->text = allocate_shared(most, 1);
  shared->text_size = (int64_t)fread(shared->text, 1, (size_t)most, file);
  fclose(file);
  if (shared->text_size < 1024) fail("%s is shorter than 1024 bytes; give another text with --text", path);
}

static int64_t number(const char* option, const char* text, int64_t least, int64_t most) {
  char* end = NULL;
  const long long value = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || value < least || value > most)
    fail("--%s must be a number from %lld to %lld, not %s", option, (long long)least, (long long)most, text);
  return value;
}

int main(int argc, char** argv) {
  static const struct option options[] = {
      {"steps", required_argument, NULL, 's'}, {"every", required_argument, NULL, 'e'},
      {"ranks", required_argument, NULL, 'r'}, {"checkpoints", required_argument, NULL, 'c'},
      {"text", required_argument, NULL, 't'},  {"kill-after", required_argument, NULL, 'k'},
      {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0},
  };
  job* shared = allocate_shared(1, sizeof(job));
  *shared = (job){.steps = 200, .every = 20, .ranks = 2, .directory = "checkpoints"};
  snprintf(shared->name, sizeof shared->name, "c_trainer-%ld", (long)getpid());
  const char* text = "/usr/share/common-licenses/GPL-3";
  for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    switch (option) {
      case 's':
        shared->steps = number("steps", optarg, 1, 1000000000);
        break;
      case 'e':
        shared->every = number("every", optarg, 1, 1000000000);
        break;
      case 'r':
        shared->ranks = (int)number("ranks", optarg, 1, max_ranks);
        break;
      case 'c':
        shared->directory = optarg;
        break;
      case 't':
        text = optarg;
        break;
      case 'k':
        shared->kill_after = number("kill-after", optarg, 1, 1000000000);
        break;
      default:
        fputs(
            "usage: c_trainer [--steps N] [--every N] [--ranks 1..4] [--checkpoints DIR] [--text FILE] "
            "[--kill-after N]\n"
            "  --every       save after this many steps\n"
            "  --kill-after  end rank 0 with SIGKILL after this step (for trying out recovery)\n",
            option == 'h' ? stdout : stderr);
        return option == 'h' ? 0 : 2;
    }
  }
  read_text(shared, text);
  tensor_place places[tensor_count];
  shared->num_parameters = model_layout(places);
  shared->updated = allocate_shared(shared->num_parameters, sizeof(float));
  for (int i = 0; i < micro_batches; ++i)
    shared->grads[i] = allocate_shared(shared->num_parameters, sizeof(float));
  pthread_barrierattr_t processes;
  pthread_barrierattr_init(&processes);
  pthread_barrierattr_setpshared(&processes, PTHREAD_PROCESS_SHARED);
  if (pthread_barrier_init(&shared->barrier, &processes, (unsigned)shared->ranks) != 0)
    fail("no barrier could be made");
  return run_ranks(shared);
}
