#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace mezzo::app {

/// `arguments` of `command` in this program's own names: `--batch-size 16` for `--per_device_train_batch_size 16`.
/// Underscores count as dashes. A switch may have True or False after it. Prints a note for a name of an earlier
/// version.
/// @throws UsageError  for a setting of other programs that mezzo does not need, with what to do instead
std::vector<std::string> in_own_names(const std::vector<std::string>& arguments, const CLI::App& command);

/// The names of other programs that in_own_names() knows for `command`, with their dashes.
std::vector<std::string> other_names(const CLI::App& command);

/// The same for the command itself: `help train`, `version`, `quantize`.
void rename_command(std::vector<std::string>& arguments);

}  // namespace mezzo::app
