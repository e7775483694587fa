// Several processes, each with a part of every batch, and a step from two micro-batches of each.
// Alone, or with a launcher:
// mezzo launch --nproc 2 -- build/release/bin/example_distributed_data_parallel
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/distributed/data_parallel/distributed_data_parallel.h>
#include <mezzo/optim/adam.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "example.h"

namespace dist = mezzo::distributed;

int main() {
  const mezzo::CpuHalfCompute fast_half;
  dist::ProcessGroup group(dist::RankEnvironment::detect().value_or(dist::RankEnvironment()));
  torch::manual_seed(0);
  torch::nn::Sequential model{torch::nn::Linear(16, 64), torch::nn::GELU(), torch::nn::Linear(64, 3)};
  dist::DistributedDataParallel ddp(model, group);
  mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().lr(5e-3));
  const auto all = torch::randn({256, 16});
  const auto inputs = all.chunk(group.size())[group.rank()];
  const auto labels = inputs.narrow(1, 0, 3).argmax(1);
  constexpr int kMicroBatches = 2;

  mezzo::GradScaler scaler;
  std::vector<double> losses, scales;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    auto sum = torch::zeros({});
    for (int i = 0; i < kMicroBatches; ++i) {
      const auto no_sync = ddp.no_sync(i + 1 < kMicroBatches);  // the last backward reduces the sum
      torch::Tensor loss;
      {
        mezzo::AutocastGuard autocast(torch::kCPU, torch::kHalf);
        const auto logits = ddp(inputs.chunk(kMicroBatches)[i]);
        loss = torch::nn::functional::cross_entropy(logits, labels.chunk(kMicroBatches)[i]) / kMicroBatches;
      }
      scaler.scale(loss).backward();
      sum += loss.detach();
    }
    scaler.step(optimizer);  // gradients overflow on all ranks or on none, so all skip the same steps
    scaler.update();
    group.all_reduce_sum(sum);
    losses.push_back(sum.item<double>() / group.size());
    scales.push_back(scaler.get_scale());
  }
  if (group.rank() == 0) {
    std::cout << "loss " << losses.front() << " -> " << losses.back() << '\n';
    print_result("losses", losses);
    print_result("scales", scales);
  }
  group.shutdown();
}
