#pragma once

#include <cstdint>

#include "mezzo/text/setup/train_config.h"

namespace mezzo::text {

/// The settings of a run that a launcher starts again. It goes on from what its earlier start, told the same, has left
/// in `config.output`; where that is no checkpoint yet, from where that one began, its batches dealt out in as many
/// shares, though there may be fewer ranks by now. All ranks read the same.
/// @param first_ranks  of the first start
/// @throws c10::ValueError  where that folder cannot be read.
TrainConfig restarted(TrainConfig config, int64_t first_ranks);

}  // namespace mezzo::text
