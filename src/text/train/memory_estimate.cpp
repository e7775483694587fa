#include "text/train/memory_estimate.h"

#include <algorithm>

#include "text/train/recorded_steps.h"
#include "text/train/training_model.h"

namespace mezzo::text {
namespace {

int64_t layers_parameters(const ModelForTask& model) {
  int64_t count = 0;
  for (const auto& item : model.named_parameters()) {
    const int64_t layer = model.layer_of(item.key());
    count += layer >= 1 && layer <= model.config().num_hidden_layers ? item.value().numel() : 0;
  }
  return count;
}

/// Layers that keep something for backward.
int64_t trained_layers(const ModelForTask& model) {
  int64_t first = model.config().num_hidden_layers + 1;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) first = std::min(first, std::max<int64_t>(1, model.layer_of(item.key())));
  }
  return model.config().num_hidden_layers + 1 - first;
}

int64_t largest_parameter(const ModelForTask& model) {
  int64_t largest = 0;
  for (const auto& parameter : model.parameters()) {
    largest = std::max(largest, parameter.numel());
  }
  return largest;
}

}  // namespace

int64_t count_parameters(const ModelForTask& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

int64_t count_trained_parameters(const ModelForTask& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) {
    count += parameter.requires_grad() ? parameter.numel() : 0;
  }
  return count;
}

int64_t largest_parameter_bytes(const ModelForTask& model) { return kFloatBytes * largest_parameter(model); }

namespace {

/// The micro-batch's tensors for backward, and the work space of the first layer in backward.
int64_t activation_bytes(const ModelForTask& whole,
                         Precision precision,
                         const TrainConfig& config,
                         const BatchShape& batch) {
  const RowBytes of_row = whole.encoder().row_bytes(precision, batch.longest);
  const auto rows = static_cast<double>(batch.rows);
  const auto hidden = static_cast<double>(whole.config().hidden_size);
  const auto layers = static_cast<double>(trained_layers(whole));
  // LoRA's dropout: each factor's dropped input and, without fused feed-forward blocks, the activated rows.
  const bool drops = config.lora_dropout > 0;
  const double width = precision == Precision::kFloat32 ? 4 : 2;
  const double inner = static_cast<double>(whole.config().intermediate_size) *
                       (whole.config().model_type() == "modernbert" ? 2 : 1);  // with a gate's columns
  const double layer = rows * (of_row.layer + (drops ? width * (3 * hidden + inner) : 0));
  const double work = rows * of_row.work, embeddings = rows * of_row.embeddings, tables = of_row.tables;
  // Weights with LoRA's factors merged into them are there until backward has used them.
  const double merged = config.lora > 0 && !drops ? kFloatBytes * static_cast<double>(layers_parameters(whole)) : 0;
  if (config.gradient_checkpointing) {  // the inputs of all layers, and one layer
    return static_cast<int64_t>(embeddings + rows * kFloatBytes * hidden * layers + layer + tables + work +
                                merged / std::max(layers, 1.0));
  }
  // Float32 weights have copies in half until backward has used them.
  const bool has_copies = precision != Precision::kFloat32 && !config.master_weights;
  const double copies = has_copies ? 2 * static_cast<double>(layers_parameters(whole)) : 0;
  // The last layer keeps little if the head needs one row a text.
  const double whole_layers = whole.head().rows == RowsPer::kText ? std::max(0.0, layers - 1) : layers;
  return static_cast<int64_t>(embeddings + whole_layers * layer + layers * tables + work + copies + merged);
}

}  // namespace

MemoryEstimate estimate_memory(
    const ModelForTask& model, Precision precision, const TrainConfig& config, int ranks, const BatchShape& batch) {
  MemoryEstimate estimate;
  const int64_t trained = count_trained_parameters(model);
  const int64_t weight = config.master_weights ? 2 : kFloatBytes;
  const bool accumulates = config.grad_accumulation > 1 || config.shares > ranks;
  estimate.weights = count_parameters(model) * weight;
  // Frozen weights also have masters, for saving.
  estimate.weights += config.master_weights ? (count_parameters(model) - trained) * kFloatBytes : 0;
  // Masters sum the gradients of micro-batches in float32.
  estimate.gradients = trained * (weight + (config.master_weights && accumulates ? kFloatBytes : 0));
  const int64_t moments = config.optimizer == "sgd" ? 0 : 2;
  const int64_t state = kFloatBytes * (moments + (config.master_weights ? 1 : 0));
  // Whole tensors are dealt out, so a rank has at least the largest of them.
  const bool is_sharded = config.zero_stage == 1 && ranks > 1;
  estimate.optimizer = state * (is_sharded ? std::max(trained / ranks, largest_parameter(model)) : trained);
  estimate.optimizer += config.ema_decay > 0 ? trained * kFloatBytes : 0;
  estimate.activations = activation_bytes(model, precision, config, batch);
  // The gradient of a table whose updates wait is kept from step to step.
  const auto table = deferred_table(config, model, ranks);
  const int64_t kept = table.defined() ? kFloatBytes * table.numel() : 0;
  const int64_t of_step = accumulates || ranks > 1 ? estimate.gradients + estimate.activations
                                                   : std::max(estimate.gradients, estimate.activations + kept);
  const bool is_recorded = !config.eager && can_record_steps(config, model.parameters().front().device());
  const int64_t of_all_steps = ranks > 1 && !accumulates ? estimate.gradients : 0;  // buckets, which graphs share
  if (!config.save_every.is_never() || config.save_minutes > 0) {
    const int64_t saved = config.lora > 0 ? 2 * trained : count_parameters(model);  // factors, and the best ones
    estimate.checkpoint = kFloatBytes * (saved + (moments + (config.ema_decay > 0 ? 1 : 0)) * trained);
  }
  estimate.total = estimate.weights + estimate.optimizer + of_step + (is_recorded ? of_step - of_all_steps : 0);
  return estimate;
}

}  // namespace mezzo::text
