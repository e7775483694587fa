#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo::app {

struct OtherName;

/// An option of a command, as an argument names it: by mezzo's name, or by the name of another program or an earlier
/// version.
struct Flag {
  std::string name;                     ///< with its dashes, and with dashes for underscores
  const CLI::Option* option = nullptr;  ///< the option that it sets; if it sets several, the last; nullptr: none
  const OtherName* other = nullptr;     ///< nullptr: its own name, or unknown

  bool is_known() const { return option != nullptr || other != nullptr; }
  bool is_switch() const;
  bool is_text() const { return name == "--text" || name == "--text-pair"; }  ///< whose value may be any
  bool takes_several() const { return option != nullptr && option->get_expected_max() > 1; }
  /// The names of all options that it sets.
  std::vector<std::string> sets() const;
};

/// @param argument  with or without "=VALUE"
Flag find_flag(std::string_view argument, const CLI::App& command);

/// `arguments` of `command` in this program's own names: `--batch-size=16` for `--per_device_train_batch_size 16`.
/// Underscores count as dashes. A switch may have true or false after it. Prints a note for a name of an earlier
/// version, and for a setting that changes nothing.
/// @throws UsageError  for a value that is missing, and for a setting of other programs that mezzo does not need, with
/// what to do instead
std::vector<std::string> in_own_names(const std::vector<std::string>& arguments, const CLI::App& command);

/// The same option must not get different values under two names: `--precision fp32 --fp16`. Only of the options that
/// transformers splits: --precision, --eval-every and --save-every.
/// @throws UsageError
void check_set_once(const std::vector<std::string>& arguments, const CLI::App& command);

/// `--bf16 False` and `--fp16 False`, which in_own_names() leaves: fp32, unless another flag sets the precision.
std::vector<std::string> with_precision_of_switches(std::vector<std::string> arguments);

/// " Did you mean '--nearest'?" of an option, also of one that has `name` in another program; without its dashes if
/// `name` lacks them. Nothing if none is near.
std::string did_you_mean_option(const std::string& name, const CLI::App& command);

/// The same for the command itself: `quantize`.
void rename_command(std::vector<std::string>& arguments);

}  // namespace mezzo::app
