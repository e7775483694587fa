#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"

#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/embedding.h>

#include <chrono>
#include <set>
#include <sstream>

#include "distributed/data_parallel/distributed_data_parallel_core.h"
#include "distributed/data_parallel/make_reducer.h"
#include "distributed/data_parallel/model_manifest.h"
#include "distributed/data_parallel/pass_through.h"
#include "distributed/group/backends.h"
#include "graph/step_recording.h"

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

/// So that autograd does not take a buffer for changed that an earlier forward has
/// used: as torch, it may be.
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
  CountedHook(CommHook hook, c10::intrusive_ptr<CountingGroup> group)
      : CppCommHookInterface(std::move(hook)), group_(std::move(group)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const int64_t buckets = group_->stats().buckets;
    const auto begin = std::chrono::steady_clock::now();
    auto future = state_(group_, bucket);
    TORCH_CHECK(future != nullptr, "DistributedDataParallel: the comm hook returned no future");
    if (future->completed() && group_->stats().buckets == buckets) {
      group_->add_blocked(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return future;
  }

 private:
  c10::intrusive_ptr<CountingGroup> group_;
};

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
              "; use every output of forward in the loss, and set find_unused_parameters if forward does not use all "
              "parameters");
}

}  // namespace

TrainedParameters::TrainedParameters(const torch::nn::Module& module) {
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
  counting_group = c10::make_intrusive<CountingGroup>(*group.c10d());
  const auto bytes = static_cast<int64_t>(options.bucket_cap_mb().value_or(25) * kMiB);
  reducer = make_reducer(trained.parameters, trained.names, trained.sparse, counting_group,
                         {options.find_unused_parameters(), options.static_graph(), options.gradient_as_bucket_view(),
                          options.bucket_cap_mb() ? bytes : c10d::kDefaultFirstBucketBytes, bytes});
}

void DistributedDataParallelBase::Core::copy_buffers(int root) {
  const auto buffers = module->buffers();
  const KeepVersions keep_versions(buffers);
  broadcast(group.c10d(), buffers, root);
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

/// The reducer keeps autograd's nodes that add gradients, and so the stream that was current when it was made. A
/// recorded step has a separate stream, and cannot use the default one.
void DistributedDataParallelBase::Core::follow_stream() {
  const auto device = trained.parameters.front().device();
  if (device.is_cpu()) {
    return;
  }
  const auto current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (stream != current) {
    for (const at::Tensor& parameter : trained.parameters) {
      const auto node = torch::autograd::impl::grad_accumulator(parameter);
      node->clear_input_metadata();
      node->add_input_metadata(parameter);
    }
    stream = current;
  }
}

bool DistributedDataParallelBase::Core::reduces_between_graphs() const {
  return StepRecording::current() != nullptr &&
         !can_be_captured(*group.c10d(), trained.parameters.front().device().type());
}

/// As the reducer does within backward: divides unless a hook does, reduces bucket by bucket, and hands the sums back.
void DistributedDataParallelBase::Core::reduce_between_graphs() {
  awaits_backward = false;
  const at::NoGradGuard no_grad;
  const auto for_each_gradient = [&](const auto& visit) {
    for (const auto& bucket : reducer->get_grad_buckets(/*return_zero_tensors=*/false)) {
      const auto parameters = bucket.getParameters();
      const auto sent = bucket.getGradients();
      for (size_t i = 0; i < sent.size(); ++i) {
        TORCH_CHECK(parameters[i].grad().defined(), "backward gave some parameters no gradient");
        visit(parameters[i].mutable_grad(), sent[i]);
      }
    }
  };
  const auto share = at::native::wrapped_scalar_tensor(1.0 / group.size());
  for_each_gradient([&](const at::Tensor& gradient, at::Tensor sent) {
    if (!has_hook) {
      at::mul_out(sent, gradient, share);
    } else if (!gradient.is_alias_of(sent)) {
      sent.copy_(gradient);
    }
  });
  StepRecording::current()->call_between_graphs([this] {
    group.guard([&] {
      counting_group->begin_step(/*notes=*/{});
      for (auto& bucket : reducer->get_grad_buckets(/*return_zero_tensors=*/false)) {
        const auto reduced = reducer->run_comm_hook(bucket);
        reduced->waitAndThrow();
        const auto result = c10d::detail::parseCppCommHookResult(reduced->value());
        if (!result.is_same(bucket.getBuffer())) {
          bucket.getBufferRef().copy_(result);
        }
      }
    });
  });
  for_each_gradient([](const at::Tensor& gradient, const at::Tensor& sent) {
    if (!gradient.is_alias_of(sent)) {
      gradient.copy_(sent);
    }
  });
}

void DistributedDataParallelBase::Core::delay_reduction() {
  if (options.static_graph() && !delays_reduction) {
    delays_reduction = true;
    torch::autograd::Engine::get_default_engine().queue_callback([core = shared_from_this()] {
      core->counting_group->compute_has_ended();
      core->reducer->delay_all_reduce();
    });
  }
}

DistributedDataParallelBase::DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                                         ProcessGroup& group,
                                                         const Options& options)
    : core_(std::make_shared<Core>(module, group, options)) {
  register_module("module", std::move(module));
}

