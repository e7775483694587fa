#pragma once

#include <filesystem>
#include <string>

#include "mezzo/text/tune/search.h"

namespace mezzo::text {

/// Writes results.json: the recipe, the metric, and the state, settings and scores of each trial, the best first. NaN
/// becomes null.
void write_results(const std::filesystem::path& file, const Trial::Settings& recipe, const SearchResult& result);

/// Reads results.json; its trials are sorted by number.
/// @param drawn  the trials that this search draws
/// @throws c10::ValueError  if the file is not a results.json, if it names another recipe or other trials, or if a part
/// is
///     missing.
SearchResult read_results(const std::filesystem::path& file,
                          const Trial::Settings& recipe,
                          const std::vector<Trial>& drawn);

}  // namespace mezzo::text
