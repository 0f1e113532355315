// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::torch
#pragma once
// libtorch's tensors, modules and optimizers as items of a state_dict, with PyTorch's names. Tried with
// libtorch 1.13 and 2.15. Inside namespace cairn libtorch is ::torch; a file that says `using namespace
// cairn` must write ::torch, too.
#include <cairn/model/state_dict.hpp>
#include <cairn/system/error.hpp>

#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace torch {

/// The dtype of a libtorch scalar type, or nothing where cairn has none (complex of doubles, quantised types,
/// bits).
[[nodiscard]] inline std::optional<dtype> dtype_of(at::ScalarType type) noexcept {
  // By name: older releases lack some of the enumerators.
  constexpr std::array<std::pair<std::string_view, dtype>, 17> table{{
      {"Bool", dtype::boolean},
      {"Byte", dtype::u8},
      {"Char", dtype::i8},
      {"Short", dtype::i16},
      {"UInt16", dtype::u16},
      {"Int", dtype::i32},
      {"UInt32", dtype::u32},
      {"Long", dtype::i64},
      {"UInt64", dtype::u64},
      {"Half", dtype::f16},
      {"BFloat16", dtype::bf16},
      {"Float", dtype::f32},
      {"Double", dtype::f64},
      {"ComplexFloat", dtype::c64},
      {"Float8_e5m2", dtype::f8_e5m2},
      {"Float8_e4m3fn", dtype::f8_e4m3},
      {"Float8_e8m0fnu", dtype::f8_e8m0},
  }};
  const std::string_view name = c10::toString(type);
  for (const auto& [theirs, ours] : table)
    if (theirs == name) return ours;
  return std::nullopt;
}

namespace detail {
[[noreturn]] inline void refuse(std::string_view item, const char* sentence, std::string got = {}) {
  fail(error_id::usage_unsupported_tensor, sentence, {.item = std::string(item), .got = std::move(got)});
}
}  // namespace detail

/// The memory of a libtorch tensor, with its strides. CUDA tensors are memory_space::device, all CPU tensors
/// host. The view does not hold the tensor: its storage must outlive every use, and calls that give the
/// tensor other memory (`set_data`, `module.to(device)`, `resize_`) make the view stale.
/// One thread at a time for one tensor. A load through the view writes beside autograd: no version counter
/// moves, so load between a step and the next forward. `item` stands in messages.
/// @throws usage_error: usage_unsupported_tensor for tensors that are undefined, sparse, quantised, nested,
/// meta, on other devices than CPU and CUDA, of a dtype that cairn has not, or lazily conjugated or negated;
/// usage_bad_shape for more than eight dimensions.
[[nodiscard]] inline tensor_view view_of(const at::Tensor& tensor, std::string_view item = {}) {
  if (!tensor.defined()) detail::refuse(item, "a libtorch tensor is undefined; give it a value first");
  if (tensor.is_quantized())
    detail::refuse(item, "a libtorch tensor is quantised; save int_repr() and its scales as tensors",
                   c10::toString(tensor.scalar_type()));
  if (tensor.is_nested() || tensor.layout() != at::kStrided)
    detail::refuse(
        item, "a libtorch tensor is sparse or nested; save its dense parts (indices, values) as tensors");
  if (tensor.is_meta()) detail::refuse(item, "a libtorch tensor is on the meta device and has no memory");
  if (tensor.is_conj() || tensor.is_neg())
    detail::refuse(item,
                   "a libtorch tensor is conjugated or negated lazily, its memory holds other values; call "
                   "resolve_conj() or resolve_neg()");
  const auto type = dtype_of(tensor.scalar_type());
  if (!type)
    detail::refuse(
        item, "cairn has no dtype for the elements of a libtorch tensor; convert it, or save it as bytes",
        c10::toString(tensor.scalar_type()));
  tensor_view view;
  view.type = *type;
  const auto sizes = tensor.sizes();
  view.shape = extents(std::span<const std::int64_t>(sizes.data(), sizes.size()));
  for (int d = 0; d < view.shape.rank(); ++d) view.strides[static_cast<std::size_t>(d)] = tensor.stride(d);
  if (tensor.is_cuda()) {
    view.space = memory_space::device;
    view.device = tensor.device().index();
  } else if (!tensor.device().is_cpu()) {
    detail::refuse(item, "a libtorch tensor is on a device that is neither CPU nor CUDA; copy it to the CPU",
                   tensor.device().str());
  }
  view.data = static_cast<std::byte*>(tensor.data_ptr());
  return view;
}

