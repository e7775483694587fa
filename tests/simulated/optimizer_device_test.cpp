#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/optimizer_kernels.h"
#include "kernels/scaling_kernels.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/lr_scheduler.h"
#include "mezzo/optim/sgd.h"
#include "not_finite.h"
#include "simulated/device_test.h"

/// The inputs of an optimizer's step, all of them on the device, and the kernels that it launches.

namespace mezzo::simulated {
namespace {

using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

/// What multiplies the gradients of each step, so that three are skipped.
constexpr std::array<float, 9> kFactors = {1, kInf, 1, 1, kInf, kInf, 1, 1, 1};

/// Operators of mezzo that the calling thread called, and the kernels launched outside these
/// operators. On a GPU, the operators launch few kernels.
class OperatorCount {
 public:
  OperatorCount()
      : handle_(
            at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}))) {
    current = this;
  }
  ~OperatorCount() {
    at::removeCallback(handle_);
    current = nullptr;
  }
  OperatorCount(const OperatorCount&) = delete;
  OperatorCount& operator=(const OperatorCount&) = delete;

  const std::map<std::string, int64_t>& operators() const { return operators_; }
  int64_t kernels_outside() const { return watch_.kernels() - inside_; }

 private:
  struct Call : at::ObserverContext {
    int64_t kernels_before = 0;
  };

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (std::string(function.name()).rfind("mezzo::", 0) != 0) {
      return nullptr;
    }
    ++current->operators_[function.name()];
    auto call = std::make_unique<Call>();
    call->kernels_before = current->watch_.kernels();
    return call;
  }
  static void end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
    if (const auto* call = dynamic_cast<Call*>(context)) {
      current->inside_ += current->watch_.kernels() - call->kernels_before;
    }
  }

  static inline thread_local OperatorCount* current = nullptr;
  at::CallbackHandle handle_;
  Watch watch_;
  std::map<std::string, int64_t> operators_;
  int64_t inside_ = 0;
};

class OptimizerDeviceTest : public DeviceTest {
 protected:
  static std::vector<NamedParameter> parameters_on(const std::vector<c10::Device>& devices) {
    std::vector<NamedParameter> parameters;
    at::manual_seed(4);
    for (const c10::Device where : devices) {
      parameters.push_back({std::to_string(parameters.size()), at::randn({5}).to(where).requires_grad_(), {}});
    }
    return parameters;
  }

  /// Gradients that backward would leave, in memory that is there already.
  static void set_gradients(const std::vector<NamedParameter>& parameters, const at::Tensor& scale, float factor) {
    for (const NamedParameter& parameter : parameters) {
      const at::NoGradGuard no_grad;
      parameter.tensor.mutable_grad() = parameter.tensor.detach() * factor * scale.to(parameter.tensor.device());
    }
  }
};

TEST_F(OptimizerDeviceTest, StepsByThreeOperatorsAlone) {
  const auto parameters = parameters_on({device, device, device});
  AdamW optimizer(parameters, AdamWOptions().lr(0.1).max_grad_norm(0.5));
  GradScaler scaler(GradScalerOptions().init_scale(65536));
  scaler.scale(at::ones({}, device));
  const auto lr = at::full({}, 0.1, at::TensorOptions(device).dtype(at::kDouble));
  optimizer.set_lr(lr);
  for (int step = 0; step < 2; ++step) {  // the first makes the optimizer's state
    set_gradients(parameters, scaler.scale_tensor(), 1);
    const OperatorCount count;
    scaler.step(optimizer);
    scaler.update();
    EXPECT_THAT(count.operators(), UnorderedElementsAre(Pair("mezzo::summarize_gradients", 1), Pair("mezzo::adam_", 1),
                                                        Pair("mezzo::update_loss_scale_", 1)));
    if (step > 0) {
      EXPECT_EQ(count.kernels_outside(), 0);
    }
  }
}

/// As a whole step is captured: skipped steps advance nothing, nobody waits, and the learning
/// rate has the bits that the host's schedule gives.
TEST_F(OptimizerDeviceTest, FollowsAScheduleThatLiesOnTheDevice) {
  const auto linear = get_schedule("linear", {.num_warmup_steps = 2, .num_training_steps = 6});
  const auto train = [&](c10::Device where, bool lr_on_device) {
    const auto parameters = parameters_on({where, where});
    AdamW optimizer({{{parameters[0]}, 0.01}, {{parameters[1]}, 0.0, 0.3}}, AdamWOptions().lr(0.1));
    GradScaler scaler(GradScalerOptions().init_scale(8));
    scaler.scale(at::ones({}, where));
    const auto lr = at::full({}, 0.1, at::TensorOptions(where).dtype(at::kDouble));
    if (lr_on_device) {
      optimizer.set_lr(lr);
    }
    LRScheduler scheduler = lr_on_device ? LRScheduler(lr, linear, /*num_steps=*/6) : LRScheduler(optimizer, linear);
    std::vector<at::Tensor> rates;
    const Watch watch;
    for (const float factor : kFactors) {
      set_gradients(parameters, scaler.scale_tensor(), factor);
      const auto result = scaler.step(optimizer);
      scaler.update();
      rates.push_back(lr_on_device ? lr.clone() : at::full({}, scheduler.get_last_lr().front(), at::kDouble));
      scheduler.step(result.found_inf());
    }
    if (lr_on_device) {
      EXPECT_THAT(watch.host_syncs(), IsEmpty());
      EXPECT_EQ(scheduler.steps(), 6);
    }
    std::vector<at::Tensor> outcome;
    for (const at::Tensor& rate : rates) {
      outcome.push_back(rate.cpu());
    }
    for (const NamedParameter& parameter : parameters) {
      outcome.push_back(parameter.tensor.detach().cpu());
    }
    return outcome;
  };
  for (const c10::Device where : {c10::Device(c10::kCPU), device}) {
    const auto there = train(where, true), here = train(where, false);
    for (size_t i = 0; i < there.size(); ++i) {
      EXPECT_TRUE(at::equal(there[i], here[i])) << i << " on " << where << "\n" << there[i] << here[i];
    }
  }
}

