#include <ATen/ATen.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/device_kernels.h"
#include "kernels/philox.h"

namespace mezzo::kernels {
namespace {

using Update = std::function<void(const ParameterUpdates&, const GradientFactors&)>;

struct KernelCase {
  const char* name;
  size_t slots;
  Update fast, specification;
};

template <class Settings>
KernelCase case_of(const char* name,
                   size_t slots,
                   void (*fast)(const ParameterUpdates&, const Settings&, const GradientFactors&),
                   void (*specification)(const ParameterUpdates&, const Settings&, const GradientFactors&),
                   const Settings& settings) {
  return {name, slots, [=](const auto& updates, const auto& factors) { fast(updates, settings, factors); },
          [=](const auto& updates, const auto& factors) { specification(updates, settings, factors); }};
}

std::vector<KernelCase> kernel_cases() {
  return {
      case_of<AdamSettings>("AdamW", 2, adam, reference::adam, {0.9, 0.999, 1e-8, false, true}),
      case_of<AdamSettings>("Amsgrad", 3, adam, reference::adam, {0.9, 0.999, 1e-8, true, false}),
      case_of<SgdSettings>("Sgd", 0, sgd, reference::sgd, {0, false}),
      case_of<SgdSettings>("SgdDampened", 1, sgd, reference::sgd, {0.9, false, 0.3, true}),
      case_of<LambSettings>("Lamb", 2, lamb, reference::lamb, {0.9, 0.999, 1e-6, /*maximize=*/true}),
      case_of<RmspropSettings>("Rmsprop", 1, rmsprop, reference::rmsprop, {0.99, 1e-8, 0, false}),
      case_of<RmspropSettings>("RmspropMomentum", 2, rmsprop, reference::rmsprop, {0.9, 1e-8, 0.8, false, true}),
      case_of<RmspropSettings>("RmspropCentered", 3, rmsprop, reference::rmsprop, {0.9, 1e-3, 0.8, true}),
  };
}

at::Tensor channels_last(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.clone(at::MemoryFormat::ChannelsLast) : tensor;
}

/// Weights of convolutions. One has a size 1, so its strides fit either layout.
ParameterUpdates weights_of_a_cnn(size_t slots, at::ScalarType dtype) {
  at::manual_seed(3);
  ParameterUpdates updates;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{8, 3, 3, 3}, {16, 8, 5, 5}, {4, 1, 3, 3}}) {
    ParameterUpdate update;
    update.param = at::randn(sizes).to(dtype);
    update.gradient = at::randn(sizes);
    update.half_copy = dtype == at::kFloat ? at::zeros(sizes, at::kBFloat16) : at::Tensor();
    update.step = at::zeros({});
    for (size_t slot = 0; slot < slots; ++slot) {
      const auto values = at::rand(sizes, dtype == at::kDouble ? at::kDouble : at::kFloat);
      update.slots.push_back(slot == 2 ? values * 0.01 : values);  // a grad_avg whose variance stays positive
    }
    update.lr = 0.01;
    update.weight_decay = 0.1;
    update.index = static_cast<uint32_t>(updates.size());
    updates.push_back(update);
  }
  return updates;
}

/// Clones, whose tensors `place` lays out.
ParameterUpdates copies_of(ParameterUpdates updates, const std::function<at::Tensor(const at::Tensor&)>& place) {
  for (ParameterUpdate& update : updates) {
    update.step = update.step.clone();
    for (at::Tensor* const tensor : {&update.param, &update.gradient, &update.half_copy}) {
      *tensor = place(*tensor);
    }
    for (at::Tensor& slot : update.slots) {
      slot = place(slot);
    }
  }
  return updates;
}

void expect_equal(const ParameterUpdates& a, const ParameterUpdates& b, const std::string& what) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].param, b[i].param)) << what << ", parameter " << i;
    EXPECT_TRUE(!a[i].half_copy.defined() || at::equal(a[i].half_copy, b[i].half_copy)) << what << ", half_copy " << i;
    EXPECT_EQ(a[i].step.item<float>(), b[i].step.item<float>()) << what;
    for (size_t slot = 0; slot < a[i].slots.size(); ++slot) {
      EXPECT_TRUE(at::equal(a[i].slots[slot], b[i].slots[slot])) << what << ", slot " << slot << " of " << i;
    }
  }
}

