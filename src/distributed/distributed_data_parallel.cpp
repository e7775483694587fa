#include "mezzo/distributed/distributed_data_parallel.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/embedding.h>

#include <chrono>
#include <set>
#include <sstream>

#include "distributed/comm_ledger.h"
#include "distributed/counting_group.h"
#include "distributed/make_reducer.h"
#include "distributed/model_manifest.h"

namespace mezzo::distributed {
namespace {

using Options = DistributedDataParallelOptions;

constexpr size_t kBroadcastBucketBytes = 250 << 20;
constexpr double kMiB = 1 << 20;

std::string describe(const Options& options) {
  return fmt::format(
      "options find_unused_parameters={} static_graph={} gradient_as_bucket_view={} bucket_cap_mb={} "
      "broadcast_buffers={}",
      options.find_unused_parameters(), options.static_graph(), options.gradient_as_bucket_view(),
      options.bucket_cap_mb().value_or(25), options.broadcast_buffers());
}

bool makes_sparse_gradients(const torch::nn::Module& module) {
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    return embedding->options.sparse();
  }
  const auto* bag = module.as<torch::nn::EmbeddingBagImpl>();
  return bag != nullptr && bag->options.sparse();
}

/// What is to be trained, each tensor once.
struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  std::vector<bool> sparse;

  explicit Trained(const torch::nn::Module& module) {
    std::set<const void*> seen;
    for (const auto& part : module.named_modules()) {
      for (const auto& item : part.value()->named_parameters(/*recurse=*/false)) {
        if (item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
          parameters.push_back(item.value());
          names.push_back(part.key().empty() ? item.key() : part.key() + "." + item.key());
          sparse.push_back(makes_sparse_gradients(*part.value()));
        }
      }
    }
    TORCH_CHECK_VALUE(!parameters.empty(), "DistributedDataParallel: no parameter of ", module.name(),
                      " requires a gradient, so there is nothing to reduce");
  }
};

void broadcast(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::vector<at::Tensor> tensors, int root) {
  if (tensors.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (at::Tensor& tensor : tensors) {
    tensor = tensor.detach();
  }
  c10d::broadcast_coalesced(group, tensors, kBroadcastBucketBytes, root);
}

std::vector<at::Tensor> parameters_and_buffers(const torch::nn::Module& module, bool with_buffers) {
  auto tensors = module.parameters();
  if (with_buffers) {
    const auto buffers = module.buffers();
    tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  }
  return tensors;
}

/// So that autograd does not take a buffer for changed that an earlier forward has used: as torch, it may be.
class KeepVersions {
 public:
  explicit KeepVersions(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const at::Tensor& tensor : tensors_) {
      versions_.push_back(tensor._version());
    }
  }
  ~KeepVersions() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      auto counter = torch::autograd::impl::version_counter(tensors_[i]);  // shared, not copied
      counter.set_version(versions_[i]);
    }
  }
  KeepVersions(const KeepVersions&) = delete;
  KeepVersions& operator=(const KeepVersions&) = delete;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> versions_;
};

