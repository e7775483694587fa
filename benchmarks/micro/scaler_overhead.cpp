/// The time that a GradScaler adds to a training step in fp16. A BERT trains on packed batches of
/// 32 short texts, with and without a scaler, in turn. The steps are eager, and replayed graphs if
/// the device has graphs. Without clipping, only the scaler reads the gradients. Prints a table in
/// Markdown. Usage: bench_scaler_overhead [--device cuda]; on a CPU the model is a tiny one.

#include <ATen/ATen.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "medians.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/graph/graphed_step.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/param_groups.h"
#include "mezzo/text/models/bert_config.h"
#include "mezzo/text/models/model_for_task.h"

namespace {

using namespace mezzo::text;
using mezzo::AdamW;
using mezzo::GradScaler;
using mezzo::GraphedStep;

constexpr int64_t kLabels = 6, kTexts = 32, kRows = 640;  // 20 tokens a text

struct Shape {
  const char* name;
  int64_t hidden, layers, heads;
};

/// A layout's numbers are read on the host, so they stay there. The ids are on the device.
PackedBatch batch_on(const c10::Device& device) {
  constexpr int64_t kLength = kRows / kTexts;
  PackedBatch batch{.input_ids = at::randint(1, 21128, {kRows}, at::kLong),
                    .positions = at::arange(kRows).remainder(kLength),
                    .token_types = {},
                    .cu_seqlens = at::arange(kTexts + 1, at::kInt) * kLength,
                    .seqlens = at::full({kTexts}, kLength, at::kInt),
                    .targets = at::randint(kLabels, {kTexts}, at::kLong),
                    .num_tokens = kRows};
  return batch.to(device);
}

/// A model, its optimizer and a step of them.
class Training {
 public:
  Training(const Shape& shape, const c10::Device& device, double max_grad_norm, bool scaled)
      : device_(device), batch_(batch_on(device)) {
    BertConfig config;
    config.vocab_size = 21128;
    config.hidden_size = shape.hidden;
    config.num_hidden_layers = shape.layers;
    config.num_attention_heads = shape.heads;
    config.intermediate_size = 4 * shape.hidden;
    model_ = make_model(config, {kLabels, RowsPer::kText});
    model_->init_weights(1);
    model_->to(device);
    model_->train();
    auto parameters = mezzo::named_parameters(*model_);
    const auto half_copies = model_->make_half_copies(at::kHalf);
    for (mezzo::NamedParameter& parameter : parameters) {
      if (const auto half_copy = half_copies.find(parameter.name); half_copy != half_copies.end()) {
        parameter.half_copy = half_copy->second;
      }
    }
    // At a rate of 0 the steps go on for ever without a loss that runs away.
    optimizer_ = std::make_unique<AdamW>(mezzo::make_param_groups(parameters, {}),
                                         mezzo::AdamWOptions().lr(0).max_grad_norm(max_grad_norm));
    scaler_ = std::make_unique<GradScaler>(mezzo::GradScalerOptions().init_scale(1024).enabled(scaled));
  }

  at::Tensor step() {
    optimizer_->zero_grad();
    at::Tensor loss;
    {
      const mezzo::AutocastGuard autocast(device_.type(), at::kHalf);
      loss = at::cross_entropy_loss(model_->forward(batch_, {1, 1}).to(at::kFloat), batch_.targets);
    }
    scaler_->scale(loss).backward();
    if (scaler_->is_enabled()) {
      scaler_->step(*optimizer_);
      scaler_->update();
    } else {
      optimizer_->step(nullptr);
    }
    return loss.detach();
  }

 private:
  c10::Device device_;
  PackedBatch batch_;
  std::shared_ptr<ModelForTask> model_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<GradScaler> scaler_;
};

void print_row(const Shape& shape, const c10::Device& device, double max_grad_norm, bool graphed) {
  Training plain(shape, device, max_grad_norm, /*scaled=*/false), scaled(shape, device, max_grad_norm, true);
  const auto graph_of = [&](Training& training) {
    return GraphedStep(
        device, [&](const GraphedStep::Tensors&) { return GraphedStep::Tensors{training.step()}; },
        mezzo::GraphedStepOptions().enabled(graphed));
  };
  auto without = graph_of(plain), with = graph_of(scaled);
  std::printf("| %s, %s, %s |", shape.name, graphed ? "graph" : "eager", max_grad_norm > 0 ? "clipped" : "not clipped");
  try {
    const auto ms = medians_of({[&] { without({}); }, [&] { with({}); }}, device, device.is_cpu() ? 1 : 20);
    TORCH_CHECK(with.was_replayed() == graphed && without.was_replayed() == graphed, with.eager_reason());
    std::printf(" %.3f | %.3f | %.1f %% |\n", ms[0], ms[1], 100 * (ms[1] / ms[0] - 1));
  } catch (const c10::Error& error) {  // the other rows are worth having
    std::printf(" | | %s |\n", error.what_without_backtrace());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto device = device_of(argc, argv);
  const mezzo::CpuHalfCompute half_compute;  // without effect on other devices
  const std::vector<Shape> shapes = device.is_cpu()
                                        ? std::vector<Shape>{{"BERT 2 x 64", 64, 2, 2}}
                                        : std::vector<Shape>{{"MiniLM", 384, 6, 12}, {"BERT-base", 768, 12, 12}};
  std::printf("%s, fp16, %d texts of %d tokens, median of %d runs\n\n", device.str().c_str(), static_cast<int>(kTexts),
              static_cast<int>(kRows / kTexts), kRuns);
  std::printf("| training step | without a scaler, ms | with one, ms | overhead |\n|---|---|---|---|\n");
  for (const Shape& shape : shapes) {
    for (const double max_grad_norm : {0.0, 1.0}) {
      print_row(shape, device, max_grad_norm, /*graphed=*/false);
      if (device.is_cuda()) {
        print_row(shape, device, max_grad_norm, /*graphed=*/true);
      }
    }
  }
}
