#pragma once

#include <cstdint>

#include "kernels/update_elements.h"

/// The scalar computations of a loss scale and of clipping: bit-identical on every device.
namespace mezzo::kernels {

MEZZO_ELEMENT bool is_finite(float x) { return x - x == 0; }  // inf - inf is NaN

/// 1 / scale, rounded once.
MEZZO_ELEMENT float inverse_scale(float scale) { return static_cast<float>(1 / static_cast<double>(scale)); }

/// Whether the scale or its reciprocal is not finite: then no gradient means anything.
MEZZO_ELEMENT bool is_lost(float scale) { return !is_finite(scale * inverse_scale(scale)); }

/// What gradients of this total norm are multiplied by, so that it is `max_norm` at most.
MEZZO_ELEMENT float clip_by_norm(float norm, float max_norm) {
  const float wanted = 1 / (norm + 1e-6f) * max_norm;  // as Python divides a number by a tensor
  return wanted > 1 ? 1 : wanted;                      // NaN stays
}

/// The loss scale's part of GradScalerOptions.
struct LossScaleRules {
  double init_scale, growth_factor, backoff_factor;
  int64_t growth_interval;
  double min_scale, max_scale;
  int64_t hysteresis;
  bool is_static;
  bool reproduce_pytorch;  ///< no bounds; a count of good iterations beyond the interval never grows
  bool counts_skips_in_a_row;
};

/// The counts of a loss scale.
enum LossScaleCount {
  kGrowthTracker,      ///< good iterations since the scale changed
  kHysteresisTracker,  ///< overflows before the scale backs off; only if hysteresis > 1
  kSkipsInARow,        ///< up to the last update; only if the rules count them
  kSkipped,            ///< all skipped iterations
  kNumLossScaleCounts,
};

/// Ends an iteration.
MEZZO_ELEMENT void update_loss_scale(float& scale, int32_t* counts, bool overflowed, const LossScaleRules& rules) {
  if (rules.counts_skips_in_a_row) {
    counts[kSkipsInARow] = overflowed ? counts[kSkipsInARow] + 1 : 0;
  }
  counts[kSkipped] += overflowed ? 1 : 0;
  if (rules.is_static) {
    return;
  }
  int32_t overflows_left = 0;  // before the scale backs off
  if (rules.hysteresis > 1) {
    const int32_t before = counts[kHysteresisTracker];
    overflows_left = before > 0 ? before - 1 : 0;
    counts[kHysteresisTracker] = overflowed ? overflows_left : static_cast<int32_t>(rules.hysteresis);
  }
  const auto interval = static_cast<int32_t>(rules.growth_interval);
  if (overflowed) {
    counts[kGrowthTracker] = 0;
    if (overflows_left == 0) {
      scale = static_cast<float>(static_cast<double>(scale) * rules.backoff_factor);
    }
  } else {
    const int32_t good = counts[kGrowthTracker] + 1;
    const bool grows = rules.reproduce_pytorch ? good == interval : good >= interval;
    counts[kGrowthTracker] = grows ? 0 : good;
    const auto grown = static_cast<float>(static_cast<double>(scale) * rules.growth_factor);
    if (grows && is_finite(grown)) {
      scale = grown;
    }
  }
  if (!rules.reproduce_pytorch) {
    const auto least = static_cast<float>(rules.min_scale), most = static_cast<float>(rules.max_scale);
    scale = scale < least ? least : scale > most ? most : scale;
  }
}

}  // namespace mezzo::kernels
