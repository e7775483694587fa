#include "mezzo/text/train/op_policy_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class OpPolicyFileTest : public ::testing::Test {
 protected:
  OpPolicy load(const std::string& toml) { return load_op_policy(folder_.write("policy.toml", toml)); }
  void expect_refused(const std::string& toml, const std::string& message) {
    EXPECT_THAT([&] { load(toml); }, ThrowsMessage<c10::ValueError>(HasSubstr("policy.toml:" + message))) << toml;
  }

  ScratchFolder folder_;
};

TEST_F(OpPolicyFileTest, StartsFromThePresetAndChangesLines) {
  const auto policy = load(R"(preset = "cuda"
[ops]
layer_norm = "untouched"
"aten::gelu" = "fp32"
"pow.Scalar" = "untouched"
pow.Tensor_Scalar = "lower_precision_fp"
)");
  auto expected = OpPolicy::preset("cuda");
  expected.set("layer_norm", CastPolicy::kUntouched)
      .set("gelu", CastPolicy::kFloat32)
      .set("pow.Scalar", CastPolicy::kUntouched)
      .set("pow.Tensor_Scalar", CastPolicy::kLowerPrecision);
  EXPECT_EQ(policy.lines(), expected.lines());
}

TEST_F(OpPolicyFileTest, WithoutAPresetNothingElseIsListed) {
  EXPECT_EQ(load("[ops]\nmm = \"lower_precision_fp\"\n").lines(),
            (std::vector<OpPolicyEntry>{{"aten::mm", CastPolicy::kLowerPrecision}}));
  for (const char* none : {"", "# nothing\n", "[ops]\n"}) {
    EXPECT_THAT([&] { load(none); },
                ThrowsMessage<c10::ValueError>(HasSubstr(
                    "policy.toml: lists no op. Give it a preset, as preset = \"cuda\", or lines under [ops].")));
  }
}

TEST_F(OpPolicyFileTest, MistakesAreToldWithTheirLine) {
  expect_refused("preset = \"gpu\"\n", "1: OpPolicy: there is no preset 'gpu'");
  expect_refused("\npreset = 3\n", "2: 'preset' must be a string");
  expect_refused("[ops]\nmm = \"fp16\"\n", "2: op policy 'fp16' is not known");
  expect_refused("[ops]\nmm = true\n", "2: 'mm' must be a string");
  expect_refused("[ops]\n\nno_such_op = \"fp32\"\n", "3: OpPolicy: there is no op aten::no_such_op");
  expect_refused("[ops]\nmm.out = \"fp32\"\n", "2: OpPolicy: aten::mm.out writes to its arguments");
  expect_refused("ops = 1\n", "1: 'ops' must be a table: [ops]");
  expect_refused("presets = \"cuda\"\n", "1: 'presets' is not a part of an op policy: preset, ops");
  expect_refused("preset = \n", "1: ");
}

TEST_F(OpPolicyFileTest, AFileWithoutAnEndIsNotReadToItsEnd) {
  EXPECT_THAT([&] { load_op_policy("/dev/zero"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("/dev/zero: has more than 1048576 bytes")));
}

TEST_F(OpPolicyFileTest, ANameThatIsNeitherPresetNorFileIsRefused) {
  EXPECT_EQ(parse_op_policy("cpu").lines(), OpPolicy::preset("cpu").lines());
  EXPECT_THAT(
      [] { parse_op_policy("cuda_2019"); },
      ThrowsMessage<c10::Error>(HasSubstr("cannot read the op policy cuda_2019; it is neither a preset (cuda, ")));
}

}  // namespace
}  // namespace mezzo::text
