#include "text/train/step_diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "mezzo/optim/detail/amp_scaling_optimizer.h"

namespace mezzo::text {
namespace {

constexpr size_t kMostGradients = 8;  // once one overflows, most do
constexpr int64_t kFirstSteps = 3;    // gradients of the first steps without overflow are counted, then of some
constexpr int64_t kCountEvery = 50;
constexpr double kUsualScale = 65536;  // GradScaler's first

void add(GradientExponents& total, const GradientExponents& counted) {
  for (size_t i = 0; i < total.counts.size(); ++i) {
    total.counts[i] += counted.counts[i];
  }
  total.zeros += counted.zeros;
  total.non_finite += counted.non_finite;
  total.underflowed += counted.underflowed;
  total.largest = std::max(total.largest, counted.largest);
}

bool are_finite(const std::vector<GradientExponents>& groups) {
  return std::all_of(groups.begin(), groups.end(), [](const auto& group) { return group.non_finite == 0; });
}

/// Why gradients of a skipped step were inf or NaN, and what to do.
/// @param is_static  the scale never changes
/// @param unscaled  the step's gradients without a scale, if all of them are finite; else empty
DiagnoseRecord describe_cause(const StepRecord& record,
                              bool has_scale,
                              bool is_static,
                              const std::vector<GradientExponents>& unscaled) {
  constexpr const char* kRemedies = "lower --learning-rate, clip with --max-grad-norm 1, or use another --precision";
  DiagnoseRecord cause;
  cause.step = record.step;
  cause.kind = "cause";
  cause.loss_scale = record.loss_scale;
  if (!unscaled.empty()) {
    cause.recommended_scale = advise_scale(unscaled, 1).recommended_scale;
    cause.text =
        fmt::format("the loss is {:.4g}, and without a loss scale all gradients are finite: {:g} is too large and ",
                    record.loss, record.loss_scale);
    cause.text += is_static ? fmt::format("never changes; pass --loss-scale dynamic, or {:g}", cause.recommended_scale)
                            : fmt::format("falls by itself; --loss-scale dynamic:{:g} would have fitted",
                                          cause.recommended_scale);
  } else if (!std::isfinite(record.loss)) {
    cause.text =
        fmt::format("the loss itself is inf or NaN{}: {}", has_scale ? ", so no loss scale helps" : "", kRemedies);
  } else if (has_scale) {
    cause.text = fmt::format("gradients are inf or NaN even without a loss scale: {}", kRemedies);
  } else {
    cause.text = fmt::format("the loss is {:.4g}, and only its gradients are inf or NaN: {}", record.loss, kRemedies);
  }
  return cause;
}

DiagnoseRecord describe(const OverflowReport& overflow, int64_t step, double loss_scale) {
  return {.step = step,
          .kind = "overflow",
          .loss_scale = loss_scale,
          .recommended_scale = 0,
          .text = overflow.to_string(kMostGradients),
          .groups = {}};
}

}  // namespace

void StepDiagnosis::look_at_gradients(double loss_scale, bool is_last_chance) {
  overflow_.reset();
  if (run_.config.diagnose || is_last_chance) {
    overflow_ = overflow_report(model_.optimizer());
  }
  if (run_.config.diagnose) {
    ++steps_;
    if (overflow_->empty() && (counted_ < kFirstSteps || steps_ % kCountEvery == 0)) {
      latest_ = count(loss_scale);
      ++counted_;
    }
  }
}

void StepDiagnosis::diagnose(const StepRecord& record, const std::vector<MicroBatch>& micro_batches, bool is_new) {
  if (record.skipped) {
    tell_of_skip(record, micro_batches, is_new);
  }
  look_for_underflow(record, micro_batches);
  add_latest();
  // Once the first steps are counted. The end of the run is the second time.
  if (run_.keeper.output() != nullptr && taken_ == 0 && counted_ >= kFirstSteps) {
    if (const auto gradients = take_gradients(record.step, record.loss_scale)) {
      run_.keeper.put_out([&](RunOutput& output) { output.diagnose(*gradients); });
    }
  }
}

void StepDiagnosis::add_latest() {
  if (exponents_.empty()) {
    exponents_ = latest_;
  } else {
    for (size_t i = 0; i < latest_.size(); ++i) {
      add(exponents_[i], latest_[i]);
    }
  }
  latest_.clear();
}

/// The optimizer's gradients, multiplied by `scale`, by part of the model. Waits for the device.
std::vector<GradientExponents> StepDiagnosis::count(double scale) const {
  auto& optimizer = model_.optimizer();
  std::vector<NamedGradients> groups;
  size_t index = 0;
  for (const auto& [owner, master] : mezzo::detail::gradient_owners(optimizer)) {
    const std::string part = run_.setup.model->part_of(mezzo::detail::parameter_name(optimizer, index++));
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& seen) { return seen.name == part; });
    if (group == groups.end()) {
      group = groups.insert(group, {part, {}});
    }
    group->gradients.push_back(owner.grad());
  }
  return count_gradient_exponents(groups, scale);
}