class CountedHook : public c10d::CppCommHookInterface<CommHook> {
 public:
  CountedHook(CommHook hook, c10::intrusive_ptr<CountingGroup> group, std::shared_ptr<CommLedger> ledger)
      : CppCommHookInterface(std::move(hook)), group_(std::move(group)), ledger_(std::move(ledger)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    ledger_->add_bucket();
    const int64_t collectives = ledger_->stats().total.collectives;
    const auto begin = std::chrono::steady_clock::now();
    auto future = state_(group_, bucket);
    TORCH_CHECK(future != nullptr, "DistributedDataParallel: the comm hook returned no future");
    if (future->completed() && ledger_->stats().total.collectives == collectives) {
      ledger_->add_blocked(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return future;
  }

 private:
  c10::intrusive_ptr<CountingGroup> group_;
  std::shared_ptr<CommLedger> ledger_;
};

/// Tells the reducer how many ranks there are still, in the form in which it asks.
class CountedRanks : public c10d::Work {
 public:
  explicit CountedRanks(int64_t count) : count_(at::full({1}, count, at::kLong)) {}
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<at::Tensor> result() override { return {count_}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    future->markCompleted(c10::IValue(result()));
    return future;
  }

 private:
  at::Tensor count_;
};

/// What each rank is about to do, where they may take different numbers of steps.
struct Round {
  // A status is a sum of these; 0: has finished.
  static constexpr int64_t kSteps = 1, kReduces = 2, kCopiesBuffers = 4;

  int active = 0;           // ranks that have not finished
  int last_active = -1;     // the highest of them
  int first_finished = -1;  // the lowest of the others
  int64_t status = 0;

  bool reduces() const { return (status & kReduces) != 0; }
  bool copies_buffers() const { return (status & kCopiesBuffers) != 0; }
};

Round exchange(ProcessGroup& group, int64_t status) {
  auto by_rank = at::zeros({group.size()}, at::kLong);
  by_rank.mutable_data_ptr<int64_t>()[group.rank()] = status;
  group.all_reduce_sum(by_rank);
  Round round;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t other = by_rank.const_data_ptr<int64_t>()[rank];
    if (other == 0) {
      round.first_finished = round.first_finished < 0 ? rank : round.first_finished;
      continue;
    }
    TORCH_CHECK(round.active == 0 || other == round.status, "DistributedDataParallel: ranks ", round.last_active,
                " and ", rank, " are not at the same kind of step; use no_sync and train() alike on all ranks");
    ++round.active;
    round.last_active = rank;
    round.status = other;
  }
  return round;
}

/// The reducer's own error is a page of Python's options, and numbers the parameters.
[[noreturn]] void throw_unfinished(const c10::Error& error, const std::vector<std::string>& names) {
  const std::string text = error.what_without_backtrace();
  const std::string before = "did not receive grad for rank ";
  std::vector<std::string> missing;
  if (const size_t at = text.find(before); at != std::string::npos) {
    std::istringstream numbers(text.substr(text.find(':', at) + 1));
    for (size_t index = 0; numbers >> index && index < names.size();) {
      missing.push_back(names[index]);
    }
  }
  TORCH_CHECK(!missing.empty(), text);
  TORCH_CHECK(false, "DistributedDataParallel: the last backward gave no gradient to ",
              fmt::to_string(fmt::join(missing, ", ")),
              "; use every output of forward in the loss, and set find_unused_parameters where forward does not use "
              "all parameters");
}

}  // namespace

struct DistributedDataParallelBase::Core : std::enable_shared_from_this<Core> {
  Core(std::shared_ptr<torch::nn::Module> the_module, ProcessGroup& the_group, const Options& the_options);

  bool reduces() const { return syncs && c10::GradMode::is_enabled(); }
  bool copies_buffers() const { return module->is_training() && copies_buffers_next && has_buffers; }
  void copy_buffers(int root);
  void rebuild_buckets();
  void shadow(const Round& round);
  std::vector<at::Tensor> pass_through(const std::vector<at::Tensor>& outputs);
  void delay_reduction();

  std::shared_ptr<torch::nn::Module> module;
  ProcessGroup& group;
  Options options;
  Trained trained;
  std::shared_ptr<CommLedger> ledger = std::make_shared<CommLedger>();
  c10::intrusive_ptr<CountingGroup> reducers_group, hooks_group;
  std::unique_ptr<c10d::Reducer> reducer;
  bool has_buffers = false;         // that are to be copied
  bool syncs = true;                // no no_sync
  bool copies_buffers_next = true;  // once for each reduction
  bool has_hook = false;
  bool has_reduced = false;       // this rank itself
  bool delays_reduction = false;  // static graph: has seen its first backward
  std::optional<JoinOptions> joining;
};

DistributedDataParallelBase::Core::Core(std::shared_ptr<torch::nn::Module> the_module,
                                        ProcessGroup& the_group,
                                        const Options& the_options)
    : module(std::move(the_module)), group(the_group), options(the_options), trained(*module) {
  TORCH_CHECK_VALUE(options.bucket_cap_mb().value_or(1) > 0,
                    "DistributedDataParallel: bucket_cap_mb must be above 0, got ",
                    options.bucket_cap_mb().value_or(1));
  has_buffers = options.broadcast_buffers() && !module->buffers().empty();
  if (options.init_sync()) {
    auto lines = distributed::describe(*module);
    lines.push_back(describe(options));
    check_same_lines(group, lines);
    group.guard([&] { broadcast(group.c10d(), parameters_and_buffers(*module, has_buffers), /*root=*/0); });
  }
  reducers_group = c10::make_intrusive<CountingGroup>(group.c10d(), ledger, /*for_hook=*/false);
  hooks_group = c10::make_intrusive<CountingGroup>(group.c10d(), ledger, /*for_hook=*/true);
  const auto bytes = static_cast<int64_t>(options.bucket_cap_mb().value_or(25) * kMiB);
  reducer = make_reducer(trained.parameters, trained.names, trained.sparse, reducers_group,
                         {options.find_unused_parameters(), options.static_graph(), options.gradient_as_bucket_view(),
                          options.bucket_cap_mb() ? bytes : c10d::kDefaultFirstBucketBytes, bytes});
}

