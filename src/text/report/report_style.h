#pragma once

namespace mezzo::text {

/// The style sheet of report.html.
extern const char* const kReportStyle;

}  // namespace mezzo::text
