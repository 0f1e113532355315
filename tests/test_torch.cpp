// SPDX-License-Identifier: Apache-2.0
// links: cairn::torch
//
// libtorch's modules and optimizers as state. Not part of a plain run, which has no libtorch:
// Torch_DIR=.../share/cmake/Torch bash tests/run.sh --quick -R torch
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DLConvertor.h>
#include <torch/torch.h>
#include <cairn/interop/torch.hpp>
// libtorch's headers have macros of the same names.
#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE

#include <doctest/doctest.h>

#include <cairn/cairn.hpp>
#include <cairn/interop/dlpack.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <support/planner_conformance.hpp>
#include <utility>
#include <vector>

using cairn::error_id;
using cairn_test::failure_of;

namespace {

/// A small model with what makes names and memory hard: submodules in a list, tied weights, running
/// statistics, a parameter in channels_last order, a frozen one, an undefined one.
struct small_net : torch::nn::Module {
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(16, 8));
  torch::nn::Conv2d picture =
      register_module("picture", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)));
  torch::nn::Sequential layers = register_module(
      "layers", torch::nn::Sequential(torch::nn::Linear(8, 12), torch::nn::BatchNorm1d(12), torch::nn::ReLU(),
                                      torch::nn::Linear(torch::nn::LinearOptions(12, 8).bias(false))));
  torch::nn::Linear head =
      register_module("head", torch::nn::Linear(torch::nn::LinearOptions(8, 16).bias(false)));
  torch::Tensor frozen = register_parameter("frozen", torch::randn({5}), false);
  torch::Tensor absent = register_buffer("absent", torch::Tensor());

  small_net() {
    head->weight = head->register_parameter("tied", words->weight);  // a second name of one tensor
    picture->weight.set_data(picture->weight.contiguous(at::MemoryFormat::ChannelsLast));
    double_in_place();
  }
  void double_in_place() {
    torch::NoGradGuard guard;
    for (auto& p : parameters())
      if (p.defined()) p.mul_(1.25);
  }
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& image) {
    const auto picture_part = picture(image).mean({2, 3}).repeat({1, 2});
    return torch::matmul(layers->forward(words(tokens) + picture_part), head->weight.t());
  }
};

struct batch {
  torch::Tensor tokens, image, wanted;
};
batch batch_of(std::int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step) + 1);
  return {torch::randint(0, 16, {6}, generator, torch::kLong), torch::randn({6, 2, 5, 5}, generator),
          torch::randint(0, 16, {6}, generator, torch::kLong)};
}

template <class Optimizer>
float train_step(small_net& net, Optimizer& optimizer, std::int64_t step) {
  const auto b = batch_of(step);
  optimizer.zero_grad();
  auto loss = torch::nn::functional::cross_entropy(net.forward(b.tokens, b.image), b.wanted);
  loss.backward();
  optimizer.step();
  // A schedule, as trainers have one: it must come back, too.
  for (auto& group : optimizer.param_groups()) {
    auto& options = static_cast<typename cairn::torch::optimizer_state<Optimizer>::options&>(group.options());
    options.lr(options.lr() * 0.9);
  }
  return loss.template item<float>();
}

template <class Optimizer>
std::unique_ptr<Optimizer> make(small_net& net,
                                const std::function<Optimizer(std::vector<torch::Tensor>)>& build) {
  // The tied weight counts once, as PyTorch's parameters() has it.
  std::vector<torch::Tensor> parameters;
  std::set<const void*> seen;
  for (const auto& p : net.parameters())
    if (seen.insert(p.unsafeGetTensorImpl()).second) parameters.push_back(p);
  return std::make_unique<Optimizer>(build(parameters));
}

std::string bytes_of(const cairn::tensor_view& view) {
  std::string packed;
  cairn::for_each_run(view, 0, view.bytes(), [&](const std::byte* first, std::uint64_t count, std::uint64_t) {
    packed.append(reinterpret_cast<const char*>(first), count);
  });
  return packed;
}
std::map<std::string, std::string> contents(const cairn::state_dict& state) {
  std::map<std::string, std::string> all;
  for (const auto& e : state.entries()) {
    if (e.elements == 0) continue;
    all[e.name] = bytes_of(e.view(0));
  }
  return all;
}

