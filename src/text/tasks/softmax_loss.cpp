#include "text/tasks/softmax_loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>

#include <limits>
#include <optional>

#include "amp/cross_entropy.h"

namespace mezzo::text {
namespace {

/// -(1 - p)^gamma log(p) of each row, p the probability of its target; 0 without a target. The logarithm of 1 - p is
/// taken from the other labels' outputs. So neither p near 1 nor a gamma below 1 makes value or gradient inaccurate.
/// @param outputs  [N, labels]
at::Tensor focal_losses(const at::Tensor& outputs, const at::Tensor& targets, double gamma) {
  const auto log_p = at::log_softmax(outputs, 1);
  const auto is_target = at::arange(outputs.size(1), targets.options()).eq(targets.unsqueeze(1));
  const auto log_right = log_p.masked_fill(is_target.logical_not(), 0).sum(1);
  const auto log_wrong = at::logsumexp(log_p.masked_fill(is_target, -std::numeric_limits<double>::infinity()), 1);
  return -log_right * at::exp(gamma * log_wrong);
}

}  // namespace

at::Tensor softmax_loss(const at::Tensor& outputs,
                        const at::Tensor& targets,
                        const LossOptions& options,
                        const at::Tensor& weights) {
  if (options == LossOptions()) return cross_entropy_of_labels(outputs, targets, at::Reduction::Sum);
  if (options.focal_gamma > 0) {
    const auto losses = focal_losses(outputs.to(at::kFloat), targets, options.focal_gamma);
    return weights.defined() ? (losses * weights.index_select(0, targets.clamp_min(0))).sum() : losses.sum();
  }
  return at::cross_entropy_loss(outputs.to(at::kFloat), targets,
                                weights.defined() ? std::optional(weights) : std::nullopt, at::Reduction::Sum,
                                /*ignore_index=*/-100, options.label_smoothing);
}

}  // namespace mezzo::text
