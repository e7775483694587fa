#pragma once

#include <filesystem>
#include <string>

namespace mezzo::text {

/// The contents of a TOML file, to be parsed.
/// @throws c10::ValueError  naming the file, where it cannot be read, has more than 1 MiB, or a line with more than
/// 1,000
///   dots: parsers go as deep as a key has parts.
std::string read_toml_text(const std::filesystem::path& file);

}  // namespace mezzo::text
