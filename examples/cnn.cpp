// Classifies handwritten digits (8 x 8 pixels, from scikit-learn) by convolutions and batch norms, in channels_last,
// the fastest layout of images under AMP. The precisions differ in the dtype of the region, and in the scaler.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/optim/adam.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <fstream>
#include <iterator>

#include "example.h"

namespace nn = torch::nn;

/// Reads rows of a digit and its 64 pixels from 0 to 16.
/// @return images [N, 1, 8, 8] from 0 to 1, and digits [N], shuffled
std::pair<torch::Tensor, torch::Tensor> read_digits(const std::string& path) {
  std::ifstream file(path);
  const std::vector<float> numbers{std::istream_iterator<float>(file), {}};
  TORCH_CHECK(!numbers.empty() && numbers.size() % 65 == 0, "cnn: ", path, " should hold rows of 65 numbers, as ",
              "tools/digits.py writes them; it has ", numbers.size(), " numbers.");
  const auto rows = torch::tensor(numbers).view({-1, 65});
  const auto shuffled = rows.index_select(0, torch::randperm(rows.size(0)));
  return {shuffled.slice(1, 1).reshape({-1, 1, 8, 8}) / 16, shuffled.select(1, 0).to(torch::kLong)};
}

int main(int argc, char** argv) {
  const std::string precision = argc > 2 ? argv[2] : "fp16";
  if (argc < 2 || (precision != "fp16" && precision != "bf16" && precision != "fp32")) {
    std::cerr << "usage: cnn FILE [fp16|bf16|fp32] [cpu|cuda]; tools/digits.py writes FILE\n";
    return 2;
  }
  const torch::Device device(argc > 3 ? argv[3] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  const auto [images, digits] = read_digits(argv[1]);
  const auto channels_last = torch::TensorOptions(device).memory_format(torch::MemoryFormat::ChannelsLast);
  const auto pixels = images.to(channels_last);
  const auto train_images = pixels.slice(0, 360), train_digits = digits.slice(0, 360).to(device);
  const auto test_images = pixels.slice(0, 0, 360), test_digits = digits.slice(0, 0, 360).to(device);

  nn::Sequential model{nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1).bias(false)),
                       nn::BatchNorm2d(16),
                       nn::ReLU(),
                       nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1).bias(false)),
                       nn::BatchNorm2d(32),
                       nn::ReLU(),
                       nn::MaxPool2d(2),
                       nn::Flatten(),
                       nn::Linear(32 * 4 * 4, 10)};
  model->to(device);
  for (auto& parameter : model->parameters()) {  // model.to(memory_format=torch.channels_last) in Python
    if (parameter.dim() == 4) parameter.set_data(parameter.to(channels_last));
  }
  mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().lr(2e-3));
  mezzo::GradScaler scaler(mezzo::GradScalerOptions().enabled(precision == "fp16"));  // bf16 has float32's range
  const auto dtype = precision == "fp16" ? torch::kHalf : torch::kBFloat16;
  auto forward = mezzo::autocast(
      device.type(), dtype, [&](const torch::Tensor& x) { return model->forward(x); }, precision != "fp32");

  std::vector<double> losses, scales;
  for (int epoch = 0; epoch < 12; ++epoch) {
    for (const auto& batch : torch::randperm(train_images.size(0)).to(device).split(64)) {
      optimizer.zero_grad();
      const auto logits = forward(train_images.index_select(0, batch));
      const auto loss = nn::functional::cross_entropy(logits.to(torch::kFloat), train_digits.index_select(0, batch));
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      losses.push_back(loss.item<double>());
      scales.push_back(scaler.get_scale());
    }
  }
  model->eval();  // batch norms use their running statistics
  const torch::NoGradGuard no_grad;
  const auto right = forward(test_images).argmax(1).eq(test_digits).to(torch::kFloat);
  std::cout << precision << ": accuracy " << right.mean().item<double>() << " on " << right.numel() << " test images\n";
  print_result("losses", losses);
  print_result("scales", scales);
  print_result("accuracy", {right.mean().item<double>()});
}
