#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "amp/cross_entropy.h"
#include "encoder/block_ops.h"
#include "encoder/blocks.h"
#include "encoder/dropout.h"
#include "encoder/packed_attention.h"
#include "kernels/optimizer_kernels.h"
#include "mezzo/amp/cpu_half_compute.h"

/// Every operator that mezzo registers, on every device at hand, against its specification:
/// the composite kernel that the dispatcher has for it. A new operator needs a line in
/// `samples` and nothing else.

namespace mezzo::encoder {
namespace {

using Tensors = std::vector<at::Tensor>;
using torch::jit::Stack;

/// How tensors lie in memory: unaligned ones begin an element behind its start, strided ones
/// leave gaps or are transposed.
enum class Memory { kAligned, kUnaligned, kStrided };

/// Draws the arguments of one call.
class Draw {
 public:
  Draw(uint64_t seed, std::vector<int32_t> lengths, at::Device device, at::ScalarType dtype, Memory memory)
      : lengths_(std::move(lengths)), device_(device), dtype_(dtype), memory_(memory), random_(seed) {
    torch::manual_seed(seed);
    for (const int32_t length : lengths_) {
      rows_ += length;
    }
  }

  int64_t rows() const { return rows_; }
  int64_t texts() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t number(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }

  at::Tensor floats(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype = {}) const {
    return in_memory(at::randn(sizes).to(device_, dtype.value_or(dtype_)));
  }
  at::Tensor ids(int64_t below) const { return in_memory(at::randint(below, {rows_}, at::kLong).to(device_)); }
  /// An argument that may be left out, and is where tensors are unaligned.
  c10::IValue optional(const at::Tensor& tensor) const {
    return memory_ == Memory::kUnaligned ? c10::IValue() : c10::IValue(tensor);
  }
  at::Device device() const { return device_; }
  at::Tensor number_of(double value, at::ScalarType dtype = at::kFloat) const {
    return at::full({}, value, dtype).to(device_);
  }

  SequenceLayoutPtr layout() const {
    auto cu_seqlens = at::zeros({texts() + 1}, at::kInt);
    cu_seqlens.narrow(0, 1, texts()).copy_(at::tensor(lengths_, at::kInt).cumsum(0));
    return c10::make_intrusive<SequenceLayout>(cu_seqlens, at::tensor(lengths_, at::kInt), rows_, device_);
  }

 private:
  at::Tensor in_memory(const at::Tensor& values) const {
    if (memory_ == Memory::kStrided) {
      return values.dim() == 2 ? values.t().contiguous().t() : values.repeat_interleave(2).slice(0, 0, {}, 2);
    }
    const auto memory = at::empty({values.numel() + 1}, values.options());
    return memory.narrow(0, memory_ == Memory::kAligned ? 0 : 1, values.numel()).view(values.sizes()).copy_(values);
  }

