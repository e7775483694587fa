#include "text/train/step_diagnosis.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

namespace mezzo::text {

StepDiagnosis::StepDiagnosis(const TrainConfig& config,
                             const RunSetup& setup,
                             const Ranks& ranks,
                             GradientAccumulation& accumulation,
                             TrainingModel& model,
                             RunKeeper& keeper)
    : config_(config),
      has_scale_(setup.precision == Precision::kFloat16),
      ranks_(ranks),
      accumulation_(accumulation),
      model_(model),
      keeper_(keeper),
      diagnosis_([whole = setup.model](const std::string& parameter) { return whole->part_of(parameter); }) {}

void StepDiagnosis::look_at_gradients(double loss_scale, bool is_last_chance) {
  overflow_.reset();
  if (config_.diagnose || is_last_chance) {
    overflow_ = overflow_report(model_.optimizer());
  }
  if (config_.diagnose) {
    diagnosis_.look_at(model_.optimizer(), loss_scale, *overflow_);
  }
}

void StepDiagnosis::diagnose(const StepRecord& record, const std::vector<MicroBatch>& micro_batches, bool is_new) {
  if (record.skipped) {
    tell_of_skip(record, micro_batches, is_new);
  }
  look_for_underflow(record, micro_batches);
  diagnosis_.end_step();
  if (keeper_.output() != nullptr && diagnosis_.gradients_are_due()) {
    if (const auto gradients = diagnosis_.take_gradients(record.step, record.loss_scale)) {
      keeper_.put_out([&](RunOutput& output) { output.diagnose(*gradients); });
    }
  }
}

/// Same weights, texts, dropout and scale, so the same overflow; but op by op in place of fused
/// blocks, which rounds otherwise. Each rank by itself.
std::optional<NonFiniteOp> StepDiagnosis::retrace(const std::vector<MicroBatch>& micro_batches,
                                                  const StepRecord& record) {
  const auto no_sync = model_.no_sync();
  const FiniteTracer tracer;
  accumulation_.run(accumulation_.collate(micro_batches, record.step - 1),
                    [&](const at::Tensor& share) { return share * record.loss_scale; });
  model_.zero_grad();
  return tracer.first();
}

/// This rank's gradients of a step at a scale of one's own, by exponent. Leaves none behind.
std::vector<GradientExponents> StepDiagnosis::gradients_at(double scale,
                                                           const std::vector<MicroBatch>& micro_batches,
                                                           const StepRecord& record) {
  const auto no_sync = model_.no_sync();
  accumulation_.run(accumulation_.collate(micro_batches, record.step - 1),
                    [&](const at::Tensor& share) { return share * scale; });
  auto counted = diagnosis_.count(model_.optimizer(), scale);
  model_.zero_grad();
  return counted;
}

/// Counts gradients that may have become 0 again, with the scale they had and with one that
/// suits them. By now the weights have moved by a step, for both. Collective: what the main
/// rank suspects, all look for.
void StepDiagnosis::look_for_underflow(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
  if (!has_scale_) {
    return;
  }
  const double suspected = diagnosis_.better_scale(record.loss_scale).value_or(0);
  constexpr double kLess = 16;  // where gradients of activations overflow, that those of weights do not tell of
  for (double scale = std::stod(ranks_.all_gather(fmt::format("{}", suspected)).front()); scale > 2 * record.loss_scale;
       scale /= kLess) {
    auto true_ones = gradients_at(scale, micro_batches, record);
    if (!ranks_.any(!are_finite(true_ones))) {
      diagnosis_.found_underflow(gradients_at(record.loss_scale, micro_batches, record), std::move(true_ones));
      return;
    }
  }
}

DiagnoseRecord StepDiagnosis::find_cause(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
  std::vector<GradientExponents> unscaled;
  if (has_scale_ && std::isfinite(record.loss)) {
    unscaled = gradients_at(1, micro_batches, record);
    if (ranks_.any(!are_finite(unscaled))) {
      unscaled.clear();
    }
  }
  return describe_cause(record, has_scale_, config_.parsed_loss_scale().first, unscaled);
}

void StepDiagnosis::tell_of_skip(const StepRecord& record, const std::vector<MicroBatch>& micro_batches, bool is_new) {
  const auto first_op = retrace(micro_batches, record);
  const auto first_ops = ranks_.all_gather(first_op ? first_op->to_string() : "");
  const auto cause = is_new ? std::optional(find_cause(record, micro_batches)) : std::nullopt;
  const auto put_out = [&](const DiagnoseRecord& found) {
    keeper_.put_out([&](RunOutput& output) { output.diagnose(found); });
  };
  if (overflow_ && !overflow_->empty()) {
    put_out(describe(*overflow_, record.step, record.loss_scale));
  }
  for (size_t rank = 0; rank < first_ops.size(); ++rank) {
    if (!first_ops[rank].empty()) {
      DiagnoseRecord found;
      found.step = record.step;
      found.kind = "first_op";
      found.loss_scale = record.loss_scale;
      found.text = (first_ops.size() > 1 ? fmt::format("on rank {}: ", rank) : "") + first_ops[rank];
      put_out(found);
      break;
    }
  }
  if (cause) {
    put_out(*cause);
  }
}

}  // namespace mezzo::text
