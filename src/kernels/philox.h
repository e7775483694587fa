#pragma once

#include <array>
#include <cstdint>

namespace mezzo::kernels {

/// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four random
/// words from a 128-bit counter and a 64-bit key.
struct Philox {
  static constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  static constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  static constexpr int kRounds = 10;

  static constexpr std::array<uint32_t, 4> generate(std::array<uint32_t, 4> counter, uint64_t key) {
    auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < kRounds; ++round, key0 += kWeyl0, key1 += kWeyl1) {
      const uint64_t product0 = uint64_t{kMultiplier0} * counter[0], product1 = uint64_t{kMultiplier1} * counter[2];
      counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
                 static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    }
    return counter;
  }
};

}  // namespace mezzo::kernels
