#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "encoder/attention_rule.h"
#include "encoder/dropout_site.h"
#include "encoder/relative_positions.h"
#include "encoder/sequence_layout.h"

/// What packed attention is, and what its kernels take. T rows of all sequences, B sequences, H hidden units.
namespace mezzo::encoder {

/// What attention computes: multi-head self-attention within each sequence, heads side by side in the columns.
/// A new kind of attention is a new field here, a term in the reference, and one kernel per device.
struct AttentionDescription {
  int64_t num_heads = 1;
  DropoutSite dropout = {};  ///< of the weights; see packed_attention.h for the mask
  /// Query i sees keys i - window to i + window; nullopt: all of its sequence.
  std::optional<int64_t> window = {};
  bool is_causal = false;            ///< whether query i sees no key behind i
  bool only_first_queries = false;   ///< `query` and the output have one row a sequence, its first token's: [B, H]
  std::optional<double> scale = {};  ///< of the scores; nullopt: 1 / sqrt(head size), of relative positions theirs
  double soft_cap = 0;               ///< c: a scaled score s becomes c * tanh(s / c); 0 for none
  at::Tensor rotary = {};            ///< a rotary_table() that turns queries and keys, a constant; undefined for none
  RelativePositions relative = {};   ///< not together with any of window, is_causal, soft_cap and rotary

  /// Whether the defaults of all but heads, dropout and only_first_queries hold.
  bool is_plain() const;
  /// @param longest  tokens of the longest sequence
  AttentionRule rule(int64_t head_size, int64_t longest) const {
    const double usual = relative.defined() ? relative.scale(head_size) : 1 / std::sqrt(static_cast<double>(head_size));
    const int64_t seen = std::min(window.value_or(longest), longest);
    return {.num_heads = num_heads,
            .head_size = head_size,
            .scale = static_cast<float>(scale.value_or(usual)),
            .soft_cap = static_cast<float>(soft_cap),
            .keys_before = seen,
            .keys_after = is_causal ? 0 : seen,
            .only_first_queries = only_first_queries};
  }

  /// Tensors as operators get them: the rotary table detached, rows of relative positions contiguous.
  /// @throws c10::ValueError  for a negative window or soft cap. For relative positions together with options that
  ///     exclude them, or with tensors of other shapes, dtypes or devices. For a rotary table of another head size,
  ///     with fewer rows than the longest sequence has tokens, or not on `device`
  AttentionDescription checked(const SequenceLayout& layout, const at::Device& device, int64_t hidden) const;
};

/// A description as operators take it, the class torch.classes.mezzo.Attention. Tables of relative positions, which
/// are differentiable, are arguments of the operators.
struct AttentionHolder final : torch::CustomClassHolder {
  explicit AttentionHolder(AttentionDescription given) : description(std::move(given)) {}
  /// With the tables.
  AttentionDescription with(const std::optional<at::Tensor>& relative_key,
                            const std::optional<at::Tensor>& relative_query) const;
  AttentionDescription description;
};
using AttentionHolderPtr = c10::intrusive_ptr<AttentionHolder>;
AttentionHolderPtr without_tables(AttentionDescription description);

/// Its type in schemas, which is registered by now.
const std::string& attention_schema();

/// Biases [H] of the products that made query, key and value, which the kernel adds; undefined for none.
struct AttentionBiases {
  at::Tensor query, key, value;
};

/// The arguments of the kernels, without autograd.
struct AttentionArguments {
  at::Tensor query, key,
      value;               ///< [T, H], `query` [B, H] for only_first_queries; contiguous, or columns of one matrix
  AttentionBiases biases;  ///< of any floating dtype, added as the dtype of `query` holds them
  SequenceLayoutPtr layout;
  AttentionDescription description;  ///< checked(); tables of relative positions contiguous, of the dtype of `query`

  int64_t head_size() const { return key.size(1) / description.num_heads; }
  AttentionRule rule() const { return description.rule(head_size(), layout->longest()); }
};

/// What backward gives.
struct AttentionGradients {
  at::Tensor query, key, value;  ///< shapes and dtypes as the inputs; zero in rows of padding and filler
  AttentionBiases biases;        ///< float32; undefined if the inputs have none
  /// The matrix whose columns the first three are, [T, 3 H]; for only_first_queries key and value alone, [T, 2 H];
  /// undefined if they lie apart.
  at::Tensor all = {};
  at::Tensor relative_key = {}, relative_query = {};  ///< float32; undefined if the inputs are
};

}  // namespace mezzo::encoder
