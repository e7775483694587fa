#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/text/inference/classifier.h"
#include "mezzo/text/inference/inference.h"
#include "mezzo/text/io/safetensors.h"
#include "mezzo/text/models/bert_config.h"
#include "mezzo/text/tasks/single_label_classification.h"
#include "mezzo/text/train/trainer.h"
#include "simulated/device_ranks.h"
#include "simulated/device_test.h"
#include "simulated/gpu_kernels.h"
#include "text/models/deberta_v2_config.h"
#include "text/scratch_folder.h"
#include "text/train/gradient_accumulation.h"
#include "text/train/recorded_steps.h"
#include "text/train/run_plan.h"
#include "text/train/step_queue.h"
#include "text/train/training_model.h"

namespace mezzo::text {
namespace {

using simulated::Watch;
using testing::IsEmpty;
using testing::SizeIs;

/// The trainer's steps on an accelerator.
class TrainingStepTest : public simulated::DeviceTest {
 protected:
  static TrainConfig config_of(const std::string& precision, bool master_weights, double dropout) {
    TrainConfig config;
    config.precision = precision;
    config.master_weights = master_weights;
    config.batch_size = 3;
    config.shares = 1;
    config.grad_accumulation = 2;
    config.max_grad_norm = 1;
    config.learning_rate = 1e-3;
    config.loss_scale = "dynamic:256";
    config.dropout = dropout;
    return config;
  }

  template <class Config = BertConfig>
  static Config small_model() {
    Config config;
    config.vocab_size = 40;
    config.hidden_size = 16;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 2;
    config.intermediate_size = 32;
    config.max_position_embeddings = 16;
    return config;
  }

  /// How much work each stream was given so far, and how many were given some since.
  static std::vector<simulated::Ticket> work_of_streams() {
    std::vector<simulated::Ticket> work;
    for (const simulated::Queue* queue : simulated::Queue::all()) {
      work.push_back(queue->last());
    }
    return work;
  }
  static int64_t streams_since(std::vector<simulated::Ticket> before) {
    const auto now = work_of_streams();
    before.resize(now.size());
    int64_t count = 0;
    for (size_t i = 0; i < now.size(); ++i) {
      count += now[i] > before[i] ? 1 : 0;
    }
    return count;
  }

  static DebertaV2Config small_deberta() {
    auto config = small_model<DebertaV2Config>();
    config.relative_attention = true;
    config.pos_att_type = {"c2p", "p2c"};
    config.position_buckets = 6;
    return config;
  }

  template <class Config = BertConfig>
  static RunSetup setup_on(c10::Device where,
                           Precision precision,
                           double dropout = 0,
                           Config config = small_model<BertConfig>()) {
    config.set_dropout(dropout);
    LabeledRows rows;
    TokenizedTexts texts;
    for (int32_t i = 0; i < 6; ++i) {
      rows.texts.push_back("text");
      rows.labels.emplace_back(std::to_string(i % 3));
      std::vector<int32_t> ids{1, 2 + i, 9 + 2 * i, 3};
      ids.resize(static_cast<size_t>(4 + i), 5 + i);
      texts.ids.push_back(ids);
    }
    auto task = std::make_shared<SingleLabelClassification>(LabelMap::from_rows(rows));
    texts.targets = task->targets(rows);
    auto model = make_model(config, task->head());
    model->init_weights(9);
    if (!where.is_cpu()) {
      simulated::move_to(*model, where);
    }
    return {where, precision, nullptr, task, texts, {}, {}, model, {}};
  }

  struct Trained {
    std::vector<float> losses;
    std::vector<std::pair<std::string, at::Tensor>> weights;
    std::vector<std::string> host_syncs;
  };