  std::vector<int32_t> lengths_;
  at::Device device_;
  at::ScalarType dtype_;
  Memory memory_;
  std::mt19937 random_;
  int64_t rows_ = 0;
};

constexpr double kEps = 1e-5, kDropout = 0.25;
constexpr int64_t kSeed = -12, kStep = 3, kSite = 4, kHeadsOfSample = 3, kTableRows = 21;

Tensors many(const Draw& draw,
             const std::vector<std::vector<int64_t>>& sizes,
             std::optional<at::ScalarType> dtype = {}) {
  Tensors tensors;
  for (const auto& size : sizes) {
    const double scale =
        size.size() == 2 ? 1 / std::sqrt(static_cast<double>(size[1])) : 1;  // products of weights stay near 1
    tensors.push_back(draw.floats(size, dtype).mul_(scale));
  }
  return tensors;
}

/// Of a dropout's step.
c10::IValue offset(Draw& draw) { return draw.optional(draw.number_of(5, at::kLong)); }

/// Of heads of an even number of columns.
at::Tensor rotary(const Draw& draw, int64_t hidden) {
  const auto table = rotary_table(80, hidden / kHeadsOfSample, 50).to(draw.device());
  return draw.optional(table).isNone() ? at::Tensor() : table;
}

/// So narrow that the specification takes long texts in pieces, or none.
std::optional<int64_t> window(Draw& draw) {
  return draw.number(0, 3) == 0 ? std::nullopt : std::optional(draw.number(0, 20));
}

/// Of heads whose number of columns is even, if `turns`.
AttentionDescription described(Draw& draw, int64_t hidden, bool is_relative, bool turns) {
  const auto offset = draw.optional(draw.number_of(5, at::kLong));
  AttentionDescription attention{.num_heads = kHeadsOfSample,
                                 .dropout = {kDropout,
                                             {static_cast<uint64_t>(kSeed), kStep, kSite},
                                             offset.isNone() ? at::Tensor() : offset.toTensor()},
                                 .only_first_queries = draw.number(0, 2) == 0};
  if (is_relative) {
    constexpr int64_t kLongest = 80;
    const auto rows = at::arange(2 * kLongest - 1, at::kLong).mul(kTableRows).floor_divide(2 * kLongest - 1);
    attention.relative.rows = rows.to(draw.device());
  } else {
    attention.window = window(draw);
    attention.is_causal = draw.number(0, 2) == 0;
    attention.soft_cap = draw.number(0, 2) == 0 ? 1.5 : 0;
    attention.rotary = turns ? rotary(draw, hidden) : at::Tensor();
  }
  if (draw.number(0, 2) == 0) {
    attention.scale = 0.2;
  }
  return attention;
}

/// Two terms for relative positions, one, or none.
void add_relative(Draw& draw, int64_t hidden, int64_t terms, Stack& stack) {
  const auto table = [&](bool is_there) {
    return is_there ? c10::IValue(draw.floats({kTableRows, hidden})) : c10::IValue();
  };
  const bool has_key = terms == 2 || (terms == 1 && draw.number(0, 1) == 1);
  stack.push_back(table(has_key));
  stack.push_back(table(terms == 2 || (terms == 1 && !has_key)));
}

/// Biases of all linear layers, or of none.
Tensors biases(const Draw& draw, const std::vector<std::vector<int64_t>>& sizes) {
  return draw.optional(draw.number_of(1)).isNone() ? Tensors{} : many(draw, sizes);
}

/// Of a block that begins with its norm, or ends with it.
Stack attention(Draw& draw, bool norm_first) {
  const int64_t h = kHeadsOfSample * (norm_first ? 2 * draw.number(1, 20) : draw.number(1, 40)),
                terms = norm_first ? 0 : draw.number(0, 2);
  Stack stack{draw.floats({draw.rows(), h}),
              norm_first ? many(draw, {{3 * h, h}, {h, h}}) : many(draw, {{h, h}, {h, h}, {h, h}, {h, h}}),
              norm_first ? biases(draw, {{3 * h}, {h}}) : many(draw, {{h}, {h}, {h}, {h}}),
              Tensors{},
              norm_first ? draw.optional(draw.floats({h})) : c10::IValue(draw.floats({h})),
              norm_first ? draw.optional(draw.floats({h})) : c10::IValue(draw.floats({h})),
              kEps,
              draw.layout(),
              without_tables(described(draw, h, terms > 0, /*turns=*/norm_first)),
              kDropout,
              kSite + 1,
              norm_first};
  add_relative(draw, h, terms, stack);
  return stack;
}

Stack feed_forward(Draw& draw, bool is_gated, bool norm_first) {
  const int64_t h = draw.number(2, 70), f = draw.number(1, 200), wide = is_gated ? 2 * f : f;
  return Stack{draw.floats({draw.rows(), h}),
               many(draw, {{wide, h}, {h, f}}),
               is_gated && norm_first ? biases(draw, {{wide}, {h}}) : many(draw, {{wide}, {h}}),
               Tensors{},
               "gelu",
               draw.floats({h}),
               norm_first ? draw.optional(draw.floats({h})) : c10::IValue(draw.floats({h})),
               kEps,
               kDropout,
               kSeed,
               kStep,
               kSite,
               draw.optional(draw.ids(1000)),
               offset(draw),
               norm_first,
               is_gated,
               is_gated ? kDropout : 0.0,
               kSite + 1};
}

/// Parameters of three sizes, the first empty or all matrices, with moments that a step may have left.
Stack update(
    Draw& draw, size_t num_slots, bool counts_steps, const std::vector<c10::IValue>& own, bool are_matrices = false) {
  const int64_t first = are_matrices ? draw.number(1, 70) : 0;
  const std::vector<std::vector<int64_t>> sizes = {
      are_matrices ? std::vector<int64_t>{first, 5} : std::vector<int64_t>{first},
      are_matrices ? std::vector<int64_t>{4, draw.number(1, 70)} : std::vector<int64_t>{draw.number(1, 3000)},
      {draw.number(1, 70), 33}};
  c10::List<std::optional<at::Tensor>> half_copies;
  Tensors steps, slots;
  for (size_t i = 0; i < sizes.size(); ++i) {
    half_copies.push_back(std::nullopt);
    if (counts_steps) {
      steps.push_back(draw.number_of(7));
    }
  }
  for (size_t slot = 0; slot < num_slots; ++slot) {
    for (const at::Tensor& tensor : many(draw, sizes, at::kFloat)) {  // optimizers make them contiguous
      slots.push_back((slot == 0 ? tensor.abs() * 0.1 : tensor.square() + 0.5).contiguous());
    }
  }
  Stack stack{many(draw, sizes),
              many(draw, sizes),
              half_copies,
              steps,
              slots,
              std::vector<double>(3, 1e-2),
              std::vector<double>{0, 0.1, 0.2},
              std::vector<int64_t>{0, 1, 2},
              c10::IValue(),
              draw.optional(draw.number_of(1.0 / 65536)),
              draw.optional(draw.number_of(0.7)),
              draw.optional(draw.number_of(0)),
              draw.optional(draw.number_of(1.0 / 3, at::kDouble))};
  stack.insert(stack.end(), own.begin(), own.end());
  return stack;
}

/// What to call each operator with.
const std::map<std::string, std::function<Stack(Draw&)>>& samples() {
  static const std::map<std::string, std::function<Stack(Draw&)>> all = {
      {"dropout",
       [](Draw& draw) { return Stack{draw.floats({draw.rows(), 33}), kDropout, kSeed, kStep, kSite, offset(draw)}; }},
      {"residual_layer_norm",
       [](Draw& draw) {
         const int64_t h = draw.number(2, 70);
         return Stack{draw.floats({draw.rows(), h}),
                      draw.floats({draw.rows(), h}),
                      draw.floats({h}),
                      draw.floats({h}),
                      kEps,
                      kDropout,
                      kSeed,
                      kStep,
                      kSite,
                      draw.optional(draw.ids(1000)),
                      offset(draw)};
       }},
      {"embedding_layer_norm",
       [](Draw& draw) {
         const int64_t h = draw.number(2, 70);
         return Stack{draw.floats({13, h}),
                      draw.floats({9, h}),
                      draw.floats({2, h}),
                      draw.ids(13),
                      draw.ids(9),
                      draw.optional(draw.ids(2)),
                      draw.floats({h}),
                      draw.floats({h}),
                      kEps,
                      kDropout,
                      kSeed,
                      kStep,
                      kSite,
                      offset(draw)};
       }},
      {"packed_attention",
       [](Draw& draw) {
         const int64_t h = kHeadsOfSample * 2 * draw.number(1, 20);
         const int64_t terms = std::max<int64_t>(draw.number(-2, 2), 0);
         const auto attention = described(draw, h, terms > 0, /*turns=*/true);
         Stack stack{draw.floats({attention.only_first_queries ? draw.texts() : draw.rows(), h}),
                     draw.floats({draw.rows(), h}), draw.floats({draw.rows(), h}), draw.layout(),
                     without_tables(attention)};
         add_relative(draw, h, terms, stack);
         return stack;
       }},
      {"attention_block", [](Draw& draw) { return attention(draw, /*norm_first=*/draw.number(0, 1) == 1); }},
      {"feed_forward_block",
       [](Draw& draw) {
         return feed_forward(draw, /*is_gated=*/draw.number(0, 1) == 1, /*norm_first=*/draw.number(0, 1) == 1);
       }},
      {"cross_entropy",
       [](Draw& draw) {
         const int64_t classes = draw.number(1, 40);
         return Stack{draw.floats({draw.rows(), classes}), draw.ids(classes), int64_t{at::Reduction::Sum}, -100};
       }},
      {"summarize_gradients",
       [](Draw& draw) {
         return Stack{many(draw, {{draw.rows()}, {draw.number(1, 99), 33}}), draw.optional(draw.number_of(65536)), 0.1};
       }},
      {"check_gradients",
       [](Draw& draw) {
         return Stack{many(draw, {{draw.rows()}, {draw.number(1, 99), 33}}), many(draw, {{7, draw.number(1, 99)}}),
                      draw.number_of(0.5), true, false};
       }},
      {"unscale_gradients_",
       [](Draw& draw) {
         const std::vector<std::vector<int64_t>> sizes{{7, draw.number(1, 99)}};
         return Stack{many(draw, {{draw.rows()}, {draw.number(1, 99), 33}}),
                      many(draw, sizes),
                      many(draw, sizes, at::kFloat),
                      draw.number_of(65536),
                      false,
                      false};
       }},
      {"update_loss_scale_",
       [](Draw& draw) {
         return Stack{draw.number_of(1024),
                      at::stack({draw.number_of(draw.number(0, 1), at::kInt), draw.number_of(2, at::kInt),
                                 draw.number_of(1, at::kInt), draw.number_of(3, at::kInt)}),
                      draw.number_of(draw.number(0, 1)), std::vector<double>{65536, 2, 0.5, 2, 1, 65536, 2, 0, 0, 1}};
       }},
      {"adam_", [](Draw& draw) { return update(draw, 3, true, {0.9, 0.999, 1e-8, true, true, true}); }},
      {"sgd_", [](Draw& draw) { return update(draw, 1, true, {0.9, true, 0.25, true}); }},
      {"rmsprop_", [](Draw& draw) { return update(draw, 2, true, {0.9, 1e-4, 0.8, false, true}); }},
      {"lamb_", [](Draw& draw) { return update(draw, 2, true, {0.9, 0.999, 1e-6, true}); }},
      {"muon_",
       [](Draw& draw) {
         return update(draw, 1, false, {0.95, true, 3.4445, -4.775, 2.0315, 1e-7, 5, false}, /*are_matrices=*/true);
       }},
  };
  return all;
}

/// References that link all operators, so that they are registered.
[[maybe_unused]] volatile const void* const kLinked[] = {
    reinterpret_cast<const void*>(&cross_entropy_of_labels), reinterpret_cast<const void*>(&encoder::dropout),
    reinterpret_cast<const void*>(&attention_block), reinterpret_cast<const void*>(&packed_attention),
    reinterpret_cast<const void*>(&kernels::adam)};

c10::OperatorHandle operator_of(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("mezzo::" + name).c_str(), "");
}

/// Replaces every tensor among the arguments by `change` of it and of the argument's name.
void for_each_tensor(const c10::OperatorHandle& op,
                     Stack& stack,
                     const std::function<at::Tensor(const at::Tensor& tensor, const std::string& name)>& change) {
  for (size_t i = 0; i < stack.size(); ++i) {
    const std::string& name = op.schema().arguments()[i].name();
    if (stack[i].isTensor()) {
      stack[i] = change(stack[i].toTensor(), name);
    } else if (stack[i].isTensorList()) {
      Tensors changed;
      for (const at::Tensor& tensor : stack[i].toTensorVector()) {
        changed.push_back(change(tensor, name));
      }
      stack[i] = changed;
    }
  }
}

/// The others are called without autograd, as optimizers do.
bool is_differentiable(const c10::OperatorHandle& op) {
  const std::set<std::string> look_alone = {"mezzo::summarize_gradients", "mezzo::check_gradients"};
  return !op.schema().is_mutable() && !look_alone.contains(op.schema().name());
}

struct Outcome {
  Tensors values;     ///< the changed arguments, and the results
  Tensors gradients;  ///< of its floating arguments; undefined if there is none
};

enum class By { kDispatcher, kSpecification };

/// @param dtype  of the floating arguments. Numbers stay float32. So do an optimizer's moments if
///   it is half.
Outcome run(const c10::OperatorHandle& op, const Stack& arguments, By by, at::ScalarType dtype) {
  const bool in_place = op.schema().is_mutable();
  Stack stack = arguments;
  Tensors leaves;
  for_each_tensor(op, stack, [&](const at::Tensor& tensor, const std::string& name) {
    if (!tensor.is_floating_point()) {
      return in_place ? tensor.clone() : tensor;
    }
    const bool stays = tensor.dim() == 0 || ((name == "slots" || name == "into") && dtype != at::kDouble);
    auto leaf = stays || tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
    if (in_place) {
      int64_t behind = tensor.storage_offset() + 1;  // lies in memory as it did
      for (int64_t d = 0; d < leaf.dim(); ++d) {
        behind += (std::max<int64_t>(leaf.size(d), 1) - 1) * tensor.stride(d);
      }
      const auto memory = at::empty({behind}, leaf.options());
      leaf = memory.as_strided(leaf.sizes(), tensor.strides(), tensor.storage_offset()).copy_(leaf);
    } else {
      leaf = leaf.detach().requires_grad_(tensor.dim() > 0);
    }
    leaves.push_back(leaf);
    return leaf;
  });
  Outcome outcome;
  const at::AutoGradMode grad_mode(is_differentiable(op));
  if (by == By::kDispatcher) {
    op.callBoxed(stack);
  } else {
    const bool is_implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    op.callBoxedForDispatchKey(
        is_implicit ? c10::DispatchKey::CompositeImplicitAutograd : c10::DispatchKey::CompositeExplicitAutograd, stack);
  }
  if (in_place) {
    outcome.values = leaves;
  }
  for (const c10::IValue& value : stack) {
    outcome.values.push_back(value.toTensor());
  }
  if (!in_place && outcome.values.front().requires_grad()) {
    torch::manual_seed(5);
    const auto& value = outcome.values.front();
    const auto grad = at::randn(value.sizes()).to(value.options());
    outcome.gradients = torch::autograd::grad({value}, leaves, {grad}, {}, false, /*allow_unused=*/true);
  }
  return outcome;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).norm().item<double>();
}

