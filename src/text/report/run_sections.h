#pragma once

#include <string>

#include "mezzo/text/report/report.h"

/// Sections of the report that tell of the run: each with its heading, or empty.
namespace mezzo::text {

/// How long steps, evaluations and all else took.
std::string render_time(const ReportInput& input);

/// Each step that was skipped, and what its numbers say of the cause.
std::string render_skipped(const ReportInput& input);

/// The warnings of the run, and on its data.
std::string render_warnings(const ReportInput& input);

/// The texts, or words, of each label, and a histogram of the lengths of texts.
std::string render_training_data(const ReportInput& input);

/// The notes on data and model that are not warnings.
std::string render_notes(const ReportInput& input);

/// A table of texts, without a heading; empty if there are none.
std::string render_misread(const ReportInput& input);

}  // namespace mezzo::text
