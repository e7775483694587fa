#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <future>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/graph/graphed_step.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/clip_grad.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/sgd.h"
#include "not_finite.h"
#include "simulated/device_test.h"

/// Recorded training steps beside the same steps as they stand, on a device without hardware.

namespace mezzo::simulated {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::ThrowsMessage;
using Tensors = GraphedStep::Tensors;

/// The rows of the batch of each step: three shapes, in turn and not.
constexpr std::array<int64_t, 24> kRows = {6, 6, 6, 4, 6, 4, 4, 6, 4, 6, 4, 5, 5, 6, 4, 5, 5, 6, 4, 5, 6, 6, 4, 5};
/// Factor of the loss. Gradients overflow in eager steps and in replayed steps.
float factor_of(size_t step) { return step == 1 || step == 9 || step == 10 || step == 19 ? kInf : 1; }

enum class Clipping { kNone, kInOptimizer, kAfterUnscaling };

struct Recipe {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(ParamGroups, double max_grad_norm)> optimizer;
  Clipping clipping = Clipping::kNone;
  c10::ScalarType dtype = at::kHalf;
  bool has_masters = false;
  GradScalerOptions scaler = GradScalerOptions().init_scale(16).growth_interval(3);
};

template <class Optimizer, class Options>
auto maker(const Options& options) {
  return [options](ParamGroups groups, double max_grad_norm) {
    auto all = options;
    all.lr(0.05).weight_decay(0.01).max_grad_norm(max_grad_norm);
    return std::make_unique<Optimizer>(std::move(groups), all);
  };
}

const auto adamw = maker<AdamW>(AdamWOptions());
const auto sgd = maker<SGD>(SGDOptions().momentum(0.9));
const auto lamb = maker<LAMB>(LAMBOptions());

/// A model, its optimizer and scaler, and a step of them.
class Training {
 public:
  Training(const Recipe& recipe, c10::Device device) : recipe_(recipe), device_(device), scaler_(recipe.scaler) {
    torch::manual_seed(11);
    for (const auto& [name, size] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
             {"hidden.weight", {8, 4}}, {"hidden.bias", {8}}, {"output.weight", {3, 8}}}) {
      parameters_.push_back({name, at::randn(size).mul_(0.5).to(device).requires_grad_(), {}});
    }
    if (recipe.has_masters) {
      masters_.emplace(parameters_, recipe.dtype);
    }
    optimizer_ = recipe.optimizer(masters_ ? masters_->masters() : parameters_,
                                  recipe.clipping == Clipping::kInOptimizer ? 0.3 : 0);
  }

  /// @param inputs  rows, targets, and the loss's factor
  /// @return the loss, whether it overflowed, and the scale
  Tensors step(const Tensors& inputs) {
    optimizer_->zero_grad();
    at::Tensor loss;
    {
      const AutocastGuard autocast(device_.type(), recipe_.dtype);
      const auto hidden = at::dropout(at::gelu(at::linear(inputs[0], parameters_[0].tensor, parameters_[1].tensor)),
                                      0.25, /*train=*/true);
      loss = at::cross_entropy_loss(at::linear(hidden, parameters_[2].tensor), inputs[1]) * inputs[2];
    }
    scaler_.scale(loss).backward();
    if (recipe_.clipping == Clipping::kAfterUnscaling) {
      scaler_.unscale_(*optimizer_);
      std::vector<at::Tensor> owners;
      for (const auto& [owner, master] : detail::gradient_owners(*optimizer_)) {
        owners.push_back(owner);
      }
      clip_grad_norm_(owners, 0.3);
    }
    const auto found_inf = scaler_.step(*optimizer_).found_inf();
    scaler_.update();
    return {loss, found_inf, scaler_.scale_tensor().clone()};
  }

  /// Whatever a step changes.
  Tensors state() const {
    Tensors all;
    for (const auto& parameter : masters_ ? masters_->masters() : parameters_) {
      all.push_back(parameter.tensor.detach().cpu());
      if (parameter.half_copy.defined()) {
        all.push_back(parameter.half_copy.detach().cpu());
      }
    }
    for (const auto& [name, tensor] : optimizer_->state_dict()) {
      all.push_back(tensor.cpu());
    }
    all.push_back(at::tensor(scaler_.get_scale()));
    all.push_back(at::tensor(scaler_.get_growth_tracker()));
    all.push_back(at::tensor(scaler_.get_skipped_steps()));
    return all;
  }

