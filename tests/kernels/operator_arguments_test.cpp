#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

/// What everybody can hand to mezzo's operators, by torch.ops.mezzo or by the dispatcher: arguments that do not fit are
/// refused before a kernel reads or writes past their end.

namespace mezzo::kernels {
namespace {

using testing::HasSubstr;

/// Empty if the call went well.
std::string error_of_call(const char* op, std::vector<c10::IValue> arguments) {
  try {
    c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(&arguments);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// An update of two parameters by mezzo::adam_.
struct AdamCall {
  c10::List<at::Tensor> params{std::vector{at::ones({4}), at::ones({3})}};
  c10::List<at::Tensor> gradients{std::vector{at::ones({4}), at::ones({3})}};
  c10::List<std::optional<at::Tensor>> half_copies{std::vector<std::optional<at::Tensor>>(2)};
  c10::List<at::Tensor> steps{std::vector{at::zeros({}), at::zeros({})}};
  c10::List<at::Tensor> slots{std::vector{at::zeros({4}), at::zeros({3}), at::zeros({4}), at::zeros({3})}};

  std::string error() const {
    return error_of_call("mezzo::adam_",
                         {params, gradients, half_copies, steps, slots, std::vector{0.1, 0.1}, std::vector{0.0, 0.0},
                          std::vector<int64_t>{0, 1}, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(),
                          c10::IValue(), 0.9, 0.999, 1e-8, false, true, false});
  }
};

TEST(OperatorArgumentsTest, AnUpdateTakesOneStepCountOfEachParameter) {
  EXPECT_EQ(AdamCall().error(), "");
  for (const int64_t count : {0, 2}) {
    AdamCall call;
    call.steps[1] = at::zeros({count});
    EXPECT_THAT(call.error(), HasSubstr("the step of parameter 1 must be one number, got [" + std::to_string(count)));
    EXPECT_TRUE(at::equal(call.params.get(0), at::ones({4}))) << "nothing was updated";
  }
}

TEST(OperatorArgumentsTest, ASummaryTakesGradientsAndOneScale) {
  const auto error = [](const std::vector<at::Tensor>& gradients, const c10::IValue& scale) {
    return error_of_call("mezzo::summarize_gradients", {gradients, scale, 1.0});
  };
  EXPECT_EQ(error({at::ones({2})}, at::ones({})), "");
  EXPECT_THAT(error({}, at::ones({})), HasSubstr("needs at least one gradient"));
  EXPECT_THAT(error({at::ones({2})}, at::ones({0})), HasSubstr("scale must be one float32 number"));
  EXPECT_THAT(error({at::ones({2})}, at::ones({}, at::kDouble)), HasSubstr("scale must be one float32 number"));
}

TEST(OperatorArgumentsTest, UnscalingTakesTensorsThatFit) {
  const auto error = [](const std::vector<at::Tensor>& halves, const std::vector<at::Tensor>& into,
                        const at::Tensor& scale) {
    return error_of_call("mezzo::unscale_gradients_",
                         {std::vector{at::ones({2})}, halves, into, scale, /*may_be_below_one=*/false,
                          /*reproduce_pytorch=*/false});
  };
  const std::vector<at::Tensor> halves{at::ones({4}, at::kHalf)};
  EXPECT_EQ(error(halves, {at::ones({4})}, at::ones({})), "");
  EXPECT_THAT(error(halves, {at::ones({2})}, at::ones({})), HasSubstr("of sizes [4] cannot be unscaled into"));
  EXPECT_THAT(error(halves, {at::ones({4}, at::kHalf)}, at::ones({})), HasSubstr("cannot be unscaled into"));
  EXPECT_THAT(error(halves, {at::ones({4})}, at::ones({0})), HasSubstr("scale must be one float32 number"));
  EXPECT_THAT(error_of_call("mezzo::check_gradients",
                            {std::vector{at::ones({2})}, std::vector<at::Tensor>{}, at::ones({0}), false, false}),
              HasSubstr("scale must be one float32 number"));
}

}  // namespace
}  // namespace mezzo::kernels
