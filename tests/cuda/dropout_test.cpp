#include "encoder/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "encoder/cuda/block_ops.h"

namespace mezzo::encoder {
namespace {

class CudaDropoutTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(CudaDropoutTest, EqualsTheReferenceBitForBitAtEverySize) {
  for (const int64_t size : {0, 1, 3, 4, 1023, 1024, 1025, 5000}) {
    for (const double p : {0.1, 0.5, 0.999}) {
      const DropoutSite site{p,
                             {0x123456789ABCDEF, static_cast<uint32_t>(size), 9},
                             size % 2 == 0 ? at::scalar_tensor(3, at::kLong) : at::Tensor()};
      auto x = at::randn({size}).to(GetParam());
      if (size > 2) {
        x[1] = std::numeric_limits<float>::quiet_NaN();
        x[2] = std::numeric_limits<float>::infinity();
      }
      EXPECT_TRUE(at::allclose(MEZZO_CUDA::dropout(x, site), reference::dropout(x, site), 0, 0, /*equal_nan=*/true))
          << size << " " << p;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllDtypes, CudaDropoutTest, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

}  // namespace
}  // namespace mezzo::encoder
