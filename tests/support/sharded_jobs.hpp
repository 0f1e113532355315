// SPDX-License-Identifier: Apache-2.0
#pragma once
// Jobs whose tensors are spread over ranks at random, and ranks that share what they read.
#include "on_all_ranks.hpp"
#include "planner_conformance.hpp"

#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/system/digest.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn_test::sharded_jobs {

using cairn::chunk;
using cairn::error_id;
using cairn::extents;

struct generator {
  std::mt19937_64 engine;
  std::int64_t in(std::int64_t low, std::int64_t high) {  // both included
    return low + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int one_in) { return in(1, one_in) == 1; }
  /// 0 = first <= ... <= last = size, in `parts` parts, some of them empty.
  std::vector<std::int64_t> cuts(std::int64_t size, std::int64_t parts) {
    std::vector<std::int64_t> at{0, size};
    for (std::int64_t k = 1; k < parts; ++k) at.push_back(in(0, size));
    std::sort(at.begin(), at.end());
    return at;
  }
};

/// A tensor of the job, whatever the number of ranks.
struct global_tensor {
  std::string name;
  cairn::dtype type;
  extents shape;
};

/// The bytes of element `flat` of a tensor: what every rank that has it must hold.
inline std::vector<std::byte> element(const global_tensor& t, std::int64_t flat) {
  const auto bits = cairn::digest(t.name) + 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(flat + 1);
  std::vector<std::byte> out(cairn::bits_of(t.type) / 8);
  std::memcpy(out.data(), &bits, out.size());
  return out;
}

/// The elements of a box, packed, as the job holds them.
inline std::vector<std::byte> expected(const global_tensor& t, const chunk& box) {
  std::vector<std::byte> out;
  for (std::int64_t k = 0; k < box.volume(); ++k) {
    std::int64_t rest = k;
    std::int64_t flat = 0;
    std::int64_t stride = 1;
    for (int d = t.shape.rank() - 1; d >= 0; --d) {
      flat += (box.offsets[d] + rest % box.sizes[d]) * stride;
      rest /= box.sizes[d];
      stride *= t.shape[d];
    }
    const auto bytes = element(t, flat);
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  return out;
}

/// The ranks of a job with their memory.
struct job {
  struct rank {
    cairn::state_dict state;
    std::deque<std::vector<std::byte>> memory;
    std::int64_t step = 0;
    std::vector<std::uint8_t> rng;
    std::string notes;
  };
  std::deque<rank> ranks;
  std::deque<cairn::state_dict> states;  ///< what plan_group wants

  void divide(generator& g, const chunk& box, std::int64_t pieces, std::vector<chunk>& out) {
    const int d = box.sizes.rank() == 0 ? -1 : static_cast<int>(g.in(0, box.sizes.rank() - 1));
    if (pieces <= 1 || d < 0 || box.sizes[d] < 2) {
      out.push_back(box);
      return;
    }
    auto low = box;
    auto high = box;
    const auto at = g.in(1, box.sizes[d] - 1);
    low.sizes.set(d, at);
    high.offsets.set(d, box.offsets[d] + at);
    high.sizes.set(d, box.sizes[d] - at);
    divide(g, low, pieces / 2, out);
    divide(g, high, pieces - pieces / 2, out);
  }

  void hold(std::size_t r, const global_tensor& t, const chunk& box, bool strided) {
    auto& own = ranks[r].memory.emplace_back();
    auto view = cairn::contiguous_view(nullptr, t.type, box.sizes);
    if (strided && box.sizes.rank() == 2) {  // column-major with a gap between columns
      view.strides[0] = 1;
      view.strides[1] = box.sizes[0] + 3;
      own.resize(cairn::bits_of(t.type) / 8 *
                 static_cast<std::size_t>((box.sizes[0] + 3) * box.sizes[1] + 1));
    } else {
      own.resize(view.bytes() + 1);
    }
    view.data = own.data();
    states[r].tensor(t.name, view, cairn::shard{t.shape, box.offsets, box.sizes});
  }
  void hold_flat(std::size_t r, const global_tensor& t, std::int64_t begin, std::int64_t end) {
    auto& own = ranks[r].memory.emplace_back(cairn::bytes_of(t.type, end - begin) + 1);
    states[r].tensor(t.name, cairn::contiguous_view(own.data(), t.type, {end - begin}),
                     cairn::flat_shard{t.shape, begin, end - begin});
  }

  /// Spreads the tensors over ranks in random ways. `partly`: some ranks may not have some tensors.
  job(generator& g, const std::vector<global_tensor>& tensors, int world, bool partly) {
    const auto n = static_cast<std::size_t>(world);
    ranks.resize(n);
    states.resize(n);
    for (const auto& t : tensors) {
      switch (g.in(0, 4)) {
        case 0:
          for (std::size_t r = 0; r < n; ++r) hold(r, t, cairn::whole(t.shape), g.chance(2));
          break;
        case 1: {  // a mesh over the dimensions, uneven, with replicas where ranks are left
          std::vector<std::vector<std::int64_t>> cuts;
          std::int64_t parts = 1;
          for (int d = 0; d < t.shape.rank(); ++d) {
            const auto p = g.in(1, std::max<std::int64_t>(1, world / parts));
            cuts.push_back(g.cuts(t.shape[d], p));
            parts *= p;
          }
          for (std::size_t r = 0; r < n; ++r) {
            auto index = static_cast<std::int64_t>(r) % parts;
            auto box = cairn::whole(t.shape);
            for (int d = 0; d < t.shape.rank(); ++d) {
              const auto& c = cuts[static_cast<std::size_t>(d)];
              const auto k = static_cast<std::size_t>(index % static_cast<std::int64_t>(c.size() - 1));
              index /= static_cast<std::int64_t>(c.size() - 1);
              box.offsets.set(d, c[k]);
              box.sizes.set(d, c[k + 1] - c[k]);
            }
            hold(r, t, box, g.chance(3));
          }
          break;
        }
        case 2: {  // flat, in groups of replicas
          const auto groups = g.in(1, world);
          const auto cuts = g.cuts(t.shape.volume(), groups);
          for (std::size_t r = 0; r < n; ++r) {
            const auto k = r % static_cast<std::size_t>(groups);
            hold_flat(r, t, cuts[k], cuts[k + 1]);
          }
          break;
        }
        case 3: {  // an irregular partition
          std::vector<chunk> boxes;
          divide(g, cairn::whole(t.shape), world, boxes);
          std::shuffle(boxes.begin(), boxes.end(), g.engine);
          for (std::size_t r = 0; r < n; ++r) hold(r, t, boxes[r % boxes.size()], g.chance(3));
          break;
        }
        default: {  // whole, on some ranks
          const auto first = static_cast<std::size_t>(partly ? g.in(0, world - 1) : 0);
          for (std::size_t r = first; r < n; ++r) hold(r, t, cairn::whole(t.shape), false);
        }
      }
    }
    for (std::size_t r = 0; r < n; ++r) {
      states[r].value("step", ranks[r].step);
      states[r].bytes("rng", ranks[r].rng, cairn::per_rank);
      states[r].bytes("notes", ranks[r].notes);
    }
  }

  void fill(const std::vector<global_tensor>& tensors) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (const auto& t : tensors)
        if (const auto* e = states[r].find(t.name))
          for (std::size_t b = 0; b < e->boxes.size(); ++b)
            cairn_test::unpack(expected(t, e->boxes[b]), e->view(b));
      ranks[r].step = 1234;
      ranks[r].rng.assign(r + 3, static_cast<std::uint8_t>(r));
      ranks[r].notes = "the same everywhere";
    }
  }
};

