#include "simulated/gpu_kernels.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/host_block.h"
#include "encoder/cuda/row_launchers.h"
#include "encoder/dropout.h"
#include "encoder/fused/next_input.h"
#include "encoder/packed_attention.h"
#include "encoder/sequence_layout.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tensors.h"
#include "kernels/kernel_image.h"
#include "kernels/optimizer_kernels.h"
#include "kernels/scaling_kernels.h"
#include "mezzo/amp/losses.h"
#include "simulated/device_test.h"

/// Mistakes of a kernel for GPUs on its way to a stream, and with memory. Each mistake is made here
/// once. The kernels' results are tested in gpu_training_test.cpp.

namespace mezzo::simulated {
namespace {

namespace gpu = encoder::MEZZO_CUDA;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

class GpuKernelsTest : public DeviceTest {
 protected:
  static void* handle_of(c10::Stream stream) { return stream.native_handle(); }
  static gpu::DropoutArguments arguments(const at::Tensor& x, const at::Tensor& out) {
    return {gpu::span_of(x), gpu::span_of(out), x.numel(), {}};
  }

  const WithGpuKernels with_gpu_kernels;
  const at::Tensor x = at::ones({8}, device), out = at::empty({8}, device);
};

TEST_F(GpuKernelsTest, AnOperatorsKernelIsTheGpusAndNobodyWaits) {
  const kernels::RandomKey key{5, 6, 7};
  const int64_t before = gpu::num_launches();
  const Watch watch;
  const auto there = encoder::dropout(x, {0.5, key});
  EXPECT_EQ(gpu::num_launches(), before + 1);
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_TRUE(at::equal(there.cpu(), encoder::dropout(at::ones({8}), {0.5, key})));
}

struct KeptWarnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { kept.push_back(warning.msg()); }
  std::vector<std::string> kept;
};

TEST_F(GpuKernelsTest, LibTorchTakesOverOnADeviceThatTheKernelsWereNotCompiledForAndOneWarningSaysSo) {
  kernels::set_kernel_image_check(kType, [](int index) -> std::string {
    return index == 0 ? "compute capability 6.1, no kernel image is available" : "";
  });
  KeptWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const auto train = [](c10::Device where) {
    const auto weight = at::ones({8}, where), gradient = at::full({8}, 1e-8 * 65536, where);
    const auto logits = at::arange(12, at::kFloat).view({4, 3}).to(where), target = at::ones({4}, at::kLong).to(where);
    const auto dropped = encoder::dropout(weight, {0.5, {5, 6, 7}});
    const auto summary = kernels::summarize_gradients({gradient}, at::full({}, 65536.0F, where), 1);
    const auto loss = mezzo::cross_entropy(logits, target);
    return std::vector{dropped.cpu(), summary.norm.cpu(), loss.cpu()};
  };
  const int64_t before = gpu::num_launches();
  const auto of_libtorch = train(device);
  EXPECT_EQ(gpu::num_launches(), before);
  ASSERT_EQ(warnings.kept.size(), 1);
  EXPECT_THAT(warnings.kept.front(), HasSubstr("mezzo has no kernels for"));
  EXPECT_THAT(warnings.kept.front(), HasSubstr("compute capability 6.1, no kernel image is available"));
  const auto of_kernels = train(other_device);  // which has an image
  EXPECT_GT(gpu::num_launches(), before);
  for (size_t i = 0; i < of_kernels.size(); ++i) {
    EXPECT_TRUE(at::allclose(of_libtorch[i], of_kernels[i], 1e-6, 0)) << i;  // sums of float32 in another order
  }
  kernels::set_kernel_image_check(kType, nullptr);
}

/// As compute capability 7.5 has it, for gradients of float32 heads of more than 128 columns.
TEST_F(GpuKernelsTest, LibTorchTakesOverAttentionThatNeedsMoreSharedMemoryThanADeviceHas) {
  const gpu::WithDeviceLimits limits({.multiprocessors = 40, .shared_bytes = 64 * 1024});
  const auto rows = at::randn({7, 160});
  const auto attend = [&](c10::Device where) {
    const auto layout = c10::make_intrusive<encoder::SequenceLayout>(at::tensor({0, 4, 7}, at::kInt),
                                                                     at::tensor({4, 3}, at::kInt), 7, where);
    const auto leaf = rows.to(where).requires_grad_();
    const auto output = encoder::packed_attention(leaf, leaf, leaf, layout, {.num_heads = 1});
    output.backward(at::ones({7, 160}, where));
    return std::pair(output.detach().cpu(), leaf.grad().cpu());
  };
  const int64_t before = gpu::num_launches();
  const auto [output, grad] = attend(device);
  EXPECT_EQ(gpu::num_launches(), before);
  const auto [output_of_cpu, grad_of_cpu] = attend(at::kCPU);
  EXPECT_TRUE(at::allclose(output, output_of_cpu, 1e-5, 1e-5));  // sums of 160 terms in float32
  EXPECT_TRUE(at::allclose(grad, grad_of_cpu, 1e-4, 1e-4));
}

TEST_F(GpuKernelsTest, KernelsGoToTheCurrentStream) {
  const auto side = Queue::create(device);
  const c10::StreamGuard guard(side);
  const auto of_side = at::ones({8}, device);
  EXPECT_TRUE(at::equal(encoder::dropout(of_side, {0.5, {}}).cpu(), encoder::dropout(at::ones({8}), {0.5, {}})));
}

/// Another stream may not have waited for the kernel that wrote it.
TEST_F(GpuKernelsTest, TheNextInputOfABlockIsNotTakenOnAnotherStream) {
  using encoder::fused::NextInput;
  NextInput::attach(x, x.to(at::kHalf));
  EXPECT_TRUE(NextInput::of(x, at::kHalf).defined());
  const c10::StreamGuard guard(Queue::create(device));
  EXPECT_FALSE(NextInput::of(x, at::kHalf).defined());
}

TEST_F(GpuKernelsTest, AKernelOnAnotherStreamIsAFault) {
  const auto side = Queue::create(device);
  gpu::dropout(arguments(x, out), handle_of(side));
  expect_fault("DropoutKernel on stream");
  c10::Event written(kType);
  written.record(current_stream(0));
  written.block(side);
  gpu::dropout(arguments(x, out), handle_of(side));
  synchronize();
}

TEST_F(GpuKernelsTest, AKernelNeedsAStreamAndADeviceGuard) {
  EXPECT_THAT([&] { gpu::dropout(arguments(x, out), nullptr); }, ThrowsMessage<c10::Error>(HasSubstr("no stream")));
  const auto elsewhere = handle_of(default_stream(1));
  EXPECT_THAT([&] { gpu::dropout(arguments(x, out), elsewhere); },
              ThrowsMessage<c10::Error>(HasSubstr("device guard is missing")));
  const c10::DeviceGuard guard(other_device);
  EXPECT_THAT([&] { gpu::dropout(arguments(x, out), elsewhere); },
              ThrowsMessage<c10::Error>(HasSubstr("devices are mixed")));
}

TEST_F(GpuKernelsTest, AKernelIsGivenMemoryThatIsThere) {
  const auto here = at::ones({8});
  const auto stream = handle_of(default_stream(0));
  EXPECT_THAT([&] { gpu::dropout(arguments(here, out), stream); },
              ThrowsMessage<c10::Error>(HasSubstr("where no device has memory")));
  auto freed = at::ones({8}, device);
  const auto dangling = arguments(x, freed);
  freed.reset();  // whose kernels have yet to run
  EXPECT_THROW(gpu::dropout(dangling, stream), c10::Error);
}

/// Says of its two tensors that it reads the first, and writes to either.
struct Culprit {
  struct Arguments {
    float *read, *other;
    bool writes_to_read, uses_other;
  };
  template <class Memory>
  static void uses(Memory& memory, const Arguments& a) {
    memory.reads(a.read, 8);
  }
  static void run(const gpu::Block& block, const Arguments& a) {
    if (block.thread() == 0) {
      a.writes_to_read ? a.read[0] = 2 : a.uses_other ? a.other[0] = 2 : 0;
    }
  }
};

struct OneWarp {
  int64_t blocks = 1;
  int threads = 32, shared_bytes = 0;
};

TEST_F(GpuKernelsTest, AKernelTouchesNoMoreThanItSaysAndWritesNoMoreThanItSays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [&](bool writes_to_read, bool uses_other) {
    gpu::launch<Culprit>(
        OneWarp{}, handle_of(default_stream(0)),
        Culprit::Arguments{x.mutable_data_ptr<float>(), out.mutable_data_ptr<float>(), writes_to_read, uses_other});
    synchronize();
  };
  run(false, false);
  EXPECT_DEATH(run(true, false), "a kernel that was not given it");
  EXPECT_DEATH(run(false, true), "a kernel that was not given it");
}

TEST_F(GpuKernelsTest, WhoReadsTooEarlySeesNaN) {
  const auto there = encoder::dropout(x, {0.5, {}});
  auto here = at::zeros({8}).pin_memory();
  here.copy_(there, /*non_blocking=*/true);
  EXPECT_TRUE(here.isnan().all().item<bool>());
  synchronize();
  EXPECT_FALSE(here.isnan().any().item<bool>());
}

}  // namespace
}  // namespace mezzo::simulated
