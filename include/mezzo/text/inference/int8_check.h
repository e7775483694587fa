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
  bool is_accepted = true;                  ///< whether int8 is good enough for the person who asked
};

/// Writes `folder`/int8.json, atomically, for the weights and the config that lie there.
/// @throws c10::Error  naming the file, where it cannot be written
void save_int8_check(const Int8Check& check, const std::filesystem::path& folder);

/// A warning, if FOLDER/int8.json does not say that the model there is good in int8. Else empty.
std::string int8_warning(const std::filesystem::path& folder);

}  // namespace mezzo::text
