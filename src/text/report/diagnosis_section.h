#pragma once

#include <string>
#include <vector>

#include "mezzo/text/report/run_records.h"

namespace mezzo::text {

/// The part of the report that shows what `--diagnose` found: how gradients are spread over
/// the powers of two, what float16 would lose of them, and which steps were skipped for
/// what. Empty without records.
std::string render_diagnoses(const std::vector<DiagnoseRecord>& diagnoses);

}  // namespace mezzo::text
