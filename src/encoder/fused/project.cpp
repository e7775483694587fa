#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "encoder/fused/block.h"
#include "encoder/fused/nodes.h"

namespace mezzo::encoder::fused {
namespace {

struct Project : torch::autograd::Function<Project> {
  struct Settings {
    double eps;
    int64_t parts;
    at::Tensor first_rows;
    bool adds_to_residual, is_differentiable;
    at::ScalarType x_dtype, weight_dtype, dtype;  ///< the last one of products
    std::vector<at::Tensor> weights;              ///< to compute with
  };

  enum Input { kX, kNormWeight, kNormBias, kWeights };

  /// One product, and which of the parts are its columns.
  struct Product {
    at::Tensor weight;
    int64_t first_part, parts;
    bool is_of_first_rows;
  };

  static std::vector<Product> products_of(const std::vector<at::Tensor>& weights, const Settings& settings) {
    const bool has_first = settings.first_rows.defined();
    const auto whole = weights.size() == 1                ? weights[0]
                       : ops_of(weights[0]).takes_columns ? side_by_side(weights)
                                                          : at::Tensor();
    std::vector<Product> products;
    if (!whole.defined()) {
      for (int64_t i = 0; i < settings.parts; ++i) {
        products.push_back({weights[i], i, 1, has_first && i == 0});
      }
    } else if (has_first) {
      const int64_t size = whole.size(0) / settings.parts;
      products.push_back({whole.narrow(0, 0, size), 0, 1, true});
      products.push_back({whole.narrow(0, size, whole.size(0) - size), 1, settings.parts - 1, false});
    } else {
      products.push_back({whole, 0, settings.parts, false});
    }
    return products;
  }

  /// The inputs of the products, in their dtype.
  static at::Tensor input_of(const at::Tensor& x,
                             at::TensorList tensors,
                             const at::Tensor& weight,
                             const Settings& settings,
                             Normalised* normalised) {
    const at::Tensor &scale = tensors[kNormWeight], &shift = tensors[kNormBias];
    return scale.defined() ? ops_of(x).layer_norm(x, {scale, shift, settings.eps}, settings.dtype, normalised)
                           : input_of_products(x, weight, settings.dtype);
  }

  static variable_list forward(AutogradContext* ctx, at::TensorList given, const Settings& settings) {
    const NoAutocast no_autocast;
    const auto inputs = inputs_of(given);
    const at::Tensor &x = inputs[kX], &first = settings.first_rows;
    const auto input = input_of(x, inputs, settings.weights[0], settings, nullptr);
    variable_list outputs(settings.parts);
    Products products;
    for (const auto& [weight, first_part, parts, is_of_first_rows] : products_of(settings.weights, settings)) {
      const auto rows =
          products.add(is_of_first_rows ? input.index_select(0, first) : input, weight.t(), settings.dtype);
      const int64_t columns = rows.size(1) / parts;
      for (int64_t i = 0; i < parts; ++i) {
        outputs[first_part + i] = parts == 1 ? rows : rows.narrow(1, i * columns, columns);
      }
    }
    products.compute();
    outputs.push_back(first.defined() ? x.index_select(0, first) : x);
    if (settings.is_differentiable) {
      variable_list saved{inputs[kNormWeight].defined() ? x : input, inputs[kNormWeight], inputs[kNormBias]};
      saved.insert(saved.end(), settings.weights.begin(), settings.weights.end());
      ctx->save_for_backward(std::move(saved));
      Settings of_backward = settings;
      of_backward.weights.clear();
      keep(ctx, std::move(of_backward));
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Backward<Settings> node(ctx, "linear layer");
    const Settings& settings = node.settings;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[kX], &norm_weight = saved[kNormWeight], &first = settings.first_rows;
    const std::vector<at::Tensor> weights(saved.begin() + kWeights, saved.end());
    const BlockOps& ops = ops_of(x);
    Normalised normalised;
    const auto input = input_of(x, saved, weights[0], settings, &normalised);
    const at::Tensor& residual = grads.back();
    const bool has_norm = norm_weight.defined();
    variable_list result(kWeights + weights.size() + 1);

    at::Tensor total, of_first;
    if (!has_norm) {
      total = first.defined()             ? at::zeros(x.sizes(), residual.options())
              : settings.adds_to_residual ? residual
                                          : residual.clone();
    }
    const auto whole_grad = weights.size() == 1 && ctx->needs_input_grad(kWeights)
                                ? at::empty(weights[0].sizes(), weights[0].options().dtype(settings.weight_dtype))
                                : at::Tensor();
    Products products;
    for (const auto& [weight, first_part, parts, is_of_first_rows] : products_of(weights, settings)) {
      const at::TensorList of_parts(grads.data() + first_part, parts);
      const auto joined = columns_of(of_parts), grad = joined.defined() ? joined : at::cat(of_parts, 1);
      if (whole_grad.defined()) {
        const int64_t size = whole_grad.size(0) / settings.parts;
        products.assign_aside(whole_grad.narrow(0, first_part * size, parts * size), grad.t(),
                              is_of_first_rows ? input.index_select(0, first) : input);
        result[kWeights] = whole_grad;
      }
      if (is_of_first_rows) {
        of_first = products.add(grad, weight, has_norm ? settings.dtype : settings.x_dtype);
      } else if (total.defined()) {
        products.add_to(total, grad, weight);
      } else {
        total = products.add(grad, weight);
      }
    }
    if (weights.size() > 1) {
      set_weight_gradients(ctx, products, grads, input, settings, result);
    }
    products.compute();
    if (first.defined()) {
      ops.add_to_rows(total, first, has_norm ? of_first : of_first + residual);
    }
    if (!has_norm) {
      result[kX] = total;
      return result;
    }
    at::Tensor passed = residual;
    if (first.defined()) {
      passed = at::zeros(x.sizes(), residual.options());
      ops.add_to_rows(passed, first, residual);
    }
    const auto of_norm = ops.layer_norm_backward(total, normalised, norm_weight, passed, x.scalar_type());
    result[kX] = of_norm.x;
    result[kNormWeight] = grad_vector(of_norm.norm.weight, norm_weight);
    result[kNormBias] = grad_if_defined(of_norm.norm.bias, saved[kNormBias]);
    return result;
  }

 private:
  /// The matrix whose columns the gradients of parts are; undefined if they lie apart.
  static at::Tensor columns_of(at::TensorList parts) {
    const at::Tensor& first = parts.front();
    if (parts.size() == 1) {
      return first;
    }
    const int64_t columns = first.size(1), count = static_cast<int64_t>(parts.size());
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor& part = parts[i];
      if (!part.is_alias_of(first) || part.sizes() != first.sizes() || part.strides() != first.strides() ||
          part.stride(0) != count * columns || part.stride(1) != 1 ||
          part.storage_offset() != first.storage_offset() + i * columns) {
        return {};
      }
    }
    return first.as_strided({first.size(0), count * columns}, {count * columns, 1});
  }