/// The operators that `body` calls.
std::set<std::string> operators_called(const std::function<void()>& body) {
  static std::set<std::string>* names;
  std::set<std::string> result;
  names = &result;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                                   names->insert(function.name());
                                                   return std::unique_ptr<at::ObserverContext>();
                                                 }).scopes({at::RecordScope::FUNCTION}));
  body();
  at::removeCallback(handle);
  return result;
}

TEST(PhiloxTest, ReproducesPyTorchsEngine) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{0xDEADBEEFCAFEF00D}}) {
    for (const uint64_t subsequence : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 40}) {
      at::Philox4_32 engine(seed, subsequence, /*offset=*/3);  // block 3 of the subsequence
      const auto words =
          Philox::generate({3, 0, static_cast<uint32_t>(subsequence), static_cast<uint32_t>(subsequence >> 32)}, seed);
      for (const uint32_t word : words) {
        EXPECT_EQ(word, engine());
      }
    }
  }
}

TEST(OptimizerKernelsTest, UpdateChannelsLastWeightsAsContiguousOnesBitByBit) {
  const GradientFactors factors{at::full({}, 0.5F), at::full({}, 0.7F), at::zeros({})};
  for (const KernelCase& each : kernel_cases()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const auto plain = weights_of_a_cnn(each.slots, dtype), placed = copies_of(plain, channels_last);
      auto mixed = copies_of(plain, channels_last);
      for (size_t i = 0; i < mixed.size(); ++i) {
        mixed[i].gradient = plain[i].gradient.clone();
      }
      const bool sums_in_another_order = std::string(each.name) == "Lamb";
      for (const ParameterUpdates& updates : {plain, placed, mixed}) {
        each.fast(updates, factors);
      }
      expect_equal(placed, mixed, std::string(each.name) + ", gradients contiguous");
      if (sums_in_another_order) {
        EXPECT_TRUE(at::allclose(plain[1].param.to(at::kDouble), placed[1].param.to(at::kDouble), 1e-2, 1e-6));
      } else {
        expect_equal(plain, placed, each.name);
      }
    }
  }
}

TEST(OptimizerKernelsTest, TakeChannelsLastWeightsWithoutOperationsOfLibTorch) {
  for (const KernelCase& each : kernel_cases()) {
    const auto updates = copies_of(weights_of_a_cnn(each.slots, at::kFloat), channels_last);
    const auto called = operators_called([&] { each.fast(updates, {}); });
    EXPECT_THAT(called, testing::SizeIs(1)) << each.name << " calls " << testing::PrintToString(called);
  }
}

TEST(OptimizerKernelsTest, UpdateSlotsOfAnotherLayoutThanTheParameter) {
  for (const KernelCase& each : kernel_cases()) {
    const auto plain = weights_of_a_cnn(each.slots, at::kFloat);
    auto mixed = copies_of(plain, channels_last);
    for (size_t i = 0; i < mixed.size(); ++i) {
      for (size_t slot = 0; slot < each.slots; ++slot) {
        mixed[i].slots[slot] = plain[i].slots[slot].clone();
      }
    }
    each.specification(plain, {});
    each.fast(mixed, {});
    for (size_t i = 0; i < mixed.size(); ++i) {
      // Norms of LAMB are summed in another order.
      EXPECT_TRUE(at::allclose(plain[i].param, mixed[i].param, 1e-6, 1e-6)) << each.name;
      for (size_t slot = 0; slot < each.slots; ++slot) {
        EXPECT_TRUE(at::allclose(plain[i].slots[slot], mixed[i].slots[slot], 1e-6, 1e-6)) << each.name;
      }
    }
  }
}

