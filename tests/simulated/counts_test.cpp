#include "simulated/counts.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "encoder/dropout.h"
#include "kernels/cuda/launchers.h"
#include "simulated/bert_training.h"
#include "simulated/device_test.h"
#include "simulated/gpu_kernels.h"

namespace mezzo::simulated {
namespace {

namespace gpu = kernels::MEZZO_CUDA;

class CountsTest : public DeviceTest {
 protected:
  const WithGpuKernels with_gpu_kernels;
};

TEST_F(CountsTest, OperatorsCountOnceAndViewsNever) {
  const auto a = at::ones({4, 6}, device), table = at::ones({100, 6}, device), rows = at::tensor({7, 8, 9}).to(device);
  LaunchLog log;
  const auto b = a.t().unsqueeze(0).select(0, 0).view({6, 4});
  EXPECT_TRUE(log.take().empty());
  const auto c = at::mm(a, b);
  c.add_(1);
  table.index_select(0, rows);
  const auto launches = log.take();
  ASSERT_EQ(launches.size(), 3);
  EXPECT_EQ(launches[0].name, "aten::mm");
  EXPECT_EQ(launches[0].kind, LaunchCount::Kind::kAten);
  EXPECT_EQ(launches[0].traffic.bytes_read, 2 * 24 * 4);
  EXPECT_EQ(launches[0].traffic.bytes_written, 16 * 4);
  EXPECT_EQ(launches[0].traffic.flop, 2 * 4 * 6 * 4);
  EXPECT_EQ(launches[1].traffic.bytes_read, 16 * 4);
  EXPECT_EQ(launches[1].traffic.bytes_written, 16 * 4);
  EXPECT_EQ(launches[2].traffic.bytes_read, 3 * 6 * 4 + 3 * 4) << "the rows that were chosen, and their numbers";
  at::zeros({5}, device);
  a.cpu();
  const auto others = log.take();
  ASSERT_EQ(others.size(), 2);
  EXPECT_EQ(others[0].traffic.bytes_read, 0);
  EXPECT_EQ(others[0].traffic.bytes_written, 5 * 4);
  EXPECT_EQ(others[1].kind, LaunchCount::Kind::kCopy);
}

TEST_F(CountsTest, KernelsCountWhatTheySayThatTheyMove) {
  const auto x = at::ones({1000}, at::device(device).dtype(at::kHalf));
  LaunchLog log;
  encoder::dropout(x, {0.5, {}});
  const auto launches = log.take();
  ASSERT_EQ(launches.size(), 1);
  EXPECT_EQ(launches[0].name, "DropoutKernel");
  EXPECT_EQ(launches[0].kind, LaunchCount::Kind::kMezzo);
  EXPECT_EQ(launches[0].traffic.bytes_read, 2000);
  EXPECT_EQ(launches[0].traffic.bytes_written, 2000);
}

/// Launches of a training step by name; of those the host lets it do, copies of the batch included.
using Launches = std::map<std::string, int64_t>;

Launches launches_of(c10::Device device, int64_t layers) {
  auto config = bert_config(layers, /*hidden=*/32, /*heads=*/2, /*inner=*/48, /*words=*/50);
  config.max_position_embeddings = 48;
  BertTraining training({.config = config, .precision = text::Precision::kFloat16}, device);
  const auto batch = training.batch_of({5, 1, 30, 8, 3});  // none so long that attention's backward takes two passes
  const auto step = [&] {
    training.backward(batch);
    training.update();
    training.zero_grad();
  };
  step();  // makes the moments
  LaunchLog log;
  step();
  Launches launches;
  for (const LaunchCount& launch : log.take()) {
    ++launches[launch.name];
  }
  return launches;
}

/// Every launch of a step of BERT in float16, with GradScaler, clipping, AdamW and half copies of
/// weights: this table is the one place that knows how many there are. The last layer computes
/// queries of first tokens alone, so a part of the launches is fixed.
struct Count {
  int64_t fixed, per_layer;
};
const std::map<std::string, Count> kCounts = {
    // mezzo's
    {"AddRows", {2, 0}},
    {"AddToRows", {1, 0}},
    {"Attention", {0, 1}},
    {"AttentionBackward", {0, 1}},
    {"Backward", {0, 1}},
    {"CrossEntropyBackward", {1, 0}},
    {"CrossEntropyForward", {1, 0}},
    {"CrossEntropyTotal", {1, 0}},
    {"DropoutKernel", {2, 0}},
    {"EmbeddingNorm", {1, 0}},
    {"Forward", {0, 1}},
    {"NormBackward", {1, 2}},
    {"ResidualNorm", {0, 2}},
    {"SortFew", {2, 0}},
    {"SumColumns", {1, 4}},
    {"Summarize", {1, 0}},
    {"UpdateLossScale", {1, 0}},
    // LibTorch's
    {"aten::add.Tensor", {1, 0}},
    {"aten::addmm", {2, 0}},
    {"aten::addmm.dtype_out", {0, 2}},
    {"aten::div.Tensor", {2, 0}},
    {"aten::fill_.Scalar", {1, 0}},
    {"aten::index_select", {3, 0}},
    {"aten::mm", {5, 6}},
    {"aten::mm.dtype", {2, 4}},
    {"aten::mul.Tensor", {2, 0}},
    {"aten::sum.dim_IntList", {3, 0}},
    {"aten::tanh", {1, 0}},
    {"aten::tanh_backward", {1, 0}},
    {"aten::zero_", {4, 0}},
    {"copy_", {13, 0}},
    {"copy_ from the CPU", {4, 0}},
};

/// While it lives, kernels are counted and do nothing.
struct CountingAlone {
  CountingAlone() { set_computes(false); }
  ~CountingAlone() { set_computes(true); }
};

TEST_F(CountsTest, AStepHasSoManyLaunches) {
  const CountingAlone counting_alone;
  for (const int64_t layers : {2, 3, 6}) {
    Launches expected;
    for (const auto& [name, count] : kCounts) {
      expected[name] = count.fixed + count.per_layer * layers;
    }
    // By lists of parameters, of which a layer has 16, and embeddings, pooler and classifier 9.
    const int64_t parameters = 9 + 16 * layers;
    expected["SumSquares"] = gpu::ceil_div(parameters, gpu::GradientList::kMost);
    expected["PrepareUpdate"] = expected["Adam"] =
        gpu::ceil_div(parameters, gpu::ParameterList<kernels::AdamSettings>::kMost);
    auto launches = launches_of(device, layers);
    for (const auto& [name, count] : expected) {
      EXPECT_EQ(launches[name], count) << name << " of " << layers << " layers";
    }
    for (const auto& [name, count] : launches) {
      EXPECT_TRUE(expected.contains(name)) << count << " of " << name << " in " << layers << " layers";
    }
  }
  synchronize();
}

TEST_F(CountsTest, WhoeverCountsAloneIsGivenTheSameLaunches) {
  const auto executed = launches_of(device, 2);
  synchronize();
  const CountingAlone counting_alone;
  EXPECT_EQ(launches_of(device, 2), executed);
  synchronize();
}

/// 32 texts of 8 to 32 tokens, 640 together.
std::vector<int64_t> short_texts() {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 16; ++i) {
    lengths.insert(lengths.end(), {20 - i % 13, 20 + i % 13});
  }
  return lengths;
}

/// Lower these numbers when a change lowers them.
TEST_F(CountsTest, AStepOfBertBaseMovesNoMoreThanItDid) {
  const CountingAlone counting_alone;
  BertTraining training({.config = bert_config(/*layers=*/12, /*hidden=*/768, /*heads=*/12, /*inner=*/3072, 21128),
                         .precision = text::Precision::kBFloat16,
                         .scales_loss = false},
                        device);
  const auto batch = training.batch_of(short_texts());
  const auto step = [&] {
    training.backward(batch);
    training.update();
    training.zero_grad();
  };
  step();  // makes the moments
  LaunchLog log;
  step();
  std::map<LaunchCount::Kind, int64_t> launches;
  int64_t bytes = 0;
  double flop = 0;
  for (const LaunchCount& launch : log.take()) {
    ++launches[launch.kind];
    bytes += launch.traffic.bytes_read + launch.traffic.bytes_written;
    flop += launch.traffic.flop;
  }
  EXPECT_LE(launches[LaunchCount::Kind::kMezzo], 161);
  EXPECT_LE(launches[LaunchCount::Kind::kAten], 182);
  EXPECT_LE(launches[LaunchCount::Kind::kCopy], 4);
  EXPECT_LE(bytes, 5'599'608'852);
  EXPECT_EQ(flop, 304'746'430'464) << "of matrix products";
  synchronize();
}

}  // namespace
}  // namespace mezzo::simulated
