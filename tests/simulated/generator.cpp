#include "simulated/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <tuple>

#include "simulated/graph.h"
#include "simulated/streams.h"

namespace mezzo::simulated {
namespace {

struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 2 && state.dtype() == caffe2::TypeMeta::Make<int64_t>(),
                "simulated device: this is no state of a generator of its");
    const auto* values = static_cast<const int64_t*>(state.data());
    seed_ = static_cast<uint64_t>(values[0]);
    offset_ = static_cast<uint64_t>(values[1]);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return at::tensor({static_cast<int64_t>(seed_), static_cast<int64_t>(offset_)}, at::kLong).getIntrusivePtr();
  }
  GeneratorImpl* clone_impl() const override {
    auto* const copy = new Generator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

 private:
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<Generator>(device < 0 ? current_device() : device);
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* const all = new std::array<at::Generator, kDevices>{new_generator(0), new_generator(1)};
  static_assert(kDevices == 2);
  return all->at(static_cast<size_t>(device < 0 ? current_device() : device));
}

uint64_t next_seed(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  const auto offset = generator.get_offset();
  generator.set_offset(offset + 1);
  return c10::hash_combine(generator.current_seed(), offset);
}

at::Generator for_one_kernel(const std::optional<at::Generator>& generator) {
  const at::Generator drawn = generator && generator->defined() ? *generator : default_generator(current_device());
  TORCH_CHECK(drawn.device().type() == kType, "simulated device: a kernel cannot draw from a generator of ",
              drawn.device());
  if (Recording* recording = recording_of(Queue::of(current_stream(current_device())))) {
    recording->draws.push_back({drawn, at::detail::createCPUGenerator()});
    return recording->draws.back().numbers;
  }
  return at::detail::createCPUGenerator(next_seed(drawn));
}

namespace {

/// LibTorch's own for CPUs takes no generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  const double kept = train.value_or(true) ? 1 - p : 1;
  const auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(kept);
  return {input * mask * (kept > 0 ? 1 / kept : 0), mask};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("native_dropout", &native_dropout); }

}  // namespace
}  // namespace mezzo::simulated
