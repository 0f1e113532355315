// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cairn/concepts/planner.hpp>
#include <cairn/system/wire.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn_test {

/// The smallest type that satisfies SavePlanner: it saves whole tensors from rank 0 alone.
struct save_planner_archetype {
  struct summary_type {
    cairn::save_plan plan;
  };
  save_planner_archetype(const save_planner_archetype&) = delete;
  save_planner_archetype(save_planner_archetype&&) = default;
  save_planner_archetype& operator=(save_planner_archetype&&) = default;
  save_planner_archetype() = default;

  cairn::save_plan local_plan(const cairn::state_dict& state, int rank) {
    cairn::save_plan plan;
    if (rank != 0) return plan;
    std::uint32_t n = 0;
    for (const auto& e : state.entries())
      plan.items.push_back({e.name, e.kind, e.type, e.global, cairn::whole(e.global), e.flags, n++,
                            e.kind == cairn::item_kind::bytes ? e.bytes().size()
                                                              : cairn::bytes_of(e.type, e.global.volume())});
    return plan;
  }
  summary_type summarise(cairn::save_plan plan, int) { return {std::move(plan)}; }
  summary_type merge(summary_type a, summary_type b) { return a.plan.items.empty() ? b : a; }
  std::vector<std::byte> encode(const summary_type& s) {
    cairn::wire_writer out;
    cairn::encode(out, s.plan);
    return out.take();
  }
  summary_type decode(std::span<const std::byte> bytes) {
    cairn::wire_reader in(bytes);
    summary_type s{cairn::decode_save_plan(in)};
    in.finish();
    return s;
  }
  cairn::save_plan finish(cairn::save_plan plan, const summary_type&, int, int) { return plan; }
  cairn::metadata metadata(const summary_type& s, int world_size) {
    cairn::metadata m;
    m.world_size = world_size;
    for (const auto& i : s.plan.items)
      m.items.push_back({i.name, i.kind, i.type, i.global, i.flags.per_rank, {{i.box, 0}}});
    std::sort(m.items.begin(), m.items.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return m;
  }
  cairn::item_source resolve(const cairn::state_dict& state, const cairn::write_item& item) {
    const auto& e = state.entries()[item.entry];
    if (e.kind == cairn::item_kind::bytes)
      return {cairn::contiguous_view(e.bytes().data(), cairn::dtype::u8, {e.bytes().size()}), nullptr};
    return {e.view(0), nullptr};
  }
  std::uint64_t fingerprint() const { return 1; }
};

/// The smallest type that satisfies LoadPlanner: it loads whole tensors that one rank wrote whole.
struct load_planner_archetype {
  load_planner_archetype(const load_planner_archetype&) = delete;
  load_planner_archetype(load_planner_archetype&&) = default;
  load_planner_archetype& operator=(load_planner_archetype&&) = default;
  load_planner_archetype() = default;

  cairn::load_plan plan(const cairn::state_dict& state, const cairn::metadata& stored,
                        const cairn::load_request&) {
    cairn::load_plan plan;
    std::uint32_t n = 0;
    for (const auto& e : state.entries()) {
      if (const auto* item = stored.find(e.name))
        plan.items.push_back(
            {static_cast<std::uint32_t>(item - stored.items.data()), 0, n, 0, item->chunks[0].box});
      ++n;
    }
    return plan;
  }
  cairn::item_target resolve(const cairn::state_dict& state, const cairn::metadata&,
                             const cairn::read_item& item) {
    const auto& e = state.entries()[item.entry];
    if (e.kind == cairn::item_kind::bytes)
      return {cairn::contiguous_view(e.bytes().data(), cairn::dtype::u8, {e.bytes().size()}), nullptr};
    return {e.view(0), nullptr};
  }
};

static_assert(cairn::SavePlanner<save_planner_archetype>);
static_assert(cairn::LoadPlanner<load_planner_archetype>);
static_assert(!cairn::LoadPlanner<save_planner_archetype>);
static_assert(!cairn::SavePlanner<load_planner_archetype>);

// Each breaks one requirement.
struct without_fingerprint : save_planner_archetype {
  std::uint64_t fingerprint() = delete;
};
struct with_32_bit_fingerprint : save_planner_archetype {
  std::uint32_t fingerprint() const { return 1; }
};
struct with_void_finish : save_planner_archetype {
  void finish(cairn::save_plan, const summary_type&, int, int) {}
};
struct with_mutable_global_summary : save_planner_archetype {
  cairn::save_plan finish(cairn::save_plan plan, summary_type&, int, int) { return plan; }
};
struct with_merge_of_one : save_planner_archetype {
  summary_type merge(summary_type a) { return a; }
};
struct without_resolve : save_planner_archetype {
  cairn::item_source resolve(const cairn::state_dict&, const cairn::write_item&) = delete;
};
struct with_text_encoding : save_planner_archetype {
  std::string_view encode(const summary_type&) { return {}; }
};
struct immovable_planner : save_planner_archetype {
  immovable_planner(immovable_planner&&) = delete;
};
struct load_with_bool_plan : load_planner_archetype {
  bool plan(const cairn::state_dict&, const cairn::metadata&, const cairn::load_request&) { return true; }
};
struct load_without_resolve : load_planner_archetype {
  cairn::item_target resolve(const cairn::state_dict&, const cairn::metadata&,
                             const cairn::read_item&) = delete;
};
struct load_with_32_bit_fingerprint : load_planner_archetype {
  std::uint32_t fingerprint() const { return 1; }
};
static_assert(!cairn::SavePlanner<without_fingerprint>);
static_assert(!cairn::SavePlanner<with_32_bit_fingerprint>);
static_assert(!cairn::SavePlanner<with_void_finish>);
static_assert(!cairn::SavePlanner<with_mutable_global_summary>);
static_assert(!cairn::SavePlanner<with_merge_of_one>);
static_assert(!cairn::SavePlanner<without_resolve>);
static_assert(!cairn::SavePlanner<with_text_encoding>);
static_assert(!cairn::SavePlanner<immovable_planner>);
static_assert(!cairn::LoadPlanner<load_with_bool_plan>);
static_assert(!cairn::LoadPlanner<load_without_resolve>);

}  // namespace cairn_test
