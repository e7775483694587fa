#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace mezzo::text {

/// A comparison of a model in int8 and float32 on labelled texts, stored in FOLDER/int8.json.
struct Int8Check {
  std::string metric;                       ///< by name: "accuracy"
  double in_float32 = 0;                    ///< value of the metric in float32
  double in_int8 = 0;                       ///< value of the metric in int8
  int64_t texts = 0;                        ///< number of texts
  std::optional<double> same_answers = {};  ///< share of texts with the same labels; nullopt for numbers
  bool is_accepted = true;                  ///< whether int8 fulfils the user's condition
};

/// Writes `folder`/int8.json, atomically, for the weights and the config in `folder`.
/// @throws c10::Error  naming the file, if it cannot be written
void save_int8_check(const Int8Check& check, const std::filesystem::path& folder);

/// A warning, unless FOLDER/int8.json accepts the model of FOLDER in int8. Otherwise empty.
std::string int8_warning(const std::filesystem::path& folder);

}  // namespace mezzo::text