template <class Optimizer>
cairn::state_dict state_of_run(small_net& net, Optimizer& optimizer) {
  cairn::state_dict state;
  cairn::torch::register_module(state, "model", net);
  cairn::torch::register_optimizer(state, "optim", optimizer, net);
  return state;
}

/// Trains `steps`, without registering anything: what libtorch alone does.
template <class Optimizer>
std::vector<float> plain_run(small_net& net, Optimizer& optimizer, std::int64_t steps) {
  std::vector<float> losses;
  for (std::int64_t step = 0; step < steps; ++step) losses.push_back(train_step(net, optimizer, step));
  return losses;
}

/// Training that is saved at 3 and resumed by a fresh model and optimizer ends, bit for bit, where training
/// that was not interrupted and never heard of cairn does.
template <class Optimizer>
void check_resume(const std::function<Optimizer(std::vector<torch::Tensor>)>& build,
                  bool step_first = false) {
  constexpr std::int64_t steps = 6;
  torch::manual_seed(7);
  small_net reference;
  auto reference_optimizer = make<Optimizer>(reference, build);
  const auto wanted = plain_run(reference, *reference_optimizer, steps);

  const cairn::memory_store store;
  std::map<std::string, std::string> saved;
  {
    torch::manual_seed(7);
    small_net net;
    auto optimizer = make<Optimizer>(net, build);
    std::int64_t step = 0;
    if (step_first) CHECK(train_step(net, *optimizer, step++) == wanted[0]);
    auto state = state_of_run(net, *optimizer);
    cairn::checkpointer ckpt{store, cairn::overlapped{}, cairn::checkpointer_options{.quiet = true}};
    CHECK(!ckpt.resume(state));
    for (; step < 3;) {
      ckpt.before_update();
      CHECK(train_step(net, *optimizer, step) == wanted[static_cast<std::size_t>(step)]);
      ++step;
    }
    ckpt.save(state, step);
    ckpt.before_update();
    ckpt.close();
    saved = contents(state);
  }
  torch::manual_seed(1234);
  small_net net;
  auto optimizer = make<Optimizer>(net, build);
  if (step_first) train_step(net, *optimizer, 99);
  auto state = state_of_run(net, *optimizer);
  cairn::checkpointer ckpt{store, cairn::checkpointer_options{.quiet = true}};
  CHECK(contents(state) != saved);
  const auto resumed = ckpt.resume(state);
  REQUIRE(resumed == std::optional<std::int64_t>(3));
  CHECK(contents(state) == saved);
  for (std::int64_t step = *resumed; step < steps; ++step)
    CHECK(train_step(net, *optimizer, step) == wanted[static_cast<std::size_t>(step)]);
  CHECK(contents(state) == contents(state_of_run(reference, *reference_optimizer)));
}

}  // namespace

TEST_CASE("a module's names are PyTorch's, shared parameters have one") {
  small_net net;
  cairn::state_dict state;
  cairn::torch::register_module(state, "model", net);
  std::vector<std::string> names;
  for (const auto& e : state.entries()) names.push_back(e.name);
  CHECK(names == std::vector<std::string>{"model.frozen", "model.words.weight", "model.picture.weight",
                                          "model.picture.bias", "model.layers.0.weight",
                                          "model.layers.0.bias", "model.layers.1.weight",
                                          "model.layers.1.bias", "model.layers.3.weight", "model.head.weight",
                                          "model.layers.1.running_mean", "model.layers.1.running_var",
                                          "model.layers.1.num_batches_tracked"});
  CHECK(state.find("model.picture.weight")->strided);
  CHECK(state.find("model.layers.1.running_mean")->flags.copy_now);
  CHECK(!state.find("model.layers.1.weight")->flags.copy_now);
  // Holders and pointers name the same, and no prefix is no dot.
  cairn::state_dict other;
  cairn::torch::register_module(other, "", net.head);
  auto pointer = std::make_shared<torch::nn::LinearImpl>(2, 3);
  cairn::torch::register_module(other, "p", pointer);
  CHECK((other.find("weight") != nullptr && other.find("p.bias") != nullptr));
}