TEST_F(OptimizerDeviceTest, ReadsTheLearningRateWhereParametersAre) {
  const auto train = [&](const auto& make, bool is_tensor) {
    const auto parameters = parameters_on({device, other_device});
    auto optimizer = make(parameters);
    const auto lr = at::full({}, 0.25, at::TensorOptions(device).dtype(at::kDouble));
    if (is_tensor) {
      optimizer.set_lr(lr);
    }
    const Watch watch;
    for (const double rate : {0.25, 0.125, 1.0 / 3}) {
      optimizer.set_lr(rate);  // written to the tensor, if it is a tensor
      set_gradients(parameters, at::ones({}, device), 1);
      optimizer.step();
    }
    EXPECT_THAT(watch.host_syncs(), IsEmpty());
    return std::pair(parameters[0].tensor.detach().cpu(), parameters[1].tensor.detach().cpu());
  };
  const auto expect_same_bits = [&](const auto& make) {
    const auto a = train(make, true), b = train(make, false);
    EXPECT_TRUE(at::equal(a.first, b.first) && at::equal(a.second, b.second));
  };
  expect_same_bits([](const auto& parameters) { return AdamW(parameters); });
  expect_same_bits([](const auto& parameters) { return Adam(parameters); });
  expect_same_bits([](const auto& parameters) { return SGD(parameters, SGDOptions().momentum(0.9)); });
  expect_same_bits([](const auto& parameters) { return LAMB(parameters); });
}

TEST_F(OptimizerDeviceTest, RefusesALearningRateThatLiesElsewhere) {
  AdamW optimizer(parameters_on({device}));
  try {
    optimizer.set_lr(at::full({}, 0.1, at::kDouble));
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("is on cpu, but no parameter is there; move it to"));
  }
  const auto negative = at::full({}, -1.0, at::TensorOptions(device).dtype(at::kDouble));
  const Watch watch;
  EXPECT_NO_THROW(optimizer.set_lr(negative)) << "its value is not read";
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_EQ(optimizer.lr(), -1);
}

/// By the operators, which everybody may call: a kernel would read an address of the other device's.
TEST_F(OptimizerDeviceTest, OperatorsRefuseTensorsOfSeveralDevices) {
  const auto message_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  const auto here = [&](at::IntArrayRef sizes) { return at::ones(sizes, device); };
  const auto update = [&](const auto& change) {
    kernels::ParameterUpdates updates;
    for (int i = 0; i < 2; ++i) {
      updates.push_back({.param = here({4}),
                         .gradient = here({4}),
                         .half_copy = here({4}).to(at::kHalf),
                         .step = here({}),
                         .slots = {here({4}), here({4})},
                         .lr = 0.1,
                         .weight_decay = 0,
                         .index = 0,
                         .rounding_seed = {}});
    }
    change(updates[1]);
    return message_of([&] { kernels::adam(updates, {0.9, 0.999, 1e-8, /*amsgrad=*/false, /*decoupled=*/true}, {}); });
  };
  EXPECT_EQ(update([](auto&) {}), "");
  const auto expect_refusal = [&](const auto& change) {
    EXPECT_THAT(update(change), testing::HasSubstr("must all be on one device"));
  };
  expect_refusal([](auto& each) { each.gradient = at::ones({4}); });
  expect_refusal([](auto& each) { each.half_copy = at::ones({4}, at::kHalf); });
  expect_refusal([](auto& each) { each.step = at::ones({}); });
  expect_refusal([](auto& each) { each.slots[1] = at::ones({4}); });
  expect_refusal([&](auto& each) { each.param = at::ones({4}, other_device); });
  EXPECT_THAT(message_of([&] { kernels::summarize_gradients({here({2}), at::ones({2})}, {}, 1); }),
              testing::HasSubstr("must all be on one device"));
  EXPECT_THAT(message_of([&] { kernels::summarize_gradients({here({2})}, at::ones({}), 1); }),
              testing::HasSubstr("scale must be one float32 number"));
  EXPECT_THAT(message_of([&] { kernels::check_gradients({{at::ones({2})}, {}}, {here({}), false, false}); }),
              testing::HasSubstr("must all be on one device"));
  EXPECT_THAT(message_of([&] {
                kernels::unscale_gradients({{}, {here({2}).to(at::kHalf)}, {at::ones({2})}}, {here({}), false, false});
              }),
              testing::HasSubstr("must all be on one device"));
}

}  // namespace
}  // namespace mezzo::simulated
