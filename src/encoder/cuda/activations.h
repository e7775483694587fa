#pragma once

#include <cmath>

#include "encoder/cuda/row_launchers.h"
#include "kernels/cuda/block.h"

namespace mezzo::encoder::MEZZO_CUDA {

struct ValueAndSlope {
  float value, slope;
};

MEZZO_DEVICE ValueAndSlope activate(float x, Activation kind) {
  switch (kind) {
    case Activation::kGelu: {
      const float cumulative = 0.5f * ::erfcf(-x * 0.70710678f), density = 0.39894228f * ::expf(-0.5f * x * x);
      return {x * cumulative, cumulative + x * density};
    }
    case Activation::kGeluTanh: {
      constexpr float kScale = 0.79788456f, kCube = 0.044715f;
      const float t = ::tanhf(kScale * (x + kCube * x * x * x));
      return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kScale * (1 + 3 * kCube * x * x)};
    }
    default: return {x < 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};  // NaN stays
  }
}

}  // namespace mezzo::encoder::MEZZO_CUDA
