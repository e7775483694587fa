#include "mezzo/parallel/data_parallel.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/module_scope.h"

namespace mezzo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// The observations of the replicas.
struct Seen {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::multiset<c10::ScalarType> dtypes;
  std::multiset<std::string> paths;
  std::multiset<int64_t> rows;
  std::multiset<bool> training;
};

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  explicit NetImpl(Seen* the_seen = nullptr, bool with_norm = false) : seen(the_seen), has_norm(with_norm) { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(6, 16));
    out = register_module("out", torch::nn::Linear(16, 3));
    if (has_norm) {
      norm = register_module("norm", torch::nn::BatchNorm1d(16));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = hidden(x);
    if (seen != nullptr) {
      const std::lock_guard lock(seen->mutex);
      seen->threads.insert(std::this_thread::get_id());
      seen->dtypes.insert(y.scalar_type());
      seen->paths.insert(ModuleScope::current_path());
      seen->rows.insert(x.size(0));
      seen->training.insert(is_training());
    }
    return out(torch::tanh(has_norm ? norm(y) : y));
  }

  Seen* seen;
  bool has_norm;
  torch::nn::Linear hidden{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

DataParallelOptions on_cpus(size_t count) {
  return DataParallelOptions().devices(std::vector<c10::Device>(count, c10::kCPU));
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(DataParallelTest, OutputsAndGradientsAreThoseOfTheUndividedModule) {
  torch::manual_seed(0);
  Seen seen;
  Net net(&seen), alone;
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    alone->parameters()[i].data().copy_(net->parameters()[i]);
  }
  DataParallel model(net, on_cpus(3));
  torch::optim::SGD optimizer(net->parameters(), 0.1), alone_optimizer(alone->parameters(), 0.1);
  torch::Tensor loss;  // outlives its step, so that the replicas of that step are still in use
  for (int step = 0; step < 4; ++step) {
    const auto x = torch::randn({8, 6});
    optimizer.zero_grad();
    alone_optimizer.zero_grad();
    const auto output = model(x), expected = alone(x);
    // Rows do not depend on each other, but a matrix product may add up in another order
    // for another number of rows.
    EXPECT_TRUE(torch::allclose(output, expected, 1e-6, 1e-6));
    loss = output.square().mean();
    loss.backward();
    expected.square().mean().backward();
    for (size_t i = 0; i < net->parameters().size(); ++i) {  // sums of parts: a few roundings
      EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-5, 1e-6));
    }
    optimizer.step();
    alone_optimizer.step();
  }
  EXPECT_GE(seen.threads.size(), 3);
  EXPECT_EQ(seen.rows.count(3), 8);  // 3, 3 and 2 rows, four times
}

TEST(DataParallelTest, TwoForwardPassesMayComeBeforeOneBackward) {
  torch::manual_seed(0);
  Net net;
  DataParallel model(net, on_cpus(2));
  const auto x = torch::randn({4, 6}), y = torch::randn({4, 6});
  (model(x).sum() + model(y).square().sum()).backward();
  const auto gradient = net->hidden->weight.grad().clone();
  net->zero_grad();
  (net(x).sum() + net(y).square().sum()).backward();
  EXPECT_TRUE(torch::allclose(gradient, net->hidden->weight.grad(), 1e-5, 1e-6));
}

