// SPDX-License-Identifier: Apache-2.0
// The ten lines with worker processes, S3 and MPI.
#include <cairn/cairn.hpp>
#include <cairn/comm/mpi_communicator.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/execute/worker_main.hpp>
#include <cairn/stage/shared_stager.hpp>
#include <cairn/stores/s3_store.hpp>

#include <cstdint>
#include <vector>

int main(int argc, char** argv) {
  cairn::worker_main(argc, argv);
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  {
    std::vector<float> weights(512 * 64);
    double learning_rate = 0.01;

    cairn::state_dict state;
    state.tensor("weights", weights, {512, 64});
    state.value("learning_rate", learning_rate);

    cairn::checkpointer ckpt{cairn::s3_store{cairn::s3_options{.bucket = "checkpoints"}},
                             cairn::shared_stager{}, cairn::process_executor{},
                             cairn::mpi_communicator{MPI_COMM_WORLD}, cairn::overlapped{}};
    auto step = ckpt.resume(state).value_or(0);
    while (step < 200) {
      ckpt.before_update();
      ++step;
      if (step % 100 == 0) ckpt.save(state, step);
    }
    ckpt.close();
  }
  MPI_Finalize();
}
