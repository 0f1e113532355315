// SPDX-License-Identifier: Apache-2.0
// expect: does not model SavePlanner
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/stores/memory_store.hpp>

// merge() gives nothing back.
struct half_planner : cairn::default_planner {
  using cairn_role = cairn::role::planner;
  void merge(summary_type, summary_type);
};
int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, half_planner{}};
}
