#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "memory/recording_scope.h"
#include "mezzo/text/inference/inference.h"
#include "mezzo/text/models/bert_config.h"
#include "mezzo/text/models/modernbert_config.h"
#include "simulated/device_test.h"
#include "simulated/gpu_kernels.h"
#include "text/inference/recorded_forward.h"
#include "text/models/deberta_v2_config.h"

/// Prediction by graphs beside the same passes launched kernel by kernel, with the kernels for GPUs.

namespace mezzo::text {
namespace {

using simulated::Watch;

template <class Config>
Config small_config() {
  Config config;
  config.vocab_size = 40;
  config.hidden_size = 16;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.intermediate_size = 24;
  config.max_position_embeddings = 64;
  config.pad_token_id = 0;
  return config;
}

struct Case {
  std::string name;
  Precision precision = Precision::kFloat32;
  RowsPer rows = RowsPer::kText;
  bool has_pairs = false, has_windows = false;
  std::string family = "bert";
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {.name = "fp32"},
      {.name = "bf16", .precision = Precision::kBFloat16},
      {.name = "fp16", .precision = Precision::kFloat16},
      {.name = "pairs", .has_pairs = true},
      {.name = "windows", .has_windows = true},
      {.name = "words", .precision = Precision::kBFloat16, .rows = RowsPer::kToken},
      {.name = "deberta", .precision = Precision::kFloat16, .family = "deberta"},
      {.name = "modernbert", .family = "modernbert"},
      {.name = "modernbert_words", .rows = RowsPer::kToken, .family = "modernbert"},
  };
  return all;
}

std::shared_ptr<ModelForTask> model_of(const Case& how, c10::Device device) {
  const auto make = [&](auto config) {
    config.window_pooling = how.has_windows ? "mean" : "";
    auto model = make_model(config, {.num_outputs = 3, .rows = how.rows});
    model->init_weights(/*seed=*/4);
    model->to(device);
    if (const auto half = autocast_dtype(how.precision)) model->pack_weights(*half);
    return model;
  };
  if (how.family == "deberta") {
    auto config = small_config<DebertaV2Config>();
    config.relative_attention = true;
    config.pos_att_type = {"c2p", "p2c"};
    config.position_buckets = 6;
    return make(config);
  }
  if (how.family == "modernbert") {
    auto config = small_config<ModernBertConfig>();
    config.classifier_pooling = "mean";
    config.local_attention = 6;
    config.is_local = {false, true};
    return make(config);
  }
  return make(small_config<BertConfig>());
}

/// Of those lengths. In windows, each has its first five tokens in one, and the others in another.
TokenizedTexts texts_of(const Case& how, const std::vector<int32_t>& lengths) {
  TokenizedTexts texts;
  for (const int32_t length : lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length)), types(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>((7 * i + 3 * ids.size()) % 40);
      types[i] = i > 2 ? 1 : 0;
    }
    texts.ids.push_back(ids);
    if (how.has_pairs) texts.token_types.push_back(types);
    if (how.has_windows) texts.window_lengths.push_back(length > 5 ? std::vector{5, length - 5} : std::vector{length});
  }
  return texts;
}

/// Of four kinds; one comes up once.
const std::vector<std::vector<int32_t>>& requests() {
  static const std::vector<std::vector<int32_t>> all{{9},          {4, 12, 7}, {3},  {8, 8, 8, 8},
                                                     {20, 30, 13}, {6, 9, 2},  {11}, {5},
                                                     {7, 30, 13},  {40, 2},    {10}, {1, 30, 4, 2}};
  return all;
}

class PredictionDeviceTest : public simulated::DeviceTest {
 protected:
  std::vector<at::Tensor> predict(const Case& how, RecordedForward* recorded, ModelForTask& model) const {
    std::vector<at::Tensor> outputs;
    for (const auto& lengths : requests()) {
      outputs.push_back(predict_outputs(model, texts_of(how, lengths), how.precision, {}, {}, recorded));
    }
    return outputs;
  }

  const simulated::WithGpuKernels gpu;
};