/// The error against the specification in float64 is at most twice the error of the specification
/// in the dtype, plus `slack` of the largest. Kernels sum in another order, and round less often.
void expect_close(const Tensors& mine, const Tensors& theirs, const Tensors& right, double slack, const char* what) {
  ASSERT_EQ(mine.size(), right.size()) << what;
  double largest = 0;
  for (const at::Tensor& tensor : right) {
    largest = std::max(largest, tensor.defined() ? tensor.norm().item<double>() : 0);
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    if (!right[i].defined() || right[i].numel() == 0) {
      continue;  // an integer argument, or nothing to compare
    }
    const auto value = mine[i].defined() ? mine[i] : at::zeros_like(right[i]);
    const auto reference = theirs[i].defined() ? theirs[i] : at::zeros_like(right[i]);
    ASSERT_EQ(value.sizes(), right[i].sizes()) << what << i;
    EXPECT_EQ(value.scalar_type(), reference.scalar_type()) << what << i;
    // Gradients that are zero except for rounding, as of the keys' biases, are
    // measured by the largest.
    EXPECT_LE(distance(value, right[i]), 2 * distance(reference, right[i]) + slack * largest) << what << i;
  }
}

/// In device_tests, the simulated accelerator, whose faults are thrown where results are read.
std::vector<at::Device> devices() {
  if (c10::impl::hasDeviceGuardImpl(at::kPrivateUse1)) {
    return {{at::kPrivateUse1, 0}};
  }
  std::vector<at::Device> all{at::kCPU};
  if (at::hasCUDA()) {
    all.emplace_back(at::kCUDA, 0);
  }
  return all;
}