  /// Three steps of two micro-batches each, whose results are read at the end.
  static Trained train(const TrainConfig& config, c10::Device where) {
    const auto setup = setup_on(where, parse_precision(config.precision, where), *config.dropout);
    const Ranks ranks(nullptr);
    const auto plan = plan_run(config, 6, ranks);
    TrainingModel model(config, setup, ranks, nullptr);
    GradientAccumulation accumulation(config, setup, plan, model);
    GradScaler scaler(scaler_options(config, setup.precision));
    setup.model->set_gradient_checkpointing(config.gradient_checkpointing);
    setup.model->train();
    std::vector<at::Tensor> losses;
    const Watch watch;
    for (int64_t step = 0; step < 3; ++step) {
      const auto batches = accumulation.collate(plan.micro_batches(setup.train, step), plan.samples(setup.train, step));
      losses.push_back(accumulation.run(batches, [&](const at::Tensor& share) { return scaler.scale(share); }));
      if (scaler.is_enabled()) {
        scaler.step(model.optimizer());
        scaler.update();
      } else {
        model.optimizer().step(nullptr);
      }
      model.zero_grad();
    }
    Trained trained{{}, {}, watch.host_syncs()};
    for (const at::Tensor& loss : losses) {
      trained.losses.push_back(loss.item<float>());
    }
    for (const auto& [name, weight] : model.kept_weights()) {
      trained.weights.emplace_back(name, weight.to(at::kCPU, at::kFloat));
    }
    return trained;
  }
};

TEST_F(TrainingStepTest, WaitsForNothingAndGivesTheCpusNumbers) {
  for (const auto& [precision, masters, dropout] :
       {std::tuple("fp32", false, 0.0), {"fp32", false, 0.2}, {"fp16", false, 0.2}, {"bf16", true, 0.2}}) {
    SCOPED_TRACE(testing::Message() << precision << ", dropout " << dropout);
    auto config = config_of(precision, masters, dropout);
    config.gradient_checkpointing = masters;
    const auto there = train(config, device), here = train(config_of("fp32", false, dropout), at::kCPU);
    EXPECT_THAT(there.host_syncs, IsEmpty());
    const bool is_half = config.precision != "fp32";  // which rounds every product
    for (size_t i = 0; i < here.losses.size(); ++i) {
      EXPECT_NEAR(there.losses[i], here.losses[i], is_half ? 2e-2f : 1e-5f);
    }
    // A step of AdamW moves a weight by at most the learning rate, in a direction that depends on a
    // sign. The sign may come from rounding alone.
    const float tolerance = is_half ? 6e-3f : 2e-4f;
    for (size_t i = 0; i < here.weights.size(); ++i) {
      const auto& [name, weight] = here.weights[i];
      const bool is_rounding = name.ends_with("key.bias");  // whose gradient is 0
      EXPECT_LE((there.weights[i].second - weight).abs().max().item<float>(), is_rounding ? 6e-3f : tolerance) << name;
    }
  }
}

TEST_F(TrainingStepTest, InferenceWaitsOnceABatch) {
  const auto there = setup_on(device, Precision::kFloat32), here = setup_on(at::kCPU, Precision::kFloat32);
  const Watch watch;
  const auto outputs = predict_outputs(*there.model, there.train, Precision::kFloat32);
  EXPECT_THAT(watch.host_syncs(), SizeIs(1));
  EXPECT_TRUE(at::allclose(outputs, predict_outputs(*here.model, here.train, Precision::kFloat32), 1e-4, 1e-5));
}

/// What RecordedSteps are made of, and a step's loss.
TEST_F(TrainingStepTest, RecordedStepsGiveTheBitsOfEagerOnes) {
  const simulated::WithGpuKernels gpu;
  int64_t most_streams = 0;
  for (const auto& [precision, masters, checkpoints, is_deberta] : {std::tuple("fp32", false, true, false),
                                                                    {"fp16", false, false, false},
                                                                    {"bf16", true, false, false},
                                                                    {"fp32", false, true, true},
                                                                    {"fp16", false, false, true}}) {
    SCOPED_TRACE(testing::Message() << precision << (is_deberta ? ", DeBERTa" : ""));
    std::vector<std::vector<float>> losses;
    std::vector<std::vector<std::pair<std::string, at::Tensor>>> weights;
    for (const bool eager : {true, false}) {
      auto config = config_of(precision, masters, 0.2);
      config.eager = eager;
      config.gradient_checkpointing = checkpoints;
      const auto in = parse_precision(precision, device);
      const auto setup = is_deberta ? setup_on(device, in, 0.2, small_deberta()) : setup_on(device, in, 0.2);
      const Ranks ranks(nullptr);
      const auto plan = plan_run(config, 6, ranks);
      TrainingModel model(config, setup, ranks, nullptr);
      GradientAccumulation accumulation(config, setup, plan, model);
      GradScaler scaler(scaler_options(config, setup.precision));
      setup.model->set_gradient_checkpointing(checkpoints);
      setup.model->train();
      RecordedSteps recorded(config, setup, plan, [&](const StepBatches& batches) {
        const auto loss = accumulation.run(batches, [&](const at::Tensor& share) { return scaler.scale(share); });
        scaler.is_enabled() ? void(scaler.step(model.optimizer())) : void(model.optimizer().step(nullptr));
        scaler.update();
        model.zero_grad();
        return loss;
      });
      losses.emplace_back();
      std::vector<at::Tensor> on_device;
      const auto work_before = work_of_streams();
      const Watch watch;
      for (int64_t step = 0; step < 5; ++step) {
        const auto batches =
            accumulation.collate(plan.micro_batches(setup.train, step), plan.samples(setup.train, step));
        ASSERT_TRUE(recorded.take(batches));
        on_device.push_back(recorded.run(batches, /*eagerly=*/step == 3).clone());
      }
      EXPECT_THAT(watch.host_syncs(), IsEmpty());
      most_streams = std::max(most_streams, streams_since(work_before));
      EXPECT_EQ(recorded.counts().replayed, eager ? 0 : 3) << "of one kind, which warms up in the first";
      for (const at::Tensor& loss : on_device) {
        losses.back().push_back(loss.item<float>());
      }
      weights.push_back(model.kept_weights());
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_NE(losses[0][3], losses[0][4]) << "other masks, other weights";
    for (size_t i = 0; i < weights[0].size(); ++i) {
      EXPECT_TRUE(at::equal(weights[0][i].second, weights[1][i].second)) << weights[0][i].first;
    }
  }
  EXPECT_GE(most_streams, 3) << "the caller's, the step's, and one for weights' gradients beside it, unless the few "
                                "streams of the simulated devices' pool gave that of the step again";
}

TEST_F(TrainingStepTest, StepsAreRecordedWhereTheModelTakesUnknownLengths) {
  const auto takes = [&](const RunSetup& setup) {
    const auto config = config_of("fp32", false, 0);
    const Ranks ranks(nullptr);
    const auto plan = plan_run(config, 6, ranks);
    TrainingModel model(config, setup, ranks, nullptr);
    const GradientAccumulation accumulation(config, setup, plan, model);
    const RecordedSteps recorded(config, setup, plan, [](const StepBatches&) { return at::Tensor(); });
    return recorded.take(accumulation.collate(plan.micro_batches(setup.train, 0), 6));
  };
  const auto bert_on = [](c10::Device where) { return setup_on(where, Precision::kFloat32); };
  const auto deberta_on = [](c10::Device where) { return setup_on(where, Precision::kFloat32, 0, small_deberta()); };
  EXPECT_FALSE(takes(bert_on(device))) << "in single operations";
  EXPECT_FALSE(takes(deberta_on(device)));
  const simulated::WithGpuKernels gpu;
  EXPECT_TRUE(takes(bert_on(device)));
  EXPECT_TRUE(takes(deberta_on(device)));
  EXPECT_FALSE(takes(bert_on(at::kCPU)));
}

/// Whole runs, as the program makes them: in single operations, or with the kernels for GPUs, by
/// which steps are recorded into graphs.
class TrainingRunTest : public simulated::DeviceTest, public testing::WithParamInterface<bool> {
 protected:
  TrainingRunTest() {
    if (GetParam()) {
      gpu_kernels.emplace();
    }
    folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\n");
    folder.write("config.json",
                 R"({"model_type": "bert", "vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 2,
                     "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16})");
    std::string rows;
    for (int i = 0; i < 40; ++i) {
      const std::string word(1, static_cast<char>('a' + i % 5));
      rows += R"({"text": ")" + word + (i % 3 == 0 ? " b c" : " e") + R"(", "label": )" + std::to_string(i % 2) + "}\n";
    }
    folder.write("train.jsonl", rows);
  }

  TrainConfig config_of(const std::string& device_name, const std::string& output) const {
    TrainConfig config;
    config.model_config = folder / "config.json";
    config.vocab = folder / "vocab.txt";
    config.train = {folder / "train.jsonl"};
    config.output = folder / output;
    config.dev_ratio = 0.2;
    config.device = device_name;
    config.precision = "fp32";
    config.batch_size = 4;
    config.max_length = 16;
    config.max_steps = 10;
    config.eval_every = StepInterval::steps(4);
    config.learning_rate = 1e-2;
    config.schedule = "linear";
    config.max_grad_norm = 1;
    config.quiet = true;
    return config;
  }

  std::vector<nlohmann::json> steps_of(const TrainConfig& config) const {
    std::vector<nlohmann::json> steps;
    std::ifstream lines(config.output / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      if (auto record = nlohmann::json::parse(line); record["event"] == "step") {
        steps.push_back(std::move(record));
      }
    }
    return steps;
  }

  std::optional<simulated::WithGpuKernels> gpu_kernels;
  const ScratchFolder folder;
};

INSTANTIATE_TEST_SUITE_P(All, TrainingRunTest, testing::Bool(), [](const testing::TestParamInfo<bool>& has_kernels) {
  return has_kernels.param ? "WithGpuKernels" : "InSingleOperations";
});

TEST_P(TrainingRunTest, GivesTheCpusNumbers) {
  for (const std::string precision : {"fp32", "fp16"}) {
    SCOPED_TRACE(precision);
    auto there = config_of("simulated", precision + " there"), here = config_of("cpu", precision + " here");
    there.precision = here.precision = precision;
    there.loss_scale = here.loss_scale = "dynamic:67108864";  // the first gradients overflow
    train(there, [] { return false; });
    train(here, [] { return false; });
    const auto mine = steps_of(there), cpus = steps_of(here);
    ASSERT_THAT(mine, SizeIs(10));
    ASSERT_THAT(cpus, SizeIs(10));
    EXPECT_EQ(cpus.front()["skipped"], precision == "fp16");
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_NEAR(mine[i]["loss"].get<double>(), cpus[i]["loss"].get<double>(), precision == "fp16" ? 2e-2 : 1e-4);
      for (const char* name : {"step", "lr", "skipped", "loss_scale", "samples", "tokens"}) {
        EXPECT_EQ(mine[i][name], cpus[i][name]) << name << " of step " << i + 1;
      }
    }
  }
}

TEST_P(TrainingRunTest, GivesTheCpusNumbersOfEveryModelFamily) {
  const std::vector<std::string> families = {
      R"({"model_type": "roberta", "vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 32, "max_position_embeddings": 17, "pad_token_id": 0, "type_vocab_size": 1})",
      R"({"model_type": "distilbert", "vocab_size": 10, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32,
          "max_position_embeddings": 16})",
      R"({"model_type": "electra", "vocab_size": 10, "embedding_size": 12, "hidden_size": 16, "num_hidden_layers": 2,
          "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16})",
      R"({"model_type": "deberta-v2", "vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 2,
          "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16, "relative_attention": true,
          "pos_att_type": ["c2p", "p2c"], "position_buckets": 6, "norm_rel_ebd": "layer_norm", "share_att_key": true})",
      R"({"model_type": "modernbert", "vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 3,
          "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 32, "local_attention": 4,
          "global_attn_every_n_layers": 2, "pad_token_id": 0, "attention_dropout": 0.1, "mlp_dropout": 0.1})"};
  for (size_t i = 0; i < families.size(); ++i) {
    SCOPED_TRACE(families[i]);
    folder.write("config.json", families[i]);
    const auto there = config_of("simulated", std::to_string(i) + " there");
    const auto here = config_of("cpu", std::to_string(i) + " here");
    train(there, [] { return false; });
    train(here, [] { return false; });
    const auto mine = steps_of(there), cpus = steps_of(here);
    ASSERT_THAT(mine, SizeIs(10));
    ASSERT_THAT(cpus, SizeIs(10));
    for (size_t step = 0; step < mine.size(); ++step) {
      EXPECT_NEAR(mine[step]["loss"].get<double>(), cpus[step]["loss"].get<double>(), 1e-4) << step;
    }
  }
}

