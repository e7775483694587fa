// Predicts with a trained model: loads its weights from a file, switches it to eval mode, and runs batches under
// autocast in bfloat16. InferenceMode records nothing for backward, so a prediction needs neither scaler nor graph.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <sstream>

#include "example.h"

namespace nn = torch::nn;

nn::Sequential make_model() {
  return nn::Sequential{nn::Linear(16, 64), nn::BatchNorm1d(64), nn::ReLU(), nn::Dropout(0.5), nn::Linear(64, 4)};
}

/// Class probabilities, [N, 4] on the CPU. The op list of CUDA has softmax in float32, the list of CPUs leaves it in
/// bfloat16.
torch::Tensor predict(nn::Sequential& model, const torch::Tensor& inputs, int64_t batch_size, torch::Device device) {
  const c10::InferenceMode inference;
  const mezzo::AutocastGuard autocast(device, torch::kBFloat16);  // casts each weight once for all batches
  std::vector<torch::Tensor> outputs;
  for (const auto& batch : inputs.split(batch_size)) {
    outputs.push_back(model->forward(batch.to(device)).softmax(1).to(torch::kCPU));
  }
  return torch::cat(outputs);
}

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  torch::manual_seed(0);
  std::stringstream file;  // as a trainer leaves it
  auto trained = make_model();
  trained->forward(torch::randn({256, 16}));  // moves the running statistics
  torch::save(trained, file);

  auto model = make_model();
  torch::load(model, file);
  model->to(device);
  model->eval();  // no dropout; batch norms use their running statistics
  const auto inputs = torch::randn({100, 16});
  const auto probabilities = predict(model, inputs, /*batch_size=*/32, device);
  const auto one_by_one = predict(model, inputs, /*batch_size=*/1, device);

  const auto [scores, classes] = probabilities.max(1);
  const double difference = (probabilities - one_by_one).abs().max().item<double>();
  std::cout << "first prediction: class " << classes[0].item<int64_t>() << " with " << scores[0].item<double>()
            << "; one by one, no probability differs by more than " << difference << '\n';
  const auto values = scores.to(torch::kDouble).contiguous(), ids = classes.to(torch::kDouble).contiguous();
  print_result("scores", {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()});
  print_result("classes", {ids.const_data_ptr<double>(), ids.const_data_ptr<double>() + ids.numel()});
  print_result("difference", {difference});
}