TEST(OptimizerKernelsTest, RoundStochasticallyInTheOrderOfMemoryAsTheirSpecification) {
  const AdamSettings settings{0.9, 0.999, 1e-8, false, true};
  auto fast = copies_of(weights_of_a_cnn(2, at::kBFloat16), channels_last);
  for (ParameterUpdate& update : fast) {
    update.rounding_seed = 5;
  }
  const auto specified = copies_of(fast, [](const auto& tensor) { return tensor.defined() ? tensor.clone() : tensor; });
  adam(fast, settings, {});
  reference::adam(specified, settings, {});
  for (size_t i = 0; i < fast.size(); ++i) {
    const auto differ = fast[i].param.ne(specified[i].param).to(at::kFloat).mean().item<float>();
    EXPECT_LT(differ, 0.01) << "an ulp of float32 tips few draws; draws in another order differ in half of the weights";
  }
}

/// One parameter of `fast` and its clone for LibTorch's operation.
struct SgdPair {
  at::Tensor param = at::randn({1000}), buffer = at::zeros({1000}), step = at::zeros({});
  at::Tensor torch_param = param.clone(), torch_buffer = at::empty({1000});

  ParameterUpdates updates(const at::Tensor& gradient) const {
    return {{.param = param,
             .gradient = gradient,
             .half_copy = {},
             .step = step,
             .slots = {buffer},
             .lr = 0.1,
             .weight_decay = 0.01,
             .index = 0,
             .rounding_seed = {}}};
  }
};

TEST(OptimizerKernelsTest, DampensAllButTheFirstStepAsPyTorchAndCountsNoSkippedOne) {
  for (const bool nesterov : {false, true}) {
    for (const bool maximize : {false, true}) {
      for (const auto kernel : {&sgd, &reference::sgd}) {
        at::manual_seed(11);
        const SgdPair pair;
        const SgdSettings settings{0.9, nesterov, 0.25, maximize};
        kernel(pair.updates(at::randn({1000})), settings, {{}, {}, at::ones({})});
        EXPECT_EQ(pair.step.item<float>(), 0);
        for (int step = 0; step < 4; ++step) {
          const auto gradient = at::randn({1000});
          kernel(pair.updates(gradient), settings, {{}, {}, at::zeros({})});
          at::_fused_sgd_({pair.torch_param}, {gradient}, {pair.torch_buffer}, 0.01, 0.9, 0.1, 0.25, nesterov, maximize,
                          /*is_first_step=*/step == 0);
          // LibTorch's vector code rounds some products and sums as one.
          EXPECT_TRUE(at::allclose(pair.param, pair.torch_param, 1e-6, 1e-6)) << step;
          EXPECT_TRUE(at::allclose(pair.buffer, pair.torch_buffer, 1e-6, 1e-6)) << step;
        }
      }
    }
  }
}

TEST(OptimizerKernelsTest, RefuseDampeningWithoutACountOfSteps) {
  auto updates = SgdPair().updates(at::ones({1000}));
  updates[0].step.reset();
  EXPECT_THROW(sgd(updates, {0.9, false, 0.5}, {}), c10::ValueError);
  EXPECT_NO_THROW(sgd(updates, {0.9, false, 0}, {}));
}

TEST(OptimizerKernelsTest, MaximizeAsPyTorchsFusedAdamW) {
  at::manual_seed(2);
  auto updates = weights_of_a_cnn(2, at::kFloat);
  updates.resize(1);
  const ParameterUpdate& update = updates[0];
  const auto param = update.param.clone(), mean = update.slots[0].clone(), square = update.slots[1].clone();
  adam(updates, {0.9, 0.999, 1e-8, false, true, /*maximize=*/true}, {});
  at::_fused_adamw_({param}, {update.gradient}, {mean}, {square}, {}, {at::ones({})}, update.lr, 0.9, 0.999, 0.1, 1e-8,
                    /*amsgrad=*/false, /*maximize=*/true);
  EXPECT_TRUE(at::allclose(update.param, param, 1e-6, 1e-7));
  EXPECT_TRUE(at::allclose(update.slots[0], mean, 1e-6, 1e-7));
  EXPECT_TRUE(at::allclose(update.slots[1], square, 1e-6, 1e-7));
}

