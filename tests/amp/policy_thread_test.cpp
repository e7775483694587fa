#include "amp/policy_thread.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cstdlib>
#include <iostream>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"

namespace mezzo {
namespace {

at::ScalarType product_dtype() { return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); }

/// Ends the process with 0 if a guard with a log is refused and leaves no trace.
[[noreturn]] void open_where_the_key_is_taken() {
  torch::Library other(torch::Library::IMPL, "_", kPolicyKey, __FILE__, __LINE__);
  other.fallback(torch::CppFunction::makeFallthrough());
  try {
    CastLog log;
    const AutocastGuard autocast(at::kCPU, at::kBFloat16, AutocastOptions().log(&log));
    std::_Exit(1);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << std::endl;
  }
  if (product_dtype() != at::kFloat) {
    std::_Exit(2);
  }
  const AutocastGuard without_policy(at::kCPU, at::kBFloat16);
  std::_Exit(product_dtype() == at::kBFloat16 ? 0 : 3);
}

TEST(PolicyThreadDeathTest, RefusesADispatchKeyThatAnotherLibraryHasTaken) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in its own process, because the registration stays
  EXPECT_EXIT(open_where_the_key_is_taken(), testing::ExitedWithCode(0),
              "need the dispatch key DeferredInit, which another library in this process has taken");
}

}  // namespace
}  // namespace mezzo
