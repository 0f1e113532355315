// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cairn/model/plan.hpp>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cairn_bench {

/// One tensor of the model, before it is sharded.
struct model_tensor {
  std::string name;
  cairn::extents shape;
  int tensor_parallel = -1;  ///< dimension that tensor parallelism cuts, or -1
  std::int64_t layer = -1;   ///< -1: before the first, 80: behind the last
};

/// The tensors of a Llama-3-70B-like model with Adam's moments: 723 parameters, 2,169 tensors.
[[nodiscard]] inline std::vector<model_tensor> model_tensors() {
  std::vector<model_tensor> parameters;
  constexpr std::int64_t hidden = 8192;
  constexpr std::int64_t wide = 28672;
  constexpr std::int64_t keys = 1024;
  constexpr std::int64_t words = 128256;
  parameters.push_back({"tok_embeddings.weight", {words, hidden}, 0, -1});
  for (std::int64_t n = 0; n < 80; ++n) {
    const auto layer = "layers." + std::to_string(n) + ".";
    parameters.push_back({layer + "attention.wq.weight", {hidden, hidden}, 0, n});
    parameters.push_back({layer + "attention.wk.weight", {keys, hidden}, 0, n});
    parameters.push_back({layer + "attention.wv.weight", {keys, hidden}, 0, n});
    parameters.push_back({layer + "attention.wo.weight", {hidden, hidden}, 1, n});
    parameters.push_back({layer + "feed_forward.w1.weight", {wide, hidden}, 0, n});
    parameters.push_back({layer + "feed_forward.w2.weight", {hidden, wide}, 1, n});
    parameters.push_back({layer + "feed_forward.w3.weight", {wide, hidden}, 0, n});
    parameters.push_back({layer + "attention_norm.weight", {hidden}, -1, n});
    parameters.push_back({layer + "ffn_norm.weight", {hidden}, -1, n});
  }
  parameters.push_back({"norm.weight", {hidden}, -1, 80});
  parameters.push_back({"output.weight", {words, hidden}, 0, 80});
  std::vector<model_tensor> all;
  for (const char* kind : {"model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."})
    for (const auto& p : parameters) all.push_back({kind + p.name, p.shape, p.tensor_parallel, p.layer});
  return all;
}

/// The box of part `i` of `count` along a dimension, as torch cuts: equal ones, the last ones less or
/// nothing.
[[nodiscard]] inline cairn::chunk cut(cairn::chunk box, int d, std::int64_t i, std::int64_t count) {
  const auto each = (box.sizes[d] + count - 1) / count;
  const auto from = std::min(i * each, box.sizes[d]);
  box.offsets.set(d, box.offsets[d] + from);
  box.sizes.set(d, std::min(each, box.sizes[d] - from));
  return box;
}

/// Gives the plan of each rank of a layout, in one save_plan that is changed from rank to rank: what a rank's
/// state_dict would give, in the order of names. About 2,200 items a rank.
class layout_plans {
 public:
  layout_plans(std::string layout, std::int64_t ranks) : layout_(std::move(layout)), ranks_(ranks) {
    for (const char* name : {"fsdp", "hsdp", "tp8_pp16_dp128", "irregular"}) known_ |= layout_ == name;
    if (!known_) throw std::invalid_argument("no such layout: " + layout_);
    tensor_ranks_ = std::min<std::int64_t>(8, ranks);
    stages_ = std::min<std::int64_t>(16, ranks / tensor_ranks_);
    copies_ = ranks / (tensor_ranks_ * stages_);
    shards_ = std::min<std::int64_t>(256, ranks);
    for (const auto& t : model_tensors()) tensors_.push_back(t);
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    for (int n = 0; n < 29; ++n) others_.push_back("scheduler.value" + std::to_string(10 + n));
  }
  [[nodiscard]] std::int64_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] const std::string& layout() const noexcept { return layout_; }

  /// Valid until the next call.
  [[nodiscard]] const cairn::save_plan& of(std::int64_t rank) {
    std::size_t n = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const auto& tensor = tensors_[t];
      const auto stage = std::clamp<std::int64_t>(tensor.layer, 0, 79) * stages_ / 80;
      if (layout_ == "tp8_pp16_dp128" && stage != rank / (tensor_ranks_ * copies_)) continue;
      auto& item = at(n++, tensor.name, cairn::item_kind::tensor);
      item.global = tensor.shape;
      item.box = box_of(tensor, t, rank, item.global);
      item.bytes = cairn::bytes_of(item.type, item.box.volume());
      if (item.bytes == 0) item.box = cairn::whole(cairn::extents::zeros(item.global.rank()));
    }
    auto& loader = at(n++, "data_loader", cairn::item_kind::bytes);
    loader.bytes = 4000 + static_cast<std::uint64_t>(rank % 90);
    loader.flags.per_rank = true;
    auto& rng = at(n++, "rng", cairn::item_kind::bytes);
    rng.bytes = 5056;
    rng.flags.per_rank = true;
    for (const auto& name : others_) at(n++, name, cairn::item_kind::value).bytes = 4;
    plan_.items.resize(n);
    return plan_;
  }

 private:
  cairn::write_item& at(std::size_t n, std::string_view name, cairn::item_kind kind) {
    if (n == plan_.items.size()) plan_.items.emplace_back();
    auto& item = plan_.items[n];
    item.name = name;
    item.kind = kind;
    item.type = kind == cairn::item_kind::bytes ? cairn::dtype::u8 : cairn::dtype::f32;
    item.global = {};
    item.box = cairn::whole({});
    item.flags = {};
    item.entry = static_cast<std::uint32_t>(n);
    return item;
  }
  [[nodiscard]] cairn::chunk box_of(const model_tensor& t, std::size_t number, std::int64_t rank,
                                    cairn::extents& global) const {
    auto box = cairn::whole(t.shape);
    if (layout_ == "fsdp") return cut(box, 0, rank, ranks_);
    if (layout_ == "hsdp") return cut(box, 0, rank % shards_, shards_);
    if (layout_ == "tp8_pp16_dp128")
      return t.tensor_parallel < 0 ? box : cut(box, t.tensor_parallel, rank % tensor_ranks_, tensor_ranks_);
    // A flat tensor cut at places that follow no rule.
    global = {t.shape.volume()};
    const auto edge = [&](std::int64_t r) {
      if (r == 0 || r == ranks_) return r == 0 ? std::int64_t{0} : global[0];
      const auto each = global[0] / ranks_;
      const auto random =
          (static_cast<std::uint64_t>(r) * 0x9e3779b97f4a7c15u) ^ (number * 0xbf58476d1ce4e5b9u);
      const auto shift = static_cast<std::int64_t>((random ^ random >> 29) * 0x94d049bb133111ebu >> 40);
      return r * each + (each > 1 ? shift % (each / 2 + 1) : 0);
    };
    return {{edge(rank)}, {edge(rank + 1) - edge(rank)}};
  }

  std::string layout_;
  std::int64_t ranks_;
  bool known_ = false;
  std::int64_t tensor_ranks_ = 1;
  std::int64_t stages_ = 1;
  std::int64_t copies_ = 1;
  std::int64_t shards_ = 1;
  std::vector<model_tensor> tensors_;
  std::vector<std::string> others_;
  cairn::save_plan plan_;
};

}  // namespace cairn_bench