void DistributedDataParallelBase::Core::copy_buffers(int root) {
  const auto buffers = module->buffers();
  const KeepVersions keep_versions(buffers);
  broadcast(reducers_group, buffers, root);
}

void DistributedDataParallelBase::Core::rebuild_buckets() {
  try {
    reducer->rebuild_buckets();
  } catch (const c10::Error& error) {
    if (std::string_view(error.what()).find("finished reduction in the prior iteration") != std::string_view::npos) {
      throw_unfinished(error, trained.names);
    }
    throw;
  }
}

/// Takes part in a step of the others.
void DistributedDataParallelBase::Core::shadow(const Round& round) {
  if (round.reduces()) {
    // The first step of a static graph is another one, and nobody else could learn the graph for this rank.
    TORCH_CHECK(!options.static_graph() || has_reduced,
                "DistributedDataParallel: with static_graph, every rank must "
                "take a step before it runs out of batches");
    rebuild_buckets();
  }
  if (round.copies_buffers()) {
    copy_buffers(round.last_active);
  }
  copies_buffers_next = round.reduces();
  if (!round.reduces()) {
    return;
  }
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> reduced;
  for (auto& zeros : reducer->get_grad_buckets(/*return_zero_tensors=*/true)) {
    reduced.push_back(reducer->run_comm_hook(zeros));
  }
  for (const auto& future : reduced) {
    future->waitAndThrow();
  }
  if (options.find_unused_parameters() && !options.static_graph()) {
    std::vector<at::Tensor> used{reducer->get_local_used_map_on_device().zero_()};
    reducers_group->allreduce(used, {})->wait();
  }
  reducer->push_rebuilt_params_for_all_indices();
}

void DistributedDataParallelBase::Core::delay_reduction() {
  if (options.static_graph() && !delays_reduction) {
    delays_reduction = true;
    torch::autograd::Engine::get_default_engine().queue_callback([core = shared_from_this()] {
      core->ledger->compute_has_ended();
      core->reducer->delay_all_reduce();
    });
  }
}

namespace {

/// Hands outputs on. Those that the loss does not use get no gradient rather than one of zeros, so that the parameters
/// behind them count as unused; and backward comes by here before it reaches the module.
struct PassThrough : torch::autograd::Function<PassThrough> {
  /// What to do when backward comes by.
  struct Visit : torch::CustomClassHolder {
    std::function<void()> call;
  };

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const std::function<void()>& visit,
                                                at::TensorList inputs) {
    context->set_materialize_grads(false);
    auto holder = c10::make_intrusive<Visit>();
    holder->call = visit;
    context->saved_data["visit"] = c10::IValue::make_capsule(std::move(holder));
    torch::autograd::variable_list outputs;
    for (const at::Tensor& input : inputs) {
      outputs.push_back(input.clone());  // so that it may be changed in place
    }
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    c10::static_intrusive_pointer_cast<Visit>(context->saved_data["visit"].toCapsule())->call();
    torch::autograd::variable_list all{at::Tensor()};  // none for `visit`
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
};

}  // namespace

std::vector<at::Tensor> DistributedDataParallelBase::Core::pass_through(const std::vector<at::Tensor>& outputs) {
  const auto has_history = [](const at::Tensor& tensor) { return tensor.defined() && tensor.grad_fn() != nullptr; };
  std::vector<at::Tensor> inputs;
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(inputs), has_history);
  if (inputs.empty()) {
    return outputs;
  }
  const std::function<void()> visit = [weak = weak_from_this()] {
    if (const auto core = weak.lock()) {
      core->delay_reduction();
    }
  };
  const auto passed = PassThrough::apply(visit, at::TensorList(inputs));
  auto result = outputs;
  size_t next = 0;
  for (at::Tensor& tensor : result) {
    if (has_history(tensor)) {
      tensor = passed[next++];
    }
  }
  return result;
}

DistributedDataParallelBase::DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                                         ProcessGroup& group,
                                                         const Options& options)
    : core_(std::make_shared<Core>(std::move(module), group, options)) {}