 private:
  const Recipe& recipe_;
  const c10::Device device_;
  std::vector<NamedParameter> parameters_;
  std::optional<MasterWeights> masters_;
  std::unique_ptr<Optimizer> optimizer_;
  GradScaler scaler_;
};

std::vector<Tensors> batches(c10::Device device) {
  torch::manual_seed(12);
  std::vector<Tensors> all;
  for (size_t step = 0; step < kRows.size(); ++step) {
    all.push_back({at::randn({kRows[step], 4}).to(device), at::randint(3, {kRows[step]}, at::kLong).to(device),
                   at::full({}, factor_of(step)).to(device)});
  }
  return all;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.isnan().equal(b.isnan()) &&
         a.nan_to_num().equal(b.nan_to_num());
}

struct Trained {
  std::vector<Tensors> outputs;
  Tensors state;
};

class GraphedTrainingTest : public DeviceTest, public testing::WithParamInterface<Recipe> {
 protected:
  /// @param step_of  what calls the step
  template <class StepOf>
  Trained train(const StepOf& step_of) {
    const auto data = batches(device);
    Training training(GetParam(), device);
    auto step = step_of([&](const Tensors& inputs) { return training.step(inputs); });
    Trained trained;
    for (size_t i = 0; i < data.size(); ++i) {
      const Watch watch;
      auto outputs = step(data[i]);
      EXPECT_THAT(watch.host_syncs(), IsEmpty()) << i;
      for (at::Tensor& output : outputs) {
        output = output.detach().cpu();
      }
      trained.outputs.push_back(std::move(outputs));
    }
    trained.state = training.state();
    return trained;
  }
};

