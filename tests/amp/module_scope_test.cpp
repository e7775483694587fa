#include "mezzo/amp/module_scope.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace mezzo {
namespace {

TEST(ModuleScopeTest, PathNamesTheScopesOfThisThreadOutermostFirst) {
  EXPECT_EQ(ModuleScope::current_path(), "");
  const ModuleScope encoder("encoder");
  {
    const ModuleScope layer("layer", 3);
    const ModuleScope output("output");
    EXPECT_EQ(ModuleScope::current_path(), "encoder.layer.3.output");
    std::string elsewhere = "not run";
    std::thread([&] { elsewhere = ModuleScope::current_path(); }).join();
    EXPECT_EQ(elsewhere, "");
  }
  EXPECT_EQ(ModuleScope::current_path(), "encoder");
}

TEST(ModuleScopeTest, LeavesItsScopeWhenAnExceptionDoes) {
  try {
    const ModuleScope scope("head");
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(ModuleScope::current_path(), "");
}

}  // namespace
}  // namespace mezzo