/// A checkpoint of two ranks with one of everything.
struct small_checkpoint {
  std::vector<float> w = std::vector<float>(8, 1.5F);
  double lr = 0.5;
  std::string blob = "blob";
  std::string rng = "rng";
  std::deque<cairn::state_dict> states = std::deque<cairn::state_dict>(2);
  cairn::metadata stored;
  small_checkpoint() {
    for (std::size_t r = 0; r < 2; ++r) {
      states[r].tensor("w", w, cairn::shard{{4, 4}, {2 * r, 0}});
      states[r].value("lr", lr);
      states[r].bytes("blob", blob);
      states[r].bytes("rng", rng, cairn::per_rank);
    }
    cairn::default_planner planner;
    stored = plan_group(planner, states).stored;
  }
};

inline cairn::load_plan plan_alone(const cairn::state_dict& state, const cairn::metadata& stored, bool strict,
                                   std::vector<std::string> only = {}) {
  cairn::default_planner planner;
  return planner.plan(state, stored, {0, 1, strict, std::move(only)});
}

/// Counts what is read from a store, and makes reads fail.
struct read_counts {
  std::atomic<std::uint64_t> data = 0;
  std::atomic<std::uint64_t> records = 0;
  std::atomic<bool> fail = false;              ///< the next read of a data file
  std::array<std::atomic<int>, 8> plans = {};  ///< of loads, by each rank
};

