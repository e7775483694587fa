// libmezzo_cuda.so is opened when a CUDA device is asked for, and what happens without it. LibTorch seems to have CUDA
// in this program; a fake library is where LD_LIBRARY_PATH leads, or none is.
#include "kernels/cuda_library.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "encoder/block_ops.h"
#include "graph/device_graph.h"
#include "kernels/device_kernels.h"

namespace at {
namespace {

struct WithCuda : CUDAHooksInterface {
  explicit WithCuda(CUDAHooksArgs /*args*/) {}
  bool hasCUDART() const override { return true; }
};
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, WithCuda);

}  // namespace
}  // namespace at

namespace mezzo {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;

const c10::Device kGpu(c10::kCUDA, 0), kOldGpu(c10::kCUDA, 1);

struct KeptWarnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { kept.push_back(warning.msg()); }
  std::vector<std::string> kept;
};

std::string loaded_files() {
  std::ifstream maps("/proc/self/maps");
  return {std::istreambuf_iterator<char>(maps), {}};
}

TEST(CudaLibraryTest, IsOpenedByTheFirstUseOfAGpuAndNotByTheCpus) {
  EXPECT_NE(encoder::block_ops(c10::kCPU), nullptr);
  EXPECT_NE(&kernels::device_kernels(c10::kCPU), &kernels::reference::kDeviceKernels);
  EXPECT_THAT(loaded_files(), Not(HasSubstr("libmezzo_cuda")));

  ASSERT_NE(encoder::block_ops(kGpu), nullptr);
  EXPECT_THAT(loaded_files(), HasSubstr("libmezzo_cuda.so"));
  EXPECT_EQ(encoder::block_ops(kGpu), cuda_library()->block_ops);
  EXPECT_EQ(&kernels::device_kernels(kGpu), cuda_library()->kernels);
  EXPECT_EQ(make_device_graphs(kGpu), nullptr) << "a part that the library lacks";
}

TEST(CudaLibraryTest, ADeviceThatItHasNoKernelsForRunsTheSpecification) {
  KeptWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  EXPECT_EQ(&kernels::device_kernels(kOldGpu), &kernels::reference::kDeviceKernels);
  EXPECT_THAT(warnings.kept, ElementsAre(HasSubstr("it is of sm_61")));
}

TEST(CudaLibraryTest, OneOfAnotherBuildIsRefused) {
  setenv("MEZZO_TEST_BUILD", "mezzo 0.0.9 for LibTorch 2.11", /*overwrite=*/1);
  EXPECT_THAT(
      [] { open_cuda_library("libmezzo_cuda.so"); },
      ThrowsMessage<c10::Error>(StartsWith("libmezzo_cuda.so is of mezzo 0.0.9 for LibTorch 2.11, and this is " +
                                           std::string(CudaLibrary::kBuild))));
  unsetenv("MEZZO_TEST_BUILD");
  EXPECT_THAT([] { open_cuda_library("libc10.so"); },
              ThrowsMessage<c10::Error>(AllOf(HasSubstr("libc10.so"), HasSubstr("undefined symbol"))));
}

TEST(CudaLibraryTest, WithoutItOneWarningSaysSoAndLibTorchsOperationsRun) {
  KeptWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  EXPECT_EQ(&kernels::device_kernels(kGpu), &kernels::reference::kDeviceKernels);
  EXPECT_EQ(encoder::block_ops(kGpu), nullptr);
  EXPECT_EQ(make_device_graphs(kGpu), nullptr);
  EXPECT_THAT(warnings.kept, ElementsAre(StartsWith("mezzo has no kernels for GPUs (libmezzo_cuda.so: cannot open ")));
}

}  // namespace
}  // namespace mezzo
