#include "mezzo/distributed/zero/zero_redundancy_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "distributed/rank_threads.h"
#include "mezzo/optim/lr_scheduler.h"
#include "mezzo/optim/sgd.h"

namespace mezzo::distributed {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::vector<NamedParameter> two_parameters() {
  return {{"large", torch::ones({4}).requires_grad_()}, {"small", torch::ones({2}).requires_grad_()}};
}

std::unique_ptr<Optimizer> momentum_sgd(const std::vector<NamedParameter>& parameters) {
  return std::make_unique<SGD>(parameters, SGDOptions().lr(0.5).momentum(0.9).max_grad_norm(1));
}

void set_gradients(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) {
    parameter.tensor.mutable_grad() = torch::ones_like(parameter.tensor);
  }
}

TEST(ZeroRedundancyOptimizerTest, LeavesTheGradientsOfOtherRanksWhereTheyAre) {
  const auto errors = RankThreads().run([](ProcessGroup& group) {
    const auto parameters = two_parameters();
    ZeroRedundancyOptimizer optimizer(group, momentum_sgd(parameters));
    set_gradients(parameters);
    const auto large = parameters[0].tensor.grad(), small = parameters[1].tensor.grad();
    optimizer.step();
    EXPECT_FLOAT_EQ(optimizer.grad_norm().item<float>(), std::sqrt(6.0f)) << "of all ranks";
    EXPECT_TRUE(parameters[0].tensor.grad().is_same(large) && parameters[1].tensor.grad().is_same(small));
    EXPECT_TRUE(torch::equal(large, torch::ones({4})) && torch::equal(small, torch::ones({2})));
    EXPECT_EQ(optimizer.local().state_dict().size(), 1u) << "moments of its share alone";
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

/// One rank has the float64 parameter, and all go by its norm.
TEST(ZeroRedundancyOptimizerTest, ClipsFloat64GradientsWhoseNormIsPastFloat32) {
  const auto errors = RankThreads().run([](ProcessGroup& group) {
    const std::vector<NamedParameter> parameters{{"large", torch::ones({4}, torch::kDouble).requires_grad_()},
                                                 {"small", torch::ones({2}).requires_grad_()}};
    ZeroRedundancyOptimizer optimizer(group, momentum_sgd(parameters));
    set_gradients(parameters);
    parameters[0].tensor.mutable_grad() *= 1e39;
    optimizer.step();
    EXPECT_DOUBLE_EQ(optimizer.grad_norm().item<double>(), 2e39);
    EXPECT_EQ(optimizer.local().found_inf().item<float>(), 0);
    EXPECT_TRUE(torch::allclose(parameters[0].tensor, torch::full({4}, 0.75, torch::kDouble), /*rtol=*/1e-14));
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ZeroRedundancyOptimizerTest, ChecksAWholeStateAndTakesItsShare) {
  const auto errors = RankThreads().run([](ProcessGroup& group) {
    const auto parameters = two_parameters();
    ZeroRedundancyOptimizer optimizer(group, momentum_sgd(parameters));
    const std::string mine = group.rank() == 0 ? "large" : "small", other = group.rank() == 0 ? "small" : "large";
    const std::map<std::string, at::Tensor> whole{{"momentum_buffer/large", torch::full({4}, 3.0)},
                                                  {"momentum_buffer/small", torch::full({2}, 4.0)}};
    auto wrong = whole;
    wrong["momentum_buffer/" + other] = torch::ones({7});
    EXPECT_THROW(optimizer.load_state_dict(wrong), c10::ValueError) << "though another rank takes it";
    EXPECT_TRUE(optimizer.local().state_dict().empty());
    optimizer.load_state_dict(whole);
    const auto own = optimizer.local().state_dict();
    ASSERT_EQ(own.size(), 1u);
    EXPECT_TRUE(own.at("momentum_buffer/" + mine).equal(whole.at("momentum_buffer/" + mine)));
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ZeroRedundancyOptimizerTest, SavesTheWholeStateInRankZerosArchive) {
  const auto errors = RankThreads().run([](ProcessGroup& group) {
    const auto parameters = two_parameters();
    ZeroRedundancyOptimizer optimizer(group, momentum_sgd(parameters));
    torch::optim::StepLR schedule(optimizer, /*step_size=*/1, /*gamma=*/0.5);
    const auto step = [&](torch::optim::Optimizer& of, const std::vector<NamedParameter>& trained) {
      set_gradients(trained);
      of.step();
    };
    step(optimizer, parameters);
    schedule.step();
    schedule.step();
    step(optimizer, parameters);
    EXPECT_EQ(optimizer.lr(), 0.25) << "LibTorch's scheduler set the options of this object's groups";
    EXPECT_EQ(optimizer.local().lr(), 0.25);
    std::stringstream mine;
    torch::save(optimizer, mine);
    EXPECT_EQ(optimizer.local().state_dict().size(), 1u) << "moments of its share alone";

    // The archive of rank 0 goes to all ranks, as files do.
    const std::string sent = mine.str();
    auto size = torch::tensor(static_cast<int64_t>(group.rank() == 0 ? sent.size() : 0));
    group.all_reduce(size);
    auto bytes = torch::zeros({size.item<int64_t>()}, torch::kInt);
    for (size_t i = 0; group.rank() == 0 && i < sent.size(); ++i) {
      bytes[static_cast<int64_t>(i)] = static_cast<int>(static_cast<unsigned char>(sent[i]));
    }
    group.all_reduce(bytes);
    std::string whole;
    for (int64_t i = 0; i < bytes.numel(); ++i) {
      whole.push_back(static_cast<char>(bytes.const_data_ptr<int>()[i]));
    }

    const auto copies = [&] {
      auto result = two_parameters();
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < result.size(); ++i) {
        result[i].tensor.copy_(parameters[i].tensor);
      }
      return result;
    };
    const auto resumed_parameters = copies(), plain_parameters = copies();
    ZeroRedundancyOptimizer resumed(group, momentum_sgd(resumed_parameters));
    auto plain = momentum_sgd(plain_parameters);
    std::stringstream first(whole), second(whole);
    torch::load(resumed, first);
    torch::load(*plain, second);
    EXPECT_EQ(resumed.lr(), 0.25);
    EXPECT_EQ(resumed.local().state_dict().size(), 1u);
    EXPECT_EQ(plain->state_dict().size(), 2u);
    step(optimizer, parameters);
    step(resumed, resumed_parameters);
    step(*plain, plain_parameters);
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::equal(resumed_parameters[i].tensor, parameters[i].tensor));
      EXPECT_TRUE(torch::allclose(plain_parameters[i].tensor, parameters[i].tensor, 1e-6)) << "but for the norm's sum";
    }
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ZeroRedundancyOptimizerTest, LetsSchedulersDriveALearningRateInATensor) {
  const auto errors = RankThreads{.world_size = 1}.run([](ProcessGroup& group) {
    const auto parameters = two_parameters();
    ZeroRedundancyOptimizer optimizer(group, momentum_sgd(parameters));
    const auto lr = torch::full({}, 0.5, torch::kDouble);
    optimizer.set_lr(lr);
    LRScheduler scheduler(optimizer, [](int64_t step) { return step == 0 ? 1.0 : 0.5; });
    scheduler.step();
    EXPECT_EQ(lr.item<double>(), 0.25);
    ReduceLROnPlateau plateau(optimizer, {.factor = 0.5, .patience = 0});
    plateau.step(1);
    plateau.step(2);
    EXPECT_EQ(lr.item<double>(), 0.125);
    set_gradients(parameters);
    optimizer.step();
    EXPECT_TRUE(torch::allclose(parameters[0].tensor, torch::full({4}, 1 - 0.125 / std::sqrt(6.0))));
    EXPECT_EQ(optimizer.lr(), 0.125);
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ZeroRedundancyOptimizerTest, RefusesParametersThatAreAddedLater) {
  const auto errors = RankThreads{.world_size = 1}.run([](ProcessGroup& group) {
    ZeroRedundancyOptimizer optimizer(group, momentum_sgd(two_parameters()));
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({torch::ones({2}).requires_grad_()}));
    optimizer.step();
  });
  EXPECT_THAT(errors, Each(HasSubstr("parameters were added or removed")));
}

TEST(ZeroRedundancyOptimizerTest, RefusesAnOptimizerThatWasUsed) {
  const auto errors = RankThreads{.world_size = 1}.run([](ProcessGroup& group) {
    const auto parameters = two_parameters();
    auto used = momentum_sgd(parameters);
    set_gradients(parameters);
    used->step();
    ZeroRedundancyOptimizer optimizer(group, std::move(used));
  });
  EXPECT_THAT(errors, Each(StartsWith("ZeroRedundancyOptimizer: mezzo::SGD has state already")));
}

}  // namespace
}  // namespace mezzo::distributed