TEST_F(PredictionDeviceTest, GraphsGiveTheBitsOfEagerPasses) {
  for (const Case& how : cases()) {
    SCOPED_TRACE(how.name);
    const auto model = model_of(how, device), on_cpu = model_of(how, at::kCPU);
    const auto options = GraphedStepOptions().warmup_steps(2);
    RecordedForward eager(*model, how.precision, GraphedStepOptions(options).enabled(false)),
        recorded(*model, how.precision, options);
    const auto expected = predict(how, &eager, *model), found = predict(how, &recorded, *model),
               cpus = predict(how, nullptr, *on_cpu);
    EXPECT_EQ(eager.counts().replayed, 0);
    EXPECT_GE(recorded.counts().recorded, 2);
    EXPECT_GE(recorded.counts().replayed, 3);
    EXPECT_GT(recorded.counts().eager, 2 * recorded.counts().recorded) << "a kind that is rare has no graph";
    const double tolerance = how.precision == Precision::kFloat32 ? 1e-5 : 2e-2;  // half types round every product
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
      EXPECT_TRUE(at::allclose(found[i], cpus[i], tolerance, tolerance)) << i << found[i] << cpus[i];
    }
  }
}

TEST_F(PredictionDeviceTest, WaitsOnceABatch) {
  const Case how;
  const auto model = model_of(how, device);
  RecordedForward recorded(*model, how.precision, GraphedStepOptions().warmup_steps(1));
  const Watch watch;
  predict(how, &recorded, *model);
  EXPECT_THAT(watch.host_syncs(), testing::SizeIs(requests().size()));
}

TEST_F(PredictionDeviceTest, KeepsNoMoreGraphsThanItMay) {
  const Case how;
  const auto model = model_of(how, device);
  RecordedForward recorded(*model, how.precision, RecordedForward::usual_options().warmup_steps(1).max_graphs(2));
  testing::internal::CaptureStderr();
  predict(how, &recorded, *model);
  predict(how, &recorded, *model);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "users of the program can change no max_graphs";
  EXPECT_GT(recorded.counts().recorded, 2);
  EXPECT_EQ(recorded.counts().recorded - recorded.counts().dropped, 2);
}

/// As a server that loads models anew: one thread records while another replays. Each model is one thread's.
TEST_F(PredictionDeviceTest, ModelsOnSeveralThreadsDoNotDisturbEachOther) {
  const Case how{.name = "", .precision = Precision::kFloat16};
  const auto expected = [&] {
    const auto model = model_of(how, device);
    RecordedForward eager(*model, how.precision, GraphedStepOptions().enabled(false));
    return predict(how, &eager, *model);
  }();
  std::vector<std::vector<at::Tensor>> found(3);
  std::vector<int64_t> replayed(found.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto model = model_of(how, device);
      RecordedForward recorded(*model, how.precision, GraphedStepOptions().warmup_steps(static_cast<int64_t>(1 + i)));
      for (int turn = 0; turn < 3; ++turn) {
        const auto outputs = predict(how, &recorded, *model);
        found[i].insert(found[i].end(), outputs.begin(), outputs.end());
      }
      replayed[i] = recorded.counts().replayed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_GT(replayed[i], 8);
    for (size_t j = 0; j < found[i].size(); ++j) {
      EXPECT_TRUE(at::equal(found[i][j], expected[j % expected.size()])) << i << ", " << j;
    }
  }
}

/// A model that has no memory left while it is recorded.
class Unrecordable : public ModelForTask {
 public:
  explicit Unrecordable(std::shared_ptr<ModelForTask> model)
      : ModelForTask(model->head()), model_(register_module("model", std::move(model))) {}
  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random) override {
    TORCH_CHECK_WITH(OutOfMemoryError, !RecordingScope::is_open(), "no memory is left");
    return model_->forward(batch, random);
  }
  std::string add_to(const GraphTexts& texts) const override { return model_->add_to(texts); }
  const ModelConfig& config() const override { return model_->config(); }
  std::string_view base_model_prefix() const override { return model_->base_model_prefix(); }
  Encoder& encoder() override { return model_->encoder(); }
  const Encoder& encoder() const override { return model_->encoder(); }

 private:
  std::shared_ptr<ModelForTask> model_;
};

TEST_F(PredictionDeviceTest, GoesOnWithoutGraphsIfMemoryRunsOutForThem) {
  const Case how;
  Unrecordable model(model_of(how, device));
  RecordedForward eager(model, how.precision, GraphedStepOptions().enabled(false)),
      recorded(model, how.precision, GraphedStepOptions().warmup_steps(1));
  const auto expected = predict(how, &eager, model);
  testing::internal::CaptureStderr();
  const auto found = predict(how, &recorded, model);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("prediction launches each kernel by itself from now on: no memory is left"));
  EXPECT_EQ(recorded.counts().recorded, 0);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

}  // namespace
}  // namespace mezzo::text
