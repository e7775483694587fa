#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mezzo/text/checkpoint/checkpoint.h"

namespace mezzo::text {

/// The flags of the identity that a run.json tells; none where there is no such file, or another.
RunIdentity::Values recorded_flags(const std::filesystem::path& run_json);

/// What keeps this run from being that of `run_json` again, as warnings: other numbers of ranks, settings, data; and
/// another machine, on which the last bits may differ. @throws c10::ValueError  where it cannot be read
std::vector<std::string> differences_from(const std::filesystem::path& run_json,
                                          const RunIdentity& identity,
                                          const RunIdentity::Values& environment);

}  // namespace mezzo::text