/// Of one operator on one device.
class OperatorOnDeviceTest : public testing::TestWithParam<std::tuple<std::string, at::Device>> {};

TEST_P(OperatorOnDeviceTest, ComputesItsSpecification) {
  const auto& [name, device] = GetParam();
  const auto op = operator_of(name);
  const CpuHalfCompute half_compute;  // of the specification, at float32's speed
  std::vector<std::vector<int32_t>> all_lengths{{}, {3, 1, 17, 2}};
  if (!device.is_privateuseone()) {  // which is slow, and has no separate kernels
    all_lengths.insert(all_lengths.end(), {{1}, {70, 33}});
  }
  // Of float32 some 50 roundings on the way, each of 6e-8, mostly averaging
  // out; of the half types one.
  for (const auto& [dtype, slack] : {std::pair(at::kFloat, 2e-6), {at::kBFloat16, 0x1p-8}, {at::kHalf, 0x1p-11}}) {
    uint64_t seed = 0;
    for (const std::vector<int32_t>& lengths : all_lengths) {
      for (const Memory memory : {Memory::kAligned, Memory::kUnaligned, Memory::kStrided}) {
        SCOPED_TRACE(testing::Message() << dtype << ", " << lengths.size() << " sequences, memory "
                                        << static_cast<int>(memory));
        Draw draw(++seed, lengths, device, dtype, memory);
        const Stack arguments = samples().at(name)(draw);
        const auto mine = run(op, arguments, By::kDispatcher, dtype);
        const auto theirs = run(op, arguments, By::kSpecification, dtype);
        const auto right = run(op, arguments, By::kSpecification, at::kDouble);
        expect_close(mine.values, theirs.values, right.values, slack, "value ");
        ASSERT_EQ(!mine.gradients.empty(), is_differentiable(op));
        if (!mine.gradients.empty()) {
          expect_close(mine.gradients, theirs.gradients, right.gradients, slack, "gradient ");
        }
      }
    }
  }
}