TEST_CASE("training that is resumed equals training that was not interrupted, bit for bit") {
  torch::set_num_threads(1);
  using namespace torch::optim;
  SUBCASE("Adam") {
    check_resume<Adam>([](auto p) { return Adam(p, AdamOptions(0.01).weight_decay(0.01)); });
  }
  SUBCASE("Adam with amsgrad") {
    check_resume<Adam>([](auto p) { return Adam(p, AdamOptions(0.01).amsgrad(true)); });
  }
  SUBCASE("AdamW, two groups") {
    check_resume<AdamW>([](std::vector<torch::Tensor> p) {
      std::vector<OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<torch::Tensor>(p.begin(), p.begin() + 3));
      groups.emplace_back(std::vector<torch::Tensor>(p.begin() + 3, p.end()),
                          std::make_unique<AdamWOptions>(AdamWOptions(0.003).weight_decay(0)));
      return AdamW(groups, AdamWOptions(0.01));
    });
  }
  SUBCASE("SGD") {
    check_resume<SGD>([](auto p) { return SGD(p, SGDOptions(0.05)); });
  }
  SUBCASE("SGD with momentum") {
    check_resume<SGD>([](auto p) { return SGD(p, SGDOptions(0.05).momentum(0.9).nesterov(true)); });
  }
  SUBCASE("SGD with dampening") {
    check_resume<SGD>([](auto p) { return SGD(p, SGDOptions(0.05).momentum(0.9).dampening(0.5)); }, true);
  }
}

TEST_CASE("an optimizer's names are those of PyTorch's distributed checkpoints") {
  small_net net;
  auto optimizer = make<torch::optim::Adam>(net, [](auto p) { return torch::optim::Adam(p, {}); });
  const auto state = state_of_run(net, *optimizer);
  for (const char* name :
       {"optim.state.words.weight.exp_avg", "optim.state.layers.0.bias.exp_avg_sq",
        "optim.state.layers.1.weight.step", "optim.param_groups.0.lr", "optim.param_groups.0.betas.1"}) {
    CAPTURE(std::string(name));
    CHECK(state.find(name) != nullptr);
  }
  CHECK(state.find("optim.state.frozen.exp_avg") == nullptr);
  CHECK(state.find("optim.state.words.weight.max_exp_avg_sq") == nullptr);
  // Registering a second time finds what the first created.
  CHECK(contents(state_of_run(net, *optimizer)) == contents(state));

  torch::nn::Linear stranger(2, 2);
  cairn::state_dict other;
  CHECK(failure_of([&] { cairn::torch::register_optimizer(other, "optim", *optimizer, stranger); }).id() ==
        error_id::usage_unknown_name);
  auto sgd = make<torch::optim::SGD>(net, [](auto p) {
    return torch::optim::SGD(p, torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.1));
  });
  CHECK(failure_of([&] { cairn::torch::register_optimizer(other, "optim", *sgd, net); })
            .message()
            .find("take one step before") != std::string::npos);
}

