#include "text/train/gradient_accumulation.h"

#include <ATen/ATen.h>

#include "mezzo/amp/autocast_guard.h"
#include "text/models/pooling.h"

namespace mezzo::text {

int64_t StepBatches::tokens() const {
  int64_t tokens = 0;
  for (const Micro& each : micro) {
    tokens += each.is_stand_in ? 0 : each.rows.num_tokens;
  }
  return tokens;
}

StepBatches GradientAccumulation::collate(const std::vector<MicroBatch>& micro_batches, int64_t step) const {
  StepBatches batches{{}, at::full({}, plan_.targets(setup_.train, step), at::kFloat), {}};
  for (const MicroBatch& micro : micro_batches) {
    batches.micro.push_back({text::collate(setup_.train, micro.indices, plan_.batching, *config_.max_length,
                                           setup_.model->config().pad_token_id),
                             micro.number, micro.is_stand_in});
  }
  return batches;
}

at::Tensor GradientAccumulation::run(const StepBatches& batches,
                                     const std::function<at::Tensor(const at::Tensor&)>& scale,
                                     StepClock* clock) {
  const auto enter = [&](double StepParts::* part) {
    if (clock != nullptr) {
      clock->enter(part);
    }
  };
  // Added like the ranks' losses, so that the sum does not depend on which rank has which shares.
  auto loss = at::zeros({}, at::TensorOptions(at::kDouble).device(setup_.device));
  for (const auto& micro : batches.micro) {
    enter(&StepParts::forward);
    const bool is_last = &micro == &batches.micro.back();
    // Gradients that are summed in float32, outside the model, have to be exchanged before.
    const auto no_sync = !is_last && !model_.has_masters() ? model_.no_sync() : nullptr;
    // Each text, or word, weighs the same, however texts fall into micro-batches and to ranks.
    const DropoutSeed random{config_.seed, micro.number, batches.step_offset};
    auto share = summed_loss(micro.rows.to(setup_.device), random) / batches.num_targets;
    if (micro.is_stand_in) {
      share = share * 0;
    }
    enter(&StepParts::backward);
    model_.backward(scale(share));
    if (model_.has_masters() && batches.micro.size() > 1) {
      model_.accumulate_in_masters();
    }
    loss += share.detach();
  }
  return loss;
}

at::Tensor GradientAccumulation::summed_loss(const PackedBatch& batch, const DropoutSeed& random) {
  const auto dtype = autocast_dtype(setup_.precision);
  const AutocastGuard autocast(setup_.device, dtype.value_or(at::kFloat), dtype.has_value());
  const auto outputs =
      pool_windows(model_.forward(batch, random), batch.window_counts, setup_.model->config().window_pooling);
  return setup_.task->loss(outputs, batch);
}

}  // namespace mezzo::text