TEST(OptimizerKernelsTest, RmspropReproducesPyTorch) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool centered : {false, true}) {
        for (const auto kernel : {&rmsprop, &reference::rmsprop}) {
          at::manual_seed(7);
          const auto param = at::randn({500}, dtype), square_avg = at::zeros({500}, dtype);
          auto torch_param = param.clone().requires_grad_();
          torch::optim::RMSprop torch_rmsprop(
              {torch_param},
              torch::optim::RMSpropOptions(0.01).alpha(0.9).eps(1e-6).weight_decay(0.1).momentum(momentum).centered(
                  centered));
          ParameterUpdate update;
          update.param = param;
          update.slots.assign(1 + (momentum != 0 ? 1 : 0) + (centered ? 1 : 0), {});
          for (at::Tensor& slot : update.slots) {
            slot = at::zeros({500}, dtype);
          }
          update.lr = 0.01;
          update.weight_decay = 0.1;
          for (int step = 0; step < 5; ++step) {
            update.gradient = at::randn({500}, dtype);
            torch_param.mutable_grad() = update.gradient.clone();
            kernel({update}, {0.9, 1e-6, momentum, centered}, {});
            torch_rmsprop.step();
          }
          // Five steps of a few roundings.
          const double tolerance = dtype == at::kDouble ? 1e-12 : 2e-6;
          EXPECT_TRUE(at::allclose(param, torch_param, tolerance, tolerance))
              << dtype << " momentum " << momentum << (centered ? " centered " : " ")
              << (param - torch_param).abs().max().item<double>();
        }
      }
    }
  }
}

TEST(OptimizerKernelsTest, RmspropMaximizesByNegatedGradients) {
  at::manual_seed(1);
  auto up = weights_of_a_cnn(1, at::kFloat), down = copies_of(up, [](const auto& t) { return t.clone(); });
  for (ParameterUpdate& update : down) {
    update.gradient.neg_();
  }
  rmsprop(up, {0.9, 1e-6, 0, false, /*maximize=*/true}, {});
  rmsprop(down, {0.9, 1e-6, 0, false}, {});
  expect_equal(up, down, "maximize");
}

struct MuonCase {
  std::vector<int64_t> sizes;
  MuonSettings settings;
  double weight_decay;
  std::vector<float> expected;
};

/// By torch.optim.Muon of 2.13, lr 0.1, three steps: weights i / n - 0.5, gradients sin(i * step) with step 1, 2, 3.
TEST(OptimizerKernelsTest, MuonReproducesPyTorch) {
  const MuonSettings defaults{0.95, true, {3.4445, -4.775, 2.0315}, 1e-7, 5, false};
  const std::vector<MuonCase> cases = {
      {{3, 4},
       defaults,
       0.1,
       {-0.559997F, -0.605705F, -0.378745F, -0.248723F, -0.178083F, 0.065534F, 0.069176F, -0.09084F, 0.129877F,
        0.19381F, 0.349142F, 0.519055F}},
      {{4, 3},
       defaults,
       0.1,
       {-0.635327F, -0.592703F, -0.321446F, -0.265484F, -0.098802F, 0.09027F, 0.112479F, -0.020862F, 0.05996F,
        0.185382F, 0.307544F, 0.4229F}},
      {{4, 2},
       {0.5, false, {3.4445, -4.775, 2.0315}, 1e-7, 3, /*matches_rms_adamw=*/true},
       0.5,
       {-0.457464F, -0.382679F, -0.208754F, -0.101819F, 0.009212F, 0.137903F, 0.255437F, 0.274526F}},
  };
  for (const MuonCase& each : cases) {
    for (const bool by_columns : {false, true}) {
      const auto count = each.sizes[0] * each.sizes[1];
      const auto numbers = at::arange(count, at::kFloat).view(each.sizes);
      const auto place = [&](const at::Tensor& matrix) { return by_columns ? matrix.t().contiguous().t() : matrix; };
      ParameterUpdate update;
      update.param = place(numbers / count - 0.5);
      update.half_copy = at::zeros(each.sizes, at::kBFloat16);
      update.slots = {place(at::zeros(each.sizes))};
      update.lr = 0.1;
      update.weight_decay = each.weight_decay;
      for (int step = 1; step <= 3; ++step) {
        update.gradient = at::sin(numbers * step) * 8;
        muon({update}, each.settings, {at::full({}, 0.125F), {}, at::zeros({})});
        muon({update}, each.settings, {{}, {}, at::ones({})});
      }
      // Two units of bfloat16 in a direction of magnitude 1, times the learning rate.
      EXPECT_TRUE(at::allclose(update.param, at::tensor(each.expected).view(each.sizes), 0, 0.1 * 0x1p-7))
          << update.param;
      EXPECT_TRUE(at::equal(update.half_copy, update.param.to(at::kBFloat16)));
    }
  }
}

