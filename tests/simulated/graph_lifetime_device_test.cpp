#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/graph/graphed_step.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/lr_scheduler.h"
#include "mezzo/optim/sgd.h"
#include "simulated/device_test.h"

/// Permitted changes between the replays of a recorded step, in the order of graphed_step.h.

namespace mezzo::simulated {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Tensors = GraphedStep::Tensors;

/// A model and its training, in steps that are recorded or not. Two of them draw the same numbers.
struct LifetimeRun {
  struct Kind {
    bool graphed = true, has_masters = false, has_schedule = true;
  };

  LifetimeRun(c10::Device where, Kind kind)
      : device(where),
        scaler(GradScalerOptions().init_scale(16).growth_interval(3)),
        step(
            device,
            [this](const Tensors& inputs) { return train(inputs); },
            GraphedStepOptions().warmup_steps(2).enabled(kind.graphed)) {
    torch::manual_seed(21);
    model = torch::nn::Linear(4, 3);
    move_to(*model, device);
    shift = at::randn({3}).to(device).requires_grad_();
    if (kind.has_masters) {
      masters.emplace(*model, at::kHalf);
    }
    optimizer.emplace(masters ? masters->masters() : named_parameters(*model),
                      AdamWOptions().lr(0.05).max_grad_norm(1));
    if (kind.has_schedule) {
      lr = at::full({}, 0.05, at::TensorOptions(device).dtype(at::kDouble));
      schedule.emplace(lr, get_schedule("linear", {.num_training_steps = 20}), /*num_steps=*/20);
      optimizer->set_lr(lr);
    }
  }

  Tensors train(const Tensors& inputs) {
    optimizer->zero_grad();
    shift.mutable_grad().reset();
    at::Tensor loss;
    {
      const AutocastGuard autocast(device.type(), at::kHalf);
      const auto hidden = at::dropout(inputs[0], 0.25, model->is_training());
      loss = at::cross_entropy_loss(model->forward(hidden) + shift, inputs[1]);
    }
    scaler.scale(loss).backward();
    const auto result = scaler.step(*optimizer);
    scaler.update();
    if (schedule) {
      schedule->step(result.found_inf());
    }
    return {loss, result.found_inf()};
  }

  /// The `call`-th call of all; same in every run.
  void call(int64_t call) {
    torch::manual_seed(100 + static_cast<uint64_t>(call));
    const auto x = at::randn({5, 4}).to(device), target = at::randint(3, {5}, at::kLong).to(device);
    outputs.clear();
    for (const at::Tensor& output : step({x, target})) {
      outputs.push_back(output.cpu());
    }
  }

  /// All that a step changes.
  std::map<std::string, at::Tensor> state() const {
    std::map<std::string, at::Tensor> all = optimizer->state_dict();
    for (const ParamGroup& group : optimizer->named_param_groups()) {
      for (const NamedParameter& parameter : group.params) {
        all[parameter.name] = parameter.tensor.detach();
        all["half_copy of " + parameter.name] =
            parameter.half_copy.defined() ? parameter.half_copy.detach() : at::zeros({});
      }
    }
    all["scale"] = scaler.scale_tensor();
    all["growth"] = at::tensor(scaler.get_growth_tracker());
    for (auto& [name, tensor] : all) {
      tensor = tensor.cpu().clone();
    }
    return all;
  }

  /// A state of the optimizer, as from a file.
  std::map<std::string, at::Tensor> other_state() const {
    auto state = optimizer->state_dict();
    for (auto& [name, tensor] : state) {
      tensor = name.starts_with("step") ? at::full({}, 9.0F) : tensor.cpu().abs() * 0.5 + 0.125;
    }
    return state;
  }