class OperatorTest : public testing::TestWithParam<std::string> {};

TEST_P(OperatorTest, TellsSizesWithoutComputing) {
  const auto op = operator_of(GetParam());
  for (const Memory memory : {Memory::kAligned, Memory::kUnaligned, Memory::kStrided}) {
    const auto result = [&](at::Device device) {
      Draw draw(1, {5, 2}, device, at::kFloat, memory);
      Stack stack = samples().at(GetParam())(draw);
      op.callBoxed(stack);
      return stack.front().toTensor();
    };
    const auto real = result(at::kCPU), meta = result(at::kMeta);
    EXPECT_TRUE(meta.is_meta());
    EXPECT_EQ(meta.sizes(), real.sizes());
    EXPECT_EQ(meta.strides(), real.strides());
    EXPECT_EQ(meta.scalar_type(), real.scalar_type());
  }
}

/// Else a block's kernel would be compared with itself.
TEST(Operators, OfBlocksAreFusedWhereADeviceHasKernelsAndTheirSpecificationIsNot) {
  EXPECT_NE(block_ops(at::kCPU), nullptr);
  for (const at::Device& device : devices()) {
    const BlockOps* const ops = block_ops(device);
    const std::map<std::string, bool> blocks = {{"attention_block", ops != nullptr},
                                                {"packed_attention", ops != nullptr},
                                                {"feed_forward_block", ops != nullptr},
                                                {"embedding_layer_norm", ops != nullptr}};
    for (const auto& [name, should_be_fused] : blocks) {
      Draw draw(1, {5, 2}, device, at::kFloat, Memory::kAligned);
      const auto op = operator_of(name);
      const Stack arguments = samples().at(name)(draw);
      const auto is_fused = [&](By by) {
        return run(op, arguments, by, at::kFloat).values.front().grad_fn()->name().find("mezzo::encoder::fused") !=
               std::string::npos;
      };
      EXPECT_EQ(is_fused(By::kDispatcher), should_be_fused) << name << " on " << device;
      EXPECT_FALSE(is_fused(By::kSpecification)) << name << " on " << device;
    }
  }
}

