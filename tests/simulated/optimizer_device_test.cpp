#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"
#include "simulated/device_test.h"

/// What an optimizer's step reads, all of it on the device, and what it asks the device to do.

namespace mezzo::simulated {
namespace {

using testing::Pair;
using testing::UnorderedElementsAre;

/// Operators of mezzo that the calling thread called, and the kernels that were launched outside
/// of them: on a GPU, the former launch few of their own.
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

}  // namespace
}  // namespace mezzo::simulated