TEST_P(TrainingRunTest, AveragesWeightsAsOnTheCpu) {
  auto there = config_of("simulated", "there"), here = config_of("cpu", "here");
  for (TrainConfig* config : {&there, &here}) {
    config->ema_decay = 0.999;
    config->dev_ratio = 0;
    train(*config, [] { return false; });
  }
  const SafetensorsReader mine(there.output / "model.safetensors"), cpus(here.output / "model.safetensors");
  double apart = 0, size = 0;
  for (const std::string& name : cpus.names()) {
    apart += (mine.tensor(name) - cpus.tensor(name)).square().sum().item<double>();
    size += cpus.tensor(name).square().sum().item<double>();
  }
  EXPECT_LT(apart, 1e-4 * size) << "Adam moves a weight either way where its gradient is rounding noise";
}

TEST_P(TrainingRunTest, WaitsOnceAStep) {
  const auto waits_of = [&](int64_t steps) {
    auto config = config_of("simulated", std::to_string(steps) + " steps");
    config.precision = "fp16";
    config.dev_ratio = 0;
    config.max_steps = steps;
    const Watch watch;
    train(config, [] { return false; });
    return watch.host_syncs().size();
  };
  EXPECT_EQ(waits_of(20) - waits_of(10), 10);
}

/// Of words and of windows, each batch has another number.
TEST_P(TrainingRunTest, WordsWindowsAndMeansAreRecorded) {
  const std::string modernbert =
      R"({"model_type": "modernbert", "vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 2,
          "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 32, "local_attention": 4,
          "global_attn_every_n_layers": 2, "pad_token_id": 0, "mlp_dropout": 0.1, "classifier_pooling": "mean"})";
  std::string words, texts;
  for (int i = 0; i < 40; ++i) {
    const int length = 1 + i * i % 7;
    std::string text, labels;
    std::string plain;
    for (int word = 0; word < length; ++word) {
      const std::string comma = word > 0 ? ", " : "";
      text += comma + (word % 2 == 0 ? R"("a")" : R"("d")");
      labels += comma + (word % 3 == 0 ? R"("X")" : R"("Y")");
      plain += word % 2 == 0 ? "a " : "d ";
    }
    words += R"({"text": [)" + text + R"(], "label": [)" + labels + "]}\n";
    texts += R"({"text": ")" + plain + R"(", "label": )" + std::to_string(i % 2) + "}\n";
  }
  folder.write("words.jsonl", words);
  folder.write("texts.jsonl", texts);
  struct Kind {
    std::string name;
    std::function<void(TrainConfig&)> set;
  };
  const auto is_modernbert = [&](TrainConfig& config) { config.model_config = folder / "modernbert.json"; };
  folder.write("modernbert.json", modernbert);
  const auto reads_words = [&](TrainConfig& config) {
    config.train = {folder / "words.jsonl"};
    config.task = "token_classification";
  };
  const auto reads_windows = [&](TrainConfig& config) {
    config.train = {folder / "texts.jsonl"};
    config.window = "mean";
    config.max_length = 5;
  };
  const std::vector<Kind> kinds{{"words", reads_words},
                                {"windows", reads_windows},
                                {"modernbert", is_modernbert},
                                {"modernbert words in fp16",
                                 [&](TrainConfig& config) {
                                   is_modernbert(config);
                                   reads_words(config);
                                   config.precision = "fp16";
                                 }},
                                {"modernbert windows, two micro-batches", [&](TrainConfig& config) {
                                   is_modernbert(config);
                                   reads_windows(config);
                                   config.grad_accumulation = 2;
                                 }}};
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    auto eager = config_of("simulated", kind.name + " eager"), recorded = config_of("simulated", kind.name);
    eager.eager = true;
    for (TrainConfig* config : {&eager, &recorded}) {
      config->dev_ratio = 0;
      kind.set(*config);
    }
    train(eager, [] { return false; });
    const Watch watch;
    train(recorded, [] { return false; });
    EXPECT_GE(watch.replays(), GetParam() ? 4 : 0);
    EXPECT_EQ(ScratchFolder::read(eager.output / "model.safetensors"),
              ScratchFolder::read(recorded.output / "model.safetensors"));
    const auto mine = steps_of(recorded), others = steps_of(eager);
    ASSERT_THAT(mine, SizeIs(10));
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(mine[i]["loss"].is_number()) << "finite";
      EXPECT_EQ(mine[i]["loss"], others[i]["loss"]) << i;
    }
  }
}