  /// Of a weight for each part: by one product, if all are wanted and the gradients of the parts lie together.
  static void set_weight_gradients(const AutogradContext* ctx,
                                   Products& products,
                                   const variable_list& grads,
                                   const at::Tensor& input,
                                   const Settings& settings,
                                   variable_list& result) {
    const at::Tensor& first_rows = settings.first_rows;
    const int64_t begin = first_rows.defined() ? 1 : 0, count = settings.parts - begin;
    const auto of_part = [&](int64_t i, const at::Tensor& rows) {
      result[kWeights + i] = grad_weight(ctx, kWeights + i, products, grads[i], rows, settings.weight_dtype);
    };
    if (first_rows.defined()) {
      of_part(0, input.index_select(0, first_rows));
    }
    const auto joined = columns_of({grads.data() + begin, static_cast<size_t>(count)});
    bool all_wanted = joined.defined();
    for (int64_t i = begin; i < settings.parts; ++i) {
      all_wanted = all_wanted && ctx->needs_input_grad(kWeights + i);
    }
    if (!all_wanted) {
      for (int64_t i = begin; i < settings.parts; ++i) {
        of_part(i, input);
      }
      return;
    }
    const auto parts = split_rows(products.add_aside(joined.t(), input, settings.weight_dtype), count);
    std::copy(parts.begin(), parts.end(), result.begin() + kWeights + begin);
  }
};

}  // namespace

Projection project(const at::Tensor& x,
                   const LayerNormParams& norm,
                   const std::vector<LinearParams>& layers,
                   int64_t parts,
                   const at::Tensor& first_rows,
                   bool adds_to_residual) {
  const auto dtype = compute_dtype(x);
  std::vector<at::Tensor> inputs{x, norm.weight, norm.bias}, weights;
  for (const LinearParams& layer : layers) {
    const Weight weight(layer, dtype);
    inputs.push_back(weight.leaf);
    weights.push_back(weight.value);
  }
  Projection result{
      apply_node<Project>(inputs,
                          Project::Settings{norm.eps, parts, first_rows, adds_to_residual, at::GradMode::is_enabled(),
                                            x.scalar_type(), inputs[Project::kWeights].scalar_type(), dtype, weights}),
      {}};
  result.residual = result.parts.back();
  result.parts.pop_back();
  return result;
}

}  // namespace mezzo::encoder::fused
