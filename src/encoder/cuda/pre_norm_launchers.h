#pragma once

#include "encoder/cuda/row_launchers.h"

/// The row-wise kernels of blocks that begin with their norm; row_launchers.h has the others.
namespace mezzo::encoder::MEZZO_CUDA {

struct LayerNormArguments {
  Span x;
  NormArguments norm;
  NormOutputs to;
  int64_t rows, columns;
};
void layer_norm(const LayerNormArguments& arguments, Stream stream);

struct ResidualDropoutArguments {
  Span product;
  Span bias;  ///< or none
  Span residual;
  Mask mask;
  const int64_t* row_numbers;  ///< nullptr for 0, 1, ...
  Span output;
  int64_t rows, columns;
};
void residual_dropout(const ResidualDropoutArguments& arguments, Stream stream);

struct ResidualDropoutBackwardArguments {
  Span grad;
  Mask mask;
  const int64_t* row_numbers;
  Span product;  ///< its gradient
  float* sums;   ///< [ceil(rows / kRowsOfSum), columns], of that; nullptr without bias
  int64_t rows, columns;
};
void residual_dropout_backward(const ResidualDropoutBackwardArguments& arguments, Stream stream);

struct GatedActivationArguments {
  Span product;  ///< [rows, 2 columns]
  Span bias;     ///< [2 columns], or none
  Activation kind;
  Mask mask;
  const int64_t* row_numbers;
  Span output;  ///< [rows, columns]; backward: holds its gradient before
  Span grad;    ///< backward: of the product
  float* sums;  ///< backward: [ceil(rows / kRowsOfSum), 2 columns], of that; nullptr without bias
  int64_t rows, columns;
};
void gated_activation(const GatedActivationArguments& arguments, Stream stream);
void gated_activation_backward(const GatedActivationArguments& arguments, Stream stream);

}  // namespace mezzo::encoder::MEZZO_CUDA
