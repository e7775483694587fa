#include <torch/nn/functional/loss.h>

#include "bindings.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/checkpoint.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"
#include "mezzo/optim/sgd.h"
#include "recipe_models.h"

// A training loop for each recipe:
// tests/python/amp/test_recipes.py compares their losses with Python's.

namespace {

using namespace mezzo;
namespace nn = torch::nn;
using Weights = std::map<std::string, at::Tensor>;

std::shared_ptr<RecipeModel> make_model(const std::string& name, const Weights& weights) {
  const at::NoGradGuard no_grad;
  auto model = make_recipe_model(name);
  const auto parameters = model->named_parameters();
  TORCH_CHECK(parameters.size() == weights.size(), name, " has other parameters than Python's");
  for (const auto& item : parameters) {
    item.value().set_data(weights.at(item.key()).clone());  // keeps channels_last
  }
  return model;
}

struct Recipe {
  std::optional<at::ScalarType> autocast, masters;
  distributed::ProcessGroup* group = nullptr;
  bool checkpoint = false;
};

/// A model and all that a recipe adds to it.
class Trained {
 public:
  Trained(std::shared_ptr<RecipeModel> model, const Recipe& recipe, double lr)
      : model_(std::move(model)), recipe_(recipe) {
    if (recipe.masters) {
      masters_.emplace(*model_, *recipe.masters);
    }
    optimizer_.emplace(masters_ ? masters_->masters() : named_parameters(*model_), SGDOptions().lr(lr).momentum(0.9));
    if (recipe.group != nullptr) {
      ddp_ = std::make_shared<distributed::DistributedDataParallel<RecipeModel>>(model_, *recipe.group);
    }
  }

  /// In float32, in which losses are computed.
  at::Tensor operator()(const at::Tensor& x) {
    const AutocastGuard autocast(at::kCPU, recipe_.autocast.value_or(at::kBFloat16), recipe_.autocast.has_value());
    const auto input = recipe_.masters ? x.to(*recipe_.masters) : x;
    const auto forward = [model = model_, ddp = ddp_](const at::Tensor& each) {
      return ddp ? ddp->forward(each) : model->forward(each);
    };
    return (recipe_.checkpoint ? checkpoint(forward, input) : forward(input)).to(at::kFloat);
  }
  void zero_grad() { optimizer_->zero_grad(); }
  void step(GradScaler& scaler, const at::Tensor& loss) {
    ddp_ ? ddp_->backward(scaler.scale(loss)) : scaler.scale(loss).backward();
    scaler.step(*optimizer_);
  }

 private:
  std::shared_ptr<RecipeModel> model_;
  Recipe recipe_;
  std::optional<MasterWeights> masters_;
  std::optional<SGD> optimizer_;
  std::shared_ptr<distributed::DistributedDataParallel<RecipeModel>> ddp_;
};

GradScaler scaler_for(const Recipe& recipe) {
  const bool enabled = recipe.autocast == at::kHalf || recipe.masters == at::kHalf;
  return GradScaler(GradScalerOptions().init_scale(1024).growth_interval(5).enabled(enabled));
}

std::vector<double> classifier_curve(const std::string& name,
                                     const Weights& weights,
                                     const at::Tensor& x,
                                     const at::Tensor& target,
                                     const Recipe& recipe,
                                     int64_t steps,
                                     double lr) {
  Trained model(make_model(name, weights), recipe, lr);
  auto scaler = scaler_for(recipe);
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    model.zero_grad();
    const auto loss = nn::functional::cross_entropy(model(x), target);
    model.step(scaler, loss);
    scaler.update();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// The losses of the discriminator and the generator in turn.
std::vector<double> gan_curve(const Weights& generator_weights,
                              const Weights& discriminator_weights,
                              const at::Tensor& noise,
                              const at::Tensor& real,
                              const Recipe& recipe,
                              int64_t steps,
                              double lr) {
  Trained generator(make_model("generator", generator_weights), recipe, lr);
  Trained discriminator(make_model("discriminator", discriminator_weights), recipe, lr);
  auto scaler = scaler_for(recipe);
  const auto labels = at::cat({at::ones({real.size(0), 1}), at::zeros({noise.size(0), 1})});
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    discriminator.zero_grad();
    at::Tensor fake;
    {
      const at::NoGradGuard no_grad;
      fake = generator(noise);
    }
    const auto loss_d = nn::functional::binary_cross_entropy_with_logits(discriminator(at::cat({real, fake})), labels);
    discriminator.step(scaler, loss_d);
    generator.zero_grad();
    const auto judged = discriminator(generator(noise));
    const auto loss_g = nn::functional::binary_cross_entropy_with_logits(judged, at::ones_like(judged));
    generator.step(scaler, loss_g);
    scaler.update();
    losses.push_back(loss_d.item<double>());
    losses.push_back(loss_g.item<double>());
  }
  return losses;
}

}  // namespace

void bind_recipes(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<Recipe>(m, "Recipe")
      .def(py::init([](std::optional<at::ScalarType> autocast, std::optional<at::ScalarType> masters,
                       distributed::ProcessGroup* group,
                       bool checkpoint) { return Recipe{autocast, masters, group, checkpoint}; }),
           py::arg("autocast") = py::none(), py::arg("masters") = py::none(), py::arg("group") = nullptr,
           py::arg("checkpoint") = false, py::keep_alive<1, 4>());
  m.def("classifier_curve", &classifier_curve, NoGil());
  m.def("gan_curve", &gan_curve, NoGil());
}
