#include "text/train/gradient_accumulation.h"

#include <ATen/ATen.h>

#include "mezzo/amp/autocast_guard.h"

namespace mezzo::text {

at::Tensor GradientAccumulation::run(const std::vector<MicroBatch>& micro_batches,
                                     StepRecord& record,
                                     const std::function<at::Tensor(const at::Tensor&)>& scale) {
  auto loss = at::zeros({}, at::TensorOptions(at::kFloat).device(setup_.device));
  for (const auto& micro : micro_batches) {
    const auto batch =
        collate(setup_.train, micro.indices, plan_.batching, config_.max_length, setup_.model->config().pad_token_id);
    const bool is_last = &micro == &micro_batches.back();
    // Gradients that are summed in float32, outside the model, have to be exchanged before.
    const auto no_sync = !is_last && !model_.has_masters() ? model_.no_sync() : nullptr;
    // Each text weighs the same, however texts fall into micro-batches and to ranks.
    auto share = summed_loss(batch.to(setup_.device), micro.number) / record.samples;
    if (micro.is_stand_in) {
      share = share * 0;
    }
    scale(share).backward();
    if (model_.has_masters() && micro_batches.size() > 1) {
      model_.accumulate_in_masters();
    }
    loss += share.detach();
    record.tokens += micro.is_stand_in ? 0 : batch.num_tokens;
  }
  return loss;
}

at::Tensor GradientAccumulation::summed_loss(const PackedBatch& batch, uint32_t micro_batch) {
  const auto dtype = autocast_dtype(setup_.precision);
  const AutocastGuard autocast(setup_.device.type(), dtype.value_or(at::kBFloat16), dtype.has_value());
  const DropoutSeed random{config_.seed, micro_batch};
  return setup_.task->loss(model_.forward(batch, random), batch);
}

}  // namespace mezzo::text
