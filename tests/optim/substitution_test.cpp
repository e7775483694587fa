#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mezzo/optim/adam.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/sgd.h"

/// Wherever an optimizer of torch::optim compiles, mezzo's does, and computes the same numbers.
namespace mezzo {
namespace {

/// LibTorch multiplies and adds apart; mezzo's formulas are PyTorch's fused ones. A few roundings a
/// step, over some tens of steps, of weights near 1.
constexpr double kRelative = 2e-5, kAbsolute = 2e-6;

/// An optimizer's own class, its options and their spelling.
struct TorchAdam {
  using Optimizer = torch::optim::Adam;
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
};
struct MezzoAdam {
  using Optimizer = Adam;
  using Options = AdamOptions;
  using State = torch::optim::AdamParamState;
};
struct TorchAdamW {
  using Optimizer = torch::optim::AdamW;
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
};
struct MezzoAdamW {
  using Optimizer = AdamW;
  using Options = AdamWOptions;
  using State = torch::optim::AdamWParamState;
};
struct TorchSGD {
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
};
struct MezzoSGD {
  using Optimizer = SGD;
  using Options = SGDOptions;
  using State = torch::optim::SGDParamState;
};

template <class Of>
constexpr bool kIsSgd = std::is_base_of_v<torch::optim::SGDOptions, typename Of::Options>;

/// LibTorch's class of options, which a group has.
template <class Of>
using GroupOptions =
    std::conditional_t<kIsSgd<Of>,
                       torch::optim::SGDOptions,
                       std::conditional_t<std::is_base_of_v<torch::optim::AdamOptions, typename Of::Options>,
                                          torch::optim::AdamOptions,
                                          torch::optim::AdamWOptions>>;

torch::nn::Sequential make_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::Linear(8, 3));
}

struct Data {
  Data() {
    torch::manual_seed(5);
    inputs = at::randn({16, 4});
    targets = at::randn({16, 3});
  }
  at::Tensor inputs, targets;
};

void train(torch::nn::Sequential& net, torch::optim::Optimizer& optimizer, int steps) {
  const Data data;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::mse_loss(net->forward(data.inputs), data.targets).backward();
    optimizer.step();
  }
}

std::vector<at::Tensor> values_of(const torch::nn::Sequential& net) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : net->parameters()) {
    values.push_back(parameter.detach().clone());
  }
  return values;
}