DistributedDataParallelBase::~DistributedDataParallelBase() = default;

void DistributedDataParallelBase::before_forward() {
  Core& core = *core_;
  const bool reduces = core.reduces(), copies_buffers = core.copies_buffers();
  if (reduces) {
    core.ledger->begin_step();
    core.reducer->prepare_for_forward();
  }
  if (!reduces && !copies_buffers) {
    return;
  }
  core.group.guard([&] {
    int root = 0;
    if (core.joining) {
      const Round round = exchange(
          core.group, Round::kSteps + (reduces ? Round::kReduces : 0) + (copies_buffers ? Round::kCopiesBuffers : 0));
      TORCH_CHECK(!core.joining->throw_on_early_termination() || round.first_finished < 0,
                  "DistributedDataParallel: rank ", round.first_finished, " has run out of batches");
      root = round.last_active;
      core.reducer->set_forward_pass_work_handle(c10::make_intrusive<CountedRanks>(round.active),
                                                 core.joining->divide_by_initial_world_size());
    }
    if (reduces) {
      core.rebuild_buckets();
    }
    if (copies_buffers) {
      core.copy_buffers(root);
    }
  });
}

bool DistributedDataParallelBase::inspects_output() const {
  const Options& options = core_->options;
  return core_->reduces() && (options.static_graph() ? !core_->delays_reduction : options.find_unused_parameters());
}

void DistributedDataParallelBase::after_forward(std::vector<at::Tensor>& outputs) {
  Core& core = *core_;
  if (!core.reduces()) {
    core.copies_buffers_next = core.copies_buffers_next && !core.module->is_training();
    return;
  }
  core.copies_buffers_next = true;
  core.has_reduced = true;
  core.reducer->prepare_for_backward(outputs);
  if (inspects_output()) {
    outputs = core.pass_through(outputs);
  }
}

void DistributedDataParallelBase::throw_cannot_inspect(const char* type) {
  TORCH_CHECK_VALUE(false, "DistributedDataParallel: cannot find the tensors in the output of forward, of type ",
                    c10::demangle(type), ", as find_unused_parameters and static_graph need; return a tensor, tuple, ",
                    "vector, map or optional, or give the type a visit_tensors (mezzo/parallel/visit_tensors.h)");
}

void DistributedDataParallelBase::register_comm_hook(CommHook hook) {
  TORCH_CHECK_VALUE(hook != nullptr, "DistributedDataParallel: the comm hook is empty");
  TORCH_CHECK_VALUE(!core_->has_hook, "DistributedDataParallel: a comm hook is registered already");
  core_->has_hook = true;
  core_->reducer->register_comm_hook(std::make_unique<CountedHook>(std::move(hook), core_->hooks_group, core_->ledger));
}

CommStats DistributedDataParallelBase::comm_stats() const { return core_->ledger->stats(); }

void DistributedDataParallelBase::join(const std::function<void()>& loop, const JoinOptions& options) {
  Core& core = *core_;
  TORCH_CHECK_VALUE(!core.joining, "DistributedDataParallel: join within join");
  TORCH_CHECK_VALUE(!core.has_hook || options.divide_by_initial_world_size(),
                    "DistributedDataParallel: join cannot divide by the ranks that are left, since a comm hook is "
                    "registered, which divides by itself; set divide_by_initial_world_size");
  struct Joining {
    Core& core;
    ~Joining() {
      core.joining.reset();
      core.reducer->set_forward_pass_work_handle(nullptr, /*useStaticWorldSize=*/true);
    }
  } const joining{core};
  core.joining = options;
  loop();
  core.group.guard([&] {
    bool ran_last = true;
    while (true) {
      const Round round = exchange(core.group, 0);
      if (round.active == 0) {
        break;
      }
      TORCH_CHECK(!options.throw_on_early_termination(), "DistributedDataParallel: rank ", round.first_finished,
                  " has run out of batches");
      core.shadow(round);
      ran_last = false;
    }
    const Round last = exchange(core.group, ran_last ? Round::kSteps : 0);
    broadcast(core.group.c10d(), parameters_and_buffers(*core.module, core.has_buffers), last.last_active);
  });
}

NoSyncGuard::NoSyncGuard(DistributedDataParallelBase& module, bool enabled)
    : module_(module), previous_(module.core_->syncs) {
  module.core_->syncs = previous_ && !enabled;
}

NoSyncGuard::~NoSyncGuard() { module_.core_->syncs = previous_; }

}  // namespace mezzo::distributed