/// If the step's gradients were counted and may be 0 because `scale` is too small for float16: a scale at which to
/// count them again.
std::optional<double> StepDiagnosis::better_scale(double scale) const {
  if (latest_.empty()) return std::nullopt;
  const bool any = std::any_of(latest_.begin(), latest_.end(), [](const auto& group) { return group.nonzero() > 0; });
  const double better = any ? advise_scale(latest_, scale).recommended_scale : kUsualScale;
  return better > 2 * scale ? std::optional(better) : std::nullopt;
}

std::optional<DiagnoseRecord> StepDiagnosis::take_gradients(int64_t step, double loss_scale) {
  if (counted_ == taken_) return std::nullopt;
  taken_ = counted_;
  auto advice = advise_scale(exponents_, loss_scale);
  return DiagnoseRecord{.step = step,
                        .kind = "gradients",
                        .loss_scale = loss_scale,
                        .recommended_scale = advice.recommended_scale,
                        .text = advice.to_string(),
                        .groups = std::move(advice.groups)};
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

/// This rank's gradients of a step at the given scale, by exponent. Leaves none behind.
std::vector<GradientExponents> StepDiagnosis::gradients_at(double scale,
                                                           const std::vector<MicroBatch>& micro_batches,
                                                           const StepRecord& record) {
  const auto no_sync = model_.no_sync();
  accumulation_.run(accumulation_.collate(micro_batches, record.step - 1),
                    [&](const at::Tensor& share) { return share * scale; });
  auto counted = count(scale);
  model_.zero_grad();
  return counted;
}

/// Counts gradients that may have become 0 again, with the scale they had and with one that suits them. By now the
/// weights have moved by a step, for both. Collective: all ranks look for the main rank's suspicion.
void StepDiagnosis::look_for_underflow(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
  if (!has_scale()) return;
  const double suspected = better_scale(record.loss_scale).value_or(0);
  constexpr double kLess = 16;  // if gradients of activations overflow, which gradients of weights do not show
  for (double scale = std::stod(run_.ranks.all_gather(fmt::format("{}", suspected)).front());
       scale > 2 * record.loss_scale; scale /= kLess) {
    auto true_ones = gradients_at(scale, micro_batches, record);
    if (!run_.ranks.any(!are_finite(true_ones))) {
      const auto at_scale = gradients_at(record.loss_scale, micro_batches, record);
      latest_ = std::move(true_ones);
      for (size_t i = 0; i < latest_.size(); ++i) {
        latest_[i].underflowed = std::max<int64_t>(0, at_scale[i].zeros - latest_[i].zeros);
      }
      return;
    }
  }
}

DiagnoseRecord StepDiagnosis::find_cause(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
  std::vector<GradientExponents> unscaled;
  if (has_scale() && std::isfinite(record.loss)) {
    unscaled = gradients_at(1, micro_batches, record);
    if (run_.ranks.any(!are_finite(unscaled))) {
      unscaled.clear();
    }
  }
  return describe_cause(record, has_scale(), run_.config.parsed_loss_scale().first, unscaled);
}

void StepDiagnosis::tell_of_skip(const StepRecord& record, const std::vector<MicroBatch>& micro_batches, bool is_new) {
  const auto first_op = retrace(micro_batches, record);
  const auto first_ops = run_.ranks.all_gather(first_op ? first_op->to_string() : "");
  const auto cause = is_new ? std::optional(find_cause(record, micro_batches)) : std::nullopt;
  const auto put_out = [&](const DiagnoseRecord& found) {
    run_.keeper.put_out([&](RunOutput& output) { output.diagnose(found); });
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