/// A program as a user of LibTorch writes it, with all that the optimizers have in common.
template <class Of>
std::vector<at::Tensor> program() {
  using Options = typename Of::Options;
  auto net = make_net();
  const auto parameters = net->parameters();
  Options options(1e-2);
  options.weight_decay(0.05);
  if constexpr (kIsSgd<Of>) {
    options.momentum(0.9).dampening(0.25);
  } else {
    options.betas(std::make_tuple(0.8, 0.95)).eps(1e-7).amsgrad(true);
  }

  // Groups: one with separate options, one with the optimizer's options.
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{parameters[0]}, std::make_unique<GroupOptions<Of>>(options));
  groups.emplace_back(std::vector<at::Tensor>{parameters[1]});
  if constexpr (kIsSgd<Of>) {
    static_cast<GroupOptions<Of>&>(groups[0].options()).momentum(0.5);
  } else {
    static_cast<GroupOptions<Of>&>(groups[0].options()).betas(std::make_tuple(0.7, 0.9)).weight_decay(0.2);
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer = std::make_unique<typename Of::Optimizer>(groups, options);
  optimizer->add_param_group(torch::optim::OptimizerParamGroup({parameters[2], parameters[3]}));
  EXPECT_EQ(optimizer->param_groups().size(), 3u);
  if constexpr (kIsSgd<Of>) {
    static_cast<GroupOptions<Of>&>(optimizer->param_groups()[0].options()).dampening(0).nesterov(true);
  }
  EXPECT_EQ(optimizer->defaults().get_lr(), 1e-2);
  EXPECT_EQ(static_cast<GroupOptions<Of>&>(optimizer->param_groups()[1].options()).weight_decay(), 0.05);
  train(net, *optimizer, 3);

  // Options by static_cast, and by set_lr.
  for (auto& group : optimizer->param_groups()) {
    static_cast<GroupOptions<Of>&>(group.options()).lr(2e-2);
  }
  optimizer->param_groups()[2].options().set_lr(5e-3);
  train(net, *optimizer, 3);

  // LibTorch's schedulers.
  torch::optim::StepLR step_lr(*optimizer, /*step_size=*/2, /*gamma=*/0.5);
  for (int i = 0; i < 4; ++i) {
    train(net, *optimizer, 1);
    step_lr.step();
  }
  EXPECT_DOUBLE_EQ(optimizer->param_groups()[0].options().get_lr(), 1e-2);
  torch::optim::ReduceLROnPlateauScheduler plateau(*optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.5f, 0);
  for (const float metric : {1.0f, 2.0f}) {
    train(net, *optimizer, 1);
    plateau.step(metric);
  }
  EXPECT_DOUBLE_EQ(optimizer->param_groups()[0].options().get_lr(), 5e-3);

  // A closure, gradients that stay, and one parameter without a gradient.
  const Data data;
  optimizer->zero_grad(/*set_to_none=*/false);
  EXPECT_TRUE(parameters[0].grad().defined() && parameters[0].grad().abs().max().template item<float>() == 0);
  const auto loss = optimizer->step([&] {
    optimizer->zero_grad();
    auto of_batch = at::mse_loss(net->forward(data.inputs), data.targets);
    of_batch.backward();
    return of_batch;
  });
  EXPECT_TRUE(loss.defined());
  optimizer->zero_grad();
  EXPECT_FALSE(parameters[0].grad().defined());
  at::mse_loss(net->forward(data.inputs), data.targets).backward();
  net->parameters()[1].mutable_grad().reset();
  optimizer->step();

  // State in LibTorch's classes.
  EXPECT_EQ(optimizer->state().size(), 4u);
  const auto& state = static_cast<typename Of::State&>(*optimizer->state().at(parameters[0].unsafeGetTensorImpl()));
  if constexpr (kIsSgd<Of>) {
    EXPECT_EQ(state.momentum_buffer().sizes(), parameters[0].sizes());
  } else {
    EXPECT_EQ(state.step(), 14);
    EXPECT_EQ(state.max_exp_avg_sq().sizes(), parameters[0].sizes());
  }

  // Saved and loaded.
  std::stringstream file;
  torch::save(*optimizer, file);
  std::stringstream copy(file.str());
  typename Of::Optimizer of_one_group(parameters, Options(1.0));
  EXPECT_ANY_THROW(torch::load(of_one_group, copy));
  typename Of::Optimizer again(optimizer->param_groups(), Options(1.0));
  torch::load(again, file);
  EXPECT_DOUBLE_EQ(again.param_groups()[0].options().get_lr(), 5e-3);
  train(net, again, 3);

  // A state that is taken away: the optimizer begins anew.
  again.state().clear();
  train(net, again, 2);
  return values_of(net);
}

template <class Torch, class Mezzo>
void expect_same_numbers() {
  const auto theirs = program<Torch>(), mine = program<Mezzo>();
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_TRUE(at::allclose(mine[i], theirs[i], kRelative, kAbsolute))
        << i << ": " << (mine[i] - theirs[i]).abs().max();
  }
}

TEST(SubstitutionTest, AdamDoesWhatLibTorchsDoes) { expect_same_numbers<TorchAdam, MezzoAdam>(); }
TEST(SubstitutionTest, AdamWDoesWhatLibTorchsDoes) { expect_same_numbers<TorchAdamW, MezzoAdamW>(); }
TEST(SubstitutionTest, SGDDoesWhatLibTorchsDoes) { expect_same_numbers<TorchSGD, MezzoSGD>(); }