TEST_P(GraphedTrainingTest, GivesTheBitsOfEagerStepsAndWaitsForNothing) {
  for (const Pace pace : {Pace::kLate, Pace::kEager}) {
    set_pace(pace);
    const auto expected = train([](auto step) { return step; });
    std::optional<GraphedStep> graphed;
    const auto trained = train([&](auto step) {
      graphed.emplace(device, step, GraphedStepOptions().warmup_steps(2));
      return [&](const Tensors& inputs) { return (*graphed)(inputs); };
    });
    for (size_t i = 0; i < kRows.size(); ++i) {
      for (size_t j = 0; j < expected.outputs[i].size(); ++j) {
        EXPECT_TRUE(same(trained.outputs[i][j], expected.outputs[i][j])) << "step " << i << ", output " << j;
      }
      EXPECT_EQ(expected.outputs[i][1].item<float>() == 1, factor_of(i) == kInf) << "overflows where they should be";
    }
    ASSERT_EQ(trained.state.size(), expected.state.size());
    for (size_t i = 0; i < expected.state.size(); ++i) {
      EXPECT_TRUE(same(trained.state[i], expected.state[i])) << i << trained.state[i] << expected.state[i];
    }
    EXPECT_EQ(graphed->counts().eager, 6);
    EXPECT_EQ(graphed->counts().recorded, 3);
    EXPECT_EQ(graphed->counts().replayed, 18);
    EXPECT_TRUE(graphed->was_replayed());
    EXPECT_EQ(graphed->eager_reason(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         GraphedTrainingTest,
                         testing::ValuesIn(std::vector<Recipe>{
                             {"AdamW", adamw},
                             {"Sgd", sgd},
                             {"Lamb", lamb},
                             {"AdamWInBFloat16", adamw, Clipping::kNone, at::kBFloat16},
                             {"AdamWClipped", adamw, Clipping::kInOptimizer},
                             {"SgdClippedAfterUnscaling", sgd, Clipping::kAfterUnscaling},
                             {"LambClippedAfterUnscaling", lamb, Clipping::kAfterUnscaling},
                             {"AdamWOfMasters", adamw, Clipping::kInOptimizer, at::kHalf, true},
                             {"SgdOfBFloat16Masters", sgd, Clipping::kAfterUnscaling, at::kBFloat16, true},
                             {"WithHysteresis", sgd, Clipping::kNone, at::kHalf, false,
                              GradScalerOptions().init_scale(16).growth_interval(3).hysteresis(2)},
                         }),
                         [](const testing::TestParamInfo<Recipe>& recipe) { return recipe.param.name; });

class GraphedStepDeviceTest : public DeviceTest {
 protected:
  at::Tensor ones(at::IntArrayRef sizes) const { return at::ones(sizes, device); }
  /// Calls it until it replays.
  static void warm_up(GraphedStep& step, const Tensors& inputs) {
    for (int i = 0; i < 4; ++i) {
      step(inputs);
    }
    EXPECT_TRUE(step.was_replayed());
  }

  const at::Tensor weight = at::ones({2}, device);
  /// weight += x, and returns its sum.
  const GraphedStep::Step add = [this](const Tensors& inputs) {
    weight.add_(inputs[0].sum());
    return Tensors{weight.sum()};
  };
};

TEST_F(GraphedStepDeviceTest, DoesNotReadSkipsWhileAStepIsRecorded) {
  const Recipe recipe{
      .name = "",
      .optimizer = adamw,
      .scaler = GradScalerOptions().init_scale(16).max_consecutive_skips(1)};  // read in every eager step
  Training training(recipe, device);
  GraphedStep step(device, [&](const Tensors& inputs) { return training.step(inputs); });
  warm_up(step, batches(device).front());
}

TEST_F(GraphedStepDeviceTest, WarmsUpThenRecordsThenReplays) {
  GraphedStep step(device, add);
  std::vector<std::string> reasons;
  for (int i = 1; i <= 6; ++i) {
    EXPECT_EQ(step({ones({1})})[0].item<float>(), 2 + 2 * i) << "each call is one step";
    reasons.push_back(step.eager_reason());
    EXPECT_EQ(step.was_replayed(), i > 3);
    EXPECT_EQ(step.counts().recorded, i > 3 ? 1 : 0);
  }
  EXPECT_THAT(reasons,
              testing::ElementsAre("warm-up, call 1 of 3 of these shapes", "warm-up, call 2 of 3 of these shapes",
                                   "warm-up, call 3 of 3 of these shapes", "", "", ""));
}

TEST_F(GraphedStepDeviceTest, TakesInputsOfTheCpuWithoutWaiting) {
  GraphedStep step(device, add);
  const Watch watch;
  for (int i = 0; i < 6; ++i) {
    auto pageable = at::full({3}, 1.0f);
    step({pageable});
    pageable.fill_(100);
    step({at::full({3}, 1.0f).pin_memory()});
  }
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_EQ(step.counts().replayed, 9);
  EXPECT_EQ(weight[0].item<float>(), 37);
}

TEST_F(GraphedStepDeviceTest, HasAGraphForEachKindOfInputs) {
  GraphedStep step(device, [](const Tensors& inputs) {
    return Tensors{inputs[0].to(at::kFloat).sum() +
                   (inputs[1].defined() ? inputs[1].sum() : at::Tensor(inputs[0].sum()))};
  });
  const auto strided = at::ones({4, 6}, device).t(), gaps = at::ones({6, 8}, device).slice(1, 0, 4);
  const std::vector<Tensors> kinds{{ones({6, 4}), ones({1})},
                                   {ones({4, 6}), ones({1})},
                                   {strided, ones({1})},
                                   {ones({6, 4}).to(at::kHalf), ones({1})},
                                   {ones({6, 4}), {}}};
  for (const auto& inputs : kinds) {
    warm_up(step, inputs);
  }
  EXPECT_EQ(step.counts().recorded, 5);
  EXPECT_EQ(step(kinds[4])[0].item<float>(), 48);
  EXPECT_EQ(step({gaps, ones({1})})[0].item<float>(), 25) << "gaps are closed";
  EXPECT_TRUE(step.was_replayed());
  EXPECT_EQ(step.counts().recorded, 5);
}

TEST_F(GraphedStepDeviceTest, HasAGraphForOtherNumbersOfTheCaller) {
  int64_t factor = 0;
  GraphedStep step(device, [&](const Tensors& inputs) { return Tensors{inputs[0] * factor}; });
  for (int i = 0; i < 5; ++i) {
    for (factor = 2; factor <= 3; ++factor) {
      EXPECT_EQ(step({ones({1})}, {factor})[0].item<float>(), static_cast<float>(factor));
    }
  }
  EXPECT_TRUE(step.was_replayed());
  EXPECT_EQ(step.counts().recorded, 2);
}

/// Each list comes after its length, so that one cannot be taken for a part of the other.
TEST_F(GraphedStepDeviceTest, TellsNumbersFromInputs) {
  GraphedStep step(device, [](const Tensors& inputs) { return Tensors{inputs.back() * int64_t(inputs.size())}; });
  const auto x = ones({2});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(step({x}, {-1})[0].sum().item<float>(), 2);
    EXPECT_EQ(step({at::Tensor(), x}, {})[0].sum().item<float>(), 4);
  }
  EXPECT_TRUE(step.was_replayed());
  EXPECT_EQ(step.counts().recorded, 2);
}

/// Else a call outside of it would return a tensor that autograd does not take.
TEST_F(GraphedStepDeviceTest, HasAGraphForInferenceMode) {
  GraphedStep step(device, [](const Tensors& inputs) { return Tensors{inputs[0] * 2}; });
  const auto x = ones({2});
  for (int i = 0; i < 5; ++i) {
    {
      const c10::InferenceMode inference;
      step({x});
    }
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(step({x})[0].is_inference());
  }
  EXPECT_TRUE(step.was_replayed());
  EXPECT_EQ(step.counts().recorded, 2);
}

/// Of shapes without a graph, the 1,024 that came up last are remembered.
TEST_F(GraphedStepDeviceTest, ForgetsShapesThatDoNotComeUpAgain) {
  set_pace(Pace::kEager);
  GraphedStep step(
      device,
      [&](const Tensors&) {
        weight.add_(1);
        return Tensors{};
      },
      GraphedStepOptions().warmup_steps(2));
  for (int i = 0; i < 3; ++i) {
    step({}, {-1});
  }
  for (int64_t number = 0; number <= 1024; ++number) {
    step({}, {number});
  }
  step({}, {1});
  EXPECT_THAT(step.eager_reason(), HasSubstr("warm-up, call 2 of 2"));
  step({}, {0});
  EXPECT_THAT(step.eager_reason(), HasSubstr("warm-up, call 1 of 2")) << "it was forgotten";
  step({}, {-1});
  EXPECT_TRUE(step.was_replayed()) << "graphs are counted apart";
}

TEST_F(GraphedStepDeviceTest, MemoryThatRunsOutIsSaidAsSuch) {
  int calls = 0;
  GraphedStep step(
      device,
      [&](const Tensors& inputs) {
        if (++calls == 2) {
          TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory is left");
        }
        return inputs;
      },
      GraphedStepOptions().warmup_steps(1));
  step({ones({1})});
  EXPECT_THROW(step({ones({1})}), c10::OutOfMemoryError);
}

TEST_F(GraphedStepDeviceTest, HasAGraphForEachAutocastAndGradientMode) {
  GraphedStep step(device, [](const Tensors& inputs) { return Tensors{inputs[0].mm(inputs[0])}; });
  const Tensors inputs{ones({2, 2})};
  const auto dtype = [&] { return step(inputs)[0].scalar_type(); };
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(dtype(), at::kFloat);
    {
      const AutocastGuard autocast(kType, at::kHalf);
      EXPECT_EQ(dtype(), at::kHalf);
    }
    const AutocastGuard autocast(kType, at::kBFloat16);
    EXPECT_EQ(dtype(), at::kBFloat16);
    const at::NoGradGuard no_grad;
    EXPECT_EQ(dtype(), at::kBFloat16);
  }
  EXPECT_TRUE(step.was_replayed());
  EXPECT_EQ(step.counts().recorded, 4);
}

TEST_F(GraphedStepDeviceTest, OutputsLastUntilTheNextCall) {
  GraphedStep step(device, [](const Tensors& inputs) { return Tensors{inputs[0] + 1}; });
  const auto eager = step({ones({2})})[0];
  warm_up(step, {ones({2})});
  warm_up(step, {ones({3})});
  step({ones({2})})[0].requires_grad_();
  const auto first = step({ones({2})})[0];
  EXPECT_FALSE(first.requires_grad()) << "each call has tensors of its own";
  EXPECT_EQ(first.sum().item<float>(), 4);
  const auto second = step({ones({2}) * 5})[0];
  EXPECT_EQ(first.sum().item<float>(), 12) << "the same memory";
  const auto other = step({ones({3})})[0];
  EXPECT_FALSE(at::equal(first.cpu(), at::full({2}, 6.0f))) << "graphs share memory";
  EXPECT_EQ(eager.sum().item<float>(), 4) << "eager ones are the caller's";
}

TEST_F(GraphedStepDeviceTest, DropsTheGraphThatWasNotUsedForTheLongestTime) {
  GraphedStep step(device, add, GraphedStepOptions().warmup_steps(1).max_graphs(2));
  const auto call = [&](int64_t size) {
    step({ones({size})});
    return step.was_replayed();
  };
  for (const int64_t size : {1, 1, 2, 2, 1, 3}) {
    call(size);
  }
  EXPECT_EQ(step.counts().dropped, 0) << "a shape that warms up pushes nobody out";
  testing::internal::CaptureStderr();
  EXPECT_TRUE(call(3));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("more than max_graphs = 2 combinations of shapes"));
  EXPECT_EQ(step.counts().dropped, 1);
  EXPECT_TRUE(call(1));
  EXPECT_FALSE(call(2)) << "it is the one that was dropped";
  EXPECT_TRUE(call(2));
  EXPECT_FALSE(call(3));
  EXPECT_EQ(step.counts().recorded, 4);
  EXPECT_EQ(weight[0].item<float>(), 1 + 1 + 1 + 2 + 2 + 1 + 3 + 3 + 1 + 2 + 2 + 3);
}

