#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace mezzo::app {

/// The help of the program or of a command, in lines of at most 80 columns.
/// @param shows_all  also the options that are not basic
std::string help_text(const CLI::App& app, bool shows_all);

/// The word for the value of `option` in help: FILE, N, NAME. Empty for switches.
std::string metavar_of(const CLI::Option& option);

/// The description of `option`, its choices and its default.
std::string description_of(const CLI::Option& option);

}  // namespace mezzo::app