/// Trains with `First`, saves, and goes on with `Second`; compared with `First` alone.
template <class First, class Second>
void expect_to_go_on(const std::function<void(typename First::Options&)>& set_first,
                     const std::function<void(typename Second::Options&)>& set_second) {
  const auto groups_of = [](const torch::nn::Sequential& net) {
    const auto parameters = net->parameters();
    return std::vector<torch::optim::OptimizerParamGroup>{{{parameters[0], parameters[2]}},
                                                          {{parameters[1], parameters[3]}}};
  };
  auto net = make_net(), other_net = make_net();
  typename First::Options options(3e-2);
  set_first(options);
  typename First::Optimizer first(groups_of(net), options);
  first.param_groups()[1].options().set_lr(1e-2);
  train(net, first, 4);
  std::stringstream file;
  torch::save(first, file);
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      other_net->parameters()[i].copy_(net->parameters()[i]);
    }
  }
  train(net, first, 5);
  typename Second::Options other_options(1.0);
  set_second(other_options);
  typename Second::Optimizer second(groups_of(other_net), other_options);
  torch::load(second, file);
  train(other_net, second, 5);
  const auto expected = values_of(net), values = values_of(other_net);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(at::allclose(values[i], expected[i], kRelative, kAbsolute)) << (values[i] - expected[i]).abs().max();
  }
}

template <class First, class Second>
void expect_archives_to_be_exchanged() {
  const auto none = [](auto& /*options*/) {};
  const auto special = [](auto& options) {
    if constexpr (requires { options.momentum(); } &&
                  std::is_base_of_v<torch::optim::SGDOptions, std::remove_reference_t<decltype(options)>>) {
      options.momentum(0.9).nesterov(true);
    } else {
      options.amsgrad(true).betas(std::make_tuple(0.8, 0.9));
    }
    options.weight_decay(0.1);
  };
  expect_to_go_on<First, Second>(none, none);
  expect_to_go_on<First, Second>(special, special);
  expect_to_go_on<First, Second>(special, none);  // options come with the archive
}

TEST(SubstitutionTest, ArchivesOfLibTorchsOptimizersLoadIntoMezzos) {
  expect_archives_to_be_exchanged<TorchAdam, MezzoAdam>();
  expect_archives_to_be_exchanged<TorchAdamW, MezzoAdamW>();
  expect_archives_to_be_exchanged<TorchSGD, MezzoSGD>();
}

TEST(SubstitutionTest, ArchivesOfMezzosOptimizersLoadIntoLibTorchs) {
  expect_archives_to_be_exchanged<MezzoAdam, TorchAdam>();
  expect_archives_to_be_exchanged<MezzoAdamW, TorchAdamW>();
  expect_archives_to_be_exchanged<MezzoSGD, TorchSGD>();
}

/// As a program writes them that had LibTorch's.
TEST(SubstitutionTest, TakesOptionsAndParametersAsLibTorchsDo) {
  auto net = make_net();
  const AdamW by_options(net->parameters(), AdamWOptions(1e-3).betas(std::make_tuple(0.9, 0.98)).max_grad_norm(1));
  EXPECT_EQ(by_options.lr(), 1e-3);
  const AdamW by_theirs(net->parameters(), torch::optim::AdamWOptions(2e-3));
  EXPECT_EQ(by_theirs.lr(), 2e-3);
  const SGD by_number({net->parameters()[0]}, /*lr=*/0.1);
  EXPECT_EQ(by_number.lr(), 0.1);
  AdamOptions options;
  options.lr() = 0.5;
  EXPECT_EQ(Adam(net->parameters(), options).lr(), 0.5);
  net->parameters()[0].requires_grad_(false);
  AdamW frozen(net->parameters());
  train(net, frozen, 1);
  EXPECT_EQ(frozen.state().size(), 3u) << "a frozen parameter is no error";
  EXPECT_EQ(detail::name_of(frozen), "mezzo::AdamW");
  Adam optimizer(net->parameters());
  optimizer = mezzo::Adam(net->parameters(), /*lr=*/0.25);
  std::vector<mezzo::Adam> optimizers;
  optimizers.push_back(std::move(optimizer));
  optimizers.emplace_back(net->parameters());
  train(net, optimizers.front(), 1);
  EXPECT_EQ(optimizers.front().lr(), 0.25);
}

