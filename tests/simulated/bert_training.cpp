#include "simulated/bert_training.h"

#include <ATen/ops/tensor.h>

#include <random>
#include <span>
#include <string>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/optim/param_groups.h"

namespace mezzo::simulated {
namespace {

text::LabelMap some_labels(int64_t count) {
  text::LabeledRows rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.labels.emplace_back(std::to_string(i));
  }
  return text::LabelMap::from_rows(rows);
}

}  // namespace

BertTraining::BertTraining(const Options& options, c10::Device device)
    : options_(options),
      device_(device),
      task_(some_labels(options.labels)),
      model_(text::make_model(options.config, task_.head())),
      scaler_(GradScalerOptions().enabled(options.scales_loss).init_scale(options.init_scale).growth_interval(2)) {
  model_->init_weights(/*seed=*/9);
  model_->to(device);
  model_->train();
  parameters_ = named_parameters(*model_);
  if (const auto half = text::autocast_dtype(options.precision)) {
    const auto half_copies = model_->make_half_copies(*half);
    for (NamedParameter& parameter : parameters_) {
      if (const auto half_copy = half_copies.find(parameter.name); half_copy != half_copies.end()) {
        parameter.half_copy = half_copy->second;
      }
    }
  }
  optimizer_.emplace(make_param_groups(parameters_, {.weight_decay = 0.01, .layer = {}}),
                     AdamWOptions().lr(options.learning_rate).max_grad_norm(options.max_grad_norm));
}

text::PackedBatch BertTraining::batch_of(const std::vector<int64_t>& lengths) const {
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> texts;
  std::vector<int64_t> labels;
  for (const int64_t length : lengths) {
    auto& text = texts.emplace_back(static_cast<size_t>(length));
    for (int32_t& id : text) {
      id = static_cast<int32_t>(random() % static_cast<uint64_t>(options_.config.vocab_size));
    }
    labels.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(options_.labels)));
  }
  const std::vector<std::span<const int32_t>> spans(texts.begin(), texts.end());
  auto batch = text::pack(spans, {});
  batch.targets = at::tensor(labels, at::kLong);
  return batch;
}

at::Tensor BertTraining::backward(const text::PackedBatch& on_cpu) {
  const auto batch = on_cpu.to(device_);
  const auto half = text::autocast_dtype(options_.precision);
  const auto loss = [&] {
    const AutocastGuard autocast(device_.type(), half.value_or(at::kBFloat16), half.has_value());
    const auto outputs = model_->forward(batch, {/*seed=*/17, step_++});
    return task_.loss(outputs, batch) / static_cast<double>(batch.size());
  }();
  scaler_.scale(loss).backward();
  return loss.detach();
}

StepResult BertTraining::update() {
  auto result = scaler_.step(*optimizer_);
  scaler_.update();
  return result;
}

text::BertConfig bert_config(int64_t layers, int64_t hidden, int64_t heads, int64_t inner, int64_t words) {
  text::BertConfig config;
  config.num_hidden_layers = layers;
  config.hidden_size = hidden;
  config.num_attention_heads = heads;
  config.intermediate_size = inner;
  config.vocab_size = words;
  return config;
}

}  // namespace mezzo::simulated