TEST(OptimizerKernelsTest, MuonRefusesWhatIsNoMatrix) {
  ParameterUpdate update;
  update.param = update.gradient = at::ones({3});
  update.slots = {at::zeros({3})};
  EXPECT_THROW(muon({update}, {0.95, true, {3.4445, -4.775, 2.0315}, 1e-7, 5, false}, {}), c10::ValueError);
}

/// Sizes around the ends of vectors, blocks and chunks.
kernels::ParameterUpdates updates_of(at::ScalarType dtype, at::ScalarType gradient_dtype, size_t slots) {
  kernels::ParameterUpdates updates;
  for (const int64_t size : {0, 1, 7, 31, 1023, 1025, 65'537}) {
    const auto values = at::randn({size});
    updates.push_back({.param = values.to(dtype),
                       .gradient = at::randn({size}).to(gradient_dtype),
                       .half_copy = dtype == at::kFloat ? values.to(at::kHalf) : at::Tensor(),
                       .step = at::ones({}),
                       .slots = std::vector<at::Tensor>(),
                       .lr = 0.01,
                       .weight_decay = 0.1,
                       .index = static_cast<uint32_t>(updates.size()),
                       .rounding_seed = dtype == at::kBFloat16 ? std::optional<uint64_t>(3) : std::nullopt});
    for (size_t slot = 0; slot < slots; ++slot) {
      updates.back().slots.push_back(at::rand({size}));
    }
  }
  return updates;
}

kernels::ParameterUpdates clone(kernels::ParameterUpdates updates) {
  for (ParameterUpdate& update : updates) {
    update.param = update.param.clone();
    update.step = update.step.clone();
    update.half_copy = update.half_copy.defined() ? update.half_copy.clone() : at::Tensor();
    for (at::Tensor& slot : update.slots) {
      slot = slot.clone();
    }
  }
  return updates;
}

template <class Kernel>
void expect_same(size_t slots, Kernel kernel, Kernel reference) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto gradient_dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      const auto mine = updates_of(dtype, gradient_dtype, slots), theirs = clone(mine);
      kernel(mine);
      reference(theirs);
      const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;  // an ulp near 1
      for (size_t i = 0; i < mine.size(); ++i) {
        EXPECT_TRUE(at::allclose(mine[i].param.to(at::kFloat), theirs[i].param.to(at::kFloat), tolerance, 1e-5))
            << dtype << " with gradients of " << gradient_dtype << ", " << mine[i].param.numel() << " elements";
      }
    }
  }
}

TEST(OptimizerKernelsTest, AgreeWithTheirReferenceForSizesAroundVectorsBlocksAndChunks) {
  const GradientFactors factors{at::full({}, 0.5), at::full({}, 0.7), {}};
  using Updates = const kernels::ParameterUpdates&;
  using Run = std::function<void(Updates)>;
  const kernels::AdamSettings adam{.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .amsgrad = false, .decoupled = true};
  const kernels::AdamSettings amsgrad{.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .amsgrad = true, .decoupled = false};
  const kernels::SgdSettings sgd{0.9, true};
  const kernels::LambSettings lamb{0.9, 0.999, 1e-6};
  expect_same<Run>(
      2, [&](Updates u) { kernels::adam(u, adam, factors); },
      [&](Updates u) { kernels::reference::adam(u, adam, factors); });
  expect_same<Run>(
      3, [&](Updates u) { kernels::adam(u, amsgrad, factors); },
      [&](Updates u) { kernels::reference::adam(u, amsgrad, factors); });
  expect_same<Run>(
      1, [&](Updates u) { kernels::sgd(u, sgd, factors); },
      [&](Updates u) { kernels::reference::sgd(u, sgd, factors); });
  expect_same<Run>(
      2, [&](Updates u) { kernels::lamb(u, lamb, factors); },
      [&](Updates u) { kernels::reference::lamb(u, lamb, factors); });
}

}  // namespace
}  // namespace mezzo::kernels
