#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/host_block.h"
#include "simulated/bert_training.h"
#include "simulated/device_test.h"
#include "simulated/gpu_kernels.h"

/// Whole training steps of BERT by the kernels for GPUs, on a device: forward and backward, loss
/// scaling, check and clipping of gradients, AdamW and half copies of weights.

namespace mezzo::simulated {
namespace {

using testing::IsEmpty;
using text::Precision;

struct Case {
  Precision precision;
  double init_scale;
  int64_t skipped;   ///< steps at the beginning whose gradients overflow
  double tolerance;  ///< of losses, norms and gradients
};

/// What three steps come to.
struct Trained {
  std::vector<double> losses, scales, found_infs, norms;
  std::vector<std::pair<std::string, at::Tensor>> gradients;  ///< of the first step
  std::vector<at::Tensor> start, weights, half_copies;
  std::vector<std::string> host_syncs;
};

at::Tensor on_cpu(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU, at::kFloat, false, /*copy=*/true); }

Trained train(const Case& of, c10::Device device) {
  auto config = bert_config(/*layers=*/3, /*hidden=*/32, /*heads=*/2, /*inner=*/48, /*words=*/50);
  config.set_dropout(0.2);
  config.max_position_embeddings = 48;
  BertTraining training(
      {.config = config, .precision = of.precision, .learning_rate = 1e-3, .init_scale = of.init_scale}, device);
  const auto batch = training.batch_of({5, 1, 36, 8, 3});  // 36: two passes of attention's backward
  Trained trained;
  for (const auto& parameter : training.parameters()) {
    trained.start.push_back(on_cpu(parameter.tensor));
  }
  std::vector<at::Tensor> losses, scales, found_infs, norms, gradients;
  const Watch watch;
  for (int step = 0; step < 3; ++step) {
    losses.push_back(training.backward(batch));
    if (step == 0) {
      for (const auto& parameter : training.parameters()) {
        gradients.push_back(parameter.tensor.grad().clone());
      }
    }
    found_infs.push_back(training.update().found_inf());
    norms.push_back(training.optimizer().grad_norm());
    scales.push_back(training.scaler().scale_tensor().clone());
    training.zero_grad();
  }
  trained.host_syncs = watch.host_syncs();
  for (size_t step = 0; step < losses.size(); ++step) {
    trained.losses.push_back(losses[step].item<double>());
    trained.scales.push_back(scales[step].item<double>());
    trained.found_infs.push_back(found_infs[step].item<double>());
    trained.norms.push_back(norms[step].item<double>());
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& parameter = training.parameters()[i];
    trained.gradients.emplace_back(parameter.name, on_cpu(gradients[i]) / of.init_scale);
    trained.weights.push_back(on_cpu(parameter.tensor));
    if (parameter.half_copy.defined()) {
      trained.half_copies.push_back(parameter.half_copy.cpu());
      EXPECT_TRUE(
          at::equal(trained.half_copies.back(), parameter.tensor.detach().cpu().to(parameter.half_copy.scalar_type())))
          << parameter.name;
    }
  }
  return trained;
}

/// It shifts all scores of a query by the same number, so its gradient is rounding error.
bool has_no_gradient(const std::string& parameter) { return parameter.ends_with("key.bias"); }

double distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).norm().item<double>(); }

class GpuTrainingTest : public DeviceTest, public testing::WithParamInterface<Case> {
 protected:
  const WithGpuKernels with_gpu_kernels;
};

TEST_P(GpuTrainingTest, GivesTheCpusNumbersAndWaitsForNothing) {
  const Case& of = GetParam();
  const int64_t before = kernels::MEZZO_CUDA::num_launches();
  const auto there = train(of, device), here = train(of, at::kCPU);
  EXPECT_GT(kernels::MEZZO_CUDA::num_launches() - before, 3 * 50) << "the kernels for GPUs have run";
  EXPECT_THAT(there.host_syncs, IsEmpty());
  EXPECT_EQ(there.scales, here.scales);
  EXPECT_EQ(there.found_infs, here.found_infs);
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(here.found_infs[step], static_cast<int64_t>(step) < of.skipped ? 1 : 0);
    EXPECT_NEAR(there.losses[step], here.losses[step], of.tolerance * here.losses[step]);
    if (here.found_infs[step] == 0) {
      EXPECT_NEAR(there.norms[step], here.norms[step], of.tolerance * here.norms[step]);
    }
  }
  for (size_t i = 0; i < here.gradients.size() && of.skipped == 0; ++i) {
    const auto& [name, right] = here.gradients[i];
    const double size = has_no_gradient(name) ? here.norms[0] : right.norm().item<double>();
    EXPECT_LE(distance(there.gradients[i].second, right), of.tolerance * size) << name;
  }
  EXPECT_EQ(there.half_copies.size(), here.half_copies.size());
  EXPECT_EQ(there.half_copies.empty(), of.precision == Precision::kFloat32);
  for (size_t i = 0; i < here.weights.size(); ++i) {
    // Adam divides by a gradient's size. If the gradient is near 0, rounding decides, and the
    // weight moves as far as any other.
    if (!has_no_gradient(here.gradients[i].first)) {
      const double moved = distance(here.weights[i], here.start[i]);
      EXPECT_LE(distance(there.weights[i], here.weights[i]), 5 * of.tolerance * moved) << here.gradients[i].first;
    }
  }
}

// In float32, some ten layers of sums of up to a hundred terms in another order. In the half types, a unit in
// the last place of a stored value, if such a sum rounds to the other side. In float16, tensor cores also round
// weights of attention and gradients of scores, a few units of 2^-11; the CPU does not.
INSTANTIATE_TEST_SUITE_P(All,
                         GpuTrainingTest,
                         testing::Values(Case{Precision::kFloat32, 1024, 0, 1e-5},
                                         Case{Precision::kBFloat16, 1024, 0, 1e-2},
                                         Case{Precision::kFloat16, 1024, 0, 4e-3},
                                         Case{Precision::kFloat16, 0x1p19, 1, 4e-3}));

}  // namespace
}  // namespace mezzo::simulated
