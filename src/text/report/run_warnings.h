#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/text/report/run_records.h"

namespace mezzo::text {

/// Finds problems of a run in its records, which come in their order.
class RunWarnings {
 public:
  /// Returns a warning of kind "diverged" the first time that the loss is inf or NaN, or far above its start.
  std::optional<WarningRecord> step(const StepRecord& record);
  /// Returns a warning of kind "undefined_metric" for an evaluation on dev whose first metric is NaN.
  std::optional<WarningRecord> eval(const EvalRecord& record);

  /// The warnings on the whole run.
  /// @param best_step  whose weights are kept; nullopt without dev
  std::vector<WarningRecord> end(std::optional<int64_t> best_step) const;

 private:
  std::vector<double> losses_;      // finite losses only
  std::vector<EvalRecord> evals_;   // on dev, before the final one
  std::optional<EvalRecord> kept_;  // the final one, with the thresholds of the kept model
  bool has_diverged_ = false;
};

}  // namespace mezzo::text