TEST(DataParallelTest, ReplicasSeeAutocastPolicyLogScopeAndModes) {
  Seen seen;
  Net net(&seen);
  DataParallel model(net, on_cpus(2));
  const auto x = torch::randn({4, 6});
  model(x);
  EXPECT_EQ(seen.dtypes, (std::multiset<c10::ScalarType>{torch::kFloat, torch::kFloat}));
  seen.dtypes.clear();
  CastLog log;
  {
    const AutocastGuard autocast(torch::kCPU, torch::kBFloat16, AutocastOptions().log(&log));
    const ModuleScope scope("net", 7);
    const auto output = model(x);
    EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(torch::equal(output, net(x)));
  }
  EXPECT_EQ(seen.dtypes.count(torch::kBFloat16), 3);
  EXPECT_EQ(seen.paths.count("net.7"), 3);
  EXPECT_THAT(log.to_table(), HasSubstr("net.7"));
  seen.dtypes.clear();
  {
    OpPolicy policy = OpPolicy::built_in(torch::kCPU);
    policy.set("addmm", CastPolicy::kFloat32);  // what Linear calls
    const AutocastGuard autocast(torch::kCPU, torch::kBFloat16, AutocastOptions().policy(policy));
    model(x);
  }
  EXPECT_EQ(seen.dtypes.count(torch::kFloat), 2);
  seen.training.clear();
  net->eval();
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(model(x).requires_grad());
  EXPECT_EQ(seen.training, (std::multiset<bool>{false, false}));
}

TEST(DataParallelTest, KeepsTheStatisticsOfTheFirstPartAndTheRandomNumbers) {
  torch::manual_seed(0);
  Net net(nullptr, /*with_norm=*/true), alone(nullptr, true);
  for (const auto& item : net->named_parameters()) {
    alone->named_parameters()[item.key()].data().copy_(item.value());
  }
  DataParallel model(net, on_cpus(2));
  const auto x = torch::randn({8, 6});
  torch::manual_seed(1);
  const auto expected = torch::rand(3);
  torch::manual_seed(1);
  const auto output = model(x);  // makes a replica, whose weights are drawn
  EXPECT_TRUE(torch::equal(torch::rand(3), expected));
  // As torch.nn.DataParallel: each part has separate statistics, and only the first part's are
  // kept.
  const auto first = alone(x.narrow(0, 0, 4));
  EXPECT_TRUE(torch::equal(net->norm->running_mean, alone->norm->running_mean));
  EXPECT_TRUE(torch::equal(output, torch::cat({first, alone(x.narrow(0, 4, 4))})));
}

TEST(DataParallelTest, OneScalerServesAllReplicas) {
  Net net;
  DataParallel model(net, on_cpus(2));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  GradScaler scaler(GradScalerOptions().init_scale(1024));
  for (const bool overflows : {false, true}) {
    optimizer.zero_grad();
    auto x = torch::ones({4, 6});
    if (overflows) {
      x[3] = std::numeric_limits<float>::infinity();  // a row of the second replica
    }
    torch::Tensor loss;
    {
      const AutocastGuard autocast(torch::kCPU, torch::kHalf);
      loss = model(x).to(torch::kFloat).square().mean();
    }
    const auto before = net->out->weight.detach().clone();
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    EXPECT_EQ(torch::equal(before, net->out->weight), overflows);
    EXPECT_EQ(scaler.get_scale(), overflows ? 512 : 1024);
  }
}

/// Takes and gives more than tensors, and has no clone().
struct PairsImpl : torch::nn::Module {
  using Output = std::map<std::string, std::vector<torch::Tensor>>;
  PairsImpl() : weight(register_parameter("weight", torch::ones({2}))) {}
  Output forward(const std::vector<torch::Tensor>& inputs, std::optional<torch::Tensor> bias, double factor) {
    TORCH_CHECK(factor != 13 || inputs[0].size(0) == 2, "thirteen");
    if (factor == 14 && inputs[0].size(0) == 1) {
      throw std::runtime_error("fourteen");
    }
    const auto y = inputs[0] * weight * factor + bias.value_or(torch::zeros({}));
    return {{"rows", {y, inputs[1]}}, {"mean", {y.mean()}}};
  }
  torch::Tensor weight;
};
TORCH_MODULE(Pairs);

