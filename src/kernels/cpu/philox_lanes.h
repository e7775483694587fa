#pragma once

#include <cstdint>

#include "kernels/philox.h"
#include "kernels/random_key.h"

namespace mezzo::kernels::cpu {

constexpr int kPhiloxLanes = 16;  // blocks computed side by side, so that loops over them become vectors

/// words[w][lane] is word w of Philox block first_block + lane under counter {block low, block high, step, site}.
[[gnu::always_inline]] inline void philox_lanes(uint64_t first_block,
                                                const RandomKey& key,
                                                uint32_t (&words)[4][kPhiloxLanes]) {
  auto& [c0, c1, c2, c3] = words;
  for (int lane = 0; lane < kPhiloxLanes; ++lane) {
    const uint64_t block = first_block + static_cast<uint64_t>(lane);
    c0[lane] = static_cast<uint32_t>(block);
    c1[lane] = static_cast<uint32_t>(block >> 32);
    c2[lane] = key.step;
    c3[lane] = key.site;
  }
  auto key0 = static_cast<uint32_t>(key.seed), key1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < Philox::kRounds; ++round, key0 += Philox::kWeyl0, key1 += Philox::kWeyl1) {
    for (int lane = 0; lane < kPhiloxLanes; ++lane) {
      const uint64_t product0 = uint64_t{Philox::kMultiplier0} * c0[lane];
      const uint64_t product1 = uint64_t{Philox::kMultiplier1} * c2[lane];
      c0[lane] = static_cast<uint32_t>(product1 >> 32) ^ c1[lane] ^ key0;
      c2[lane] = static_cast<uint32_t>(product0 >> 32) ^ c3[lane] ^ key1;
      c1[lane] = static_cast<uint32_t>(product1);
      c3[lane] = static_cast<uint32_t>(product0);
    }
  }
}

}  // namespace mezzo::kernels::cpu