/// As a server that loads a model while another model answers. A recording takes all work of its stream.
TEST_F(GraphedStepDeviceTest, RecordsNoWorkOfOtherThreads) {
  constexpr int kPooledStreams = 4;  // of the simulated device, which hands them out in turn
  for (const bool all_are_taken : {false, true}) {
    SCOPED_TRACE(all_are_taken);
    GraphedStep* other = nullptr;
    std::future<float> answer;
    int calls = 0;
    GraphedStep step(
        device,
        [&](const Tensors& inputs) {
          if (++calls == 2) {
            answer = std::async(std::launch::async, [&] { return (*other)({at::full({1}, 3.0f)})[0].item<float>(); });
            const auto wait = all_are_taken ? std::chrono::milliseconds(200) : std::chrono::hours(1);
            EXPECT_EQ(answer.wait_for(wait) == std::future_status::timeout, all_are_taken);
          }
          return Tensors{inputs[0] * 2};
        },
        GraphedStepOptions().warmup_steps(1));
    std::vector<std::unique_ptr<GraphedStep>> users;
    for (int i = 1; i < kPooledStreams; ++i) {
      users.push_back(std::make_unique<GraphedStep>(device, add));
      if (!all_are_taken) users.clear();
    }
    GraphedStep shares(device, [](const Tensors& inputs) { return Tensors{inputs[0] * 5}; });
    other = &shares;
    step({ones({1})});
    EXPECT_EQ(step({ones({1})})[0].item<float>(), 2);
    EXPECT_EQ(answer.get(), 15);
    EXPECT_EQ(step({ones({1}) * 4})[0].item<float>(), 8);
  }
}

