#include "encoder/side_by_side.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace mezzo::encoder {
namespace {

TEST(SideBySideTest, PartsOfATensorAreThatTensor) {
  const auto whole = at::randn({6, 5});
  const auto parts = split_rows(whole, 3);
  const auto again = side_by_side(parts);
  EXPECT_TRUE(at::equal(again, whole));
  EXPECT_TRUE(again.is_alias_of(whole));
  EXPECT_TRUE(at::equal(side_by_side({parts[1], parts[2]}), whole.narrow(0, 2, 4)));
}

TEST(SideBySideTest, OthersAreNot) {
  const auto whole = at::randn({6, 5});
  const auto parts = split_rows(whole, 3);
  EXPECT_FALSE(side_by_side({parts[0], parts[2]}).defined()) << "a gap";
  EXPECT_FALSE(side_by_side({parts[1], parts[0]}).defined()) << "another order";
  EXPECT_FALSE(side_by_side({parts[0], parts[0]}).defined());
  EXPECT_FALSE(side_by_side({parts[0], parts[1].clone()}).defined()) << "other memory";
  EXPECT_FALSE(side_by_side({parts[0], parts[1].view({1, 10})}).defined()) << "other rows";
  EXPECT_FALSE(side_by_side({parts[0], parts[1].flatten()}).defined());
  EXPECT_FALSE(side_by_side({whole.narrow(1, 0, 2), whole.narrow(1, 2, 2)}).defined()) << "columns";
}

TEST(SideBySideTest, PartsHaveAVersionEach) {
  const auto parts = split_rows(at::zeros({4, 2}), 2);
  parts[0].add_(1);
  EXPECT_EQ(parts[0]._version(), 1);
  EXPECT_EQ(parts[1]._version(), 0);
  EXPECT_FALSE(parts[1].is_view());
}

}  // namespace
}  // namespace mezzo::encoder
