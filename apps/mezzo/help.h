#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace mezzo::app {

/// The help of the program or of a command, in lines of at most 80 columns.
/// @param shows_all  also the options that are not basic
std::string help_text(const CLI::App& app, bool shows_all);

}  // namespace mezzo::app
