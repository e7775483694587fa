#include "encoder/fused/next_input.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

namespace mezzo::encoder::fused {
namespace {

at::Tensor with_next_input(const at::Tensor& x) {
  NextInput::attach(x, x.to(at::kBFloat16));
  return x;
}

bool has_next_input(const at::Tensor& x) { return NextInput::of(x, at::kBFloat16).defined(); }

TEST(NextInputTest, IsCarriedByTheOutputAlone) {
  const auto x = with_next_input(at::ones({2, 3}));
  EXPECT_TRUE(at::equal(NextInput::of(x, at::kBFloat16), at::ones({2, 3}, at::kBFloat16)));
  EXPECT_FALSE(NextInput::of(x, at::kHalf).defined());
  EXPECT_FALSE(has_next_input(x.narrow(0, 0, 1)));
  EXPECT_FALSE(has_next_input(x.clone()));
}

TEST(NextInputTest, IsNoLongerTakenOnceTheOutputHasChanged) {
  const auto changed = with_next_input(at::ones({2, 3}));
  changed.add_(1);
  EXPECT_FALSE(has_next_input(changed));
  const auto other = with_next_input(at::ones({2, 3}));
  other.unsafeGetTensorImpl()->shallow_copy_from(at::zeros({2, 3}).getIntrusivePtr());  // as set_data does
  EXPECT_FALSE(has_next_input(other));
}

TEST(NextInputTest, IsNotCarriedByInferenceTensorsWhichDoNotCountChanges) {
  const c10::InferenceMode inference;
  EXPECT_FALSE(has_next_input(with_next_input(at::ones({2, 3}))));
}

}  // namespace
}  // namespace mezzo::encoder::fused
