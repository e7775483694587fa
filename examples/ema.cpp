// A moving average (EMA) of the weights, beside the training. At a high learning rate, the average has a lower loss on
// other data than the last weights. The scale starts too high, so that some steps are skipped: they do not count.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/optim/averaged_model.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "example.h"

namespace nn = torch::nn;

double evaluate(nn::Sequential& model, const torch::Tensor& inputs, const torch::Tensor& labels) {
  const torch::NoGradGuard no_grad;
  model->eval();
  return nn::functional::cross_entropy(model->forward(inputs), labels).item<double>();
}

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  nn::Sequential model{nn::Linear(16, 64), nn::BatchNorm1d(64), nn::ReLU(), nn::Linear(64, 4)};
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  const auto inputs = torch::randn({1024, 16}).to(device);
  const auto labels = inputs.narrow(1, 0, 4).argmax(1);
  std::vector<std::pair<torch::Tensor, torch::Tensor>> batches;
  for (int i = 0; i < 16; ++i) {
    batches.emplace_back(inputs.narrow(0, 32 * i, 32), labels.narrow(0, 32 * i, 32));
  }
  const auto dev_inputs = inputs.narrow(0, 512, 512), dev_labels = labels.narrow(0, 512, 512);

  mezzo::GradScaler scaler(mezzo::GradScalerOptions().init_scale(0x1p24));
  std::vector<double> losses, scales;
  mezzo::AveragedModel ema(model, mezzo::get_ema_multi_avg_fn(0.95));
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (const auto& [input, target] : batches) {
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
        loss = nn::functional::cross_entropy(model->forward(input), target);
      }
      scaler.scale(loss).backward();
      if (scaler.step(optimizer).stepped()) ema.update_parameters(*model);
      scaler.update();
      losses.push_back(loss.item<double>());
      scales.push_back(scaler.get_scale());
    }
  }
  mezzo::update_bn(batches, ema.module());  // batch norms get the statistics of the averaged weights
  const double last = evaluate(model, dev_inputs, dev_labels);
  const double averaged = evaluate(ema.module(), dev_inputs, dev_labels);
  std::cout << "loss on other data: last weights " << last << ", their average " << averaged << '\n';
  print_result("losses", losses);
  print_result("scales", scales);
  print_result("last", {last});
  print_result("averaged", {averaged});
  print_result("n_averaged", {double(ema.n_averaged())});
}