TEST_F(GraphedStepDeviceTest, RecordsAnewAfterAReset) {
  double factor = 1;
  GraphedStep step(device, [&](const Tensors& inputs) { return Tensors{inputs[0] * factor}; });
  warm_up(step, {ones({1})});
  factor = 3;
  EXPECT_EQ(step({ones({1})})[0].item<float>(), 1) << "what the CPU decides was decided then";
  step.reset();
  warm_up(step, {ones({1})});
  EXPECT_EQ(step({ones({1})})[0].item<float>(), 3);
}

TEST_F(GraphedStepDeviceTest, SaysWhyItRunsEagerly) {
  const auto reason_of = [&](const auto& call, GraphedStepOptions options = {}) {
    GraphedStep step(device, add, options);
    testing::internal::CaptureStderr();
    call(step);
    call(step);
    const auto warned = testing::internal::GetCapturedStderr();
    EXPECT_FALSE(step.was_replayed());
    EXPECT_EQ(warned.find(step.eager_reason()) == warned.rfind(step.eager_reason()), true) << "once: " << warned;
    EXPECT_EQ(warned.empty(), !options.enabled()) << warned;
    return step.eager_reason();
  };
  const Tensors inputs{ones({1})};
  const auto plainly = [&](GraphedStep& step) { step(inputs); };
  EXPECT_EQ(reason_of(plainly, GraphedStepOptions().enabled(false)), "GraphedStepOptions().enabled is false");
  EXPECT_THAT(reason_of([&](GraphedStep& step) {
                const FiniteTracer tracer;
                step(inputs);
              }),
              HasSubstr("FiniteTracer"));
  EXPECT_THAT(reason_of([&](GraphedStep& step) {
                CastLog log;
                const AutocastGuard autocast(kType, at::kHalf, AutocastOptions().log(&log));
                step(inputs);
              }),
              HasSubstr("CastLog"));
  EXPECT_THAT(reason_of([&](GraphedStep& step) {
                const AutocastGuard autocast(kType, at::kHalf, AutocastOptions().policy(OpPolicy()));
                step(inputs);
              }),
              HasSubstr("op policy"));
  EXPECT_THAT(reason_of([&](GraphedStep& step) {
                torch::autograd::AnomalyMode::set_enabled(true);
                step(inputs);
                torch::autograd::AnomalyMode::set_enabled(false);
              }),
              HasSubstr("anomaly mode"));
}