/// The default planner, which counts the loads that it plans.
class counting_planner : public cairn::basic_planner<counting_planner> {
 public:
  explicit counting_planner(std::shared_ptr<read_counts> counts) : counts_(std::move(counts)) {}
  [[nodiscard]] cairn::load_plan plan(const cairn::state_dict& state, const cairn::metadata& stored,
                                      const cairn::load_request& request) {
    ++counts_->plans.at(static_cast<std::size_t>(request.rank));
    return basic_planner::plan(state, stored, request);
  }

 private:
  std::shared_ptr<read_counts> counts_;
};

/// A memory_store that counts the bytes that are read.
class counting_store : public cairn::memory_store {
 public:
  std::shared_ptr<read_counts> counts = std::make_shared<read_counts>();
  void read(std::span<const cairn::read_range> ranges) {
    if (counts->fail.exchange(false)) cairn::fail(error_id::storage_io, "an injected fault");
    for (const auto& r : ranges) counts->data += r.destination.size();
    memory_store::read(ranges);
  }
  std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    auto bytes = memory_store::read_all(key, cap);
    if (bytes && key.ends_with(".record")) counts->records += bytes->size();
    return bytes;
  }
  [[nodiscard]] std::uint64_t stored(std::string_view ending) {
    std::uint64_t sum = 0;
    for (const auto& o : list(""))
      if (o.key.ends_with(ending)) sum += o.bytes;
    return sum;
  }
};

/// body(rank, checkpointer) on threads that are ranks; what each threw.
template <class Body>
std::vector<std::string> on_ranks(const counting_store& store, int size, cairn::read_sharing sharing,
                                  Body body, std::uint64_t load_memory = std::uint64_t{256} << 20,
                                  std::int32_t ranks_per_file = 1) {
  const cairn::thread_group group{size};
  std::vector<std::string> said(static_cast<std::size_t>(size));
  cairn_test::on_all_ranks(size, [&](int r) {
    try {
      auto own = store;
      cairn::checkpointer c{cairn::safetensors_storage{own, {.ranks_per_file = ranks_per_file}},
                            counting_planner(own.counts), group.communicator(r), sharing,
                            cairn::checkpointer_options{.timeout = std::chrono::seconds(60),
                                                        .peer_timeout = std::chrono::seconds(60),
                                                        .load_memory = load_memory,
                                                        .quiet = true}};
      body(r, c);
      c.close();
    } catch (const cairn::error& e) {
      said[static_cast<std::size_t>(r)] = std::string(cairn::error_name(e.id())) + " " + e.fields().item;
    } catch (const std::exception& e) {
      said[static_cast<std::size_t>(r)] = e.what();
    }
  });
  return said;
}

/// A tensor of rows that a rank holds by rows, by columns or whole.
struct table {
  static constexpr std::int64_t rows = 4 * 160;
  static constexpr std::int64_t columns = 4 * 7 * 60;
  std::vector<float> own;
  std::vector<float> small = std::vector<float>(100);
  std::string text;
  cairn::state_dict state;
  chunk box;
  table(const char* how, int rank, int ranks) : box(cairn::whole({rows, columns})) {
    const int d = *how == 'r' ? 0 : 1;
    if (*how != 'w') {
      box.sizes.set(d, box.sizes[d] / ranks);
      box.offsets.set(d, box.sizes[d] * rank);
    }
    own.resize(static_cast<std::size_t>(box.volume()));
    state.tensor("table", own, cairn::shard{{rows, columns}, box.offsets, box.sizes});
    state.tensor("small", small, {10, 10});
    state.bytes("text", text);
  }
  template <class Visit>
  void each(Visit visit) {
    std::size_t k = 0;
    for (auto i = box.offsets[0]; i < box.offsets[0] + box.sizes[0]; ++i)
      for (auto j = box.offsets[1]; j < box.offsets[1] + box.sizes[1]; ++j)
        visit(own[k++], static_cast<float>((i * columns + j) % 1'000'003));
    for (std::size_t i = 0; i < small.size(); ++i) visit(small[i], static_cast<float>(i));
  }
  void fill() {
    each([](float& at, float value) { at = value; });
    text = "a few bytes";
  }
  [[nodiscard]] bool good() {
    bool same = text == "a few bytes";
    each([&](float at, float value) { same = same && at == value; });
    return same;
  }
};

inline counting_store saved_by_rows(int ranks) {
  counting_store store;
  const auto said = on_ranks(store, ranks, cairn::read_sharing::off, [&](int r, auto& c) {
    for (const int step : {1, 2}) {
      table t("rows", r, ranks);
      t.fill();
      c.save(t.state, step).wait();
    }
  });
  for (const auto& s : said) CHECK(s == "");
  return store;
}

}  // namespace cairn_test::sharded_jobs
