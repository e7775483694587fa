// A small GPT in float16 learns to count: characters of "0 1 2 … 99", each predicted from the ones before it. Shapes:
// B texts, T characters, C channels, H heads, D = C / H channels of a head, V characters in the alphabet.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/optim/adam.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <limits>
#include <string>

#include "example.h"

namespace nn = torch::nn;
constexpr int64_t kBatch = 16, kTime = 32, kChannels = 64, kHeads = 4, kLayers = 2, kSteps = 150;
const std::string kAlphabet = " 0123456789";

struct BlockImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {  // [B, T, C]
    const auto heads =
        qkv(norm1(x)).unflatten(2, {3, kHeads, kChannels / kHeads}).permute({2, 0, 3, 1, 4});       // [3, B, H, T, D]
    const auto scores = heads[0].matmul(heads[1].transpose(2, 3)) / std::sqrt(kChannels / kHeads);  // [B, H, T, T]
    const auto future = torch::ones({x.size(1), x.size(1)}, x.device()).triu(1).to(torch::kBool);
    // -inf, as float16 has no -1e9. Autocast computes the softmax in float32.
    const auto weights = scores.masked_fill(future, -std::numeric_limits<double>::infinity()).softmax(3);
    const auto attended = x + project(weights.matmul(heads[2]).transpose(1, 2).flatten(2));
    return attended + down(torch::gelu(up(norm2(attended))));
  }

  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kChannels})));
  nn::Linear qkv = register_module("qkv", nn::Linear(kChannels, 3 * kChannels));
  nn::Linear project = register_module("project", nn::Linear(kChannels, kChannels));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kChannels})));
  nn::Linear up = register_module("up", nn::Linear(kChannels, 4 * kChannels));
  nn::Linear down = register_module("down", nn::Linear(4 * kChannels, kChannels));
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  GptImpl() {
    for (int i = 0; i < kLayers; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block()));
    head = register_module("head", nn::Linear(kChannels, int64_t(kAlphabet.size())));
  }
  torch::Tensor forward(const torch::Tensor& ids) {  // [B, T] -> [B, T, V]
    auto x = characters(ids) + positions(torch::arange(ids.size(1), ids.device()));
    for (auto& block : blocks) x = block(x);
    return head(x);
  }

  nn::Embedding characters = register_module("characters", nn::Embedding(kAlphabet.size(), kChannels));
  nn::Embedding positions = register_module("positions", nn::Embedding(kTime, kChannels));
  std::vector<Block> blocks;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(i) + ' ';
  std::vector<int64_t> numbers;
  for (const char c : text) numbers.push_back(int64_t(kAlphabet.find(c)));
  const auto ids = torch::tensor(numbers);

  torch::manual_seed(0);
  Gpt model;
  model->to(device);
  mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().lr(3e-3));
  mezzo::GradScaler scaler;
  std::vector<double> losses, scales;
  for (int step = 0; step < kSteps; ++step) {
    const auto begin = torch::randint(ids.numel() - kTime, {kBatch, 1});
    const auto places = begin + torch::arange(kTime + 1);  // [B, T + 1]
    const auto batch = ids.index({places}).to(device);
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device, torch::kHalf);
      const auto logits = model(batch.narrow(1, 0, kTime));
      loss = nn::functional::cross_entropy(logits.flatten(0, 1), batch.narrow(1, 1, kTime).flatten());
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
    scales.push_back(scaler.get_scale());
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << '\n';
  print_result("losses", losses);
  print_result("scales", scales);
}
