#include "kernels/operator.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "kernels/dropout.h"
#include "mezzo/version.h"

namespace mezzo::kernels {
namespace {

void* load(const char* name) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return dlopen((folder / name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

TEST(OperatorTest, IsThereForEveryUserOfTheDispatcher) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mezzo::dropout", "");
  torch::jit::Stack stack{at::ones({64}), 0.5, 1, 2, 3, c10::IValue()};
  op.callBoxed(stack);
  EXPECT_TRUE(at::equal(stack.front().toTensor(), dropout(at::ones({64}), {0.5, {1, 2, 3}})));
}

TEST(OperatorTest, SharedObjectsWithACopyOfMezzoEachShareOneRegistration) {
  auto* copy = load("policy_copy.so");
  ASSERT_NE(copy, nullptr) << dlerror();
  auto* dropped = reinterpret_cast<void (*)(at::Tensor&)>(dlsym(copy, "drop"));
  auto tensor = at::ones({64});
  dropped(tensor);
  EXPECT_TRUE(at::equal(tensor, dropout(at::ones({64}), {0.5, {1, 2, 3}})));
}

TEST(OperatorTest, AnotherVersionLoadsAndRefusesItsFirstCall) {
  auto* copy = load("operator_copy.so");
  ASSERT_NE(copy, nullptr) << dlerror();
  auto* error_of_call = reinterpret_cast<const char* (*)()>(dlsym(copy, "error_of_call"));
  EXPECT_THAT(error_of_call(),
              testing::HasSubstr("two versions are in this process, " MEZZO_VERSION " and another version"));
  EXPECT_FALSE(c10::Dispatcher::singleton().findSchema({"mezzo::twice", ""}));
}

TEST(OperatorTest, AnotherBuildOfTheVersionRefusesTheOperatorsWhoseSchemasDiffer) {
  auto* copy = load("operator_build_copy.so");
  ASSERT_NE(copy, nullptr) << dlerror();
  const auto error = [&](const char* name) { return reinterpret_cast<const char* (*)()>(dlsym(copy, name))(); };
  EXPECT_STREQ(error("error_of_same"), "");
  EXPECT_STREQ(
      error("error_of_renamed"),
      "mezzo: two builds of version " MEZZO_VERSION
      " are in this process, with "
      "mezzo::dropout(Tensor x, float p, int seed, int step, int site, Tensor? step_offset=None) -> Tensor and "
      "mezzo::dropout(Tensor x, float q, int seed, int step, int site, Tensor? step_offset=None) -> Tensor, "
      "and operators have one home; link both of their users with the same mezzo");
}

}  // namespace
}  // namespace mezzo::kernels