TEST(DataParallelTest, DividesAndJoinsStructures) {
  Pairs pairs;
  DataParallel<PairsImpl> model(pairs, on_cpus(2), [](c10::Device) { return std::make_shared<PairsImpl>(); });
  const auto x = torch::arange(6.0f).view({3, 2}), ids = torch::arange(3);
  const auto output = model(std::vector{x, ids}, std::optional<torch::Tensor>(torch::ones({3, 1})), 2.0);
  EXPECT_TRUE(torch::equal(output.at("rows")[0], x * 2 + 1));
  EXPECT_TRUE(torch::equal(output.at("rows")[1], ids));
  EXPECT_EQ(output.at("mean")[0].sizes(), (std::vector<int64_t>{2}));  // one of each replica
  output.at("rows")[0].sum().backward();
  EXPECT_TRUE(torch::equal(pairs->weight.grad(), 2 * x.sum(0)));
}

TEST(DataParallelTest, UsesAReplicaAgainOnceNoGraphNeedsIt) {
  int made = 0;
  DataParallel<PairsImpl> model(Pairs(), on_cpus(2), [&](c10::Device) {
    ++made;
    return std::make_shared<PairsImpl>();
  });
  const std::vector inputs{torch::ones({2, 2}), torch::ones({2})};
  const std::optional<torch::Tensor> none;
  for (int step = 0; step < 3; ++step) {
    const auto first = model(inputs, none, 1.0), second = model(inputs, none, 2.0);
    EXPECT_EQ(made, 2);
  }
}

TEST(DataParallelTest, NamesTheReplicaThatFailed) {
  Pairs pairs;
  DataParallel<PairsImpl> model(pairs, on_cpus(2), [](c10::Device) { return std::make_shared<PairsImpl>(); });
  const std::vector inputs{torch::ones({3, 2}), torch::ones({3})};
  const std::optional<torch::Tensor> none;
  for (const auto& [factor, words] : {std::pair{13.0, "thirteen"}, std::pair{14.0, "fourteen"}}) {
    EXPECT_THAT(message_of([&, f = factor] { model(inputs, none, f); }),
                AllOf(HasSubstr(words), HasSubstr("in replica 1 on cpu")));
  }
  model(inputs, none, 1.0);  // and goes on
}

TEST(DataParallelTest, TakesACpuWithAnIndexForTheCpu) {
  Net net;
  const c10::Device cpu_0(c10::kCPU, 0);  // tensors there are on "cpu"
  DataParallel model(net, DataParallelOptions().devices({cpu_0, cpu_0}).output_device(cpu_0));
  EXPECT_EQ(model(torch::ones({4, 6})).size(0), 4);
}

TEST(DataParallelTest, SaysWhatIsWrongWithTheModuleOrTheBatch) {
  Pairs pairs;
  Net net;
  DataParallel uncloneable(pairs, on_cpus(2));
  DataParallel model(net, on_cpus(2));
  const std::vector inputs{torch::ones({3, 2}), torch::ones({4})};
  const std::optional<torch::Tensor> none;
  EXPECT_THAT(message_of([&] { uncloneable(inputs, none, 1.0); }), HasSubstr("batches of different sizes, 3 and 4"));
  EXPECT_THAT(message_of([&] {
                uncloneable(std::vector{inputs[0], inputs[0]}, none, 1.0);
              }),
              AllOf(HasSubstr("cannot clone"), HasSubstr("derive it from torch::nn::Cloneable")));
  EXPECT_THAT(message_of([&] { model(torch::ones({})); }), HasSubstr("cannot be divided along dimension 0"));
  EXPECT_THAT(message_of([&] { model(torch::Tensor()); }), HasSubstr("no argument is a tensor"));
  EXPECT_THAT(message_of([&] { DataParallel other(net, DataParallelOptions().devices({c10::Device(c10::kMeta)})); }),
              HasSubstr("move the module there"));
  if (!at::hasCUDA()) {
    EXPECT_THAT(message_of([&] { DataParallel other(net); }), HasSubstr("no CUDA device; name the devices"));
  }
  EXPECT_EQ(model(torch::ones({1, 6})).size(0), 1);  // fewer rows than devices
  EXPECT_EQ(model(torch::ones({0, 6})).size(0), 0);
}

}  // namespace
}  // namespace mezzo
