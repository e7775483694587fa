#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mezzo::text {

/// The value of a JSON text, read as strictly as JsonReader does.
/// @param where  what an error message begins with.
/// @throws c10::ValueError  also for a key that an object has twice: Python's json takes the last, other readers the
///     first.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Likewise for a file; messages begin with its name and the line.
nlohmann::json read_json(const std::filesystem::path& path);

/// Likewise; refuses a file whose top level is no object.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace mezzo::text