TEST_F(GraphedStepDeviceTest, IsPartOfAGraphThatTheCallerRecords) {
  GraphedStep inner(device, add);
  GraphedStep outer(device, [&](const Tensors& inputs) { return inner(inputs); }, GraphedStepOptions().warmup_steps(5));
  for (int i = 0; i < 8; ++i) {
    outer({ones({1})});
  }
  EXPECT_EQ(inner.eager_reason(), "the current stream is being recorded already");
  EXPECT_EQ(outer.counts().replayed, 3);
  EXPECT_EQ(weight[0].item<float>(), 9);
}

TEST_F(GraphedStepDeviceTest, AStepThatCannotBeRecordedIsOneLineThatNamesIt) {
  bool reads = true;
  const auto hidden = at::zeros({1}, device);
  const auto stream = current_stream(0);
  std::optional<GraphedStep> step;
  const auto expect_error = [&](const GraphedStep::Step& body, const std::string& why) {
    step.emplace(device, body);
    const Tensors inputs{ones({1})};
    for (int i = 0; i < 3; ++i) {
      step.value()(inputs);
    }
    try {
      step.value()(inputs);
      ADD_FAILURE() << "was recorded";
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_THAT(message, AllOf(testing::StartsWith("GraphedStep: the step cannot be recorded: "), HasSubstr(why),
                                 Not(HasSubstr("\n"))));
    }
    EXPECT_EQ(current_stream(0), stream);
    EXPECT_EQ(step->counts().recorded, 0);
    EXPECT_EQ((ones({2}) * 2).sum().item<float>(), 4) << "the process goes on";
  };
  const auto before = weight[0].item<float>();
  expect_error(
      [&](const Tensors& inputs) {
        auto outputs = add(inputs);
        if (reads) {
          outputs[0].item<float>();
        }
        return outputs;
      },
      "_local_scalar_dense waits for the device");
  EXPECT_EQ(weight[0].item<float>(), before + 3) << "nothing of the fourth was done";
  reads = false;
  EXPECT_EQ(step.value()({ones({1})})[0].item<float>(), 2 * (before + 4)) << "and it may be tried again";
  EXPECT_TRUE(step->was_replayed());

  expect_error([&](const Tensors& inputs) { return Tensors{inputs[0], at::ones({1})}; }, "output 1 is on cpu");
  expect_error(
      [&](const Tensors& inputs) {
        try {
          inputs[0].cpu();
        } catch (const c10::Error&) {  // that somebody swallows
        }
        return inputs;
      },
      "copy_ to the CPU waits for the device");
  expect_error(
      [&](const Tensors& inputs) {
        CastLog log;
        const AutocastGuard autocast(kType, at::kHalf, AutocastOptions().log(&log));
        return Tensors{inputs[0] + 1};
      },
      "it opened a CastLog or a FiniteTracer");
  expect_error(
      [&](const Tensors& inputs) {
        const FiniteTracer tracer;
        return Tensors{inputs[0] + 1};
      },
      "GraphedStep");
  expect_error(
      [&, calls = 0](const Tensors& inputs) mutable {
        if (++calls > 3) {
          throw std::runtime_error("no more\ndata");
        }
        return inputs;
      },
      ": no more. The device has done nothing.");
}

