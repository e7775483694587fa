#include "text/models/checkpointed.h"

#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "amp/no_cast_cache.h"
#include "mezzo/amp/autocast_state.h"

namespace mezzo::text {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The values that the second run needs besides the tensors.
struct Recipe : torch::CustomClassHolder {
  Recipe(Segment segment_, size_t num_inputs_)
      : segment(std::move(segment_)), num_inputs(num_inputs_), autocast(AutocastState::current().without_log()) {}
  Segment segment;
  size_t num_inputs;
  AutocastState autocast;
};

struct CheckpointedFunction : torch::autograd::Function<CheckpointedFunction> {
  static at::Tensor forward(AutogradContext* ctx, const c10::intrusive_ptr<Recipe>& recipe, at::TensorList tensors) {
    ctx->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    ctx->save_for_backward(tensors.vec());
    const NoCastCacheGuard no_cache;  // a cast kept from here would have no history
    return recipe->segment(tensors.slice(0, recipe->num_inputs).vec());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad) {
    const auto recipe = c10::static_intrusive_pointer_cast<Recipe>(ctx->saved_data["recipe"].toCapsule());
    const bool create_graph = at::GradMode::is_enabled();
    variable_list tensors = ctx->get_saved_variables();
    // Detached from the graph before, unless the gradient itself is to be differentiated.
    for (size_t i = 0; i < recipe->num_inputs && !create_graph; ++i) {
      tensors[i] = tensors[i].detach().set_requires_grad(tensors[i].requires_grad());
    }
    at::Tensor result;
    {
      const AutocastStateGuard autocast(recipe->autocast);
      const NoCastCacheGuard no_cache;  // one kept from here would outlive the region of autocast
      const at::AutoGradMode with_grad(true);
      result = recipe->segment({tensors.begin(), tensors.begin() + static_cast<ptrdiff_t>(recipe->num_inputs)});
    }
    return gradients(result, grad[0], tensors, create_graph);
  }

 private:
  /// Of each tensor that needs one, behind an empty place for the recipe.
  static variable_list gradients(const at::Tensor& result,
                                 const at::Tensor& grad,
                                 const variable_list& tensors,
                                 bool create_graph) {
    variable_list found(1 + tensors.size());
    if (!result.requires_grad() || !grad.defined()) {
      return found;
    }
    variable_list wanted;
    std::vector<size_t> places;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].requires_grad()) {
        wanted.push_back(tensors[i]);
        places.push_back(1 + i);
      }
    }
    const auto computed = torch::autograd::grad({result}, wanted, {grad}, /*retain_graph=*/create_graph, create_graph,
                                                /*allow_unused=*/true);
    for (size_t i = 0; i < places.size(); ++i) {
      found[places[i]] = computed[i];
    }
    return found;
  }
};

}  // namespace

at::Tensor checkpointed(Segment segment,
                        const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& parameters) {
  if (!at::GradMode::is_enabled()) {
    return segment(inputs);
  }
  for (const at::Tensor& parameter : parameters) {
    TORCH_CHECK_VALUE(torch::autograd::impl::hooks(parameter).empty(), "checkpointed: a parameter of shape ",
                      parameter.sizes(),
                      " has hooks, which would see its gradient twice; remove them, or switch checkpointing off");
  }
  variable_list tensors(inputs);
  tensors.insert(tensors.end(), parameters.begin(), parameters.end());
  // As a TensorList: in a std::vector, apply() would not look for tensors.
  return CheckpointedFunction::apply(c10::make_intrusive<Recipe>(std::move(segment), inputs.size()),
                                     at::TensorList(tensors));
}

}  // namespace mezzo::text