DistributedDataParallelBase::~DistributedDataParallelBase() = default;

void DistributedDataParallelBase::guard(const std::function<void()>& work) {
  c10::GradMode::is_enabled() ? core_->group.guard(work) : work();
}

void DistributedDataParallelBase::backward(const at::Tensor& loss) {
  core_->group.guard([&] {
    loss.backward();
    if (core_->awaits_backward) {
      core_->reduce_between_graphs();
    }
  });
}

void DistributedDataParallelBase::before_forward() {
  Core& core = *core_;
  const bool reduces = core.reduces(), copies_buffers = core.copies_buffers();
  auto* const recording = StepRecording::current();
  core.awaits_backward = core.awaits_backward && recording != nullptr;  // of a recording that ended in an error
  if (c10::GradMode::is_enabled()) {
    core.follow_stream();
  }
  if (reduces && !core.reduces_between_graphs()) {
    core.counting_group->begin_step(StepRecording::current_notes());
    core.reducer->prepare_for_forward();
  }
  if (!reduces && !copies_buffers) {
    return;
  }
  TORCH_CHECK(recording == nullptr || !core.options.find_unused_parameters() || core.options.static_graph(),
              "DistributedDataParallel: with find_unused_parameters the host reads which parameters were used; set "
              "static_graph if all steps use the same");
  core.group.guard([&] {  // in forward passes without gradients too, if they copy buffers
    if (recording != nullptr) {
      const auto check = [&core] {
        TORCH_CHECK(!core.joining,
                    "DistributedDataParallel: a recorded step cannot run within join, where ranks agree on each step; "
                    "set GraphedStepOptions().enabled(false)");
      };
      check();
      do_each_time(StepRecording::current_notes(), check);
    }
    const int root = core.joining ? core.agree_on_step(reduces, copies_buffers) : 0;
    if (reduces) {
      TORCH_CHECK(recording == nullptr || !core.reducer->should_rebuild_buckets(),
                  "DistributedDataParallel: its first two steps are not recorded, since ranks agree on buckets then");
      core.rebuild_buckets();
      if (core.reducer->should_rebuild_buckets()) {
        warm_up_once_more();
      }
    }
    if (copies_buffers) {
      run_collective(core.group, core.trained.parameters.front().device().type(),
                     [&core, root] { core.copy_buffers(root); });
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
  if (core.reduces_between_graphs()) {
    core.awaits_backward = true;
    StepRecording::current()->check_at_end([&core] {
      TORCH_CHECK(!std::exchange(core.awaits_backward, false),
                  "DistributedDataParallel: call its backward(loss) instead of loss.backward(), because this backend "
                  "reduces gradients on the host afterwards");
    });
    return;
  }
  core.reducer->prepare_for_backward(outputs);
  if (inspects_output()) {
    outputs = pass_through(outputs, [weak = core.weak_from_this()] {
      if (const auto alive = weak.lock()) {
        alive->delay_reduction();
      }
    });
  }
}

void DistributedDataParallelBase::throw_cannot_inspect(const char* type) {
  TORCH_CHECK_VALUE(false, "DistributedDataParallel: cannot find the tensors in the output of forward, of type ",
                    c10::demangle(type), ", as find_unused_parameters and static_graph need; return a tensor, tuple, ",
                    "vector, map or optional, or give the type a visit_tensors (mezzo/amp/visit_tensors.h)");
}

void DistributedDataParallelBase::register_comm_hook(CommHook hook) {
  TORCH_CHECK_VALUE(hook != nullptr, "DistributedDataParallel: the comm hook is empty");
  TORCH_CHECK_VALUE(!core_->has_hook, "DistributedDataParallel: a comm hook is registered already");
  core_->has_hook = true;
  core_->reducer->register_comm_hook(std::make_unique<CountedHook>(std::move(hook), core_->counting_group));
}

CommStats DistributedDataParallelBase::comm_stats() const { return core_->counting_group->stats(); }

NoSyncGuard::NoSyncGuard(DistributedDataParallelBase& module, bool enabled)
    : module_(module), previous_(module.core_->syncs) {
  module.core_->syncs = previous_ && !enabled;
}

NoSyncGuard::~NoSyncGuard() { module_.core_->syncs = previous_; }

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const DistributedDataParallelBase& module) {
  module.save(archive);
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           DistributedDataParallelBase& module) {
  module.load(archive);
  return archive;
}

}  // namespace mezzo::distributed