/// Which only their next step can know.
TEST(SubstitutionTest, ChecksParametersThatAreAddedBehindLibTorchsBaseClass) {
  auto net = make_net();
  AdamW adamw({net->parameters()[0]});
  torch::optim::Optimizer& base = adamw;
  base.add_param_group(torch::optim::OptimizerParamGroup({at::ones({2}, at::kComplexFloat).requires_grad_()}));
  try {
    base.step();
    FAIL() << "stepped";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                testing::StartsWith("Optimizer: parameter 0 of group 1 is ComplexFloat"));
  }
}

TEST(SubstitutionTest, SGDStepsSparseGradientsAsLibTorchsDoes) {
  for (const double momentum : {0.0, 0.9}) {
    auto mine = at::linspace(-1, 1, 10).view({5, 2}).clone().requires_grad_(),
         theirs = mine.detach().clone().requires_grad_();
    SGD sgd({mine}, SGDOptions(0.1).momentum(momentum));
    torch::optim::SGD oracle({theirs}, torch::optim::SGDOptions(0.1).momentum(momentum));
    for (int step = 0; step < 3; ++step) {
      for (at::Tensor* const weight : {&mine, &theirs}) {
        weight->mutable_grad() =
            at::sparse_coo_tensor(at::tensor({0, 3, 3}, at::kLong).view({1, 3}), at::ones({3, 2}) * (step + 1), {5, 2});
      }
      sgd.step();
      oracle.step();
    }
    EXPECT_TRUE(at::allclose(mine, theirs)) << momentum << mine << theirs;
  }
}

template <class Optimizer>
std::string refusal_of_sparse() {
  auto weight = at::ones({3, 2}).requires_grad_();
  Optimizer optimizer({{"embedding.weight", weight}});
  weight.mutable_grad() = at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1, 2}), {3, 2});
  try {
    optimizer.step();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

TEST(SubstitutionTest, OthersRefuseSparseGradientsByName) {
  const auto says = testing::HasSubstr("does not support sparse gradients, but embedding.weight has one");
  EXPECT_THAT(refusal_of_sparse<Adam>(), says);
  EXPECT_THAT(refusal_of_sparse<AdamW>(), says);
  EXPECT_THAT(refusal_of_sparse<LAMB>(), says);
  EXPECT_EQ(refusal_of_sparse<SGD>(), "none");
}

/// What Python has and LibTorch has not: the numbers of the negated gradient.
TEST(SubstitutionTest, MaximizesByTheNegatedGradient) {
  const auto expect_same = [](auto make, auto options) {
    auto up = at::linspace(-1, 1, 8).requires_grad_(), down = at::linspace(-1, 1, 8).requires_grad_();
    auto maximizing = make(up, options.maximize(true)), minimizing = make(down, options.maximize(false));
    for (int step = 1; step < 4; ++step) {
      up.mutable_grad() = at::linspace(1, step, 8);
      down.mutable_grad() = -at::linspace(1, step, 8);
      maximizing->step();
      minimizing->step();
    }
    EXPECT_TRUE(at::allclose(up, down, 1e-6, 1e-7)) << up << down;
    EXPECT_FALSE(at::allclose(up, at::linspace(-1, 1, 8)));
  };
  const auto make = []<class Options>(const at::Tensor& weight, const Options& options) {
    using Optimizer = std::conditional_t<std::is_same_v<Options, SGDOptions>, SGD,
                                         std::conditional_t<std::is_same_v<Options, AdamWOptions>, AdamW, LAMB>>;
    return std::make_unique<Optimizer>(std::vector<at::Tensor>{weight}, options);
  };
  expect_same(make, SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  expect_same(make, AdamWOptions(0.1).weight_decay(0.1));
  expect_same(make, LAMBOptions(0.1).weight_decay(0.1));
}

}  // namespace
}  // namespace mezzo
