#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "encoder/block_ops.h"
#include "encoder/dropout.h"
#include "encoder/fused_blocks.h"
#include "encoder/side_by_side.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/optim/adam.h"
#include "mezzo/text/models/bert_config.h"
#include "mezzo/text/models/model_for_task.h"
#include "simulated/device_test.h"

/// Weights of one input on an accelerator: their place in memory, and their products.

namespace mezzo::text {
namespace {

using encoder::BlockOps;

/// Kernels that compute nothing: matrix products are what these tests count.
const BlockOps kNoKernels = {
    .takes_columns = true,
    .dropout = encoder::reference::dropout,
    .residual_layer_norm =
        [](const at::Tensor& product,
           const at::Tensor&,
           const at::Tensor& residual,
           const encoder::LayerNormParams&,
           const encoder::DropoutSite&,
           const at::Tensor&,
           encoder::Normalised* normalised) {
          if (normalised != nullptr) {
            *normalised = {at::zeros_like(product), at::zeros({product.size(0)}, product.options())};
          }
          return at::zeros_like(residual);
        },
    .residual_layer_norm_backward =
        [](const at::Tensor& grad,
           const encoder::Normalised&,
           const at::Tensor& norm_weight,
           const encoder::DropoutSite&,
           const at::Tensor&,
           at::ScalarType product_dtype,
           at::ScalarType residual_dtype) {
          const auto vector = at::zeros_like(norm_weight);
          return encoder::ResidualLayerNormGradients{at::zeros(grad.sizes(), grad.options().dtype(product_dtype)),
                                                     at::zeros(grad.sizes(), grad.options().dtype(residual_dtype)),
                                                     vector,
                                                     {vector, vector}};
        },
    .embedding_layer_norm = nullptr,
    .embedding_layer_norm_backward = nullptr,
    .add_rows_at = nullptr,
    .add_to_rows = nullptr,
    .bias_activation = nullptr,
    .bias_activation_backward = nullptr,
    .layer_norm = nullptr,
    .layer_norm_backward = nullptr,
    .residual_dropout = nullptr,
    .residual_dropout_backward = nullptr,
    .gated_activation = nullptr,
    .gated_activation_backward = nullptr,
    .takes_heads = [](const at::Device&, at::ScalarType, int64_t, bool) { return true; },
    .packed_attention =
        [](const encoder::AttentionArguments& attention, at::Tensor* log_sum_exp) {
          const auto& query = attention.query;
          if (log_sum_exp != nullptr) {
            *log_sum_exp = at::zeros({query.size(0), attention.description.num_heads}, query.options());
          }
          return at::zeros(query.sizes(), query.options());
        },
    .packed_attention_backward =
        [](const encoder::AttentionArguments& attention, const at::Tensor&, const at::Tensor&, const at::Tensor& grad) {
          const int64_t hidden = grad.size(1);
          const auto all = at::zeros({grad.size(0), 3 * hidden}, grad.options());
          return encoder::AttentionGradients{all.narrow(1, 0, hidden),
                                             all.narrow(1, hidden, hidden),
                                             all.narrow(1, 2 * hidden, hidden),
                                             {attention.biases.query, attention.biases.key, attention.biases.value},
                                             all};
        },
};

/// While it lives, blocks on the simulated device are fused.
struct WithBlockOps {
  WithBlockOps() { encoder::set_block_ops(simulated::kType, &kNoKernels); }
  ~WithBlockOps() { encoder::set_block_ops(simulated::kType, nullptr); }
};

class SideBySideDeviceTest : public simulated::DeviceTest {
 protected:
  SideBySideDeviceTest() {
    BertConfig config;
    config.vocab_size = 40;
    config.hidden_size = 16;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 2;
    config.intermediate_size = 32;
    model = make_model(config, Head{.num_outputs = 3});
    model->init_weights(1);
  }

  at::Tensor weights_of_a_layer(const std::map<std::string, at::Tensor>& weights) const {
    const std::string prefix = "bert.encoder.layer.1.attention.self.";
    return encoder::side_by_side(
        {weights.at(prefix + "query.weight"), weights.at(prefix + "key.weight"), weights.at(prefix + "value.weight")});
  }
  at::Tensor weights_of_a_layer() const {
    std::map<std::string, at::Tensor> weights;
    for (const auto& item : model->named_parameters()) {
      weights[item.key()] = item.value();
    }
    return weights_of_a_layer(weights);
  }