namespace detail {

[[nodiscard]] inline std::string joined(std::string_view prefix, std::string_view name) {
  std::string text(prefix);
  if (!text.empty()) text += '.';
  return text.append(name);
}

/// A module from a reference, a shared_ptr or a ModuleHolder such as ::torch::nn::Linear.
template <class M>
[[nodiscard]] ::torch::nn::Module& module_of(M& module) {
  if constexpr (std::derived_from<std::remove_const_t<M>, ::torch::nn::Module>)
    return const_cast<std::remove_const_t<M>&>(module);
  else
    return *module;
}

/// The name of each parameter: of a shared one, the first.
[[nodiscard]] inline std::unordered_map<const void*, std::string> parameter_names(
    ::torch::nn::Module& module) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& parameter : module.named_parameters())
    if (parameter.value().defined()) names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  return names;
}

}  // namespace detail

/// Adds the parameters and buffers of a module and its submodules: "model.fc1.weight". Names are those of
/// PyTorch's state_dict() under `prefix` (none if it is empty). A parameter that is shared (tied weights) is
/// one item, under the first of its names, as safetensors' save_model does it. Undefined parameters and
/// buffers are left out. Buffers are copied before an overlapped save() returns, for forward changes running
/// statistics.
///
/// `module`: a `torch::nn::Module`, a shared_ptr to one, or a holder such as `torch::nn::Linear`. Register
/// after `to(device)` and after tying weights: both give parameters other memory. The module must outlive the
/// saves and loads; on several ranks the same name is a replica, as with data parallel training.
/// @throws as view_of and state_dict::tensor do, naming the parameter.
template <class Module>
void register_module(state_dict& state, std::string_view prefix, Module& module) {
  auto& root = detail::module_of(module);
  std::unordered_map<const void*, bool> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, item_flags flags) {
    if (!tensor.defined() || !seen.emplace(tensor.unsafeGetTensorImpl(), true).second) return;
    const auto full = detail::joined(prefix, name);
    state.tensor(full, view_of(tensor, full), flags);
  };
  for (const auto& parameter : root.named_parameters()) add(parameter.key(), parameter.value(), {});
  for (const auto& buffer : root.named_buffers()) add(buffer.key(), buffer.value(), {.copy_now = true});
}

/// What register_optimizer knows of an optimizer type; specialise it for one of your own:
/// - `param_state`, `options`: libtorch's types of its state of one parameter, and of a group's options;
/// - `create(options, parameter, stepped)`: the state before the first step, as the first step would create
///   it, as a unique_ptr, or null where there is none; stepped: other parameters have state already;
/// - `state(add, param_state, options)`: calls `add("exp_avg", tensor or std::int64_t&)` for each part;
/// - `group(add, options)`: calls `add("lr", double&)` for each number that a schedule may change.
template <class Optimizer>
struct optimizer_state {};

namespace detail {

template <class Options, class ParamState>
struct adam_state {
  using options = Options;
  using param_state = ParamState;
  static std::unique_ptr<ParamState> create(options& o, const at::Tensor& parameter, bool) {
    auto made = std::make_unique<ParamState>();
    const auto zeros = [&] { return at::zeros_like(parameter, at::MemoryFormat::Preserve); };
    made->step(0);
    made->exp_avg(zeros());
    made->exp_avg_sq(zeros());
    if (o.amsgrad()) made->max_exp_avg_sq(zeros());
    return made;
  }
  template <class Add>
  static void state(const Add& add, ParamState& s, options& o) {
    add("step", s.step());
    add("exp_avg", s.exp_avg());
    add("exp_avg_sq", s.exp_avg_sq());
    if (o.amsgrad()) add("max_exp_avg_sq", s.max_exp_avg_sq());
  }
  template <class Add>
  static void group(const Add& add, options& o) {
    add("lr", o.lr());
    add("betas.0", std::get<0>(o.betas()));
    add("betas.1", std::get<1>(o.betas()));
    add("eps", o.eps());
    add("weight_decay", o.weight_decay());
  }
};

/// The key of a parameter in Optimizer::state(): its address, as a pointer or, before 2.1, as text.
template <class Optimizer>
[[nodiscard]] auto key_in(Optimizer& optimizer, const at::Tensor& parameter) {
  using key = typename std::remove_cvref_t<decltype(optimizer.state())>::key_type;
  auto* const address = parameter.unsafeGetTensorImpl();
  if constexpr (std::is_pointer_v<key>) {
    return static_cast<key>(address);
  } else {
    std::ostringstream text;
    text << address;
    return key(text.str());
  }
}

}  // namespace detail

