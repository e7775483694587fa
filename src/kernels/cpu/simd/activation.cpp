#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/table.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {
namespace {

struct ValueAndSlope {
  Floats value, slope;
};

struct Gelu {
  static ValueAndSlope at(Floats x) {
    const Normal n = normal(x);
    return {x * n.cumulative, n.cumulative + x * n.density};
  }
};

/// x / (1 + e^(-2 g)) with g = sqrt(2 / pi) (x + 0.044715 x^3), which is the tanh form written with one exponential.
struct GeluTanh {
  static ValueAndSlope at(Floats x) {
    constexpr float kTwice = 1.59576912f, kCubic = 0.044715f;
    const Floats square = x * x;
    const Floats share = 1.0f / (1.0f + exp(x * (square * kCubic + 1.0f) * -kTwice));
    const Floats inner_slope = (square * (3 * kCubic) + 1.0f) * kTwice;
    return {x * share, share + x * share * (1.0f - share) * inner_slope};
  }
};

struct Relu {
  static ValueAndSlope at(Floats x) { return {x <= 0.0f ? Floats{} : x, x > 0.0f ? broadcast(1) : Floats{}}; }
};

template <class Activation>
void forward(const BiasActivation& op, int64_t begin, int64_t end, int64_t columns, float* scratch) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* product = read(op.product, first, columns, scratch);
    float* output = place(op.output, first, scratch + columns);
    for_each_vector(columns, [&](int64_t i, auto get, auto put) {
      put(output + i, Activation::at(get(product + i) + get(op.bias + i)).value);
    });
    write(output, op.output, first, columns);
  }
}

template <class Activation>
void backward(
    const BiasActivationBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* product = read(op.product, first, columns, scratch);
    const float* grad = read(op.grad_output, first, columns, scratch + columns);
    float* output = place(op.output, first, scratch + 2 * columns);
    float* grad_product = place(op.grad_product, first, scratch + 3 * columns);
    for_each_vector(columns, [&](int64_t i, auto get, auto put) {
      const auto [value, slope] = Activation::at(get(product + i) + get(op.bias + i));
      const Floats g = get(grad + i) * slope;
      put(output + i, value);
      put(grad_product + i, g);
      put(sums + i, get(sums + i) + g);
    });
    write(output, op.output, first, columns);
    write(grad_product, op.grad_product, first, columns);
  }
}

}  // namespace

void bias_activation(const BiasActivation& op, int64_t begin, int64_t end, int64_t columns, float* scratch) {
  switch (op.kind) {
    case ActivationKind::kGelu: return forward<Gelu>(op, begin, end, columns, scratch);
    case ActivationKind::kGeluTanh: return forward<GeluTanh>(op, begin, end, columns, scratch);
    case ActivationKind::kRelu: return forward<Relu>(op, begin, end, columns, scratch);
  }
}

void bias_activation_backward(
    const BiasActivationBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch) {
  switch (op.kind) {
    case ActivationKind::kGelu: return backward<Gelu>(op, begin, end, columns, sums, scratch);
    case ActivationKind::kGeluTanh: return backward<GeluTanh>(op, begin, end, columns, sums, scratch);
    case ActivationKind::kRelu: return backward<Relu>(op, begin, end, columns, sums, scratch);
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
