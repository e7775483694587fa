#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/amp/overflow_report.h"
#include "mezzo/amp/scale_advice.h"
#include "mezzo/optim/optimizer.h"
#include "mezzo/text/run_records.h"

namespace mezzo::text {

/// What `mezzo train --diagnose` gathers about the gradients of a run. Reads them only.
class Diagnosis {
 public:
  /// The part of the model that a parameter is counted with: "embeddings", "layer 3", "pooler", "classifier".
  static std::string part_of(const std::string& parameter);

  /// Called once a step, before it is taken, on gradients that are still multiplied by `scale`. Syncs.
  void look_at(Optimizer& optimizer, double scale, const OverflowReport& overflow);

  /// How the gradients so far are spread; nullopt where none were counted since the last time.
  std::optional<DiagnoseRecord> take_gradients(int64_t step, double loss_scale);

  /// Whether enough were counted to tell for the first time; the end of the run is the second.
  bool gradients_are_due() const { return taken_ == 0 && counted_ >= kFirstSteps; }

 private:
  static constexpr int64_t kFirstSteps = 3;
  static constexpr int64_t kCountEvery = 50;

  void count(Optimizer& optimizer, double scale);

  int64_t steps_ = 0;    // looked at
  int64_t counted_ = 0;  // of them, those whose gradients were counted: the first without overflow, then some
  int64_t taken_ = 0;    // of them, those that take_gradients() has told of
  std::vector<GradientExponents> exponents_;
};

DiagnoseRecord describe(const OverflowReport& overflow, int64_t step, double loss_scale);

}  // namespace mezzo::text