template <>
struct optimizer_state<::torch::optim::Adam>
    : detail::adam_state<::torch::optim::AdamOptions, ::torch::optim::AdamParamState> {};
template <>
struct optimizer_state<::torch::optim::AdamW>
    : detail::adam_state<::torch::optim::AdamWOptions, ::torch::optim::AdamWParamState> {};
template <>
struct optimizer_state<::torch::optim::SGD> {
  using options = ::torch::optim::SGDOptions;
  using param_state = ::torch::optim::SGDParamState;
  static std::unique_ptr<param_state> create(options& o, const at::Tensor& parameter, bool stepped) {
    if (o.momentum() == 0) return nullptr;
    // The first step takes the whole gradient, the later ones a part of it: zeros would not do as well.
    if (o.dampening() != 0 && !stepped)
      detail::refuse({},
                     "SGD with dampening makes its momentum from the first gradient; take one step before "
                     "register_optimizer (what resume loads replaces it)");
    if (o.dampening() != 0) return nullptr;
    auto made = std::make_unique<param_state>();
    made->momentum_buffer(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    return made;
  }
  template <class Add>
  static void state(const Add& add, param_state& s, options&) {
    add("momentum_buffer", s.momentum_buffer());
  }
  template <class Add>
  static void group(const Add& add, options& o) {
    add("lr", o.lr());
    add("momentum", o.momentum());
    add("dampening", o.dampening());
    add("weight_decay", o.weight_decay());
  }
};

/// Adds the state of an optimizer over the parameters of a module, with the names of PyTorch's distributed
/// checkpoints: "optim.state.fc1.weight.exp_avg", ".exp_avg_sq", ".max_exp_avg_sq", ".step" (a value) for
/// Adam and AdamW, ".momentum_buffer" for SGD; and the numbers of each group as values:
/// "optim.param_groups.0.lr". A load restores all of them in place, also lr: set another one after resume.
///
/// libtorch creates this state in the first step, which would leave resume nothing to load into. So it is
/// created here, for each parameter with requires_grad that has none, as the first step would (zeros, in the
/// layout of the parameter): call it before resume; training that starts from it computes the same numbers.
/// The state of SGD with dampening cannot be created: take one step first. Parameters without a gradient in
/// that step then have no state.
///
/// `module`: as for register_module; it must hold all parameters of the optimizer. Both must outlive the
/// saves and loads. Register again, in a new state_dict, after add_param_group, zeroing or loading the
/// optimizer's state by other means, and after `to(device)`.
/// @throws usage_error: usage_unknown_name for a parameter that is not the module's; as view_of does.
template <class Optimizer, class Module>
void register_optimizer(state_dict& state, std::string_view prefix, Optimizer& optimizer, Module& module) {
  using facts = optimizer_state<Optimizer>;
  static_assert(
      requires { typename facts::param_state; },
      "cairn::torch::register_optimizer: the state of this optimizer is not known; it knows Adam, AdamW "
      "and SGD (pass the optimizer as its own type), or specialise cairn::torch::optimizer_state");
  const auto names = detail::parameter_names(detail::module_of(module));
  const bool stepped = !optimizer.state().empty();
  std::size_t number = 0;
  for (auto& group : optimizer.param_groups()) {
    auto& options = static_cast<typename facts::options&>(group.options());
    for (const auto& parameter : group.params()) {
      const auto named = names.find(parameter.unsafeGetTensorImpl());
      if (named == names.end())
        fail(error_id::usage_unknown_name,
             "an optimizer has a parameter that is not the module's; pass the module that holds all of them",
             {.item = detail::joined(prefix, "param_groups." + std::to_string(number))});
      const auto key = detail::key_in(optimizer, parameter);
      auto& states = optimizer.state();
      auto found = states.find(key);
      if (found == states.end() && parameter.requires_grad()) {
        if (auto made = facts::create(options, parameter, stepped))
          found = states.insert({key, std::move(made)}).first;
      }
      if (found == states.end()) continue;
      facts::state(
          [&](std::string_view part, auto& value) {
            const auto name = detail::joined(prefix, "state." + named->second + "." + std::string(part));
            if constexpr (std::derived_from<std::remove_cvref_t<decltype(value)>, at::Tensor>)
              state.tensor(name, view_of(value, name));
            else
              state.value(name, value);
          },
          static_cast<typename facts::param_state&>(*found->second), options);
    }
    facts::group(
        [&](std::string_view part, auto& value) {
          state.value(
              detail::joined(prefix, "param_groups." + std::to_string(number) + "." + std::string(part)),
              value);
        },
        options);
    ++number;
  }
}

}  // namespace torch
}  // namespace v1
}  // namespace cairn