TEST_P(TrainingRunTest, AServerFindsTheGraphsOfSingleTextsRecorded) {
  auto config = config_of("simulated", "served");
  config.max_steps = 2;
  train(config, [] { return false; });
  Classifier classifier(config.output, {.precision = "fp32", .device = device});
  classifier.record_single_texts();
  const std::vector<std::string> texts{"a b c"};
  const auto tokens = classifier.tokenize({.texts = texts});
  const Watch watch;
  classifier.outputs(tokens);
  EXPECT_EQ(watch.replays(), GetParam() ? 1 : 0);
}

TEST_P(TrainingRunTest, IsResumedToTheBit) {
  auto whole = config_of("simulated:1", "whole"), stopped = config_of("simulated:1", "stopped");
  whole.precision = stopped.precision = "fp16";
  whole.ema_decay = stopped.ema_decay = 0.999;
  EXPECT_TRUE(train(whole, [] { return false; }).finished);
  int asked = 0;
  const auto result = train(stopped, [&] { return ++asked > 6; });
  EXPECT_FALSE(result.finished);
  EXPECT_GT(result.steps, 1);
  EXPECT_LT(result.steps, 10);
  stopped.resume = "auto";
  EXPECT_TRUE(train(stopped, [] { return false; }).finished);
  EXPECT_EQ(ScratchFolder::read(whole.output / "model.safetensors"),
            ScratchFolder::read(stopped.output / "model.safetensors"));
  EXPECT_THAT(steps_of(stopped), SizeIs(10));
}

