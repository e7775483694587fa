#pragma once

#include <span>

#include "text/io/known_fields.h"

namespace mezzo::text {

/// The fields of config.json, by model_type: of transformers 4 and 5, of older files, and of mezzo. Parameters of text
/// generation are left out, because no classifier reads them.
std::span<const KnownFields> known_config_fields();

}  // namespace mezzo::text