TEST_CASE("views have the dtype, shape, strides and memory of their tensor") {
  const auto whole = torch::arange(24, torch::kFloat).reshape({2, 3, 4});
  const auto turned = whole.permute({2, 0, 1}).slice(0, 1, 3);
  const auto view = cairn::torch::view_of(turned);
  CHECK(view.shape == cairn::extents{2, 2, 3});
  CHECK((view.strides[0] == 1 && view.strides[1] == 12 && view.strides[2] == 4));
  CHECK(view.data == reinterpret_cast<std::byte*>(whole.data_ptr<float>() + 1));
  const auto packed = turned.contiguous();
  CHECK(bytes_of(view) == bytes_of(cairn::torch::view_of(packed)));
  CHECK(cairn::torch::view_of(torch::zeros({})).shape.rank() == 0);
  CHECK(cairn::torch::view_of(torch::zeros({3, 0})).bytes() == 0);
  const std::pair<at::ScalarType, cairn::dtype> types[] = {
      {at::kBool, cairn::dtype::boolean},    {at::kByte, cairn::dtype::u8},
      {at::kChar, cairn::dtype::i8},         {at::kShort, cairn::dtype::i16},
      {at::kInt, cairn::dtype::i32},         {at::kLong, cairn::dtype::i64},
      {at::kHalf, cairn::dtype::f16},        {at::kBFloat16, cairn::dtype::bf16},
      {at::kFloat, cairn::dtype::f32},       {at::kDouble, cairn::dtype::f64},
      {at::kComplexFloat, cairn::dtype::c64}};
  for (const auto& [theirs, ours] : types) {
    const auto tensor = torch::ones({2, 2}, theirs);
    const auto got = cairn::torch::view_of(tensor);
    CHECK((got.type == ours && got.bytes() == tensor.nbytes()));
  }
  // Whatever libtorch of this release calls a type: a dtype of the same size, or none.
  for (int number = 0; number < static_cast<int>(at::ScalarType::NumOptions); ++number) {
    const auto type = static_cast<at::ScalarType>(number);
    if (const auto ours = cairn::torch::dtype_of(type))
      CHECK(cairn::bits_of(*ours) == 8 * c10::elementSize(type));
  }
}

TEST_CASE("tensors that are no plain memory are refused with a sentence that names them") {
  const auto refused = [](const at::Tensor& tensor, const char* sentence) {
    const auto failure = failure_of([&] { (void)cairn::torch::view_of(tensor, "it"); });
    CAPTURE(std::string(sentence));
    CHECK(failure.id() == error_id::usage_unsupported_tensor);
    CHECK(failure.fields().item == "it");
    CHECK(failure.message().find(sentence) != std::string::npos);
  };
  refused(at::Tensor(), "undefined");
  refused(torch::eye(3).to_sparse(), "sparse");
  refused(torch::quantize_per_tensor(torch::randn({4}), 0.1, 0, torch::kQInt8), "quantised");
  refused(torch::empty({2}, torch::TensorOptions(torch::kMeta)), "meta");
  refused(torch::ones({2}, torch::kComplexDouble), "no dtype");
  refused(torch::conj(torch::ones({2}, torch::kComplexFloat)), "resolve_conj");
  CHECK(failure_of([] {
          (void)cairn::torch::view_of(torch::zeros({1, 1, 1, 1, 1, 1, 1, 1, 1}));
        }).id() == error_id::usage_bad_shape);
}

TEST_CASE("libtorch's DLPack tensors come in, and cairn's go out to libtorch") {
  auto tensor = torch::arange(12, torch::kInt).reshape({3, 4}).t();
  {
    auto imported = cairn::dlpack::import_tensor(at::toDLPack(tensor));
    const auto view = cairn::torch::view_of(tensor);
    CHECK((imported.view().data == view.data && imported.view().type == view.type));
    CHECK((imported.view().shape == view.shape && imported.view().strides == view.strides));
  }
  std::vector<float> values{1, 2, 3, 4, 5, 6};
  auto owner = std::make_shared<int>(0);
  {
    auto exported = cairn::dlpack::export_tensor<DLManagedTensor>(
        cairn::contiguous_view(values.data(), cairn::dtype::f32, {2, 3}), owner);
    const auto theirs = at::fromDLPack(exported.release());
    CHECK((theirs.data_ptr<float>() == values.data() && theirs.size(1) == 3 && owner.use_count() == 2));
    CHECK(torch::equal(theirs, torch::tensor({{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}})));
  }
  CHECK(owner.use_count() == 1);
}
