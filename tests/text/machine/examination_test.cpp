#include "mezzo/text/machine/examination.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../scratch_folder.h"
#include "text/machine/processor.h"

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// One that nothing is wrong with.
Examination good_machine() {
  Examination machine;
  machine.kernels = machine.best_kernels = "avx512_bf16";
  machine.num_processors = machine.num_usable = machine.num_threads = 8;
  machine.memory_bytes = machine.available_bytes = 64'000'000'000;
  machine.shared_memory_bytes = 32'000'000'000;
  machine.products = {{"fp32", 2e11, 3e11}, {"bf16", 4e11, 6e11}, {"fp16", 2e11, 0}, {"int8", 8e11, 12e11}};
  return machine;
}

TEST(MachineAdviceTest, ChoosesWhatTheProcessorMultipliesItself) {
  const auto advice = advice_of(good_machine());
  EXPECT_EQ(advice.precision, "bf16");
  EXPECT_THAT(advice.reason, HasSubstr("bfloat16 2 times as fast as float32"));
  EXPECT_EQ(advice.prediction, "int8");
  EXPECT_THAT(advice.prediction_reason, HasSubstr("2 times as fast as bf16's"));
  EXPECT_THAT(advice.problems, IsEmpty());

  auto machine = good_machine();
  machine.kernels = machine.best_kernels = "avx512_amx";
  EXPECT_EQ(advice_of(machine).precision, "bf16");
  machine.kernels = machine.best_kernels = "avx2";
  machine.products.back().measured = 2.5e11;
  EXPECT_EQ(advice_of(machine).precision, "fp32");
  EXPECT_EQ(advice_of(machine).prediction, "fp32") << "1.25 times is not worth what it rounds";
  EXPECT_THAT(advice_of(machine).prediction_reason, HasSubstr("1.2 times as fast"));
  machine.products.pop_back();
  EXPECT_THAT(advice_of(machine).prediction_reason, HasSubstr("no products in int8"));
}

TEST(MachineAdviceTest, NamesEachProblemAndItsRemedyAlone) {
  const auto expect = [](const auto& change, const char* problem, const char* remedy) {
    auto machine = good_machine();
    change(machine);
    const auto problems = advice_of(machine).problems;
    ASSERT_EQ(problems.size(), 1u) << problem;
    EXPECT_THAT(problems.front().what, HasSubstr(problem));
    EXPECT_THAT(problems.front().advice, HasSubstr(remedy));
  };
  expect([](auto& m) { m.kernels = "avx2"; }, "run in avx2, and the processor has avx512_bf16", "MEZZO_CPU_CAPABILITY");
  expect([](auto& m) { m.quota = 2.5; }, "8 threads, but the container or taskset allows 2.5 at a time", "--threads 2");
  expect([](auto& m) { m.num_usable = 4; }, "8 threads, but the container or taskset allows 4 at a time",
         "--threads 4");
  expect(
      [](auto& m) {
        m.num_threads = 1;
        m.threads_are_set = true;
      },
      "1 of 8 possible threads", "unset it");
  expect([](auto& m) { m.processor_share = 0.6; }, "other programs take 40 % of the time of 8 threads",
         "end the other programs");
  expect(
      [](auto& m) {
        m.processor_share = 0.6;
        m.quota = 8;
      },
      "other programs, or the CPU quota of the container, take 40 %", "or raise the quota");
  expect([](auto& m) { m.available_bytes = 1'000'000'000; }, "1.0 GB of memory are free", "--lora");
  expect([](auto& m) { m.shared_memory_bytes = 64 << 20; }, "/dev/shm has 0.07 GB", "--shm-size=1g");
  expect([](auto& m) { m.has_nvidia_driver = true; }, "LibTorch supports only the CPU", "install a torch for CUDA");
  expect([](auto& m) { m.has_nvidia_driver = m.libtorch_has_cuda = true; }, "finds no GPU", "CUDA_VISIBLE_DEVICES");
  expect([](auto& m) { m.is_optimized = false; }, "a debug build of mezzo", "--preset release");
#ifdef __x86_64__
  expect([](auto& m) { m.kernels = m.best_kernels = "baseline"; }, "no AVX2", "another machine");
#endif
}

TEST(MachineAdviceTest, FewerThreadsThanProcessorsAreAProblemOnlyWhereSomebodySetThem) {
  auto machine = good_machine();
  machine.num_threads = 4;  // LibTorch's choice if a core has two
  EXPECT_THAT(advice_of(machine).problems, IsEmpty());
}

/// A folder that looks like /proc and /sys.
struct Root : ScratchFolder {
  void write(const std::string& name, const std::string& contents) const {
    std::filesystem::create_directories((*this / name).parent_path());
    ScratchFolder::write(name, contents);
  }
};

TEST(ProcessorTest, IsWhatTheKernelTells) {
  const Root root;
  root.write("proc/cpuinfo",
             "processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu avx512f avx2 avx512_bf16x fma\n\nprocessor\t: "
             "1\nflags\t\t: "
             "amx_bf16\n");
  const auto found = processor(root.path());
  EXPECT_EQ(found.name, "A Processor");
  EXPECT_THAT(found.instructions, ElementsAre("avx2", "fma", "avx512f"));
  EXPECT_EQ(found.quota, 0);
  EXPECT_GE(found.online, found.usable);
  EXPECT_GE(found.usable, 1);

  const Root arm;
  arm.write("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd bf16\n");
  EXPECT_EQ(processor(arm.path()).name, "");
  EXPECT_THAT(processor(arm.path()).instructions, ElementsAre("asimd", "bf16"));
  EXPECT_THAT(processor(Root().path()).instructions, IsEmpty());
}

TEST(ProcessorTest, TheLeastQuotaOfAllGroupsAroundCounts) {
  const auto quota_of = [](const std::string& groups, const std::vector<std::pair<std::string, std::string>>& files) {
    const Root root;
    root.write("proc/self/cgroup", groups);
    for (const auto& [name, contents] : files) root.write("sys/fs/cgroup/" + name, contents);
    return processor(root.path()).quota;
  };
  EXPECT_EQ(quota_of("0::/a/b\n", {{"a/b/cpu.max", "max 100000\n"}}), 0);
  EXPECT_EQ(quota_of("0::/a/b\n", {{"a/b/cpu.max", "250000 100000\n"}}), 2.5);
  EXPECT_EQ(quota_of("0::/a/b\n", {{"a/b/cpu.max", "250000 100000\n"}, {"a/cpu.max", "100000 100000\n"}}), 1);
  EXPECT_EQ(quota_of("0::/a/b\n", {{"a/b/cpu.max", "50000 100000\n"}, {"a/cpu.max", "100000 100000\n"}}), 0.5);
  EXPECT_EQ(quota_of("4:cpu,cpuacct:/job\n0::/\n",
                     {{"cpu/job/cpu.cfs_quota_us", "300000\n"}, {"cpu/job/cpu.cfs_period_us", "100000\n"}}),
            3);
  EXPECT_EQ(quota_of("4:cpu,cpuacct:/job\n",
                     {{"cpu/job/cpu.cfs_quota_us", "-1\n"}, {"cpu/job/cpu.cfs_period_us", "100000\n"}}),
            0);
  EXPECT_EQ(quota_of("0::/\n", {{"cpu.max", "nonsense\n"}}), 0);
}

}  // namespace
}  // namespace mezzo::text