/// Whole runs of two ranks. Texts differ in length, so that the ranks' steps are of different kinds.
class RanksRunTest : public TrainingRunTest {
 protected:
  RanksRunTest() {
    std::string rows;
    for (int i = 0; i < 60; ++i) {
      const std::string word(1, static_cast<char>('a' + i % 5));
      std::string text = word;
      for (int length = i * i % 13; length > 0; --length) text += length % 3 == 0 ? " b" : " " + word;
      rows += R"({"text": ")" + text + R"(", "label": )" + std::to_string(i % 2) + "}\n";
    }
    folder.write("train.jsonl", rows);
    folder.write("config.json",
                 R"({"model_type": "bert", "vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 1,
                     "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16})");
  }

  TrainConfig config_of_ranks(const std::string& output, bool eager) const {
    auto config = config_of("simulated", output);
    config.dev_ratio = 0;
    config.max_steps = 7;
    config.all_reduce = "backend";
    config.eager = eager;
    return config;
  }

  /// @return how many graphs were replayed, and the first rank's result
  std::pair<int64_t, TrainResult> train_ranks(
      const TrainConfig& config, bool by_host = false, const std::function<bool()>& stop = [] { return false; }) const {
    const Watch watch;
    TrainResult result;
    const auto errors =
        simulated::DeviceRanks{.by_host = by_host}.run([&](distributed::ProcessGroup& group, c10::Device mine) {
          auto own = config;
          own.device = mine.index() == 0 ? "simulated:0" : "simulated:1";
          auto mine_only = train(own, [&] { return group.rank() == 0 && stop(); }, &group);
          if (group.rank() == 0) result = std::move(mine_only);
          group.shutdown();
        });
    EXPECT_THAT(errors, testing::Each(IsEmpty()));
    return {watch.replays(), std::move(result)};
  }

