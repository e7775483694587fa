#include "amp/policy_thread.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <tuple>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/autocast_state.h"
#include "mezzo/amp/cast_log.h"

// Each test runs in a process of its own, since what it registers stays.

namespace mezzo {
namespace {

class PolicyThreadDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

/// Counts what is not as it should be, and ends the process.
class Checks {
 public:
  void expect(bool holds, const std::string& what) {
    if (!holds) {
      std::cerr << "not so: " << what << std::endl;
      failed_ = true;
    }
  }
  [[noreturn]] void end() {
    std::cerr << (failed_ ? "failed" : "as it should be") << std::endl;
    std::_Exit(failed_ ? 1 : 0);
  }

 private:
  bool failed_ = false;
};

at::ScalarType product_dtype() { return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); }

using ProductInRegion = int8_t(const char* mm_policy, void (*inside)());

/// Another copy of mezzo, beside the tests' own.
ProductInRegion* load_copy(const std::string& name) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto file = folder / (name + "." + std::to_string(getpid()) + ".so");  // a file of its own, or it would be one
  std::filesystem::copy_file(folder / "policy_copy.so", file);
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::remove(file);
  return library == nullptr ? nullptr : reinterpret_cast<ProductInRegion*>(dlsym(library, "product_in_region"));
}

Checks checks;
ProductInRegion *first_copy = nullptr, *second_copy = nullptr;

void see_from_other_copies() {
  checks.expect(product_dtype() == at::kFloat, "the first copy's policy is in force for the tests' own");
  const auto state = AutocastState::current();
  std::thread([&] {
    const AutocastStateGuard same(state);
    checks.expect(product_dtype() == at::kFloat, "and goes along to another thread");
  }).join();
  {
    const AutocastGuard half(at::kCPU, at::kHalf);
    checks.expect(product_dtype() == at::kFloat, "and holds in a guard of the tests' own");
    const AutocastGuard lists(at::kCPU, at::kHalf, AutocastOptions().policy(OpPolicy::preset("cpu")));
    checks.expect(product_dtype() == at::kHalf, "unless that has a policy of its own");
  }
  checks.expect(second_copy("lower_precision_fp", [] {}) == static_cast<int8_t>(at::kBFloat16),
                "the second copy's policy replaces the first's");
  checks.expect(second_copy(nullptr, [] {}) == static_cast<int8_t>(at::kFloat), "without one it takes the first's");
  checks.expect(product_dtype() == at::kFloat, "what was replaced is back");
}

void open_regions_of_three_copies() {
  first_copy = load_copy("first");
  second_copy = load_copy("second");
  checks.expect(first_copy != nullptr && second_copy != nullptr && first_copy != second_copy, "two copies are loaded");
  checks.expect(first_copy("fp32", &see_from_other_copies) == static_cast<int8_t>(at::kFloat),
                "the first's own policy");
  checks.expect(product_dtype() == at::kFloat && PolicyThread::current() == nullptr, "nothing is left behind");
  CastLog log;
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16, AutocastOptions().log(&log));
    checks.expect(first_copy(nullptr, [] {}) == static_cast<int8_t>(at::kBFloat16),
                  "without a policy, PyTorch's lists");
  }
  checks.expect(log.entries().size() == 1 && log.entries()[0].count == 2, "the tests' log hears of the first's casts");
  checks.end();
}

TEST_F(PolicyThreadDeathTest, SharedObjectsWithACopyOfMezzoEachShareOneHome) {
  EXPECT_EXIT(open_regions_of_three_copies(), testing::ExitedWithCode(0), "as it should be");
}

void close_the_copy_that_opened_the_first_region() {
  first_copy = load_copy("first");
  checks.expect(first_copy("fp32", [] {}) == static_cast<int8_t>(at::kFloat), "the copy's own policy");
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(first_copy), &info);
  void* library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  checks.expect(library != nullptr, "the copy is there");
  dlclose(library);  // this one's
  dlclose(library);  // load_copy's
  const AutocastGuard autocast(at::kCPU, at::kBFloat16, AutocastOptions().policy(OpPolicy::preset("cpu")));
  checks.expect(product_dtype() == at::kBFloat16, "its home of regions outlives it");
  checks.end();
}

TEST_F(PolicyThreadDeathTest, ASharedObjectThatIsClosedTakesNoRegionsAlong) {
  EXPECT_EXIT(close_the_copy_that_opened_the_first_region(), testing::ExitedWithCode(0), "as it should be");
}

/// A guard with a log must be refused with these words, and leave no trace.
void expect_refusal(const std::string& words) {
  std::string message;
  try {
    CastLog log;
    const AutocastGuard autocast(at::kCPU, at::kBFloat16, AutocastOptions().log(&log));
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  }
  checks.expect(message.find(words) != std::string::npos, "the message says: " + words + "; it is: " + message);
  checks.expect(product_dtype() == at::kFloat, "autocast is off again");
  const AutocastGuard plain(at::kCPU, at::kBFloat16);
  checks.expect(product_dtype() == at::kBFloat16, "guards without a policy go on");
  checks.end();
}

void open_where_the_key_is_taken() {
  torch::Library other(torch::Library::IMPL, "_", kPolicyKey, __FILE__, __LINE__);
  other.fallback(torch::CppFunction::makeFallthrough());
  expect_refusal("need the dispatch key DeferredInit, which another library in this process has taken");
}

TEST_F(PolicyThreadDeathTest, AKeyThatAnotherLibraryHasTakenIsRefusedClearly) {
  EXPECT_EXIT(open_where_the_key_is_taken(), testing::ExitedWithCode(0), "as it should be");
}

void open_where_there_is_another_version() {
  torch::Library other(torch::Library::FRAGMENT, "mezzo", std::nullopt, __FILE__, __LINE__);
  other.def("_policy_home() -> (str version, int address)",
            [] { return std::make_tuple(std::string("0.0.1"), int64_t{0}); });
  expect_refusal("two versions of mezzo are in this process, 0.0.1 and");
}

TEST_F(PolicyThreadDeathTest, AnotherVersionOfMezzoIsRefusedClearly) {
  EXPECT_EXIT(open_where_there_is_another_version(), testing::ExitedWithCode(0), "as it should be");
}

}  // namespace
}  // namespace mezzo
