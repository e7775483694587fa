// An LSTM learns the next word of sentences about a dog and a cat, in bfloat16 or float16. Gradients of a recurrent
// network can explode, so they are clipped: unscale_ first, so that max_norm is of the true gradients.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/optim/adam.h>
#include <mezzo/optim/clip_grad.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "example.h"

namespace nn = torch::nn;
constexpr int64_t kWords = 7, kChannels = 32, kBatch = 16, kTime = 24;

struct LanguageModelImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& ids) {  // [B, T] -> [B, T, kWords]
    return head(std::get<0>(lstm(words(ids))));
  }

  nn::Embedding words = register_module("words", nn::Embedding(kWords, kChannels));
  nn::LSTM lstm =
      register_module("lstm", nn::LSTM(nn::LSTMOptions(kChannels, 2 * kChannels).num_layers(2).batch_first(true)));
  nn::Linear head = register_module("head", nn::Linear(2 * kChannels, kWords));
};
TORCH_MODULE(LanguageModel);

/// Sentences "the dog chases a cat ." and their like: [B, T + 1] ids. Words 0 and 1 are nouns, 2 and 3 verbs, 4 and 5
/// articles, 6 is the full stop. The second noun is always the other one, which takes memory to predict.
torch::Tensor draw_texts() {
  const auto sentences = (kTime + 6) / 6;
  const auto choice = torch::randint(2, {kBatch, sentences, 4});
  const auto noun = choice.select(2, 0), verb = 2 + choice.select(2, 1), stop = torch::full_like(noun, 6);
  const auto article = 4 + choice.select(2, 2), other_article = 4 + choice.select(2, 3);
  return torch::stack({article, noun, verb, other_article, 1 - noun, stop}, 2).flatten(1).narrow(1, 0, kTime + 1);
}

int main(int argc, char** argv) {
  const std::string precision = argc > 1 ? argv[1] : "fp16";
  if (precision != "fp16" && precision != "bf16") {
    std::cerr << "usage: lstm_language_model [fp16|bf16] [cpu|cuda]\n";
    return 2;
  }
  const torch::Device device(argc > 2 ? argv[2] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  LanguageModel model;
  model->to(device);
  mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().lr(5e-3));
  mezzo::GradScaler scaler(mezzo::GradScalerOptions().enabled(precision == "fp16"));

  std::vector<double> losses, norms, scales;
  for (int step = 0; step < 120; ++step) {
    const auto texts = draw_texts().to(device);
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device, precision == "fp16" ? torch::kHalf : torch::kBFloat16);
      const auto logits = model(texts.narrow(1, 0, kTime));
      loss = nn::functional::cross_entropy(logits.flatten(0, 1), texts.narrow(1, 1, kTime).flatten());
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    norms.push_back(mezzo::clip_grad_norm_(model->parameters(), /*max_norm=*/0.2).item<double>());
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
    scales.push_back(scaler.get_scale());
  }
  std::cout << precision << ": loss " << losses.front() << " -> " << losses.back() << '\n';
  print_result("losses", losses);
  print_result("norms", norms);
  print_result("scales", scales);
}