  void expect_same(const TrainConfig& config, const TrainConfig& other) const {
    EXPECT_EQ(ScratchFolder::read(config.output / "model.safetensors"),
              ScratchFolder::read(other.output / "model.safetensors"));
    const auto mine = steps_of(config), others = steps_of(other);
    ASSERT_THAT(mine, SizeIs(config.max_steps));
    ASSERT_THAT(others, SizeIs(other.max_steps));
    for (size_t i = 0; i < mine.size(); ++i) {
      for (const char* name : {"step", "loss", "grad_norm", "lr", "skipped", "loss_scale", "samples", "tokens"}) {
        EXPECT_EQ(mine[i][name], others[i][name]) << name << " of step " << i + 1;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, RanksRunTest, testing::Values(true), [](const auto&) { return "WithGpuKernels"; });

TEST_P(RanksRunTest, RecordedStepsGiveTheBitsOfEagerOnes) {
  struct Case {
    bool by_host;
    std::function<void(TrainConfig&)> set;
  };
  const std::vector<Case> cases{{false,
                                 [](TrainConfig& config) {
                                   config.precision = "fp16";
                                   config.loss_scale = "dynamic:1048576";  // the first gradients overflow
                                   config.gradient_compression = "fp16";
                                   config.grad_accumulation = 2;
                                   config.ema_decay = 0.999;
                                 }},
                                {false,
                                 [](TrainConfig& config) {
                                   config.precision = "bf16";
                                   config.master_weights = true;
                                   config.zero_stage = 1;
                                 }},
                                {true, [](TrainConfig& config) {
                                   config.precision = "fp16";
                                   config.loss_scale = "dynamic:1048576";
                                   config.zero_stage = 1;
                                 }}};
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const bool by_host = cases[i].by_host;
    auto eager = config_of_ranks(std::to_string(i) + " eager", true);
    auto recorded = config_of_ranks(std::to_string(i) + " recorded", false);
    cases[i].set(eager);
    cases[i].set(recorded);
    EXPECT_EQ(train_ranks(eager, by_host).first, 0);
    EXPECT_GE(train_ranks(recorded, by_host).first, 4);
    expect_same(eager, recorded);
    EXPECT_EQ(steps_of(recorded).front()["skipped"], recorded.precision == "fp16");
    EXPECT_FALSE(steps_of(recorded).back()["skipped"]);
  }
}

TEST_P(RanksRunTest, AResumedRunOfRecordedStepsGivesTheBitsOfAWholeOne) {
  auto whole = config_of_ranks("whole", false), stopped = config_of_ranks("stopped", false);
  for (TrainConfig* config : {&whole, &stopped}) {
    config->precision = "fp16";
    config->zero_stage = 1;
  }
  EXPECT_TRUE(train_ranks(whole).second.finished);
  int asked = 0;
  const auto result = train_ranks(stopped, /*by_host=*/false, [&] { return ++asked > 4; }).second;
  EXPECT_FALSE(result.finished);
  EXPECT_GE(result.steps, 2);
  stopped.resume = "auto";
  EXPECT_TRUE(train_ranks(stopped).second.finished);
  expect_same(whole, stopped);
}

}  // namespace
}  // namespace mezzo::text
