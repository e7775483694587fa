#pragma once

#include "encoder/activation.h"
#include "encoder/cuda/mask_arguments.h"
#include "kernels/cuda/arguments.h"

/// The row-wise kernels of the encoder, each queued on a stream of the current device. Rows are
/// contiguous, `columns` each; vectors are [columns], of any type. Biases of products are added as
/// the product's type holds them.
namespace mezzo::encoder::MEZZO_CUDA {

using namespace kernels::MEZZO_CUDA;  // the thin layer, elements

/// `count` elements of `x`, dropped or scaled, to `out`, of the same type.
struct DropoutArguments {
  Span x, out;
  int64_t count;
  Mask mask;
};
void dropout(const DropoutArguments& arguments, Stream stream);

/// The outputs of a layer norm. Backward needs the last two; none if it will not be called.
struct NormOutputs {
  Span output;
  Span copy;  ///< of the output in another type; or none
  Span normalised;
  float* rstd;
};

struct NormArguments {
  Span weight;
  Span bias;  ///< or none
  float eps;
};

/// `normalised` may be the memory of `product`.
struct ResidualNormArguments {
  Span product, residual, bias;
  NormArguments norm;
  Mask mask;
  const int64_t* row_numbers;  ///< nullptr for 0, 1, ...
  NormOutputs to;
  int64_t rows, columns;
};
void residual_layer_norm(const ResidualNormArguments& arguments, Stream stream);

struct EmbeddingNormArguments {
  Span word, position, token_type;
  int64_t words, positions_of_table, token_types_of_table;  ///< rows of the tables
  const int64_t *ids, *positions, *token_types;             ///< nullptr: all types are 0
  NormArguments norm;
  Mask mask;
  NormOutputs to;
  int64_t rows, columns;
};
void embedding_layer_norm(const EmbeddingNormArguments& arguments, Stream stream);

/// Backward of all layer norms. The mask is on the term added to the residual, or on the output.
struct NormBackwardArguments {
  Span grad, normalised;
  const float* rstd;
  Span weight;
  Mask mask;
  bool mask_is_on_output;
  const int64_t* row_numbers;
  Span product;   ///< gradient of the masked term, if the mask was not on the output; else none
  Span residual;  ///< gradient of the norm's input
  Span added;     ///< to that, or none; not if there is a product
  float* sums;    ///< [norm_parts, 3, columns]: of weight, bias of the norm, and bias of the product
  int64_t rows, columns;
};
void layer_norm_backward(const NormBackwardArguments& arguments, Stream stream);
/// The number of parts of its sums, which depends on the current device.
int64_t norm_parts(int64_t rows, int64_t columns);

/// totals[c] = the sum of sums[r][c] over all r, always in the same order.
struct ColumnSumArguments {
  const float* sums;
  float* totals;
  int64_t rows, columns;
};
void sum_columns(const ColumnSumArguments& arguments, Stream stream);

/// Where each of few indices comes, equal ones in their order: sorted[i] = indices[order[i]].
struct SortArguments {
  const int64_t* indices;
  int64_t *sorted, *order;
  int64_t count;
};
constexpr int64_t kMostSorted = 8192;
void sort_few(const SortArguments& arguments, Stream stream);

/// Of `indices`, sorted, and where each was before: table[indices[i]] += rows[order[i]], in order.
struct AddRowsArguments {
  const int64_t *indices, *order;
  const float* rows;
  float* table;
  int64_t count, columns;
};
void add_rows_at(const AddRowsArguments& arguments, Stream stream);

/// to[numbers[b]] += rows[b] for distinct numbers; added in float32, and rounded as `to` is.
struct AddToRowsArguments {
  Span to;
  const int64_t* numbers;
  Span rows;
  int64_t count, columns;
};
void add_to_rows(const AddToRowsArguments& arguments, Stream stream);

struct ActivationArguments {
  Span product, bias;
  Activation kind;
  Span output;
  Span grad;    ///< backward: of the output; becomes that of the product
  float* sums;  ///< backward: [ceil(rows / kRowsOfSum), columns], of the product's gradients
  int64_t rows, columns;
};
constexpr int64_t kRowsOfSum = 8;
void bias_activation(const ActivationArguments& arguments, Stream stream);
void bias_activation_backward(const ActivationArguments& arguments, Stream stream);

}  // namespace mezzo::encoder::MEZZO_CUDA
