#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"
#include "optim/value_error.h"

namespace mezzo {
namespace {

constexpr int64_t kRows = 300, kColumns = 72;

/// A table of embeddings and a layer on the rows that are looked up.
struct Model {
  at::Tensor table = at::randn({kRows, kColumns}).requires_grad_();
  at::Tensor layer = at::randn({kColumns, 3}).requires_grad_();

  at::Tensor loss(const at::Tensor& ids) const { return at::embedding(table, ids).matmul(layer).square().mean(); }
  std::vector<NamedParameter> parameters() const { return {{"table", table}, {"layer", layer}}; }
};

/// A model with an optimizer that defers updates, or does not.
struct Training {
  Training(const Training* other, double weight_decay, bool are_deferred)
      : defers(are_deferred),
        optimizer(model.parameters(), AdamWOptions().weight_decay(weight_decay).max_grad_norm(0.5)),
        scaler(GradScalerOptions().init_scale(65536).growth_interval(40)) {
    optimizer.set_lr(lr);
    if (other != nullptr) {                              // a run that is resumed
      const auto state = other->optimizer.state_dict();  // first: it brings the table up to date
      const at::NoGradGuard no_grad;
      model.table.copy_(other->model.table);
      model.layer.copy_(other->model.layer);
      optimizer.load_state_dict(state);
      scaler.load_state_dict(other->scaler.state_dict());
    }
    if (defers) {
      optimizer.defer_rows(model.table);
    }
  }

  /// @param factor  of the loss; inf: the step is skipped
  void step(const std::vector<at::Tensor>& micro_batches, double rate, double factor) {
    lr.fill_(rate);
    for (const at::Tensor& ids : micro_batches) {
      if (defers) {
        optimizer.read_rows(ids);
      }
      scaler.scale(model.loss(ids) * factor).backward();
    }
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
  }

  bool defers;
  at::Tensor lr = at::zeros({}, at::kDouble);
  Model model;
  AdamW optimizer;
  GradScaler scaler;
};

void expect_equal(const Training& deferred, const Training& whole) {
  deferred.optimizer.catch_up();
  EXPECT_TRUE(at::equal(deferred.model.table, whole.model.table));
  EXPECT_TRUE(at::equal(deferred.model.layer, whole.model.layer));
  const auto mine = deferred.optimizer.state_dict(), right = whole.optimizer.state_dict();
  ASSERT_EQ(mine.size(), right.size());
  for (const auto& [name, tensor] : right) {
    EXPECT_TRUE(at::equal(mine.at(name), tensor)) << name;
  }
}

TEST(DeferredRowsTest, AreBitIdenticalToUpdatesOfTheWholeTable) {
  for (const double weight_decay : {0.0, 0.01}) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE(testing::Message() << "weight decay " << weight_decay << ", " << threads << " threads");
      const int threads_before = at::get_num_threads();
      at::set_num_threads(threads);
      at::manual_seed(1);
      auto whole = std::make_unique<Training>(nullptr, weight_decay, false);
      auto deferred = std::make_unique<Training>(nullptr, weight_decay, false);
      {
        const at::NoGradGuard no_grad;
        deferred->model.table.copy_(whole->model.table);
        deferred->model.layer.copy_(whole->model.layer);
      }
      deferred->optimizer.defer_rows(deferred->model.table);
      deferred->defers = true;
      for (int step = 0; step < 200; ++step) {
        const double warm_up = std::min(1.0, step / 20.0), rate = 0.01 * warm_up * (200 - step) / 200;
        const double factor = step % 17 == 5 ? std::numeric_limits<double>::infinity() : step % 3 == 0 ? 1e-8 : 1;
        std::vector<at::Tensor> micro_batches;
        for (int i = 0; i <= step % 2; ++i) {
          // Some rows at each step, some now and then, most never.
          micro_batches.push_back(at::cat({at::randint(4, {5}), at::randint(kRows / 4, {7})}, 0));
        }
        for (auto* training : {whole.get(), deferred.get()}) {
          training->step(micro_batches, rate, factor);
        }
        if (step % 60 == 59) {
          expect_equal(*deferred, *whole);
        }
        if (step == 100) {
          deferred = std::make_unique<Training>(deferred.get(), weight_decay, true);
        }
      }
      expect_equal(*deferred, *whole);
      EXPECT_GT(whole->optimizer.state_dict().at("step/table").item<float>(), 180);
      at::set_num_threads(threads_before);
    }
  }
}

