// Which dropout of a model draws: a number in the key of its masks, so no two draw the same.
#pragma once

#include <cstdint>

#include "encoder/dropout_site.h"
#include "mezzo/text/data/packed_batch.h"

namespace mezzo::text {

/// One site for the embeddings, one before the outputs, three a layer. The third is within the feed-forward half if
/// layers begin with their norms. Further sites of a head follow the layers. Then come the layers' sites for relative
/// positions.
constexpr uint32_t kEmbeddingSite = 0, kClassifierSite = 1;

enum class LayerSite : uint32_t { kAttentionWeights, kAttentionOutput, kOutput };
constexpr uint32_t kSitesOfALayer = 3;

inline uint32_t layer_site(int64_t layer, LayerSite where) {
  return kClassifierSite + 1 + kSitesOfALayer * static_cast<uint32_t>(layer) + static_cast<uint32_t>(where);
}
inline uint32_t site_behind_layers(int64_t num_layers) { return layer_site(num_layers, LayerSite{}); }

inline uint32_t relative_site(int64_t num_layers, int64_t layer) {
  return site_behind_layers(num_layers) + 1 + static_cast<uint32_t>(layer);
}

/// The sites of LoRA follow the sites of all models.
constexpr uint32_t kLoraSites = 1U << 20U;

inline encoder::DropoutSite dropout_site(double p, const DropoutSeed& random, uint32_t site) {
  return {p, {random.seed, random.step, site}, random.step_offset};
}

}  // namespace mezzo::text
