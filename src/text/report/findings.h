#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/text/report/run_records.h"

namespace mezzo::text {

/// A finding at a step that repeats at the steps right after it.
struct Finding {
  DiagnoseRecord first;
  int64_t last_step;
  double last_scale;

  explicit Finding(DiagnoseRecord record);
  int64_t steps() const { return last_step - first.step + 1; }
  /// Whether `next` says the same of the next step; takes it in, then.
  bool take_in(const DiagnoseRecord& next);
};

/// All except kind "gradients".
std::vector<Finding> findings_of(const std::vector<DiagnoseRecord>& diagnoses);

}  // namespace mezzo::text
