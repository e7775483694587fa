#include "encoder/cuda/row_launchers.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"

// A thread four columns, of one row, or in backward of some rows, whose sums it keeps. Forward
// moves two elements each, backward four.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kColumns = 4 * kThreads;  // of a block

struct Place {
  int64_t part, column;
};

/// Where a thread begins: of rows, or parts of them, that take ceil(columns / kColumns) blocks
/// each. In 32 bits, which blocks are counted in: a GPU takes long to divide 64.
MEZZO_DEVICE Place place_of(const Block& block, int64_t columns) {
  const auto number = static_cast<uint32_t>(block.index()), tiles = static_cast<uint32_t>(ceil_div(columns, kColumns));
  return {number / tiles, number % tiles * kColumns + 4 * block.thread()};
}

struct ValueAndSlope {
  float value, slope;
};

MEZZO_DEVICE ValueAndSlope activate(float x, ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kGelu: {
      const float cumulative = 0.5f * ::erfcf(-x * 0.70710678f), density = 0.39894228f * ::expf(-0.5f * x * x);
      return {x * cumulative, cumulative + x * density};
    }
    case ActivationKind::kGeluTanh: {
      constexpr float kScale = 0.79788456f, kCube = 0.044715f;
      const float t = ::tanhf(kScale * (x + kCube * x * x * x));
      return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kScale * (1 + 3 * kCube * x * x)};
    }
    default: return {x < 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};  // NaN stays
  }
}

struct Forward {
  template <class Memory>
  static void uses(Memory& memory, const ActivationArguments& a) {
    memory.reads(a.product, a.rows * a.columns);
    memory.reads(a.bias, a.columns);
    memory.writes(a.output, a.rows * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const ActivationArguments& a) {
    const auto [row, column] = place_of(block, a.columns);
    if (column >= a.columns) {
      return;
    }
    const int64_t begin = row * a.columns, end = begin + a.columns;
    const Four bias = load_bias(a.bias, a.product.element, column, a.columns);
    Four four = load_four(a.product, begin + column, end);
    for (int i = 0; i < 4; ++i) {
      four.at[i] = activate(four.at[i] + bias.at[i], a.kind).value;
    }
    store_four(a.output, begin + column, end, four);
  }
};

struct Backward {
  template <class Memory>
  static void uses(Memory& memory, const ActivationArguments& a) {
    memory.reads(a.product, a.rows * a.columns);
    memory.reads(a.bias, a.columns);
    memory.updates(a.grad, a.rows * a.columns);
    memory.writes(a.output, a.rows * a.columns);
    memory.writes(a.sums, ceil_div(a.rows, kRowsOfSum) * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const ActivationArguments& a) {
    const auto [part, column] = place_of(block, a.columns);
    if (column >= a.columns) {
      return;
    }
    const Four bias = load_bias(a.bias, a.product.element, column, a.columns);
    Four sums{};
    for (int64_t row = part * kRowsOfSum; row < a.rows && row < (part + 1) * kRowsOfSum; ++row) {
      const int64_t begin = row * a.columns, end = begin + a.columns;
      const Four product = load_four(a.product, begin + column, end);
      Four grad = load_four(a.grad, begin + column, end), output;
      for (int i = 0; i < 4; ++i) {
        const ValueAndSlope of = activate(product.at[i] + bias.at[i], a.kind);
        output.at[i] = of.value;
        grad.at[i] *= of.slope;
        sums.at[i] += grad.at[i];
      }
      store_four(a.output, begin + column, end, output);
      store_four(a.grad, begin + column, end, grad);
    }
    store_four<float>(a.sums, part * a.columns + column, (part + 1) * a.columns, sums);
  }
};

}  // namespace

void bias_activation(const ActivationArguments& a, Stream stream) {
  launch<Forward>(Grid{a.rows * ceil_div(a.columns, kColumns), kThreads}, stream, a);
}

void bias_activation_backward(const ActivationArguments& a, Stream stream) {
  launch<Backward>(Grid{ceil_div(a.rows, kRowsOfSum) * ceil_div(a.columns, kColumns), kThreads}, stream, a);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
