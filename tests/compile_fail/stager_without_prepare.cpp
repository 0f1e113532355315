// SPDX-License-Identifier: Apache-2.0
// expect: declares the role stager but does not model Stager
#include <cairn/checkpointer.hpp>
#include <cairn/execute/inline_executor.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stores/memory_store.hpp>

// A stager without prepare().
struct half_stager {
  using cairn_role = cairn::role::stager;
  cairn::staged_image stage(std::shared_ptr<const cairn::image_layout>, std::vector<cairn::item_source>,
                            cairn::stage_options, cairn::deadline);
  int depth() const;
};
int main() {
  cairn::checkpointer ckpt{cairn::memory_store{}, half_stager{}};
}