  const c10::Device device;
  torch::nn::Linear model{nullptr};
  at::Tensor shift;
  std::optional<MasterWeights> masters;
  std::optional<AdamW> optimizer;
  GradScaler scaler;
  at::Tensor lr;
  std::optional<LRScheduler> schedule;
  GraphedStep step;
  Tensors outputs;  // of the last call
};

using Change = std::function<void(LifetimeRun&)>;
using Changes = std::vector<std::pair<std::string, Change>>;

bool same_bits(const at::Tensor& a, const at::Tensor& b) { return a.scalar_type() == b.scalar_type() && a.equal(b); }

bool same_state(const LifetimeRun& a, const LifetimeRun& b) {
  const auto mine = a.state(), right = b.state();
  bool is_same = mine.size() == right.size();
  for (const auto& [name, tensor] : right) {
    is_same &= mine.contains(name) && same_bits(mine.at(name), tensor);
  }
  return is_same;
}

class GraphLifetimeTest : public DeviceTest {
 protected:
  /// Both runs, then the change, then both again: each call gives the bits of an eager one.
  /// @param recorded  graphs in the end
  void expect_the_bits_of_eager_steps(const Changes& changes, LifetimeRun::Kind kind, int64_t recorded) {
    for (const auto& [name, change] : changes) {
      SCOPED_TRACE(name);
      auto eager_kind = kind;
      eager_kind.graphed = false;
      LifetimeRun graphed(device, kind), eager(device, eager_kind);
      const auto call_both = [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          graphed.call(i);
          eager.call(i);
          for (size_t j = 0; j < eager.outputs.size(); ++j) {
            EXPECT_TRUE(same_bits(graphed.outputs[j], eager.outputs[j])) << "call " << i << ", output " << j;
          }
        }
        EXPECT_TRUE(graphed.step.was_replayed()) << graphed.step.eager_reason();
        EXPECT_TRUE(same_state(graphed, eager));
      };
      call_both(0, 4);
      const auto before = eager.state();
      change(graphed);
      change(eager);
      EXPECT_TRUE(same_state(graphed, eager)) << "changed alike";
      call_both(4, 9);
      EXPECT_EQ(graphed.step.counts().recorded, recorded);
    }
  }
};

/// "The next replay uses the new values."
TEST_F(GraphLifetimeTest, LoadsAreCopiedIntoTheMemoryThatAGraphUses) {
  const Changes changes{
      {"Optimizer::load_state_dict", [](LifetimeRun& run) { run.optimizer->load_state_dict(run.other_state()); }},
      {"load_state_dict of a state that lacks a parameter",
       [](LifetimeRun& run) {
         auto state = run.other_state();
         std::erase_if(state, [](const auto& entry) { return entry.first.ends_with("bias"); });
         run.optimizer->load_state_dict(state);
       }},
      {"load_torch_state_dict",
       [](LifetimeRun& run) {
         auto state = run.optimizer->torch_state_dict();
         for (auto& [number, slots] : state.state) {
           for (auto& [slot, tensor] : slots) {
             tensor = slot == "step" ? at::full({}, 5, at::kLong) : tensor.cpu().abs() + 0.25;
           }
         }
         state.param_groups[0].options["lr"] = 0.02;
         run.optimizer->load_torch_state_dict(state);
       }},
      {"torch::load of an optimizer",
       [](LifetimeRun& run) {
         std::vector<NamedParameter> on_cpu;
         const auto groups = run.optimizer->named_param_groups();
         for (const NamedParameter& parameter : groups[0].params) {
           on_cpu.push_back({parameter.name, at::zeros(parameter.tensor.sizes()).requires_grad_()});
         }
         AdamW saved(on_cpu, AdamWOptions().lr(0.03));
         saved.load_state_dict(run.other_state());
         std::stringstream file;
         torch::save(saved, file);
         torch::load(*run.optimizer, file);
       }},
      {"GradScaler::load_state_dict",
       [](LifetimeRun& run) {
         auto state = run.scaler.state_dict();
         state["scale"] = 64.0;
         state["_growth_tracker"] = int64_t{1};
         run.scaler.load_state_dict(state);
       }},
      {"torch::load of a scaler",
       [](LifetimeRun& run) {
         std::stringstream file;
         torch::save(GradScaler(GradScalerOptions().init_scale(128).growth_interval(3)), file);
         torch::load(run.scaler, file);
       }},
      {"LRScheduler::set_steps", [](LifetimeRun& run) { run.schedule->set_steps(15); }},
      {"set_lr of a learning rate that is a tensor", [](LifetimeRun& run) { run.optimizer->set_lr(0.5); }},
      {"weights and tensors of the caller's",
       [](LifetimeRun& run) {
         const at::NoGradGuard no_grad;
         run.model->weight.copy_(at::full({3, 4}, 0.25F));
         run.shift.fill_(0.5);
       }},
  };
  expect_the_bits_of_eager_steps(changes, {}, /*recorded=*/1);
}

