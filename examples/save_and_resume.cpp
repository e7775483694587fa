// Saves a training run in the middle and resumes it from the files: model, optimizer, scaler, the state of the random
// numbers, and the step. The resumed run takes the same steps as one that was never interrupted, bit by bit.
#include <ATen/Context.h>
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/optim/adam.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <filesystem>

#include "example.h"

namespace nn = torch::nn;

/// All that a run consists of.
struct Run {
  nn::Sequential model{nn::Linear(8, 64), nn::ReLU(), nn::Dropout(0.2), nn::Linear(64, 4)};
  mezzo::AdamW optimizer{*model, mezzo::AdamWOptions().lr(1e-2)};
  mezzo::GradScaler scaler{mezzo::GradScalerOptions().growth_interval(10)};
  int64_t step = 0;

  void save(const std::string& folder) const {
    torch::save(model, folder + "/model.pt");
    torch::save(optimizer, folder + "/optimizer.pt");
    torch::save(scaler, folder + "/scaler.pt");
    torch::save(std::vector{torch::tensor(step), at::globalContext().defaultGenerator(torch::kCPU).get_state()},
                folder + "/rest.pt");
  }

  void load(const std::string& folder) {
    torch::load(model, folder + "/model.pt");
    torch::load(optimizer, folder + "/optimizer.pt");
    torch::load(scaler, folder + "/scaler.pt");
    std::vector<torch::Tensor> rest;
    torch::load(rest, folder + "/rest.pt");
    step = rest.at(0).item<int64_t>();
    auto generator = at::globalContext().defaultGenerator(torch::kCPU);
    generator.set_state(rest.at(1));
  }

  /// @return the losses of the steps up to `last_step`
  std::vector<double> train(int64_t last_step) {
    std::vector<double> losses;
    for (; step < last_step; ++step) {
      const auto inputs = torch::randn({64, 8});
      const auto labels = inputs.narrow(1, 0, 4).argmax(1);
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        const mezzo::AutocastGuard autocast(torch::kCPU, torch::kHalf);
        loss = nn::functional::cross_entropy(model->forward(inputs), labels);
      }
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }
};

int main() {
  const mezzo::CpuHalfCompute fast_half;
  const std::string folder = std::filesystem::temp_directory_path() / "mezzo_save_and_resume";
  std::filesystem::create_directories(folder);
  torch::manual_seed(0);
  Run first;
  auto losses = first.train(20);
  first.save(folder);
  const auto rest = first.train(40);

  torch::manual_seed(1);  // other weights and other random numbers, which load() replaces
  Run second;
  second.load(folder);
  const auto resumed = second.train(40);
  std::filesystem::remove_all(folder);

  bool same_weights = true;
  for (size_t i = 0; i < first.model->parameters().size(); ++i) {
    same_weights = same_weights && torch::equal(first.model->parameters()[i], second.model->parameters()[i]);
  }
  losses.insert(losses.end(), rest.begin(), rest.end());
  std::cout << "resumed at step 20: losses " << (resumed == rest ? "are equal" : "differ") << ", weights "
            << (same_weights ? "are equal" : "differ") << '\n';
  print_result("losses", losses);
  print_result("resumed_losses", resumed);
  print_result("scales", {first.scaler.get_scale(), second.scaler.get_scale()});
  return resumed == rest && same_weights ? 0 : 1;
}
