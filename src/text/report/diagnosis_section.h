#pragma once

#include <string>
#include <vector>

#include "mezzo/text/report/run_records.h"

namespace mezzo::text {

/// The part of the report that shows the findings of `--diagnose`. It shows the exponents of the gradients, the values
/// that float16 would lose, and the reason for each skipped step. Empty without records.
std::string render_diagnoses(const std::vector<DiagnoseRecord>& diagnoses);

}  // namespace mezzo::text