TEST_F(GraphLifetimeTest, LoadedMasterWeightsAreCopiedToo) {
  const Changes changes{{"MasterWeights::load_state_dict", [](LifetimeRun& run) {
                           auto state = run.masters->state_dict();
                           for (auto& [name, tensor] : state) {
                             tensor = tensor.cpu() * 0.5;
                           }
                           run.masters->load_state_dict(state);
                         }}};
  expect_the_bits_of_eager_steps(changes, {.has_masters = true}, /*recorded=*/1);
}

/// "If a tensor has moved or is gone, the next call drops the graph, warms up and records again."
TEST_F(GraphLifetimeTest, RecordsAgainWhenATensorHasMoved) {
  std::vector<at::Tensor> kept;  // so that memory is not freed
  const auto move_weight = [](LifetimeRun& run) {
    auto& weight = run.model->weight;
    weight.set_data(weight.detach() * 0.5);
  };
  const Changes changes{
      {"set_data, and the old memory is freed", move_weight},
      {"set_data, and somebody keeps the old memory",
       [&](LifetimeRun& run) {
         kept.push_back(run.model->weight.detach());
         move_weight(run);
       }},
      {"torch::load of a module",
       [](LifetimeRun& run) {
         torch::nn::Linear saved(4, 3);
         move_to(*saved, run.device);
         {
           const at::NoGradGuard no_grad;
           saved->weight.fill_(0.125);
           saved->bias.fill_(-0.5);
         }
         std::stringstream file;
         torch::save(saved, file);
         torch::load(run.model, file);
       }},
      {"another tensor for the learning rate",
       [](LifetimeRun& run) {
         run.schedule.reset();
         run.lr.reset();
         run.optimizer->set_lr(at::full({}, 0.02, at::TensorOptions(run.device).dtype(at::kDouble)));
       }},
      {"a tensor of the caller's is replaced",
       [](LifetimeRun& run) { run.shift = at::full({3}, 0.75F).to(run.device).requires_grad_(); }},
  };
  expect_the_bits_of_eager_steps(changes, {}, /*recorded=*/2);
}

TEST_F(GraphLifetimeTest, MastersThatAreGivenUpAreNoLongerUsed) {
  const Changes changes{{"MasterWeights::to_float32", [](LifetimeRun& run) {
                           run.masters->to_float32();
                           run.masters.reset();
                           run.optimizer.emplace(*run.model, AdamWOptions().lr(0.01));
                           run.optimizer->set_lr(run.lr);
                         }}};
  expect_the_bits_of_eager_steps(changes, {.has_masters = true}, /*recorded=*/2);
}

TEST_F(GraphLifetimeTest, SaysWhichTensorHasMoved) {
  auto weight = at::ones({2}, device);
  GraphedStep step(
      device, [&](const Tensors& inputs) { return Tensors{weight.mul_(2) + inputs[0]}; },
      GraphedStepOptions().warmup_steps(1));
  const Tensors inputs{at::zeros({1}, device)};
  for (int i = 0; i < 3; ++i) {
    step(inputs);
  }
  weight.set_data(at::ones({2}, device));
  EXPECT_EQ(step(inputs)[0][0].item<float>(), 2);
  EXPECT_THAT(step.eager_reason(), HasSubstr("warm-up, call 1 of 1"));
  EXPECT_THAT(step.eager_reason(), HasSubstr("a Float tensor of sizes [2], which aten::mul_ used, has moved"));
  EXPECT_EQ(step(inputs)[0][0].item<float>(), 4);
  EXPECT_TRUE(step.was_replayed());
  EXPECT_EQ(step.counts().recorded, 2);
}

