// SPDX-License-Identifier: Apache-2.0
// A trainer with a planner, a store and a stager of its own, and with those of the library; its other file is parts.cpp.
#include "program.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

struct own_planner : cairn::basic_planner<own_planner> {
  std::optional<std::string> stored_name(const cairn::state_entry& entry) const {
    return "model." + entry.name;
  }
};

class own_stager {
 public:
  using cairn_role = cairn::role::stager;
  cairn::staged_image stage(std::shared_ptr<const cairn::image_layout> layout,
                            const cairn::source_table& sources, cairn::stage_options options,
                            cairn::deadline until) {
    return inner_.stage(std::move(layout), sources, options, until);
  }
  void prepare(const cairn::image_layout& layout, cairn::deadline until) { inner_.prepare(layout, until); }
  int depth() const { return inner_.depth(); }

 private:
  cairn::no_staging inner_;
};

class own_store {
 public:
  using cairn_role = cairn::role::store;
  using writer = cairn::memory_store::object_writer;
  writer create(std::string_view key, std::uint64_t hint) { return inner_.create(key, hint); }
  std::size_t io_alignment() { return 1; }
  std::size_t min_write_bytes() { return 1; }
  void read(std::span<const cairn::read_range> ranges) { inner_.read(ranges); }
  void put_new(std::string_view key, std::span<const std::byte> bytes) { inner_.put_new(key, bytes); }
  bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    return inner_.publish_new(key, bytes);
  }
  std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    return inner_.read_all(key, cap);
  }
  std::optional<std::uint64_t> size(std::string_view key) { return inner_.size(key); }
  std::vector<cairn::listed_object> list(std::string_view prefix) { return inner_.list(prefix); }
  void remove(std::string_view key) { inner_.remove(key); }
  std::vector<std::string> leftovers(std::string_view prefix) { return inner_.leftovers(prefix); }
  void discard(std::string_view key) { inner_.discard(key); }
  std::optional<cairn::space_left> free_space() { return inner_.free_space(); }
  std::string describe() { return "a store of the program's own"; }

 private:
  cairn::memory_store inner_;
};

}  // namespace

bool saves_and_loads(cairn::any_checkpointer ckpt) {
  std::vector<float> weights(512 * 64, 0.5f);
  double learning_rate = 0.01;
  cairn::state_dict state;
  state.tensor("weights", weights, {512, 64});
  state.value("learning_rate", learning_rate);
  ckpt.save(state, 1).wait();
  weights.assign(weights.size(), 2.5f);
  ckpt.save(state, 2).wait();
  weights.assign(weights.size(), 0);
  learning_rate = 0;
  const bool newest = ckpt.resume(state) == 2 && weights.back() == 2.5f && learning_rate == 0.01;
  ckpt.load(state, 1);
  const bool first = weights.back() == 0.5f;
  ckpt.close();
  return newest && first;
}

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  if (!saves_and_loads(checkpoints_in(argv[1])))
    throw std::runtime_error("the library's parts do not load what they saved");
  if (!saves_and_loads(same_in_both_files())) throw std::runtime_error("memory does not keep what was saved");
  if (!saves_and_loads(cairn::checkpointer{own_store{}, own_planner{}, own_stager{}}))
    throw std::runtime_error("the program's own parts do not load what they saved");
  std::printf("saved and loaded\n");
} catch (const std::exception& e) {
  std::fprintf(stderr, "consumer: %s\n", e.what());
  return 1;
}