TEST(Operators, RefuseWhatDoesNotFit) {
  const auto layout =
      c10::make_intrusive<SequenceLayout>(at::tensor({0, 4}, at::kInt), at::tensor({4}, at::kInt), 4, at::kCPU);
  const auto square = at::randn({6, 6}), vector = at::ones({6});
  const auto attend = [&](const at::Tensor& x, int64_t heads, double p = 0) {
    return attention_block(x,
                           {.query_key_value = {{square, vector}, {square, vector}, {square, vector}},
                            .output = {square, vector},
                            .norm = {vector, vector, kEps},
                            .attention = {.num_heads = heads, .dropout = {p, {}}},
                            .output_dropout = {}},
                           layout);
  };
  EXPECT_NO_THROW(attend(at::randn({4, 6}), 2));
  EXPECT_THROW(attend(at::randn({5, 6}), 2), c10::ValueError) << "rows that the layout does not have";
  EXPECT_THROW(attend(at::randn({4, 6}), 4), c10::ValueError) << "heads that do not divide 6";
  EXPECT_THROW(attend(at::randn({4, 6}), 0), c10::ValueError);
  EXPECT_THROW(attend(at::randn({4, 8}), 2), c10::ValueError) << "weights of other sizes";
  EXPECT_THROW(attend(at::randn({4, 6}), 2, 1.0), c10::ValueError) << "a dropout of everything";
  const auto attend_with = [&](const AttentionDescription& attention) {
    packed_attention(at::randn({4, 6}), at::randn({4, 6}), at::randn({4, 6}), layout, attention);
  };
  EXPECT_NO_THROW(attend_with({.window = 0, .rotary = rotary_table(4, 6, 10)}));
  EXPECT_THROW(attend_with({.rotary = rotary_table(3, 6, 10)}), c10::ValueError) << "fewer places than tokens";
  EXPECT_THROW(attend_with({.rotary = rotary_table(4, 4, 10)}), c10::ValueError) << "heads of another size";
  EXPECT_THROW(attend_with({.window = -1}), c10::ValueError);
  EXPECT_THROW(attend_with({.soft_cap = -1}), c10::ValueError);
  EXPECT_THROW(attend_with({.only_first_queries = true}), c10::ValueError) << "four queries of one sequence";
  const RelativePositions relative{at::randn({7, 6}), {}, at::arange(7)};
  EXPECT_NO_THROW(attend_with({.relative = relative}));
  EXPECT_THROW(attend_with({.is_causal = true, .relative = relative}), c10::ValueError);
  EXPECT_THROW(rotary_table(4, 3, 10), c10::ValueError);
  const auto gated = [&](const at::Tensor& intermediate, const at::Tensor& output) {
    feed_forward_block(square,
                       {.intermediate = {intermediate, {}},
                        .output = {output, {}},
                        .activation = Activation::kGelu,
                        .norm = {vector, {}, kEps},
                        .dropout = {},
                        .norm_first = true,
                        .is_gated = true},
                       {});
  };
  EXPECT_NO_THROW(gated(at::randn({8, 6}), at::randn({6, 4})));
  EXPECT_THROW(gated(at::randn({8, 6}), at::randn({6, 8})), c10::ValueError) << "no gate";
  EXPECT_THROW(residual_layer_norm(square, square, {vector, vector, kEps}, {}, at::arange(5)), c10::ValueError);
  EXPECT_THROW(
      embedding_layer_norm(square, square, square, at::arange(3), at::arange(2), {}, {vector, vector, kEps}, {}),
      c10::ValueError);
  ParameterUpdate update;
  update.param = at::ones({3});
  update.gradient = at::ones({2});
  update.step = at::zeros({});
  EXPECT_THROW(kernels::adam({update}, {0.9, 0.999, 1e-8, false, true}, {}), c10::ValueError) << "no moments";
  update.slots = {at::zeros({3}), at::zeros({3})};
  EXPECT_THROW(kernels::adam({update}, {0.9, 0.999, 1e-8, false, true}, {}), c10::ValueError)
      << "a gradient of other sizes";
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, sample] : samples()) {
    all.push_back(name);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All,
                         OperatorOnDeviceTest,
                         testing::Combine(testing::ValuesIn(names()), testing::ValuesIn(devices())),
                         [](const testing::TestParamInfo<std::tuple<std::string, at::Device>>& each) {
                           return std::get<0>(each.param) + "_on_" +
                                  c10::DeviceTypeName(std::get<1>(each.param).type(), /*lower_case=*/true);
                         });

/// Leaves out operators in place, which have no result.
std::vector<std::string> names_of_functional() {
  auto all = names();
  std::erase_if(all, [](const std::string& name) { return operator_of(name).schema().is_mutable(); });
  return all;
}

INSTANTIATE_TEST_SUITE_P(All,
                         OperatorTest,
                         testing::ValuesIn(names_of_functional()),
                         [](const testing::TestParamInfo<std::string>& name) { return name.param; });

TEST(Operators, AreAllTested) {
  const std::set<std::string> compute_nothing = {"version"};
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.getNamespace() == "mezzo") {
      const std::string name = op.name.substr(op.name.find("::") + 2);
      EXPECT_TRUE(samples().contains(name) || compute_nothing.contains(name)) << name << " has no sample";
    }
  }
}

}  // namespace
}  // namespace mezzo::encoder