/// Gradients that exist before the first call and are zeroed in place.
TEST_F(GraphLifetimeTest, GradientsThatAreDroppedAreMadeAnew) {
  const auto parameter = at::ones({2}, device).requires_grad_();
  parameter.mutable_grad() = at::zeros({2}, device);
  GraphedStep step(
      device,
      [&](const Tensors& inputs) {
        if (parameter.grad().defined()) {
          parameter.mutable_grad().zero_();
        }
        (parameter * inputs[0]).sum().backward();
        return Tensors{parameter.grad().sum()};
      },
      GraphedStepOptions().warmup_steps(1));
  for (int i = 1; i <= 6; ++i) {
    EXPECT_EQ(step({at::full({1}, i, device)})[0].item<float>(), static_cast<float>(2 * i)) << i;
    if (i == 3) {
      EXPECT_TRUE(step.was_replayed());
      parameter.mutable_grad().reset();
    }
  }
  EXPECT_TRUE(step.was_replayed());
}

TEST_F(GraphLifetimeTest, PinnedMemoryThatAStepReadsMayBeReplaced) {
  auto host = at::full({2}, 1.0F).pin_memory();
  GraphedStep step(
      device,
      [&](const Tensors& inputs) {
        return Tensors{host.to(inputs[0].device(), host.scalar_type(), /*non_blocking=*/true) + inputs[0]};
      },
      GraphedStepOptions().warmup_steps(1));
  const auto value = [&] { return step({at::zeros({1}, device)})[0][0].item<float>(); };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(value(), 1);
  }
  host.fill_(2);
  EXPECT_EQ(value(), 2) << "a value that changed in place";
  EXPECT_TRUE(step.was_replayed());
  host.set_data(at::full({2}, 3.0F).pin_memory());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(value(), 3);
  }
  EXPECT_EQ(step.counts().recorded, 2);
}

/// "Decisions of the step's C++ code stay as recorded until `reset()`."
TEST_F(GraphLifetimeTest, WhatTheHostDecidedStaysUntilAReset) {
  const auto load_option = [](const std::string& option, const TorchOption& value) {
    return [=](LifetimeRun& run) {
      auto state = run.optimizer->torch_state_dict();
      state.param_groups[0].options[option] = value;
      run.optimizer->load_torch_state_dict(state);
    };
  };
  const Changes numbers{
      {"a learning rate that is a number", [](LifetimeRun& run) { run.optimizer->set_lr(0.5); }},
      {"a loaded learning rate that is a number", load_option("lr", 0.25)},
      {"a loaded weight decay", load_option("weight_decay", 0.5)},
      {"loaded betas", load_option("betas", std::pair(0.5, 0.75))},
      {"eval()", [](LifetimeRun& run) { run.model->eval(); }},
      {"a parameter group", [](LifetimeRun& run) { run.optimizer->add_param_group({{{"shift", run.shift}}}); }},
      {"the scaler's growth factor", [](LifetimeRun& run) { run.scaler.set_growth_factor(4); }},
      {"the scaler's loaded growth interval",
       [](LifetimeRun& run) {
         auto state = run.scaler.state_dict();
         state["growth_interval"] = int64_t{1};
         run.scaler.load_state_dict(state);
       }},
  };
  const auto expect_no_effect = [&](const Changes& changes, bool has_schedule) {
    for (const auto& [name, change] : changes) {
      SCOPED_TRACE(name);
      const LifetimeRun::Kind eager{.graphed = false, .has_schedule = has_schedule};
      LifetimeRun graphed(device, {.has_schedule = has_schedule}), changed(device, eager), unchanged(device, eager);
      const auto call_all = [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          for (LifetimeRun* run : {&graphed, &changed, &unchanged}) {
            run->call(i);
          }
        }
      };
      call_all(0, 4);
      const auto shift = unchanged.shift.detach().cpu().clone();
      change(graphed);
      change(changed);
      call_all(4, 7);
      EXPECT_TRUE(graphed.step.was_replayed());
      EXPECT_FALSE(same_state(changed, unchanged)) << "the change changes something";
      EXPECT_TRUE(same_bits(graphed.outputs[0], unchanged.outputs[0]));
      EXPECT_TRUE(at::equal(graphed.shift.cpu(), shift));
      change(unchanged);
      graphed.step.reset();
      call_all(7, 11);
      EXPECT_TRUE(graphed.step.was_replayed());
      EXPECT_TRUE(same_state(graphed, unchanged));
      EXPECT_TRUE(same_bits(graphed.outputs[0], unchanged.outputs[0]));
    }
  };
  expect_no_effect(numbers, /*has_schedule=*/false);
  expect_no_effect({{"another tensor for the learning rate, while the first one is kept",
                     [](LifetimeRun& run) {
                       run.optimizer->set_lr(at::full({}, 0.02, at::TensorOptions(run.device).dtype(at::kDouble)));
                     }}},
                   /*has_schedule=*/true);
}

