#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace mezzo::text {

/// The whole file. @throws c10::ValueError  naming the file, when it cannot be read or is larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{1} << 30);

/// Parses a JSON file whose top level is an object. @throws c10::ValueError
/// naming the file and where in it, also for nesting deeper than 64.
nlohmann::ordered_json read_json_object(const std::filesystem::path& path);

}  // namespace mezzo::text