/// As a backward pass of autograd's threads does, too.
TEST_F(GraphedStepDeviceTest, ABackwardThatReadsIsSuchAnError) {
  const auto parameter = at::ones({2}, device).requires_grad_();
  GraphedStep step(device, [&](const Tensors& inputs) {
    const auto y = parameter * inputs[0];
    y.register_hook([](const at::Tensor& gradient) { EXPECT_GT(gradient.sum().item<float>(), 0); });
    y.sum().backward();
    return Tensors{y};
  });
  for (int i = 0; i < 3; ++i) {
    step({ones({1})});
  }
  EXPECT_THAT([&] { step({ones({1})}); },
              ThrowsMessage<c10::Error>(HasSubstr("GraphedStep: the step cannot be recorded: ")));
  EXPECT_EQ((ones({2}) * 2).sum().item<float>(), 4);
}

/// Autograd adds gradients on the stream of the first forward whose graph is alive.
TEST_F(GraphedStepDeviceTest, AnAutogradGraphFromBeforeIsSuchAnError) {
  const auto parameter = at::ones({2}, device).requires_grad_();
  GraphedStep step(device, [&](const Tensors& inputs) {
    parameter.mutable_grad().reset();
    (parameter * inputs[0]).sum().backward();
    return Tensors{parameter.grad().sum()};
  });
  auto kept = (parameter * 2).sum();
  for (int i = 0; i < 3; ++i) {
    step({ones({1})});
  }
  EXPECT_THAT([&] { step({ones({1})}); },
              ThrowsMessage<c10::Error>(HasSubstr("GraphedStep: the step cannot be recorded: ")));
  kept.reset();
  EXPECT_EQ(step({ones({1})})[0].item<float>(), 2);
  EXPECT_TRUE(step.was_replayed());
}

/// Casts of weights that a region around the calls keeps are neither read nor left by a graph.
TEST_F(GraphedStepDeviceTest, KeepsNoCastsAcrossCalls) {
  const auto parameter = at::full({2, 2}, 1.0f, device).requires_grad_();
  GraphedStep step(device, [&](const Tensors& inputs) {
    const auto y = inputs[0].mm(parameter);
    const at::NoGradGuard no_grad;
    parameter.add_(1);
    return Tensors{y.detach()};
  });
  const AutocastGuard autocast(kType, at::kHalf);
  const auto x = ones({1, 2});
  for (int i = 1; i <= 8; ++i) {
    EXPECT_EQ(step({x})[0][0][0].item<float>(), 2 * i) << i;
    EXPECT_EQ(x.mm(parameter)[0][0].item<float>(), 2 * (i + 1)) << "nor is one outside of it stale";
  }
  EXPECT_TRUE(step.was_replayed());
}

TEST_F(GraphedStepDeviceTest, RunsInOrderWithWhateverStreamCallsIt) {
  GraphedStep step(device, add);
  const auto other = Queue::create(device);
  for (int i = 0; i < 6; ++i) {
    step({ones({1})});
    synchronize();
    const c10::StreamGuard guard(other);
    step({ones({1})});
    synchronize();
  }
  auto x = ones({1});
  EXPECT_EQ(step({x.add_(1)})[0].add(0).item<float>(), 30);
}

TEST_F(GraphedStepDeviceTest, OutputsMayBeDroppedWhileTheCallersStreamReadsThem) {
  GraphedStep step(device, [](const Tensors& inputs) { return Tensors{inputs[0] + 1}; });
  auto sum = at::zeros({2}, device);
  for (int i = 0; i < 6; ++i) {
    sum += step({ones({2})})[0];
  }
  EXPECT_TRUE(step.was_replayed());
  step.reset();
  EXPECT_TRUE(at::equal(sum.cpu(), at::full({2}, 12.0f)));
}

TEST_F(GraphedStepDeviceTest, ComputesOnItsDeviceWhicheverIsCurrent) {
  const auto there = at::ones({2}, other_device);
  GraphedStep step(other_device, [&](const Tensors& inputs) {
    there.add_(inputs[0].sum());
    return Tensors{there.sum()};
  });
  for (int i = 0; i < 6; ++i) {
    step({ones({1})});
    EXPECT_EQ(current_device(), 0);
  }
  EXPECT_TRUE(step.was_replayed());
  EXPECT_TRUE(at::equal(there.cpu(), at::full({2}, 7.0f)));
}

}  // namespace
}  // namespace mezzo::simulated
