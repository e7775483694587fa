#include "encoder/blocks.h"

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "encoder/block_arguments.h"
#include "encoder/reference/parts.h"
#include "mezzo/amp/module_scope.h"

namespace mezzo::encoder::reference {

at::Tensor embedding_layer_norm(const at::Tensor& word,
                                const at::Tensor& position,
                                const at::Tensor& token_type,
                                const at::Tensor& ids,
                                const at::Tensor& positions,
                                const at::Tensor& token_types,
                                const LayerNormParams& norm,
                                const DropoutSite& site) {
  const ModuleScope scope("embeddings");
  const auto type = token_types.defined() ? at::embedding(token_type, token_types) : token_type.select(0, 0);
  const auto sum = at::embedding(word, ids) + type + at::embedding(position, positions);
  return encoder::dropout(layer_norm(sum, norm), site);
}

namespace {

/// Calls body() in the module of that name, which hubs give to a part of such a block.
template <class Body>
auto within(const char* module_of_norm_first, const char* module, bool norm_first, const Body& body) {
  const char* const name = norm_first ? module_of_norm_first : module;
  std::optional<ModuleScope> scope;
  if (name != nullptr) {
    scope.emplace(name);
  }
  return body();
}

}  // namespace

at::Tensor attention_block(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  const auto in = [&, norm_first = params.norm_first](const char* of_norm_first, const char* module, const auto& body) {
    return within(of_norm_first, module, norm_first, body);
  };
  const auto input = in("attn_norm", nullptr, [&] {
    return params.norm_first && params.norm.weight.defined() ? layer_norm(x, params.norm) : x;
  });
  return in("attn", "attention", [&] {
    const auto context = in(nullptr, "self", [&] {
      std::vector<at::Tensor> parts;
      for (const LinearParams& layer : params.query_key_value) {
        parts.push_back(linear(input, layer));
      }
      if (parts.size() == 1) {
        parts = parts[0].chunk(3, 1);
      }
      return attention(parts[0], parts[1], parts[2], layout, params.attention);
    });
    return in(nullptr, "output", [&] {
      const auto rows = params.attention.only_first_queries ? layout->first_rows() : at::Tensor();
      const auto output = linear(context, params.output, rows), residual = rows.defined() ? x.index_select(0, rows) : x;
      return params.norm_first
                 ? residual + dropout(output, params.output_dropout, rows)
                 : encoder::residual_layer_norm(output, residual, params.norm, params.output_dropout, rows);
    });
  });
}

at::Tensor feed_forward_block(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  const auto in = [&, norm_first = params.norm_first](const char* of_norm_first, const char* module, const auto& body) {
    return within(of_norm_first, module, norm_first, body);
  };
  const auto input = in("mlp_norm", nullptr, [&] { return params.norm_first ? layer_norm(x, params.norm) : x; });
  return in("mlp", nullptr, [&] {
    const auto inner = in(nullptr, "intermediate", [&] {
      const auto rows = linear(input, params.intermediate, row_numbers);
      if (!params.is_gated) {
        return activate(rows, params.activation);
      }
      const auto halves = rows.chunk(2, 1);
      return dropout(activate(halves[0], params.activation) * halves[1], params.inner_dropout, row_numbers);
    });
    return in(nullptr, "output", [&] {
      const auto output = linear(inner, params.output, row_numbers);
      return params.norm_first ? x + dropout(output, params.dropout, row_numbers)
                               : encoder::residual_layer_norm(output, x, params.norm, params.dropout, row_numbers);
    });
  });
}

at::Tensor residual_layer_norm(const at::Tensor& x,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& site,
                               const at::Tensor& row_numbers) {
  return layer_norm(dropout(x, site, row_numbers) + residual, norm);
}

}  // namespace mezzo::encoder::reference
