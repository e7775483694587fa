#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <iostream>
#include <memory>
#include <sstream>

#include "mezzo/mezzo.h"

/// The names that the snippets of docs/guide.md use: a model, its optimizer, and some batches.
class Guide : public testing::Test {
 protected:
  static std::vector<std::pair<torch::Tensor, torch::Tensor>> make_batches() {
    std::vector<std::pair<torch::Tensor, torch::Tensor>> made;
    for (int i = 0; i < 3; ++i) {
      made.emplace_back(torch::randn({16, 8}), torch::randint(4, {16}));
    }
    return made;
  }

  /// Runs a snippet: it must print `printed`, and throw `message` unless that is empty.
  void expect(const std::string& printed, const std::string& message, const std::function<void()>& snippet) {
    testing::internal::CaptureStdout();
    std::string thrown;
    try {
      snippet();
    } catch (const c10::Error& error) {
      thrown = error.what_without_backtrace();
    }
    EXPECT_EQ(testing::internal::GetCapturedStdout(), printed);
    EXPECT_EQ(thrown, message);
  }

  torch::nn::Sequential model{torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4)};
  torch::optim::AdamW optimizer{model->parameters()};
  torch::nn::CrossEntropyLoss loss_fn;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> batches = make_batches();
};