  std::shared_ptr<ModelForTask> model;
};

TEST_F(SideBySideDeviceTest, WeightsOfOneInputAreLaidSideBySideOnTheWayToADevice) {
  std::vector<at::Tensor> before;
  for (const auto& parameter : model->parameters()) {
    before.push_back(parameter.detach().clone());
  }
  EXPECT_FALSE(weights_of_a_layer().defined());
  model->to(device);
  EXPECT_TRUE(weights_of_a_layer().defined());
  model->to(other_device);
  EXPECT_EQ(weights_of_a_layer().device(), other_device);
  const auto parameters = model->parameters();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i].detach().cpu(), before[i])) << i;
    EXPECT_TRUE(parameters[i].requires_grad() && parameters[i].is_leaf());
  }
}

TEST_F(SideBySideDeviceTest, HalfWeightsAndHalfCopiesLieSideBySideAsTheWeightsDo) {
  model->to(device);
  const WithBlockOps fused;
  const auto half_copies = model->make_half_copies(at::kBFloat16);
  ASSERT_TRUE(weights_of_a_layer(half_copies).defined());
  EXPECT_EQ(weights_of_a_layer(half_copies).scalar_type(), at::kBFloat16);
  const MasterWeights masters(*model, at::kHalf);
  ASSERT_TRUE(weights_of_a_layer().defined());
  EXPECT_EQ(weights_of_a_layer().scalar_type(), at::kHalf);
}

/// As a training step or the weights of a checkpoint change them.
TEST_F(SideBySideDeviceTest, StayThereWhenWeightsChange) {
  model->to(device);
  const WithBlockOps fused;
  auto parameters = named_parameters(*model);
  const auto half_copies = model->make_half_copies(at::kHalf);
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters) {
      parameter.tensor.copy_(at::ones(parameter.tensor.sizes()));
      parameter.tensor.mutable_grad() = at::ones_like(parameter.tensor);
      if (const auto half_copy = half_copies.find(parameter.name); half_copy != half_copies.end()) {
        parameter.half_copy = half_copy->second;
      }
    }
  }
  AdamW optimizer(parameters, AdamWOptions().lr(0.25).weight_decay(0));
  optimizer.step(nullptr);
  for (const auto& weights : {weights_of_a_layer(), weights_of_a_layer(half_copies)}) {
    ASSERT_TRUE(weights.defined());
    EXPECT_TRUE(at::allclose(weights.cpu().to(at::kFloat), at::full({48, 16}, 0.75)));  // 1 - lr
  }
}

TEST_F(SideBySideDeviceTest, AreOneProductInsteadOfThree) {
  const WithBlockOps fused;
  const auto layout =
      c10::make_intrusive<encoder::SequenceLayout>(at::tensor({0, 5}, at::kInt), at::tensor({5}, at::kInt), 5, device);
  const auto leaf = [&](at::IntArrayRef sizes) { return at::zeros(sizes).to(device).requires_grad_(); };
  const auto vector = leaf({16}), output = leaf({16, 16}), x = leaf({5, 16});
  struct Kernels {
    int64_t forward, backward;
  };
  const auto kernels = [&](const std::vector<at::Tensor>& weights) {
    const simulated::Watch watch;
    const auto result = encoder::fused::attention(
        x,
        {.query_key_value = {{weights[0], vector}, {weights[1], vector}, {weights[2], vector}},
         .output = {output, vector},
         .norm = {vector, vector, 1e-5},
         .attention = {.num_heads = 2},
         .output_dropout = {}},
        layout);
    const int64_t forward = watch.kernels();
    result.backward(at::zeros_like(result));
    for (const auto& each : {x, output, vector}) {
      each.mutable_grad().reset();
    }
    return Kernels{forward, watch.kernels() - forward};
  };
  const auto apart = kernels({leaf({16, 16}), leaf({16, 16}), leaf({16, 16})});
  auto parts = encoder::split_rows(at::zeros({48, 16}).to(device), 3);
  for (auto& part : parts) {
    part.requires_grad_();
  }
  const auto together = kernels(parts);
  EXPECT_EQ(together.forward, apart.forward - 2);
  EXPECT_EQ(together.backward, apart.backward - 2) << "of x; of the weights it is one in any case";
  const auto grads = encoder::side_by_side({parts[0].grad(), parts[1].grad(), parts[2].grad()});
  EXPECT_TRUE(grads.defined()) << "one product, of which autograd has copied nothing";
  EXPECT_FALSE(parts[0].grad().is_view());
}

}  // namespace
}  // namespace mezzo::text
