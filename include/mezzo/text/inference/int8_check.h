#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace mezzo::text {

/// What labelled texts say of a model in int8, beside the same in float32: kept in FOLDER/int8.json.
struct Int8Check {
  std::string metric;                       ///< by name: "accuracy"
  double in_float32 = 0, in_int8 = 0;       ///< its values
  int64_t texts = 0;                        ///< that they are of
  std::optional<double> same_answers = {};  ///< share of the texts that get the same labels; nullopt of numbers
};

/// Writes `folder`/int8.json, atomically, for the weights and the config that lie there.
/// @throws c10::Error  naming the file, where it cannot be written
void save_int8_check(const Int8Check& check, const std::filesystem::path& folder);

/// Removes it, if it is there. Returns whether none is there any more.
bool remove_int8_check(const std::filesystem::path& folder);

/// @throws c10::ValueError  where `folder` has no int8.json of the weights and the config that lie there, with what to
/// do
void require_int8_check(const std::filesystem::path& folder);

}  // namespace mezzo::text
