#include "kernels/cpu/update_order.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "mezzo/optim/adam.h"

namespace mezzo::kernels::cpu {
namespace {

constexpr int64_t kRows = 70, kColumns = 1000;  // more than one chunk, and no multiple of one

TEST(UpdateOrderTest, MovesTensorsAndTheirViewsWithoutAChangeOfValues) {
  at::manual_seed(1);
  const auto matrix = at::randn({kRows, kColumns}), small = at::randn({kColumns}), halves = matrix.to(at::kBFloat16),
             filter = at::randn({40, 3, 25, 25}).to(at::MemoryFormat::ChannelsLast);
  const auto row = matrix[kRows - 1];
  const std::vector<at::Tensor> params = {matrix, matrix, small, filter, at::zeros({0}), halves};
  const std::vector<at::Tensor> tensors = {matrix, {}, small, filter, at::zeros({0}), halves};
  const std::vector<at::Tensor> all = {matrix, filter, halves};
  std::vector<at::Tensor> values;
  std::vector<const void*> places;
  for (const at::Tensor& tensor : all) {
    values.push_back(tensor.clone());
    places.push_back(tensor.const_data_ptr());
  }
  const void* const place_of_small = small.const_data_ptr();
  place_in_update_order(params, tensors);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(at::equal(all[i], values[i])) << i;
    EXPECT_NE(all[i].const_data_ptr(), places[i]) << i;
    EXPECT_EQ(all[i].strides(), values[i].strides()) << i;
  }
  EXPECT_EQ(small.const_data_ptr(), place_of_small);
  matrix[kRows - 1].fill_(7);
  EXPECT_EQ(row[0].item<float>(), 7);
}

TEST(UpdateOrderTest, LeavesTensorsThatDoNotFillTheirStorage) {
  const auto whole = at::randn({2, kRows, kColumns}), values = whole.clone();
  const void* const before = whole.const_data_ptr();
  const std::vector<at::Tensor> tensors = {whole[0], whole[0], at::zeros({1}).expand({kRows * kColumns})};
  place_in_update_order(tensors, tensors);
  EXPECT_EQ(whole.const_data_ptr(), before);
  EXPECT_TRUE(at::equal(whole, values));
}

/// An optimizer of a table and a matrix with half copy, on a host with several nodes or one.
struct Training {
  explicit Training(bool has_nodes) {
    uses_numa_nodes() = has_nodes;
    at::manual_seed(2);
    table = at::randn({kRows, kColumns}).requires_grad_();
    matrix = at::randn({kRows, kColumns}).requires_grad_();
    half_copy = matrix.detach().to(at::kBFloat16);
    optimizer = std::make_unique<AdamW>(std::vector<NamedParameter>{{"table", table}, {"matrix", matrix, half_copy}},
                                        AdamWOptions(0.1));
  }
  ~Training() { uses_numa_nodes() = false; }

  void step() {
    optimizer->zero_grad();
    ((table * table).sum() + (matrix * matrix).sum()).backward();
    optimizer->step();
  }

  std::map<std::string, const void*> places() const {
    std::map<std::string, const void*> places;
    for (const auto& [name, tensor] : optimizer->state_dict()) {
      places[name] = tensor.const_data_ptr();
    }
    return places;
  }

  at::Tensor table, matrix, half_copy;
  std::unique_ptr<AdamW> optimizer;
};

TEST(UpdateOrderTest, AnOptimizerMovesNewMomentsOnceAndComputesTheSameBits) {
  Training plain(/*has_nodes=*/false);
  plain.step();
  Training moved(/*has_nodes=*/true);
  moved.optimizer->load_state_dict(plain.optimizer->state_dict());
  const auto loaded = moved.places();
  {
    const at::NoGradGuard no_grad;
    moved.table.copy_(plain.table);
    moved.matrix.copy_(plain.matrix);
  }
  moved.step();
  const auto first = moved.places();
  moved.step();
  EXPECT_EQ(moved.places(), first);
  for (const std::string name : {"table", "matrix"}) {
    EXPECT_NE(first.at("exp_avg/" + name), loaded.at("exp_avg/" + name));
    EXPECT_NE(first.at("exp_avg_sq/" + name), loaded.at("exp_avg_sq/" + name));
  }
  uses_numa_nodes() = false;
  plain.step();
  plain.step();
  EXPECT_TRUE(at::equal(plain.table, moved.table));
  EXPECT_TRUE(at::equal(plain.half_copy, moved.half_copy));
  for (const auto& [name, tensor] : plain.optimizer->state_dict()) {
    EXPECT_TRUE(at::equal(tensor, moved.optimizer->state_dict().at(name))) << name;
  }
}

TEST(UpdateOrderTest, AnOptimizerMovesWeightsAndHalfCopiesButNoDeferredTable) {
  for (const bool has_nodes : {false, true}) {
    Training run(has_nodes);
    const auto values = run.matrix.detach().clone();
    const void *const table = run.table.const_data_ptr(), *const matrix = run.matrix.const_data_ptr(),
                      *const half_copy = run.half_copy.const_data_ptr();
    run.optimizer->defer_rows(run.table);
    run.optimizer->place_weights();
    EXPECT_EQ(run.table.const_data_ptr(), table);
    EXPECT_EQ(run.matrix.const_data_ptr() != matrix, has_nodes);
    EXPECT_EQ(run.half_copy.const_data_ptr() != half_copy, has_nodes);
    EXPECT_TRUE(at::equal(run.matrix, values));
    EXPECT_TRUE(at::equal(run.half_copy, values.to(at::kBFloat16)));
  }
}

}  // namespace
}  // namespace mezzo::kernels::cpu
