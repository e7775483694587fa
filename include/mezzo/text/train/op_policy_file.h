#pragma once

#include "mezzo/cpp20.h"

#include <filesystem>
#include <string>

#include "mezzo/amp/op_policy.h"

namespace mezzo::text {

/// Reads an op policy from a TOML file: an initial preset, and changed lines.
/// @code{.toml}
/// preset = "cuda"                    # left out: every op untouched
/// [ops]
/// layer_norm = "untouched"
/// "pow.Tensor_Scalar" = "fp32"       # the words of to_string(CastPolicy)
/// @endcode
/// @throws c10::ValueError  with file and line, for an invalid file, a file without ops, or an op
///     that does not exist or cannot follow the line
/// @throws c10::Error  if the file cannot be read
OpPolicy load_op_policy(const std::filesystem::path& path);

/// The preset with this name, else the result of `load_op_policy`.
OpPolicy parse_op_policy(const std::string& name_or_path);

}  // namespace mezzo::text