TEST(DeferredRowsTest, UpdateTheWholeTableOnceALoadedStateTurnsAmsgradOn) {
  Training deferred(nullptr, 0.01, true), whole(nullptr, 0.01, false);
  {
    const at::NoGradGuard no_grad;
    whole.model.table.copy_(deferred.model.table);
    whole.model.layer.copy_(deferred.model.layer);
  }
  const auto step = [&](int64_t row) {
    for (auto* training : {&deferred, &whole}) training->step({at::tensor({row, row + 1})}, 0.1, 1);
  };
  step(1);
  step(5);
  for (auto* training : {&deferred, &whole}) {
    auto state = training->optimizer.torch_state_dict();
    state.param_groups[0].options["amsgrad"] = true;
    state.state.clear();  // which has no max_exp_avg_sq
    training->optimizer.load_torch_state_dict(state);
  }
  for (const int64_t row : {1, 9, 5}) step(row);
  expect_equal(deferred, whole);
}

TEST(DeferredRowsTest, WaitUntilTheyAreRead) {
  at::manual_seed(1);
  Training training(nullptr, 0.01, true);
  const auto before = training.model.table.detach().clone();
  training.step({at::tensor({1, 2})}, 0.1, 1);
  training.step({at::tensor({1})}, 0.1, 1);
  const auto changed = [&](int64_t row) { return !at::equal(training.model.table[row], before[row]); };
  EXPECT_TRUE(changed(1));
  EXPECT_FALSE(changed(0));
  const auto second = training.model.table[2].detach().clone();
  training.optimizer.read_rows(at::tensor({0, 2}).view({2, 1}));
  EXPECT_TRUE(changed(0));
  EXPECT_FALSE(at::equal(training.model.table[2], second));
  EXPECT_FALSE(changed(3));
  torch::serialize::OutputArchive archive;  // as every call that reads the state
  training.optimizer.save(archive);
  EXPECT_TRUE(changed(3));
}

TEST(DeferredRowsTest, KeepTheGradientAndZeroTheRowsThatWereRead) {
  Training training(nullptr, 0, true);
  const auto* memory = training.model.table.grad().const_data_ptr();
  training.optimizer.read_rows(at::tensor({4, 4, 5}));
  training.model.loss(at::tensor({4, 4, 5})).backward();
  EXPECT_TRUE(training.model.table.grad()[4].any().item<bool>());
  training.optimizer.zero_grad();
  EXPECT_EQ(training.model.table.grad().const_data_ptr(), memory);
  EXPECT_FALSE(training.model.table.grad().any().item<bool>());
  EXPECT_FALSE(training.model.layer.grad().defined());
}

TEST(DeferredRowsTest, RecoverFromClippingByANormOfNan) {
  Training training(nullptr, 0, true);
  training.optimizer.read_rows(at::tensor({4}));
  training.scaler.scale(training.model.loss(at::tensor({4})) * std::numeric_limits<double>::quiet_NaN()).backward();
  training.scaler.unscale_(training.optimizer);
  training.model.table.mutable_grad().mul_(std::numeric_limits<double>::quiet_NaN());  // as clip_grad_norm_ does
  training.scaler.step(training.optimizer);
  training.scaler.update();
  training.optimizer.zero_grad();
  EXPECT_FALSE(training.model.table.grad().any().item<bool>());
  training.step({at::tensor({4})}, 0.1, 1);
  EXPECT_EQ(training.optimizer.state_dict().at("step/table").item<float>(), 1);
}

TEST(DeferredRowsTest, RefuseWhatTheyCannotDo) {
  const Model model;
  const auto error = [&](const AdamWOptions& options, const at::Tensor& table) {
    AdamW adamw(model.parameters(), options);
    return value_error_of([&] { adamw.defer_rows(table); });
  };
  EXPECT_EQ(error({}, at::ones({2, 2})), "AdamW: defer_rows() got a tensor that is not a parameter of this optimizer");
  const std::string settings = "AdamW: defer_rows() works without amsgrad, maximize and stochastic rounding";
  EXPECT_EQ(error(AdamWOptions().amsgrad(true), model.table), settings);
  EXPECT_EQ(error(AdamWOptions().maximize(true), model.table), settings);
  EXPECT_EQ(error(AdamWOptions().stochastic_rounding_seed(1), model.table), settings);
  AdamW adamw(model.parameters());
  EXPECT_EQ(value_error_of([&] { adamw.read_rows(at::tensor({1})); }), "AdamW: read_rows() needs defer_rows() before");
  adamw.defer_rows(model.table);
  EXPECT_EQ(value_error_of([&] { adamw.defer_rows(model.table); }),
            "AdamW: defer_rows() was called before; one table can be deferred");
  EXPECT_THROW(adamw.read_rows(at::tensor({kRows})), c10::IndexError);
}

}  // namespace
}  // namespace mezzo
