#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

/// Layers for which LibTorch has no kernel of the CPU's that would do: made of other operators.
namespace mezzo::simulated {
namespace {

bool is_given(const std::optional<at::Tensor>& tensor) { return tensor && tensor->defined(); }

/// Where LibTorch leaves convolutions to the backend. Of images, without dilation and groups.
void check_convolution(const at::Tensor& x, at::IntArrayRef dilation, bool transposed, int64_t num_groups) {
  TORCH_CHECK(x.dim() == 4 && !transposed && num_groups == 1 && dilation[0] == 1 && dilation[1] == 1,
              "simulated device: this kind of convolution is not known to it");
}

at::Tensor convolution(const at::Tensor& x,
                       const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride,
                       at::IntArrayRef padding,
                       at::IntArrayRef dilation,
                       bool transposed,
                       at::IntArrayRef /*output_padding*/,
                       int64_t num_groups) {
  check_convolution(x, dilation, transposed, num_groups);
  return at::_slow_conv2d_forward(x, weight, weight.sizes().slice(2), bias, stride, padding);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& grad,
                                                                    const at::Tensor& x,
                                                                    const at::Tensor& weight,
                                                                    at::IntArrayRef stride,
                                                                    at::IntArrayRef padding,
                                                                    at::IntArrayRef dilation,
                                                                    bool transposed,
                                                                    at::IntArrayRef /*output_padding*/,
                                                                    int64_t num_groups,
                                                                    std::array<bool, 3> output_mask) {
  check_convolution(x, dilation, transposed, num_groups);
  return at::_slow_conv2d_backward(grad, x, weight, weight.sizes().slice(2), stride, padding, output_mask);
}

/// The schema of native_batch_norm does not say that it writes to the running statistics.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& x,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias,
                                                          const std::optional<at::Tensor>& running_mean,
                                                          const std::optional<at::Tensor>& running_var,
                                                          bool training,
                                                          double momentum,
                                                          double eps) {
  if (!is_given(running_mean)) {
    return at::_native_batch_norm_legit(x, weight, bias, training, momentum, eps);
  }
  auto mean = *running_mean, var = *running_var;
  return at::_native_batch_norm_legit(x, weight, bias, mean, var, training, momentum, eps);
}

/// @return output, cell and activated gates [B, 4 H]
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates,
                                                         const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx,
                                                         const std::optional<at::Tensor>& input_bias,
                                                         const std::optional<at::Tensor>& hidden_bias) {
  auto gates = input_gates + hidden_gates;
  if (is_given(input_bias)) {
    gates = gates + *input_bias + *hidden_bias;
  }
  const auto parts = gates.chunk(4, 1);
  const auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
  const auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const std::optional<at::Tensor>& grad_hy,
                                                                  const std::optional<at::Tensor>& grad_cy,
                                                                  const at::Tensor& cx,
                                                                  const at::Tensor& cy,
                                                                  const at::Tensor& workspace,
                                                                  bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const auto of_output = is_given(grad_hy) ? *grad_hy : at::zeros_like(cx), activated = cy.tanh();
  const auto of_cell =
      of_output * out * (1 - activated * activated) + (is_given(grad_cy) ? *grad_cy : at::zeros_like(cx));
  const auto grad = at::cat({of_cell * cell * in * (1 - in), of_cell * cx * forget * (1 - forget),
                             of_cell * in * (1 - cell * cell), of_output * activated * out * (1 - out)},
                            1);
  return {grad, of_cell * forget, has_bias ? grad.sum(0) : at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
}

}  // namespace
}  // namespace mezzo::simulated
