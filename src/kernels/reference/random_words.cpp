#include "kernels/reference/random_words.h"

#include <ATen/ATen.h>

#include <array>

#include "kernels/philox.h"

namespace mezzo::kernels::reference {
namespace {

constexpr int64_t kWordMask = 0xFFFFFFFF;

/// Philox::generate on int64 tensors that hold 32-bit words. Products wrap in int64, which
/// leaves their low 64 bits right.
std::array<at::Tensor, 4> philox(std::array<at::Tensor, 4> counter, uint64_t key) {
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < Philox::kRounds; ++round, key0 += Philox::kWeyl0, key1 += Philox::kWeyl1) {
    const auto product0 = counter[0] * int64_t{Philox::kMultiplier0};
    const auto product1 = counter[2] * int64_t{Philox::kMultiplier1};
    const auto high0 = product0.bitwise_right_shift(32).bitwise_and(kWordMask);
    const auto high1 = product1.bitwise_right_shift(32).bitwise_and(kWordMask);
    counter = {high1.bitwise_xor(counter[1]).bitwise_xor(int64_t{key0}), product1.bitwise_and(kWordMask),
               high0.bitwise_xor(counter[3]).bitwise_xor(int64_t{key1}), product0.bitwise_and(kWordMask)};
  }
  return counter;
}

}  // namespace

at::Tensor random_words(
    const at::Tensor& low, const at::Tensor& high, const at::Tensor& step, uint64_t seed, uint32_t site) {
  const auto counter = at::broadcast_tensors({low, high, step.to(at::kLong)});
  return at::stack(philox({counter[0], counter[1], counter[2], at::full_like(counter[0], int64_t{site})}, seed), -1);
}

at::Tensor random_words(int64_t blocks, const at::Tensor& step, uint64_t seed, uint32_t site) {
  const auto block = at::arange(blocks, at::TensorOptions(at::kLong).device(step.device()));
  return random_words(block.bitwise_and(kWordMask), block.bitwise_right_shift(32), step, seed, site).flatten();
}

}  // namespace mezzo::kernels::reference
