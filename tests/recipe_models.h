#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules.h>

#include <memory>
#include <string>

namespace mezzo {

/// Models of the recipe matrix, with LibTorch's modules and Python's names of parameters.
struct RecipeModel : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

/// [B, T, 16] → [B, 3].
struct Encoder : RecipeModel {
  Encoder() {
    const torch::nn::TransformerEncoderLayer layer(
        torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0));
    encoder = register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 2)));
    head = register_module("head", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) override { return head(encoder(x.transpose(0, 1)).mean(0)); }

  torch::nn::TransformerEncoder encoder{nullptr};
  torch::nn::Linear head{nullptr};
};

/// [B, 3, H, W] in channels_last → [B, 3].
struct Cnn : RecipeModel {
  Cnn() {
    layers = register_module(
        "layers", torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
                                        torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
                                        torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).stride(2)),
                                        torch::nn::BatchNorm2d(8), torch::nn::ReLU(), torch::nn::AdaptiveAvgPool2d(1),
                                        torch::nn::Flatten(), torch::nn::Linear(8, 3)));
  }
  at::Tensor forward(const at::Tensor& x) override { return layers->forward(x); }

  torch::nn::Sequential layers{nullptr};
};

/// [B, T, 5] → [B, 3].
struct Lstm : RecipeModel {
  Lstm() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(5, 16).num_layers(2).batch_first(true)));
    head = register_module("head", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) override { return head(std::get<0>(lstm(x)).select(1, -1)); }

  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};

struct Mlp : RecipeModel {
  Mlp(int64_t in, int64_t out) {
    layers = register_module(
        "layers", torch::nn::Sequential(torch::nn::Linear(in, 16),
                                        torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
                                        torch::nn::Linear(16, out)));
  }
  at::Tensor forward(const at::Tensor& x) override { return layers->forward(x); }

  torch::nn::Sequential layers{nullptr};
};

/// @param name  encoder, cnn, lstm, generator or discriminator
inline std::shared_ptr<RecipeModel> make_recipe_model(const std::string& name) {
  if (name == "encoder") return std::make_shared<Encoder>();
  if (name == "cnn") return std::make_shared<Cnn>();
  if (name == "lstm") return std::make_shared<Lstm>();
  return name == "generator" ? std::make_shared<Mlp>(4, 2) : std::make_shared<Mlp>(2, 1);
}

}  // namespace mezzo
