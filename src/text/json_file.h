#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace mezzo::text {

/// Parses a JSON file whose top level is an object. @throws c10::ValueError
/// naming the file and where in it, also for nesting deeper than 64.
nlohmann::ordered_json read_json_object(const std::filesystem::path& path);

}  // namespace mezzo::text
