#pragma once

#include <string>

#include "mezzo/text/report/report.h"

/// Sections of the report that tell of the run: each with its heading, or empty.
namespace mezzo::text {

/// How long steps, evaluations and all else took.
std::string render_time(const ReportInput& input);

/// Each step that was skipped, and what its numbers say of the cause.
std::string render_skipped(const ReportInput& input);

/// What was said of data and model when the run was set up.
std::string render_notes(const ReportInput& input);

/// A table of texts, without a heading; empty where there are none.
std::string render_misread(const ReportInput& input);

}  // namespace mezzo::text