class GraphRefusalTest : public DeviceTest {
 protected:
  /// Of the call that would record. Earlier work stays done.
  void expect_refusal(const GraphedStep::Step& body, const std::string& why) {
    GraphedStep step(device, body, GraphedStepOptions().warmup_steps(2));
    const Tensors inputs{at::ones({2}, device)};
    step(inputs);
    step(inputs);
    EXPECT_THAT([&] { step(inputs); },
                ThrowsMessage<c10::Error>(
                    testing::AllOf(testing::StartsWith("GraphedStep: the step cannot be recorded: "), HasSubstr(why))));
    EXPECT_EQ(step.counts().recorded, 0);
    EXPECT_EQ((at::ones({2}, device) * 2).sum().item<float>(), 4) << "the process goes on";
  }
};

/// A replay would read the sum that was there when the step was recorded.
TEST_F(GraphRefusalTest, ATensorThatAStepReplacesForTheNextCall) {
  const auto first = at::zeros({2}, device);
  auto sum = first;
  expect_refusal(
      [&](const Tensors& inputs) {
        sum = sum + inputs[0];
        return Tensors{sum};
      },
      "a Float tensor of sizes [2], which aten::add used, was freed or moved");
}

TEST_F(GraphRefusalTest, ATensorThatAStepGivesOtherMemory) {
  auto weight = at::ones({3}, device);
  std::vector<at::Tensor> kept;
  expect_refusal(
      [&](const Tensors& inputs) {
        kept.push_back(weight.detach());
        weight.set_data(weight * inputs[0].sum());
        return Tensors{weight.sum()};
      },
      "a Float tensor of sizes [3], which aten::detach used, was freed or moved");
}

/// Each replay would begin with moments of 0.
TEST_F(GraphRefusalTest, AFirstGradientInARecordedStep) {
  auto early = at::ones({2}, device).requires_grad_(), late = at::ones({2}, device).requires_grad_();
  SGD sgd({{"early", early}, {"late", late}}, SGDOptions().lr(0.1).momentum(0.9));
  int calls = 0;
  expect_refusal(
      [&](const Tensors& inputs) {
        sgd.zero_grad();
        ((++calls > 2 ? early * late : early) * inputs[0]).sum().backward();
        sgd.step();
        return Tensors{early.detach().sum()};
      },
      "parameter late has its first gradient");
}

}  // namespace
}  // namespace mezzo::simulated
