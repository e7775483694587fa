#include "distributed/data_parallel/pass_through.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace mezzo::distributed {
namespace {

struct PassThrough : torch::autograd::Function<PassThrough> {
  /// What to do when backward comes by.
  struct Visit : torch::CustomClassHolder {
    std::function<void()> call;
  };

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const std::function<void()>& visit,
                                                at::TensorList inputs) {
    context->set_materialize_grads(false);
    auto holder = c10::make_intrusive<Visit>();
    holder->call = visit;
    context->saved_data["visit"] = c10::IValue::make_capsule(std::move(holder));
    torch::autograd::variable_list outputs;
    for (const at::Tensor& input : inputs) {
      outputs.push_back(input.clone());  // so that it may be changed in place
    }
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    c10::static_intrusive_pointer_cast<Visit>(context->saved_data["visit"].toCapsule())->call();
    torch::autograd::variable_list all{at::Tensor()};  // none for `visit`
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
};

}  // namespace

std::vector<at::Tensor> pass_through(const std::vector<at::Tensor>& outputs, const std::function<void()>& visit) {
  const auto has_history = [](const at::Tensor& tensor) { return tensor.defined() && tensor.grad_fn() != nullptr; };
  std::vector<at::Tensor> inputs;
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(inputs), has_history);
  if (inputs.empty()) {
    return outputs;
  }
  const auto passed = PassThrough::apply(visit, at::TensorList(inputs));
  auto result = outputs;
  size_t next = 0;
  for (at::Tensor& tensor : result) {
    if (has_history(tensor)) {
      tensor = passed[next++];
    }
  }
  return result;
}

}  // namespace mezzo::distributed
