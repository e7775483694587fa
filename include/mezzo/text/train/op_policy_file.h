#pragma once

#include "mezzo/cpp20.h"

#include <filesystem>
#include <string>

#include "mezzo/amp/op_policy.h"

namespace mezzo::text {

/// Reads an op policy from a TOML file: a preset to start from, and lines to change.
/// @code{.toml}
/// preset = "cuda"                    # left out: every op untouched
/// [ops]
/// layer_norm = "untouched"
/// "pow.Tensor_Scalar" = "fp32"       # the words of to_string(CastPolicy)
/// @endcode
/// @throws c10::ValueError  for what is not such a file or lists no op, an op that does not exist or
///     cannot follow the line, naming file and line; c10::Error if the file cannot be read
OpPolicy load_op_policy(const std::filesystem::path& path);

/// A preset, if `name_or_path` is the name of one, else `load_op_policy`.
OpPolicy parse_op_policy(const std::string& name_or_path);

}  // namespace mezzo::text
