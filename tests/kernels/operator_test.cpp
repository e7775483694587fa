#include "kernels/operator.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "mezzo/version.h"

namespace mezzo::kernels {
namespace {

TEST(OperatorTest, ASecondCopyOfMezzoLoadsAndRefusesItsFirstCall) {
  const auto file = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "operator_copy.so";
  auto* copy = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(copy, nullptr) << dlerror();
  for (const char* name : {"error_of_call", "error_of_region"}) {
    EXPECT_STREQ(reinterpret_cast<const char* (*)()>(dlsym(copy, name))(),
                 "mezzo: two copies of mezzo are in this process, and this one, version " MEZZO_VERSION
                 ", was loaded second (mezzo::version is registered already). Link all users of mezzo in a process "
                 "with the same shared library.");
  }
  EXPECT_FALSE(c10::Dispatcher::singleton().findSchema({"mezzo::twice", ""}));
}

}  // namespace
}  // namespace mezzo::kernels
