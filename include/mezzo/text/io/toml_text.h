#pragma once

#include "mezzo/cpp20.h"

#include <filesystem>
#include <string>

namespace mezzo::text {

/// The contents of a TOML file, for a parser.
/// @throws c10::ValueError  naming the file, if it cannot be read, or has more than 1 MiB or 5,000
///     dots: the parser's recursion is as deep as keys have parts
std::string read_toml_text(const std::filesystem::path& file);

}  // namespace mezzo::text
